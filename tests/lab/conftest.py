"""A lab of three nodes, booted once for all tests that need one, beside any other lab; and a node without a boot."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import api
from tests.lab.mesh_reference import ADDRESSES, MACS
from tests.lab.standins_bench import Bench


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the labs of this run keep their state."""
    return tmp_path_factory.mktemp("lab")


@pytest.fixture(scope="session")
def lab(folder: Path) -> Iterator[api.Handle]:
    """A ring of three with trace. A test puts back what it changes."""
    handle = api.start(f"test-{os.getpid()}", folder / "ring", topology="ring", nodes=3, trace=True, owned=True)
    yield handle
    handle.stop()


@pytest.fixture
def spark(tmp_path: Path) -> Iterator[Bench]:
    """Rank 1 of the reference instance, with nothing installed and without a kernel of its own."""
    bench = Bench(tmp_path, ADDRESSES[1], MACS[1])
    yield bench
    bench.close()
