"""Byte code by another root's own Python, so that it is not compiled there at each start."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from typing import TYPE_CHECKING

from .shell import LabError

if TYPE_CHECKING:
    from pathlib import Path

COMPILER = """
import base64, importlib.util, json, sys
from importlib._bootstrap_external import _code_to_hash_pyc as pyc
files = json.load(sys.stdin)
print(json.dumps({
    importlib.util.cache_from_source(path): base64.b64encode(
        pyc(compile(text, path, "exec"), importlib.util.source_hash(text.encode()), False)).decode()
    for path, text in files.items()
}))
"""


def python(root: Path, *arguments: str, stdin: str | None = None) -> str:
    """Run a root's Python; hash seed and paths are fixed, for byte code to be so too. A LabError if it fails.

    What it imports itself it does not keep compiled: such a file names the time of its source, and would be left as it
    is by whoever compiles all.
    """
    done = subprocess.run(
        ["chroot", str(root), "/usr/bin/python3", "-BS", *arguments],
        check=False, capture_output=True, text=True, input=stdin, env={**os.environ, "PYTHONHASHSEED": "0"},
    )  # fmt: skip
    if done.returncode:
        raise LabError(f"the Python of {root} fails: {done.stderr.strip()}")
    return done.stdout


def compiled(root: Path, files: dict[str, str]) -> dict[str, bytes]:
    """Path: content of the .pyc files for sources at these absolute paths; never compared with the source again."""
    found = json.loads(python(root, "-c", COMPILER, stdin=json.dumps(files)))
    return {path: base64.b64decode(content) for path, content in found.items()}
