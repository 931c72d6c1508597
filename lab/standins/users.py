"""Which processes have queue pairs on which devices: each registers itself, and counts while it lives."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path

from .model import BY_RDMA
from .state import State, try_lock
from .words import Row


def living(state: State) -> list[Row]:
    """`dev`, `pid`, `comm` and `lqpn` of every user that lives."""
    found = [_read(path) for path in sorted((state.root / "users").glob("*.json"))]
    return [row for row in found if row is not None and row.get("dev") in BY_RDMA]


def _read(path: Path) -> Row | None:
    """What a user wrote, while it holds its file's lock: that dies with it, its number may go to another process."""
    with contextlib.suppress(FileNotFoundError), path.open() as file:
        if not try_lock(file.fileno(), fcntl.LOCK_SH):
            return json.loads(file.read() or "{}")  # type: ignore[no-any-return]
    return None


@contextlib.contextmanager
def registered(state: State, device: str, name: str, qpn: int) -> Iterator[None]:
    """Be one, for as long as the block runs."""
    path = state.root / f"users/{os.getpid()}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(json.dumps({"dev": device, "pid": os.getpid(), "comm": name, "lqpn": qpn}))
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
