"""One difference between what is wanted of a node and what it is."""

from dataclasses import dataclass
from typing import Any

from .digest import sha256


@dataclass(frozen=True)
class Deviation:
    """What was seen on which object, and what is wanted.

    `disruptive`: the repair disturbs an engine that uses the port, so it needs a standstill.
    `foreign`: somebody else's, which no apply repairs; it has to be resolved by a person.
    """

    code: str
    subject: str
    seen: str
    wanted: str
    disruptive: bool
    foreign: bool = False

    def text(self) -> str:
        """One line, for example `enp1s0f0np0: MTU is 1500, plan wants 9000`."""
        return f"{self.subject}: {self.seen}, plan wants {self.wanted}"

    def to_json(self) -> dict[str, Any]:
        """The deviation as plain JSON."""
        return {**vars(self), "text": self.text()}


def of_journal(stage: str, digest: str, observed: dict[str, Any], *, disruptive: bool) -> list[Deviation]:
    """Whether the journal says that this desired state was applied completely."""
    entry = ((observed.get("journal") or {}).get("stages") or {}).get(stage)
    if entry is None:
        return [Deviation("journal.absent", stage, "was never applied", "it applied", disruptive)]
    if entry["status"] != "applied":
        return [Deviation("journal.unfinished", stage, f"{entry['status']} was interrupted", "it applied", disruptive)]
    if entry["digest"] != digest:
        seen = f"applied with digest {entry['digest'][:12]}"
        return [Deviation("journal.digest", stage, seen, f"digest {digest[:12]}", disruptive)]
    return []


def of_file(
    observed: dict[str, Any], stage: str, digest: str, path: str, text: str, mode: str, *, disruptive: bool = False
) -> list[Deviation]:
    """Whether a file of ours is as wanted.

    While the desired state is the one of the journal, the file is compared with what was written then and not with
    `text`: a program that renders the same meaning differently has no reason to touch it.
    """
    file = (observed.get("netplan") or {}).get(path) or (observed.get("files") or {}).get(path)
    if file is None:
        return [Deviation("file.missing", path, "is missing", "the file", disruptive=disruptive)]
    found = []
    if not same_text(observed, stage, digest, path, file["text"] or "", text):
        if _edited(observed, stage, path, file["text"] or ""):
            edited = "was edited by somebody"
            found.append(Deviation("file.edited", path, edited, "what was written", disruptive=disruptive))
        else:
            found.append(Deviation("file.text", path, "has another content", "what was written", disruptive=disruptive))
    seen = f"{file['mode']} {file['uid']}:{file['gid']}"
    if seen != f"{mode} 0:0":
        found.append(Deviation("file.mode", path, f"mode and owner are {seen}", f"{mode} 0:0", disruptive=False))
    return found


def _edited(observed: dict[str, Any], stage: str, path: str, seen: str) -> bool:
    """Whether somebody else has changed a file of ours: it is not what a finished apply has written."""
    entry = ((observed.get("journal") or {}).get("stages") or {}).get(stage) or {}
    written = (entry.get("written") or {}).get(path)
    return bool(written) and entry.get("status") == "applied" and sha256(seen.encode()) != written


def same_text(observed: dict[str, Any], stage: str, digest: str, path: str, seen: str, text: str) -> bool:
    """Whether a file's text is what was written for this desired state, or would be written now."""
    entry = ((observed.get("journal") or {}).get("stages") or {}).get(stage) or {}
    written = (entry.get("written") or {}).get(path)
    if written and entry.get("digest") == digest:
        return bool(sha256(seen.encode()) == written)
    return seen == text
