"""What was read of a checkpoint, and when it need not be read again: a digest by file, with what tells a changed file.

A receipt counts as long as size, times of change, disk and inode of its file are the same. They lie beside the journal,
and go with it.
"""

import hashlib
import json
import os
from functools import partial
from typing import Any

from .journal import PRIVATE, RECEIPTS, folder
from .request import FAILED, Failure
from .system import PIECE, System

SLICE = 20.0  # seconds of one call: then its caller tells how far it is, and asks again
TOGETHER = 4  # files

Json = dict[str, Any]


def valid(system: System, stack: str, place: str) -> dict[str, str]:
    """The sha256 of every file of a folder that has not changed since it was read."""
    found = _load(system, stack).get(place) or {}
    return {name: one["sha256"] for name, one in found.items() if one["stamp"] == system.stamp(f"{place}/{name}")}


def weigh(system: System, stack: str, desired: Json) -> Json:
    """Read files of a folder, {"path", "files": [names]}, that have no receipt, for as long as one call takes.

    The answer has "read", the digest by file so far, "missing", the files that cannot be read, and "left", how many are
    still to be read. Raises `Failure` for a file that changes while it is read, and where whoever asked is gone: the
    lock is held for as long as this takes.
    """
    place, names = desired["path"], list(desired["files"])
    read, missing = valid(system, stack, place), list[str]()
    left, end = [name for name in names if name not in read], system.clock() + SLICE
    while left:
        batch, left = left[:TOGETHER], left[TOGETHER:]
        receipts = system.parallel([partial(_read, system, f"{place}/{name}") for name in batch])
        found = {name: one for name, one in zip(batch, receipts, strict=True) if one}
        missing += [name for name in batch if name not in found]
        _save(system, stack, place, found)
        read |= {name: one["sha256"] for name, one in found.items()}
        if system.clock() > end:
            break
    return {"read": {name: read[name] for name in names if name in read}, "missing": missing, "left": len(left)}


def _read(system: System, path: str) -> Json | None:
    """A receipt of a file. What was read is not kept in memory, where the engine needs the room."""
    stamp, file = system.stamp(path), system.open_to_read(path)
    if file is None:
        return None
    digest = hashlib.sha256()
    with file:
        try:
            while piece := file.read(PIECE):
                digest.update(piece)
                os.posix_fadvise(file.fileno(), 0, file.tell(), os.POSIX_FADV_DONTNEED)
                if system.caller_gone():
                    raise Failure(FAILED, f"whoever asked is gone: {path} was not read to its end")
        except OSError:
            return None
    if system.stamp(path) != stamp:
        raise Failure(FAILED, f"{path} changed while it was read")
    return {"stamp": stamp, "sha256": digest.hexdigest()}


def _load(system: System, stack: str) -> Json:
    try:
        found = json.loads(system.read(f"{folder(stack)}/{RECEIPTS}") or b"{}")
    except ValueError:
        return {}  # they are read again
    return found if isinstance(found, dict) else {}


def _save(system: System, stack: str, place: str, more: Json) -> None:
    """Keep receipts, of this folder only: another one is another checkpoint."""
    kept = {place: {**(_load(system, stack).get(place) or {}), **more}}
    system.write(f"{folder(stack)}/{RECEIPTS}", json.dumps(kept).encode() + b"\n", PRIVATE)
