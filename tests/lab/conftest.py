"""A lab of three nodes, booted once for all tests that need one; it runs beside any other lab."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import api


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the labs of this run keep their state."""
    return tmp_path_factory.mktemp("lab")


@pytest.fixture(scope="session")
def lab(folder: Path) -> Iterator[api.Handle]:
    """A ring of three with trace. A test puts back what it changes."""
    handle = api.start(f"test-{os.getpid()}", folder / "ring", topology="ring", nodes=3, trace=True)
    yield handle
    handle.stop()
