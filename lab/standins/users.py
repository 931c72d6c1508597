"""Which processes have queue pairs on which devices: each registers itself, and counts while it lives."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from .model import BY_RDMA
from .state import State
from .words import Row


def living(state: State) -> list[Row]:
    """`dev`, `pid`, `comm` and `lqpn` of every user that lives."""
    documents = [state.load(f"users/{path.stem}", {}) for path in sorted((state.root / "users").glob("*.json"))]
    return [row for row in documents if row.get("dev") in BY_RDMA and _lives(row["pid"])]


def _lives(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


@contextlib.contextmanager
def registered(state: State, device: str, name: str, qpn: int) -> Iterator[None]:
    """Be one, for as long as the block runs."""
    document = f"users/{os.getpid()}"
    state.save(document, {"dev": device, "pid": os.getpid(), "comm": name, "lqpn": qpn})
    try:
        yield
    finally:
        (state.root / f"{document}.json").unlink(missing_ok=True)
