"""What local files say of themselves, kept while they are the same files.

To read and hash a NCCL library of 64 MB takes an eighth of a second, and every preview would.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from fleet import on_node
from node import elf
from node.digest import sha256

KEPT = "described.json"  # in the checkout's folder of what is no stack's own
LEAST = 8 << 20  # bytes: smaller files are read as fast as kept answers are looked up
SETTLED_NS = 2_000_000_000  # a file that was written just now may be written again within one tick of its clock

Said = dict[str, Any]


def describe(path: Path) -> Said:
    """What `node.elf.describe` says of a file, from what was kept if nothing about the file has changed since.

    That is its size, place on the disk, and both times: one of them nobody can set back. Raises OSError.
    """
    with path.open("rb") as file:
        state = _state(os.fstat(file.fileno()))
        known = _kept().get(str(path))
        if known and known["state"] == state:
            return dict(known["said"])
        said = elf.describe(file)
        settled = time.time_ns() - max(state["mtime"], state["ctime"]) > SETTLED_NS
        if state["size"] >= LEAST and settled and _state(os.fstat(file.fileno())) == state:
            _keep(path, {"state": state, "said": said})
    return said


def _state(seen: os.stat_result) -> dict[str, Any]:
    """What changes with a file's content, and with what is read of it."""
    times = {"mtime": seen.st_mtime_ns, "ctime": seen.st_ctime_ns}
    place = {"device": seen.st_dev, "inode": seen.st_ino, "size": seen.st_size}
    return {**place, **times, "reader": sha256(Path(elf.__file__).read_bytes())}


def _listing() -> Path:
    return on_node.ROOT / on_node.STATE / KEPT


def _kept() -> dict[str, dict[str, Said]]:
    try:
        kept = json.loads(_listing().read_text())
        return {path: {"state": one["state"], "said": dict(one["said"])} for path, one in kept.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # none yet, or not of ours
        return {}


def _keep(path: Path, entry: dict[str, Said]) -> None:
    kept = {name: one for name, one in _kept().items() if Path(name).exists()}
    on_node.replace(_listing(), json.dumps({**kept, str(path): entry}, indent=1, sort_keys=True) + "\n")
