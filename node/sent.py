"""Files of the operator's that are sent to the node: the one way in which a large file comes here.

Any object in a desired state with "source": "sent", a "path", a "sha256" and a "size" is such a file. It lies in a
folder of the stack's own, below its digest, and nowhere else. `wants` tells which of them are not here, `install`
is an `apply` whose request line is followed by the contents of those, one after the other. A file is at its place
whole and checked, or not at all, and is in the journal before its first byte comes.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .journal import Undo, folder
from .request import BAD_REQUEST, FAILED, Failure
from .steps import Work
from .system import Meta, System

SENT = "sent"
KIND = "placed"
META = Meta(0o644, 0, 0, 0)
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Sent:
    """One file; `size` in bytes."""

    path: str
    sha256: str
    size: int


def place(stack: str, what: str, sha256: str, name: str) -> str:
    """Where a file that is sent lies: below its digest, so that two versions never share a path."""
    return f"{folder(stack)}/{what}/{sha256}/{name}"


def files(desired: Any) -> Iterator[Sent]:
    """The files of a desired state, in its own order."""
    if isinstance(desired, dict):
        if desired.get("source") == SENT:
            yield Sent(desired["path"], desired["sha256"], desired["size"])
        for value in desired.values():
            yield from files(value)
    elif isinstance(desired, list):
        for value in desired:
            yield from files(value)


def here(system: System, file: Sent) -> bool:
    """Whether a file is at its place with its content, mode and owner."""
    meta = system.meta(file.path)
    if meta is None or (meta.mode, meta.uid, meta.gid) != (META.mode, META.uid, META.gid):
        return False
    return system.sha256(file.path) == file.sha256


def wants(system: System, desired: Any) -> dict[str, Any]:
    """The paths that have to be sent for a desired state; looks only."""
    return {"wants": [file.path for file in files(desired) if not here(system, file)]}


@dataclass(frozen=True)
class Place:
    """Put a file at its place from what is being sent."""

    file: Sent
    needed: bool = True

    @property
    def key(self) -> str:
        return f"{KIND}:{self.file.path}"

    def before(self, work: Work) -> Any:
        """Nothing was there: the folder is ours. Raises `Failure` for a path outside of it."""
        if not _is_ours(self.file.path, work.journal.folder):
            raise Failure(BAD_REQUEST, f"{self.file.path} is no place for a file that is sent")

    def ours(self, work: Work) -> list[str]:  # noqa: ARG002
        return [self.file.sha256]

    def do(self, work: Work) -> None:
        path, content = self.file.path, work.content
        if content is None and here(work.system, self.file):
            return
        if content is None:
            raise Failure(FAILED, f"{path} is not as it was a moment ago, and nothing was sent: run up again")
        system, own = work.system, os.path.dirname(path)
        system.make_folder(os.path.dirname(own))
        system.make_folder(own)
        try:
            system.receive(path, content, self.file.size, self.file.sha256, META)
        except OSError as error:
            raise Failure(FAILED, f"{path} was not put there: {error}. Run up again") from None
        work.report.did(f"{path}: put there, {self.file.size} bytes")

    def describe(self) -> dict[str, Any]:
        return {"place": self.file.path, "sha256": self.file.sha256}


def undo_placed(work: Work, operation: Undo) -> None:
    """Remove a file of ours and the folders that were made for it, whatever somebody made of it since."""
    path = operation["key"].removeprefix(f"{KIND}:")
    if work.system.exists(path):
        work.system.remove(path)
        work.report.did(f"{path}: removed")
    work.system.clean(path)
    _remove_folders(work.system, os.path.dirname(path))


def clear(system: System, stack_folder: str) -> None:
    """Remove files that were sent and that no journal knows: it was lost. Their folders are named by digests."""
    for what in system.names(stack_folder):
        for digest in system.names(f"{stack_folder}/{what}"):
            own = f"{stack_folder}/{what}/{digest}"
            if _DIGEST.fullmatch(digest) and system.is_folder(own):
                for name in system.names(own):
                    if not system.is_folder(f"{own}/{name}"):  # none of ours has one
                        system.remove(f"{own}/{name}")
                _remove_folders(system, own)


def _remove_folders(system: System, own: str) -> None:
    if system.remove_folder(own):
        system.remove_folder(os.path.dirname(own))


def _is_ours(path: str, stack_folder: str) -> bool:
    what, _, rest = path.removeprefix(f"{stack_folder}/").partition("/")
    digest, _, name = rest.partition("/")
    inside = path.startswith(f"{stack_folder}/") and ".." not in path
    return inside and bool(what) and bool(_DIGEST.fullmatch(digest)) and bool(name) and "/" not in name
