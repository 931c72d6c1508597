"""Labs and stacks for the ladder: each lab serves many modules, each module has a stack of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lab import api
from lab.cabling import Topology
from lab.shell import LabError

from .rig import Rig, copy_checkout

NewRig = Callable[..., Rig]


class Labs:
    """The labs of a run: one of each cabling, and a fresh one after tests that failed and left something there."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folders = folders
        self._free: dict[Topology, api.Handle] = {}

    def lend(self, topology: Topology) -> Iterator[api.Handle]:
        """Four nodes for one module."""
        kept = os.environ.get(f"LADDER_{topology.upper()}_LAB")  # the folder of a lab that is up, and stays up
        if kept:
            yield api.attach(Path(kept).name, Path(kept))
            return
        lab = self._free.pop(topology, None) or self._start(topology)
        yield lab
        if _is_free(lab):
            self._free[topology] = lab
        else:  # the modules after it would all fail for the first one's reason, and hide it
            lab.stop()

    def _start(self, topology: Topology) -> api.Handle:
        folder = self._folders.mktemp(f"{topology}-lab")
        lab = api.start(f"{folder.name}-{os.getpid()}", folder, topology=topology, nodes=4, trace=True, owned=True)
        lab.load_image()
        return lab

    def close(self) -> None:
        """End them all."""
        for lab in self._free.values():
            lab.stop()


def _is_free(lab: api.Handle) -> bool:
    """Whether all nodes answer, and none belongs to a stack."""
    try:
        return not any(lab.everywhere("ls -d /var/lib/spark-fabric 2>/dev/null || true").values())
    except LabError:
        return False


@pytest.fixture(scope="session")
def labs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Labs]:
    """All labs of the run."""
    with closing(Labs(tmp_path_factory)) as found:
        yield found


@pytest.fixture(scope="module")
def ring_lab(labs: Labs) -> Iterator[api.Handle]:
    """Four nodes in a ring."""
    yield from labs.lend("ring")


@pytest.fixture(scope="module")
def switched_lab(labs: Labs) -> Iterator[api.Handle]:
    """Four nodes on a switch."""
    yield from labs.lend("switched")


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
