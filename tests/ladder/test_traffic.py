"""The engine's bytes go over the planes that are meant, and no other; its library's lines say the same.

Each fabric has one stack, in the order of this file: a test changes what the one before it has brought up.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.nccl_settings import PIP_LIBRARY
from lab import api, library

from .conftest import NewRig
from .rig import Rig
from .traffic import LOUD, Counters, library_says, logs

RING_ONLY = (
    "NCCL_SWITCHLESS_RING_ONLY set by environment to 1.",
    "Connected all rings, use ring PXN 0 GDR 0",
    "Tree transport setup disabled by NCCL_SWITCHLESS_RING_ONLY",
    "PAT transport setup disabled by NCCL_SWITCHLESS_RING_ONLY",
)
TREES = "Connected all trees"


def _stack(rig: Rig) -> Iterator[Rig]:
    rig.config["engine"]["env"] |= LOUD
    with rig.leaving_no_trace():
        yield rig


@pytest.fixture(scope="module")
def ring(ring_lab: api.Handle, new_rig: NewRig) -> Iterator[Rig]:
    """Four nodes in a ring; not up yet."""
    yield from _stack(new_rig(ring_lab, "traffic-ring", "ring"))


@pytest.fixture(scope="module")
def switched(switched_lab: api.Handle, new_rig: NewRig) -> Iterator[Rig]:
    """Four nodes on a switch; not up yet."""
    yield from _stack(new_rig(switched_lab, "traffic-switched", "switched"))


def up(rig: Rig) -> tuple[dict[str, tuple[set[str], set[str]]], dict[str, list[str]]]:
    """Bring it up: by node the HCAs that sent and received much meanwhile, and the library's lines."""
    before = Counters.read(rig.lab)
    rig.up()
    rig.assert_served()
    moved = Counters.read(rig.lab).since(before)
    return moved, {node: library_says(log) for node, log in logs(rig.lab, f"spark-fabric-{rig.stack}").items()}


def says(lines: list[str], text: str) -> bool:
    """Whether one of the lines holds a text."""
    return any(text in line for line in lines)


def test_a_ring_of_both_planes_sends_by_both_first_ports_and_receives_by_both_second_ones(ring: Rig) -> None:
    moved, told = up(ring)
    assert moved == {node: ({"rocep1s0f0", "roceP2p1s0f0"}, {"rocep1s0f1", "roceP2p1s0f1"}) for node in ring.lab.names}
    for lines in told.values():
        for text in (
            *RING_ONLY, "NET/IB ListenerRouting format=ipv4-v1 advertised=4 observed=4",
            "overriding dev 3 with dev 2 preserving PCI root pci0002:00",
            "RouteFinal side=send comm=2 mergedDev=2", "RouteFinal side=recv comm=2 mergedDev=3",
        ):  # fmt: skip
            assert says(lines, text), text
        assert not says(lines, TREES)


def test_a_ring_of_one_plane_leaves_the_other_alone(ring: Rig) -> None:
    ring.set("fabric.plane1.enabled", False)
    moved, told = up(ring)
    assert moved == {node: ({"rocep1s0f0"}, {"rocep1s0f1"}) for node in ring.lab.names}
    for lines in told.values():
        for text in (*RING_ONLY, "advertised=2 observed=2", "overriding dev 1 with dev 0"):
            assert says(lines, text), text
        for text in (TREES, "preserving PCI root", "RouteFinal", "roceP2p1s0f"):
            assert not says(lines, text), text


def assert_switched(rig: Rig) -> None:
    """Bring it up: both planes carry, by the first ports alone, and nothing of a ring is in the lines."""
    moved, told = up(rig)
    both = {"rocep1s0f0", "roceP2p1s0f0"}
    assert moved == dict.fromkeys(rig.lab.names, (both, both))
    for lines in told.values():
        assert says(lines, TREES)
        for text in ("SWITCHLESS", "EXTENDED_IPV4_GIDS", "overriding", "RouteFinal"):
            assert not says(lines, text), text


def test_a_switch_carries_both_planes_with_the_library_of_the_image(switched: Rig) -> None:
    assert_switched(switched)


def test_a_folder_with_a_second_library_ends_the_engine_and_health_says_why(switched: Rig, tmp_path: Path) -> None:
    library.build(tmp_path / "libnccl.so.2", markers=library.KINDS["stock"], edition=3)
    switched.config["nccl"] = {"mode": "directory", "library": str(tmp_path)}
    switched.up(ok=False).says(
        "is directory, which reaches only programs that load NCCL with ctypes",
        "Duplicate NCCL runtime found in the current system",
        "cause: a second NCCL is in the process, beside the one that torch uses. Use nccl.mode: overlay",
    )


def test_a_switch_carries_both_planes_with_a_library_over_that_of_the_image(switched: Rig, tmp_path: Path) -> None:
    sha256 = library.build(tmp_path / "libnccl.so.2", markers=library.KINDS["stock"], edition=3)
    switched.config["nccl"] = {"mode": "overlay", "library": str(tmp_path)}
    assert_switched(switched)
    used = switched.lab.everywhere(f"docker exec spark-fabric-{switched.stack} sha256sum {PIP_LIBRARY}")
    assert {text.split()[0] for text in used.values()} == {sha256}
