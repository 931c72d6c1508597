"""Bring the stand-ins for the card's tools into the disk that all nodes of a lab share."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

from . import bytecode
from .model import PACKAGE
from .standins.main import TOOLS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .model import Node

SOURCE = PACKAGE / "standins"
HOME = "usr/local/lib/lab"
COMMANDS = "usr/local/sbin"


def install(layer: Path, root: Path, nodes: Sequence[Node]) -> None:
    """The package, compiled; a link for each tool (HOME/tools) and a command that leads there; who the nodes are."""
    home = layer / HOME
    (home / "standins/__pycache__").mkdir(parents=True)
    sources = {f"/{HOME}/standins/{path.name}": path.read_text() for path in sorted(SOURCE.glob("*.py"))}
    contents = {path: text.encode() for path, text in sources.items()} | bytecode.compiled(root, sources)
    for path, content in contents.items():
        (layer / path.lstrip("/")).write_bytes(content)
    shutil.copy(SOURCE / "bin/standin", home / "standin")
    (home / "tools").mkdir()
    for tool in TOOLS:
        (home / "tools" / tool).symlink_to("../standin")
        (layer / COMMANDS / tool).symlink_to(f"../lib/lab/tools/{tool}")
    (home / "nodes.json").write_text(json.dumps({node.name: node.address for node in nodes}, indent=1) + "\n")
