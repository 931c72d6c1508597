"""Bring the stand-ins for the card's tools into the disk that all nodes of a lab share."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from typing import TYPE_CHECKING

from .model import PACKAGE
from .shell import LabError
from .standins.main import TOOLS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .model import Node

SOURCE = PACKAGE / "standins"
HOME = "usr/local/lib/lab"
COMMANDS = "usr/local/sbin"
COMPILER = """
import base64, importlib.util, json, sys
from importlib._bootstrap_external import _code_to_hash_pyc as pyc
files = json.load(sys.stdin)
print(json.dumps({
    importlib.util.cache_from_source(path): base64.b64encode(pyc(compile(
        text, path, "exec"), importlib.util.source_hash(text.encode()), False)).decode()
    for path, text in files.items()
}))
"""


def install(layer: Path, root: Path, nodes: Sequence[Node]) -> None:
    """The package, compiled; a link for each tool (HOME/tools) and a command that leads there; who the nodes are."""
    home = layer / HOME
    sources = sorted(SOURCE.glob("*.py"))
    (home / "standins").mkdir(parents=True)
    for path in sources:
        shutil.copyfile(path, home / "standins" / path.name)
    for compiled, content in _compile(root, {f"/{HOME}/standins/{p.name}": p.read_text() for p in sources}).items():
        target = layer / compiled.lstrip("/")
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(content)
    shutil.copy(SOURCE / "bin/standin", home / "standin")
    (home / "tools").mkdir()
    for tool in TOOLS:
        (home / "tools" / tool).symlink_to("../standin")
        (layer / COMMANDS / tool).symlink_to(f"../lib/lab/tools/{tool}")
    (home / "nodes.json").write_text(json.dumps({node.name: node.address for node in nodes}, indent=1) + "\n")


def _compile(root: Path, files: dict[str, str]) -> dict[str, bytes]:
    """Byte code by the nodes' own Python: a tool that is started often must not be compiled each time."""
    done = subprocess.run(
        ["chroot", str(root), "/usr/bin/python3", "-ISc", COMPILER],
        check=False, capture_output=True, text=True, input=json.dumps(files),
    )  # fmt: skip
    if done.returncode:
        raise LabError(f"the nodes' Python fails: {done.stderr.strip()}")
    return {path: base64.b64decode(content) for path, content in json.loads(done.stdout).items()}
