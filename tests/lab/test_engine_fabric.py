"""Four ranks on a fabric: which ports carry bytes, and what the log says of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .world import ALL, DUAL, Fleet, World, shares

ONE_PLANE = {"enp1s0f0np0": 8}
BOTH_PLANES = {"enp1s0f0np0": 4, "enP2p1s0f0np0": 4}
Make = Callable[..., Fleet]


@pytest.fixture(scope="module")
def ring() -> Iterator[World]:
    world = World("ring")
    yield world
    world.remove()


@pytest.fixture(scope="module")
def switch() -> Iterator[World]:
    world = World("switched")
    yield world
    world.remove()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Fleet] = []

    def of(world: World, kind: str = "patched", **more: str) -> Fleet:
        made.append(Fleet(world, tmp_path, kind, **more))
        return made[-1]

    yield of
    for fleet in made:
        fleet.end()


def test_a_ring_of_one_plane_uses_the_ports_of_that_plane_alone(make: Make, ring: World) -> None:
    fleet = make(ring).start()
    log = fleet.ready()
    for line in (
        "sglang is using nccl==2.30.7", "NCCL version 2.30.7+cuda13.2",
        "NCCL_SWITCHLESS_RING_ONLY set by environment to 1.", "Connected all rings, use ring PXN 0 GDR 0",
        "Tree transport setup disabled by NCCL_SWITCHLESS_RING_ONLY",
        "PAT transport setup disabled by NCCL_SWITCHLESS_RING_ONLY", "Trees [0] 2/-1/-1->0->-1",
        "ListenerRouting format=legacy advertised=2 observed=2",
    ):  # fmt: skip
        assert line in log
    assert "Connected all trees" not in log
    assert "RouteFinal" not in log
    assert set(shares(log)) == {"rocep1s0f0"}
    assert [fleet.carried(rank) for rank in range(4)] == [ONE_PLANE] * 4


def test_a_ring_of_both_planes_splits_evenly_over_both_domains(make: Make, ring: World) -> None:
    fleet = make(ring, **DUAL).start()
    log = fleet.ready()
    assert "NET/IB ListenerRouting format=ipv4-v1 advertised=4 observed=4" in log
    assert "overriding dev 3 with dev 2 preserving PCI root pci0002:00" in log
    for side in ("send", "recv"):
        assert log.count(f"RouteFinal side={side}") == 4
    assert "RouteFinal side=send comm=2 mergedDev=2" in log
    assert [fleet.carried(rank) for rank in range(4)] == [BOTH_PLANES] * 4


def test_without_the_flags_both_planes_collapse_onto_the_first(make: Make, ring: World) -> None:
    fleet = make(ring, NCCL_IB_HCA=ALL).start()
    log = fleet.ready()
    assert "[2]roceP2p1s0f0:1/RoCE [3]roceP2p1s0f1:1/RoCE" in log
    assert "ListenerRouting format=legacy advertised=2 observed=4" in log
    assert "Subnet-aware routing: overriding dev 2 with dev 0\n" in log
    assert [fleet.carried(rank) for rank in range(4)] == [ONE_PLANE] * 4


def test_without_the_domain_kept_one_channel_in_four_is_left_to_plane_1(make: Make, ring: World) -> None:
    fleet = make(ring, **{**DUAL, "NCCL_IB_PRESERVE_PCI_DOMAIN": "0"}).start()
    assert "overriding dev 3 with dev 0\n" in fleet.ready()
    assert fleet.carried(0) == {"enp1s0f0np0": 6, "enP2p1s0f0np0": 2}


def test_the_flags_mean_nothing_to_a_library_that_does_not_know_them(make: Make, ring: World) -> None:
    fleet = make(ring, "no-extended", **DUAL).start()
    log = fleet.ready()
    for absent in ("ListenerRouting", "RouteFinal", "preserving", "EXTENDED_IPV4_GIDS set", "PRESERVE_PCI_DOMAIN set"):
        assert absent not in log
    assert "overriding dev 2 with dev 0" in log
    assert [fleet.carried(rank) for rank in range(4)] == [ONE_PLANE] * 4


def test_fewer_channels_than_devices_leave_devices_idle(make: Make, ring: World) -> None:
    fleet = make(ring, **DUAL, NCCL_MIN_NCHANNELS="2", NCCL_MAX_NCHANNELS="2").start()
    log = fleet.ready()
    assert "Channel 01/02 : 0 1 2 3" in log
    assert "Channel 02" not in log
    assert [fleet.carried(rank) for rank in range(4)] == [ONE_PLANE] * 4


def test_a_device_without_a_gid_is_listed_and_carries_nothing(make: Make, ring: World) -> None:
    fleet = make(ring, **DUAL)
    for rank in range(4):
        for hca in ("roceP2p1s0f0", "roceP2p1s0f1"):
            fleet.set_gid(rank, hca, 3, "::")
    log = fleet.start().ready()
    assert "[3]roceP2p1s0f1:1/RoCE" in log
    assert "advertised=2 observed=2" in log
    assert [fleet.carried(rank) for rank in range(4)] == [ONE_PLANE] * 4


@pytest.mark.parametrize(
    ("index", "seen", "said"),
    [
        ("3", "rocep1s0f1 GID 3 is zero", "Call to ibv_modify_qp failed with 110"),
        ("2", "rocep1s0f1 GID 2 is 0000:0000:0000:0000:0000:ffff:0a0a:010b (IB/RoCE v1)", "it published no GID"),
    ],
)
def test_a_gid_that_is_missing_or_of_roce_v1_ends_the_ring(
    make: Make, ring: World, index: str, seen: str, said: str
) -> None:
    fleet = make(ring)
    fleet.own[2] = {"NCCL_IB_GID_INDEX": index}
    fleet.set_gid(2, "rocep1s0f1", 3, "::")
    fleet.start().fail()
    assert seen in fleet.log(2)
    assert said in fleet.log(1)
    assert "RuntimeError: NCCL error: unhandled system error" in fleet.log(1)
    assert not any("Connected all rings" in fleet.log(rank) for rank in range(4))


def test_stock_connects_the_rings_and_fails_in_the_trees(make: Make, ring: World) -> None:
    fleet = make(ring, "stock").start()
    fleet.fail()
    for rank in (0, 2):
        log = fleet.log(rank)
        assert "Connected all rings, use ring PXN 0 GDR 0" in log
        assert "RuntimeError: NCCL error: unhandled system error (ncclTransportTreeConnect)" in log
        assert "SWITCHLESS" not in log
        assert "sums right" not in log


def test_the_older_patch_skips_trees_by_its_own_variable_alone(make: Make, ring: World) -> None:
    log = make(ring, "skip-tree").start().ready()
    assert "SWITCHLESS: skipping ncclTransportTreeConnect/PatConnect" in log
    assert "SWITCHLESS_RING_ONLY" not in log


def test_stock_on_one_rank_fails_in_its_trees_and_takes_the_others_along(make: Make, ring: World) -> None:
    fleet = make(ring)
    fleet.bring(2, "stock")
    fleet.start().fail()
    assert "ncclTransportTreeConnect" in fleet.log(2)
    assert "not the same libnccl everywhere: " in fleet.log(0)
    assert " on 0,1,3; " in fleet.log(0)


def test_a_rank_whose_library_has_the_cap_is_reached_on_one_plane_only(make: Make, ring: World) -> None:
    fleet = make(ring, **DUAL)
    fleet.bring(2, "no-extended")
    fleet.start().ready()
    assert [fleet.carried(rank) for rank in (0, 1, 3)] == [BOTH_PLANES, ONE_PLANE, BOTH_PLANES]


def test_another_version_on_one_rank_is_refused_by_all(make: Make, ring: World) -> None:
    fleet = make(ring)
    fleet.bring(1, "patched", version="2.32.3")
    fleet.start().fail()
    assert "Mismatched NCCL version detected : rank 1 version 23203 rank 0 version 23007" in fleet.log(0)
    assert "NCCL error: invalid usage" in fleet.log(0)


def test_an_algorithm_that_is_not_connected_cannot_be_used(make: Make, ring: World) -> None:
    fleet = make(ring, NCCL_ALGO="Tree").start()
    fleet.fail()
    assert "no algorithm/protocol available for function AllReduce" in fleet.log(0)
    assert "Connected all rings" in fleet.log(0)


def test_a_ring_without_subnet_aware_routing_fails(make: Make, ring: World) -> None:
    fleet = make(ring, NCCL_IB_SUBNET_AWARE_ROUTING="0").start()
    fleet.fail()
    assert "Call to ibv_modify_qp failed" in fleet.log(0)


@pytest.mark.parametrize("kind", ["stock", "patched"])
def test_a_switch_carries_trees_too_and_both_planes_with_any_library(make: Make, switch: World, kind: str) -> None:
    fleet = make(switch, kind).start()
    log = fleet.ready()
    assert "Connected all trees" in log
    assert ("ListenerRouting format=legacy advertised=2 observed=2" in log) == (kind == "patched")
    assert "overriding" not in log
    assert [fleet.carried(rank) for rank in range(4)] == [BOTH_PLANES] * 4


def test_the_log_shows_what_level_and_subsystems_let_through(make: Make, switch: World) -> None:
    log = make(switch, NCCL_DEBUG_SUBSYS="INIT").start().ready()
    assert "Connected all rings" in log
    assert "ListenerRouting" not in log
    assert "set by environment" not in log
