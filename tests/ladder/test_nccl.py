"""The NCCL library on booted nodes: sent once, replaced with all engines stopped, repaired, and gone afterwards.

The tests of this file have one stack, in their order.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fleet.settings import PIP_LIBRARY
from lab import api, library

from .conftest import NewRig
from .rig import Rig, Step
from .witness import Witness, watching

STACK = "nccl"
STORE = f"/var/lib/spark-fabric/{STACK}/nccl"
SENT = f"{STORE}/*/libnccl.so.2"
ON_NODE = "/opt/nccl-of-the-operator"
GROUP = {"stop", "standstill", "gate", "halt", "health"}


@dataclass
class Fleet:
    """A stack that is up, its local library, and the nodes' own record."""

    rig: Rig
    witness: Witness

    @property
    def file(self) -> Path:
        """The operator's file."""
        return Path(self.rig.config["nccl"]["library"])

    def build(self, kind: str = "patched", edition: int = 1) -> str:
        """Make the operator's file another one; its sha256."""
        return library.build(self.file, markers=library.KINDS[kind], edition=edition)

    def digests(self) -> set[str]:
        """Of all libraries that were sent, on all nodes."""
        shown = self.rig.lab.everywhere(f"sha256sum {SENT}")
        return {line.split()[0] for text in shown.values() for line in text.splitlines()}

    def used(self) -> set[str]:
        """What the engines have at the place of the image's own."""
        name = f"spark-fabric-{STACK}"
        shown = self.rig.lab.everywhere(f"docker exec {name} sha256sum {PIP_LIBRARY}")
        return {text.split()[0] for text in shown.values()}

    def up(self) -> None:
        """`up`, in which every engine is replaced and none saw a change of its fabric."""
        since = time.time_ns()
        self.rig.up()
        self.witness.record(since).assert_all_replaced(since, self.rig.lab.names)
        self.rig.assert_one_group()
        self.rig.assert_served()
        self.rig.unchanged()


@pytest.fixture(scope="module")
def fleet(ring_lab: api.Handle, new_rig: NewRig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Four nodes in a ring, with a local library of the test's own."""
    rig = new_rig(ring_lab, STACK, "ring")
    rig.config["nccl"]["library"] = str(tmp_path_factory.mktemp("library") / "libnccl.so.2.30.7")
    with rig.leaving_no_trace(), watching(ring_lab) as witness:
        found = Fleet(rig, witness)
        found.build()
        rig.up()
        yield found


def changed(steps: dict[str, Step], nodes: list[str]) -> set[str]:
    """What a preview would do besides replacing the group."""
    return steps.keys() - GROUP - {f"{node}-engine" for node in nodes}


def test_every_engine_has_the_operators_library_over_that_of_its_image(fleet: Fleet) -> None:
    sha256 = fleet.build()
    assert fleet.digests() == fleet.used() == {sha256}
    assert fleet.rig.resources().count("spark1-nccl") == 1


def test_a_new_library_stops_the_engines_and_is_replaced_everywhere(fleet: Fleet) -> None:
    sha256 = fleet.build(edition=2)
    steps = fleet.rig.preview()
    assert changed(steps, fleet.rig.lab.names) == {f"{node}-nccl" for node in fleet.rig.lab.names}
    assert steps.keys() >= GROUP
    fleet.up()
    assert fleet.digests() == fleet.used() == {sha256}


def test_a_moved_file_is_no_change(fleet: Fleet) -> None:
    moved = fleet.file.rename(fleet.file.with_name("renamed.so"))
    with fleet.rig.changed("nccl.library", str(moved)):
        fleet.rig.unchanged()
    moved.rename(fleet.file)


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (f"printf x | dd of=$(echo {SENT}) bs=1 conv=notrunc status=none", "plan wants the library"),
        (f"chmod 0755 {SENT}", "mode and owner are 0755 0:0"),
        (f"rm {SENT}", "is missing"),
    ],
)
def test_a_library_that_somebody_touched_is_drift_of_that_node(harm: str, says: str, fleet: Fleet) -> None:
    fleet.rig.lab.run("spark3", harm)
    assert changed(fleet.rig.preview(), fleet.rig.lab.names) == {"spark3-nccl"}
    fleet.rig.pulumi("preview", "--diff").says(says)
    fleet.up()
    assert fleet.digests() == fleet.used() == {fleet.build(edition=2)}


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("stock", "does not hold the string SWITCHLESS_RING_ONLY"),
        ("skip-tree", "it is of the older patch skip-tree-pat"),
        ("no-extended", "does not hold the string EXTENDED_IPV4_GIDS"),
    ],
)
def test_a_library_that_is_not_for_this_ring_is_refused(kind: str, says: str, fleet: Fleet) -> None:
    before = fleet.rig.engines()
    fleet.build(kind)
    fleet.rig.up(ok=False).says("1 problem(s); nothing was changed", says)
    fleet.build(edition=2)
    assert fleet.rig.engines() == before
    fleet.rig.unchanged()


def test_an_image_without_the_file_is_refused(fleet: Fleet) -> None:
    before = fleet.rig.engines()
    with fleet.rig.changed("engine.image", "spark-engine:bare"):
        fleet.rig.up(ok=False).says("1 problem(s); nothing was changed", f"is {PIP_LIBRARY}", "holds no such file")
    assert fleet.rig.engines() == before


def test_a_file_on_the_nodes_is_used_and_left_alone(fleet: Fleet) -> None:
    lab, local = fleet.rig.lab, str(fleet.file)
    file = f"{ON_NODE}/libnccl.so.2.30.7"
    lab.everywhere(f"mkdir {ON_NODE} && cp {SENT} {file}")
    try:
        fleet.rig.set("nccl.library", {"onNode": ON_NODE})
        fleet.up()
        assert fleet.used() == _digests(lab, file)
        lab.everywhere(f"test ! -e {STORE}")
        lab.run("spark2", f"printf x >>{file}")
        fleet.rig.up(ok=False).says("is not the same file everywhere", "on spark2")
    finally:
        fleet.rig.set("nccl.library", local)
        fleet.rig.up()
        lab.everywhere(f"rm -r {ON_NODE}")
    assert fleet.digests() == fleet.used()


def _digests(lab: api.Handle, file: str) -> set[str]:
    return {text.split()[0] for text in lab.everywhere(f"sha256sum {file}").values()}


def test_a_switched_fabric_takes_a_library_over_that_of_its_image(
    switched_lab: api.Handle, new_rig: NewRig, tmp_path: Path
) -> None:
    rig = new_rig(switched_lab, "nccl-switched", "switched")
    sha256 = library.build(tmp_path / "libnccl.so.2", markers=library.KINDS["stock"], edition=3)
    rig.config["nccl"] = {"mode": "overlay", "library": str(tmp_path)}
    with rig.leaving_no_trace():
        rig.up()
        rig.assert_served()
        rig.unchanged()
        shown = switched_lab.everywhere(f"docker exec spark-fabric-nccl-switched sha256sum {PIP_LIBRARY}")
        assert {text.split()[0] for text in shown.values()} == {sha256}
