"""Labs and stacks for the ladder: each lab is booted once a run, each module has a stack of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab import api
from lab.cabling import Topology

from .rig import Rig, copy_checkout

NewRig = Callable[..., Rig]


def _lab(name: str, topology: Topology, folder: Path, nodes: int = 4) -> Iterator[api.Handle]:
    kept = os.environ.get(f"LADDER_{topology.upper()}_LAB")  # the folder of a lab that is up, and stays up
    if kept:
        yield api.attach(Path(kept).name, Path(kept))
        return
    lab = api.start(name, folder, topology=topology, nodes=nodes, trace=True, owned=True)
    try:
        lab.load_image()
        yield lab
    finally:
        lab.stop()


@pytest.fixture(scope="session")
def ring_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[api.Handle]:
    """Four nodes in a ring."""
    yield from _lab(f"ring-{os.getpid()}", "ring", tmp_path_factory.mktemp("ring-lab"))


@pytest.fixture(scope="session")
def switched_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[api.Handle]:
    """Four nodes on a switch."""
    yield from _lab(f"sw-{os.getpid()}", "switched", tmp_path_factory.mktemp("switched-lab"))


@pytest.fixture(scope="session")
def checkout_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The copy of the checkout that all stacks of the run share."""
    return copy_checkout(tmp_path_factory.mktemp("checkout") / "spark-fabric")


@pytest.fixture(scope="session")
def new_rig(toolchain: dict[str, str], checkout_copy: Path, tmp_path_factory: pytest.TempPathFactory) -> NewRig:
    """Makes a rig: `new_rig(lab, stack, topology)`."""

    def make(lab: api.Handle, stack: str, topology: str = "ring", checkout: Path | None = None) -> Rig:
        backend = tmp_path_factory.mktemp(f"backend-{stack}")
        environment = toolchain | {"PULUMI_BACKEND_URL": f"file://{backend}"}
        rig = Rig(lab, checkout or checkout_copy, environment, stack)
        rig.config = rig.base(topology)
        return rig

    return make
