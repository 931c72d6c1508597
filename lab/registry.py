"""Which labs this machine has: one folder for each in /run, with its claim and its locks.

A lab is alive while a command works on it, one of its daemons holds its lock, or a process of one of
its nodes is left. The claim is written before anything else is made, so what a dead lab has left
behind can always be named.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from .model import DEFAULT_NAME, NETWORKS, Node, replace
from .shell import LabError

if TYPE_CHECKING:
    from collections.abc import Iterator


ROOT = Path("/run/spark-lab")


@dataclass(frozen=True)
class Claim:
    """What one lab has of this machine."""

    name: str
    directory: str
    slot: int
    nodes: int

    @property
    def members(self) -> list[Node]:
        """The nodes that it may have started."""
        return [Node(self.name, self.slot, index + 1) for index in range(self.nodes)]


def folder(name: str) -> Path:
    """Where a lab's claim and locks lie."""
    return ROOT / name


def read(name: str) -> Claim | None:
    """One lab's claim."""
    try:
        return Claim(**json.loads((folder(name) / "claim.json").read_text()))
    except (FileNotFoundError, NotADirectoryError):
        return None


def claims() -> list[Claim]:
    """All claims, living or dead."""
    names = [entry.name for entry in sorted(ROOT.iterdir()) if entry.is_dir()] if ROOT.is_dir() else []
    return [claim for name in names if (claim := read(name))]


def write(claim: Claim) -> None:
    """Enter or change a claim; only with the registry and the lab locked."""
    replace(folder(claim.name) / "claim.json", json.dumps(asdict(claim)) + "\n")


def release(name: str) -> None:
    """Give up a lab's claim; only with the lab locked, whose lock stays until then."""
    for path in (*folder(name).glob("*.pid"), folder(name) / "claim.json"):
        path.unlink(missing_ok=True)


def _lock(path: Path, wait: bool) -> IO[str] | None:
    """Lock a file, never one that was deleted meanwhile; None when somebody else has it and we do not wait."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file = path.open("a")
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            file.close()
            return None
        with contextlib.suppress(FileNotFoundError):
            if os.fstat(file.fileno()).st_ino == path.stat().st_ino:
                return file
        file.close()


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Wait for, and hold, the registry: for choosing a slot and for cleaning up."""
    file = _lock(ROOT / "lock", wait=True)
    assert file
    with file:
        yield


@contextlib.contextmanager
def exclusive(name: str) -> Iterator[bool]:
    """Hold a lab's command lock; False when a command is at work on it."""
    file = _lock(folder(name) / "command.lock", wait=False)
    try:
        yield file is not None
    finally:
        if file:
            if not read(name):
                shutil.rmtree(folder(name))
                _remove_if_empty()
            file.close()


def _remove_if_empty() -> None:
    """Remove the registry itself after the machine's last lab, unless somebody is at it."""
    file = _lock(ROOT / "lock", wait=False)
    if file and [entry.name for entry in ROOT.iterdir()] == ["lock"]:
        (ROOT / "lock").unlink()
        with contextlib.suppress(OSError):  # somebody has come
            ROOT.rmdir()
    if file:
        file.close()


def daemons_alive(name: str) -> bool:
    """Whether one of a lab's daemons holds its lock."""
    for path in folder(name).glob("*.pid"):
        with contextlib.suppress(FileNotFoundError), path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
    return False


def choose_slot(name: str, wanted: int | None, in_use: set[int]) -> int:
    """The slot that a lab gets: the one it had, else the first free one from 1; 0 is the demo's.

    The demo gets no other: its stack file names the addresses.
    """
    taken = in_use | {claim.slot for claim in claims() if claim.name != name}
    if name == DEFAULT_NAME:
        if 0 in taken:
            raise LabError(f"{NETWORKS[0]} is in use on this machine, and the stack file of the demo names it: free it")
        return 0
    candidates: list[int] = [*range(1, len(NETWORKS))]
    if wanted is not None:
        candidates.insert(0, wanted)
    for slot in candidates:
        if slot not in taken:
            return slot
    raise LabError("no /24 of 198.18.0.0/15 is free on this machine")
