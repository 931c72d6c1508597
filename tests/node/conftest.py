"""A machine for every test."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from node import guard
from tests.node.machine import Machine


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory where there is one: the program syncs every file."""
    memory = Path("/dev/shm")
    place = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    yield place
    shutil.rmtree(place)


@pytest.fixture
def machine(folder: Path) -> Machine:
    """A machine as delivered."""
    root = folder / "machine"
    root.mkdir()
    return Machine(root)


@pytest.fixture(autouse=True)
def no_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """No second process; the guard has tests of its own."""

    def armed(*_: Any) -> AbstractContextManager[None]:
        return nullcontext()

    monkeypatch.setattr(guard, "armed", armed)
