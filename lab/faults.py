"""Faults and settings of a node's simulated card. They are files on its disk: a boot keeps them, a reset does not."""

from __future__ import annotations

import shlex
import subprocess
from typing import TYPE_CHECKING

from . import node as nodes
from .shell import LabError
from .standins import faults
from .standins.state import LASTING

if TYPE_CHECKING:
    from .model import Lab

FAULTS, SETTINGS = f"{LASTING}/faults", f"{LASTING}/settings"


def show(lab: Lab, node: str) -> dict[str, str]:
    """The faults that are set, with their values."""
    listing = _on(lab, node, f'cd {FAULTS} 2>/dev/null || exit 0; for f in *; do echo "$f=$(cat $f)"; done')
    return dict(line.split("=", 1) for line in listing.splitlines() if line != "*=")


def put(lab: Lab, node: str, name: str, value: str = "") -> None:
    """Set a fault, `NAME` or `NAME.SCOPE` (standins/faults.py); a LabError for one that there is not."""
    if wrong := faults.check(name, value):
        raise LabError(wrong)
    _write(lab, node, f"{FAULTS}/{name}", value)


def clear(lab: Lab, node: str, name: str = "") -> None:
    """Clear one fault, or all."""
    _on(lab, node, f"rm -f {FAULTS}/{shlex.quote(name) if name else '*'}")


def adjust(lab: Lab, node: str, name: str, value: str) -> None:
    """Set `dialect` (standins/dialect.py), `reload_seconds` (standins/reinit.py) or `perftest_seconds`
    (standins/perftest.py); an empty value: as by default.
    """
    _write(lab, node, f"{SETTINGS}/{name}", value)
    if not value:
        _on(lab, node, f"rm -f {SETTINGS}/{name}")


def _write(lab: Lab, node: str, path: str, value: str) -> None:
    folder, _, _ = path.rpartition("/")
    _on(lab, node, f"mkdir -p {folder} && cat > {shlex.quote(path)}", f"{value}\n")


def _on(lab: Lab, node: str, command: str, stdin: str = "") -> str:
    argv = nodes.ssh(lab, f"root@{node}", "-oBatchMode=yes", command)
    done = subprocess.run(argv, check=False, input=stdin, capture_output=True, text=True, timeout=30)
    if done.returncode:
        raise LabError(f"{node}: {command}: {done.stderr.strip()}")
    return done.stdout
