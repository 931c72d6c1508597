"""Files that a stage writes, or sets aside because they stand in its way."""

import os
from dataclasses import dataclass
from typing import Any

from .digest import sha256
from .journal import Undo
from .request import FAILED, Failure
from .steps import ABSENT, Work
from .system import Meta, System

MARK = "Written by spark-fabric"  # in a comment of every file that is ours alone
SAVED = ".spark-fabric-saved"


@dataclass(frozen=True)
class File:
    """A file as it shall be; `data` None sets aside what is there.

    `own` files have a name that is reserved for us: one that carries our mark without being in the journal is a
    leftover of ours and not somebody's file.
    """

    path: str
    data: bytes | None
    mode: int = 0o600
    own: bool = False
    needed: bool = True

    @property
    def key(self) -> str:
        return f"file:{self.path}"

    def before(self, work: Work) -> Any:
        data = work.system.read(self.path)
        meta = work.system.meta(self.path)
        if data is None or meta is None or (self.own and MARK.encode() in data):
            return None
        return {"blob": work.journal.keep(data), **vars(meta)}

    def ours(self, work: Work) -> list[str]:
        return [ABSENT if self.data is None else work.journal.keep(self.data)]

    def do(self, work: Work) -> None:
        if self.data is None:
            work.system.remove(self.path)
            work.report.did(f"{self.path}: set aside")
            return
        work.system.write(self.path, self.data, Meta(self.mode, 0, 0, 0))
        work.report.did(f"{self.path}: written")

    def describe(self) -> dict[str, Any]:
        if self.data is None:
            return {"set aside": self.path}
        return {"write": self.path, "mode": f"{self.mode:04o}", "text": self.data.decode()}


@dataclass(frozen=True)
class Copy:
    """A file as it shall be, copied from another place on the node, where its content has this digest."""

    path: str
    source: str
    sha256: str
    mode: int = 0o755
    needed: bool = True

    @property
    def key(self) -> str:
        return f"file:{self.path}"

    def before(self, work: Work) -> Any:
        return File(self.path, b"").before(work)

    def ours(self, work: Work) -> list[str]:  # noqa: ARG002
        return [self.sha256]

    def do(self, work: Work) -> None:
        content = self._content(work.system)  # may have come with the step before
        work.journal.keep(content)
        work.system.write(self.path, content, Meta(self.mode, 0, 0, 0))
        work.report.did(f"{self.path}: copied from {self.source}")

    def _content(self, system: System) -> bytes:
        data = system.read(self.source)
        if data is None or sha256(data) != self.sha256:
            raise Failure(FAILED, f"{self.source}: is missing or another file than the plan's ({self.sha256[:12]})")
        return data

    def describe(self) -> dict[str, Any]:
        return {"copy": self.path, "from": self.source, "mode": f"{self.mode:04o}"}


@dataclass(frozen=True)
class Folder:
    """A folder that a file of ours needs."""

    path: str
    needed: bool = True

    @property
    def key(self) -> str:
        return f"folder:{self.path}"

    def before(self, work: Work) -> Any:  # noqa: ARG002
        return None

    def ours(self, work: Work) -> list[str]:  # noqa: ARG002
        return []

    def do(self, work: Work) -> None:
        work.system.make_folder(self.path)

    def describe(self) -> dict[str, Any]:
        return {"folder": self.path}


def missing_folders(system: System, path: str) -> list[Folder]:
    """The folders above `path` that do not exist, uppermost first."""
    missing: list[Folder] = []
    parent = os.path.dirname(path)
    while parent not in ("", "/") and not system.exists(parent):
        missing.insert(0, Folder(parent))
        parent = os.path.dirname(parent)
    return missing


def undo_file(work: Work, operation: Undo) -> None:
    """Put a file back as it was, unless somebody else changed it since: then theirs stays and ours goes beside it."""
    system, journal = work.system, work.journal
    path = operation["key"].removeprefix("file:")
    before, ours = operation["before"], operation["ours"]
    data = system.read(path)
    seen = ABSENT if data is None else sha256(data)
    was = before["blob"] if before else ABSENT
    if seen == was and seen not in ours:
        system.clean(path)
        return
    if seen not in ours:
        _keep_beside(work, path, was if before else ours[-1])
        return
    if before is None:
        if data is not None:
            system.remove(path)
            work.report.did(f"{path}: removed")
        system.clean(path)
        return
    content = data if seen == was else journal.blob(was)
    if content is None:
        _lost(work, path, was)
        return
    meta = Meta(before["mode"], before["uid"], before["gid"], before["mtime_ns"])
    if data is None or seen != was or system.meta(path) != meta:
        system.write(path, content, meta)
        work.report.did(f"{path}: put back as it was")


def _lost(work: Work, path: str, name: str) -> None:
    """What was saved is gone. Ours goes all the same, and what else is to be undone must not wait for it."""
    work.system.remove(path)
    saved = f"{work.journal.folder}/blobs/{name}"
    work.report.note(f"{path}: what was there before us is lost ({saved} is missing or changed): put it back yourself")


def undo_folder(work: Work, operation: Undo) -> None:
    """Remove a folder that we made, if nothing else lies in it by now."""
    work.system.remove_folder(operation["key"].removeprefix("folder:"))


def _keep_beside(work: Work, path: str, name: str) -> None:
    if name == ABSENT:
        work.report.note(f"{path} was put there after we set another aside: left as it is")
        return
    beside = path + SAVED
    data = work.journal.blob(name)
    if data is None:
        saved = f"{work.journal.folder}/blobs/{name}"
        lost = f"the version of the journal is lost ({saved} is missing or changed)"
        work.report.note(f"{path} was edited since: left as it is, and {lost}")
        return
    if work.system.read(beside) != data:
        work.system.write(beside, data, Meta(0o600, 0, 0, 0))
    work.report.note(f"{path} was edited since: left as it is, the version of the journal is in {beside}")
