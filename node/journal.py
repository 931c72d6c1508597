"""The write-ahead journal of a stack on this node.

    /var/lib/spark-fabric/<stack>/journal.json   what was changed, how it was before, how far we came
    /var/lib/spark-fabric/<stack>/blobs/<sha256> contents of files before we changed them, and of ours

Before anything is changed, how it was is on disk here. An operation that undoes one change is a JSON object:

    {"kind": "file", "key": "file:/etc/x", "before": …, "ours": [digest or value, …]}

`before` is kept from the first time on; `ours` holds everything that we may have put there since the last complete
apply, so that after a crash our own half-done work is never taken for somebody's edit.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from .digest import sha256
from .request import FAILED, NEWER_SCHEMA, Failure, Owner
from .system import Meta, System

SCHEMA = 1
HOME = "/var/lib/spark-fabric"
MARK = "started.json"  # which start of the engine was completed
RECEIPTS = "weights.json"  # which files of a checkpoint were read

APPLYING = "applying"
APPLIED = "applied"
REVERTING = "reverting"

PRIVATE = Meta(0o600, 0, 0, 0)

Undo = dict[str, Any]


def folder(stack: str) -> str:
    """Where a stack's journal lies."""
    return f"{HOME}/{stack}"


@dataclass
class Entry:
    """One stage: what is wanted of it and what undoes it, in the order of the changes.

    `failures` counts how often in a row all of it was done and something of it was not there afterwards.
    """

    status: str
    digest: str
    desired: dict[str, Any]
    written: dict[str, str] = field(default_factory=dict)
    failures: int = 0
    undo: list[Undo] = field(default_factory=list)

    def find(self, key: str) -> Undo | None:
        """The operation of this key, if there is one."""
        return next((operation for operation in self.undo if operation["key"] == key), None)


class Journal:
    """The journal of one stack. Nothing is written before `save`."""

    def __init__(self, system: System, owner: Owner) -> None:
        self.system = system
        self.owner = owner
        self.folder = folder(owner.stack)
        self.generation = 0
        self.stages: dict[str, Entry] = {}

    @classmethod
    def load(cls, system: System, owner: Owner) -> "Journal":
        """Read the journal. Raises `Failure` where it is of a newer program or cannot be read."""
        journal = cls(system, owner)
        value = read(system, owner.stack)
        if value is None:
            return journal
        journal.generation = int(value["generation"])
        journal.stages = {name: Entry(**entry) for name, entry in value["stages"].items()}
        return journal

    def save(self) -> None:
        """Put the journal on disk."""
        self.system.make_folder(self.folder, 0o700)
        value = {
            "schema": SCHEMA,
            "generation": self.generation,
            "owner": self.owner.to_json(),
            "stages": {name: vars(entry) for name, entry in self.stages.items()},
        }
        self.system.write(f"{self.folder}/journal.json", json.dumps(value).encode() + b"\n", PRIVATE)

    def keep(self, data: bytes) -> str:
        """Put a content on disk and return its digest, by which `blob` finds it."""
        name = sha256(data)
        path = f"{self.folder}/blobs/{name}"
        if self.system.read(path) != data:
            self.system.make_folder(self.folder, 0o700)
            self.system.make_folder(f"{self.folder}/blobs", 0o700)
            self.system.write(path, data, PRIVATE)
        return name

    def blob(self, name: str) -> bytes | None:
        """A content that was kept, or None where somebody removed or changed it."""
        data = self.system.read(f"{self.folder}/blobs/{name}")
        return data if data is not None and sha256(data) == name else None

    def drop_blobs(self) -> None:
        """Remove the contents that no operation needs any more."""
        needed = set(_blobs(self.stages.values()))
        for name in self.system.names(f"{self.folder}/blobs"):
            if name not in needed:
                self.system.remove(f"{self.folder}/blobs/{name}")

    def remove(self) -> None:
        """Remove the journal with its folder; whatever else lies there stays."""
        self.stages = {}
        self.drop_blobs()
        self.system.remove_folder(f"{self.folder}/blobs")
        for name in ("spark-node.pyz", MARK, RECEIPTS, "journal.json"):
            self.system.remove(f"{self.folder}/{name}")
        self.system.remove_folder(self.folder)


def read(system: System, stack: str) -> dict[str, Any] | None:
    """The journal of a stack as JSON, or None. Raises `Failure` where it is of a newer program or cannot be read."""
    path = f"{folder(stack)}/journal.json"
    data = system.read(path)
    if data is None:
        return None
    try:
        value = json.loads(data)
        schema = int(value["schema"])
    except (ValueError, KeyError, TypeError) as error:
        raise Failure(FAILED, f"{path} cannot be read ({error}): it was changed by hand; put it back") from None
    if schema > SCHEMA:
        raise Failure(
            NEWER_SCHEMA,
            f"{path} has schema {schema}, this program knows {SCHEMA}: use the newer checkout that wrote it",
        )
    if not isinstance(value, dict):
        raise Failure(FAILED, f"{path} holds no object: it was changed by hand; put it back")
    return value


def _blobs(entries: Iterable[Entry]) -> Iterable[str]:
    for entry in entries:
        for operation in entry.undo:
            if operation["kind"] == "file":
                yield from (name for name in operation["ours"] if name != "absent")
                if operation["before"]:
                    yield operation["before"]["blob"]
