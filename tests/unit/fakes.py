"""An `ssh` that stands first in PATH and answers by itself: no network, no node."""

from __future__ import annotations

import io
import json
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from fleet import on_node
from fleet.on_node import Link

SSH = """#!/bin/sh
for node; do [ "$remote" ] && before=$remote; remote=$node; done
node=$before
echo "$node" >>{folder}/calls
if [ -e {folder}/$node ]; then . {folder}/$node; else exec sh -c "$remote"; fi
"""
SUDO = """#!/bin/sh
while case "$1" in -*) true ;; *) false ;; esac; do shift; done
exec "$@"
"""


@dataclass(frozen=True)
class FakeSsh:
    """What the stand-in does for each node, and what it was asked."""

    folder: Path

    def does(self, node: str, shell: str) -> None:
        """From now on, a call for the node runs this shell text, in which $remote is what the node would run."""
        (self.folder / node).write_text(shell)

    def answers(self, node: str, answer: object, status: int = 0, said: str = "") -> None:
        """The node program's answer, its exit status and what it says on stderr."""
        (self.folder / f"{node}.json").write_text(f"{json.dumps(answer)}\n" if answer is not None else "")
        (self.folder / f"{node}.err").write_text(said)
        place = self.folder / node
        self.does(node, f"cat >/dev/null; cat {place}.err >&2; cat {place}.json; exit {status}\n")

    def calls(self) -> list[str]:
        """The nodes that were called, in the order of the calls."""
        place = self.folder / "calls"
        return place.read_text().split() if place.exists() else []


def install(folder: Path, patch: pytest.MonkeyPatch) -> FakeSsh:
    """Put the stand-in first in PATH, and the stack's files into the folder."""
    place = folder / "bin"
    place.mkdir()
    for name, text in (("ssh", SSH.format(folder=place)), ("sudo", SUDO)):
        (place / name).write_text(text)
        (place / name).chmod(0o755)
    patch.setenv("PATH", os.pathsep.join((str(place), os.environ["PATH"])))
    patch.setattr(on_node, "folder", lambda stack: folder / "stacks" / stack)
    return FakeSsh(place)


def link(number: int, **values: object) -> Link:
    """The link of node `number`, from 1."""
    common = {"user": "nvidia", "port": 22, "host_key": f"ssh-ed25519 AAAA{number}"}
    return Link(**{"name": f"spark{number}", "address": f"192.168.1.{10 + number}", **common, **values})  # type: ignore[arg-type]


def program(main: str) -> bytes:
    """A zip that Python runs, as the node program is one."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("__main__.py", main)
    return buffer.getvalue()
