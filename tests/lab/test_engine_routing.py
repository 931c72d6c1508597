"""Which device the simulated library takes, and what a listener tells of its GIDs."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.engine import faults, library, routing, settings
from lab.engine.fabric import Device, devices
from lab.engine.routing import Policy, advertise, choose
from lab.library import KINDS, build

NAMES = ("rocep1s0f0", "rocep1s0f1", "roceP2p1s0f0", "roceP2p1s0f1")
STOCK = Policy(subnet_aware=True, prefix=24, extended=False, preserve_domain=False)
EXTENDED = Policy(subnet_aware=True, prefix=24, extended=True, preserve_domain=True)


def node(rank: int, ranks: int = 4) -> list[Device]:
    """Both planes of one node of a ring, a /24 for each cable and plane."""
    found = []
    for index, name in enumerate(NAMES):
        plane, socket = divmod(index, 2)
        cable = rank if socket == 0 else (rank - 1) % ranks
        gid = f"::ffff:10.{10 + 10 * plane}.{cable}.{10 + socket}"
        found.append(Device(index, name, 1, 2 * plane, f"net{index}", 3, gid, "RoCE v2"))
    return found


def test_a_stock_listener_tells_two_gids_and_an_extended_one_four() -> None:
    assert len(advertise(node(1), STOCK).addresses) == 2
    assert advertise(node(1), EXTENDED).format == "ipv4-v1"
    assert len(advertise(node(1), EXTENDED).addresses) == 4


@pytest.mark.parametrize(("policy", "planes"), [(STOCK, {0}), (EXTENDED, {0, 2})])
def test_both_planes_carry_only_with_four_gids_and_the_domain_kept(policy: Policy, planes: set[int]) -> None:
    mine, theirs = node(0), node(1)
    routes = [choose(k, mine, theirs[k].ipv4, advertise(theirs, policy), policy) for k in range(4)]
    assert {route.device.domain for route in routes if route} == planes
    assert {route.device.name for route in routes if route} <= {"rocep1s0f0", "roceP2p1s0f0"}


def test_a_device_without_a_gid_is_never_matched() -> None:
    empty = Device(0, "rocep1s0f0", 1, 0, "net0", 3, "", "")
    first = Device(0, "rocep1s0f0", 1, 0, "net0", 2, "::ffff:10.10.0.10", "IB/RoCE v1")
    assert empty.ipv4 is None
    assert first.ipv4 is None
    assert choose(0, [empty], "10.10.0.11", advertise(node(1), STOCK), STOCK) is None


@pytest.mark.parametrize("ranks", range(2, 17))
def test_the_tree_reaches_every_rank_once(ranks: int) -> None:
    edges = routing.tree(ranks)
    assert sorted(child for child, _ in edges) == list(range(1, ranks))
    assert all(parent < ranks for _, parent in edges)


def test_a_ring_of_four_has_a_tree_edge_without_a_cable() -> None:
    assert (2, 0) in routing.tree(4)


def test_devices_are_read_as_the_kernel_shows_them(tmp_path: Path) -> None:
    for name, bdf, state in (("roceP2p1s0f0", "0002:01:00.0", "4: ACTIVE"), ("rocep1s0f0", "0000:01:00.0", "4: ACTIVE"),
                             ("rocep1s0f1", "0000:01:00.1", "1: DOWN")):  # fmt: skip
        port = tmp_path / "class" / name / "ports/1"
        for part in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
            (port / part).mkdir(parents=True)
        (tmp_path / bdf).mkdir()
        (tmp_path / "class" / name / "device").symlink_to(tmp_path / bdf)
        (port / "state").write_text(state)
        (port / "gids/3").write_text("0000:0000:0000:0000:0000:ffff:0a0a:000a\n")
        (port / "gid_attrs/types/3").write_text("RoCE v2\n")
        (port / "gid_attrs/ndevs/3").write_text("net\n")
    found = devices(tmp_path / "class", "rocep1s0f0,rocep1s0f1,roceP2p1s0f0", None)
    assert [(device.name, device.domain, device.gid_index, device.ipv4) for device in found] == [
        ("rocep1s0f0", 0, 3, "10.10.0.10"),
        ("roceP2p1s0f0", 2, 3, "10.10.0.10"),
    ]
    assert devices(tmp_path / "class", "rocep1s0f0", "")[0].gid_index == 0


def test_every_problem_of_an_environment_is_told_at_once() -> None:
    bad = {
        "NNODES": "4",
        "NODE_RANK": "4",
        "TP_SIZE": "2",
        "EP_SIZE": "3",
        "DIST_INIT_ADDR": "x",
        "CONTEXT_LENGTH": "9",
    }
    with pytest.raises(settings.BadSettings) as caught:
        settings.parse(bad)
    for word in ("NODE_RANK", "TP_SIZE", "EP_SIZE", "DIST_INIT_ADDR", "CONTEXT_LENGTH"):
        assert word in str(caught.value)


def test_values_that_must_be_equal_are_named_with_their_ranks() -> None:
    shared = [settings.shared({"NCCL_ALGO": "Ring", "NCCL_IB_HCA": str(k), "PATH": str(k)}) for k in range(3)]
    shared[1] = {"NCCL_ALGO": "Tree"}
    assert settings.disagreements(shared) == ["NCCL_ALGO: ranks 0,2 'Ring'; rank 1 'Tree'"]


def test_faults_are_for_the_rank_they_name() -> None:
    assert [f.kind for f in faults.parse("die:5@2, hang", 2)] == ["die", "hang"]
    assert [f.kind for f in faults.parse("die:5@2, hang", 0)] == ["hang"]
    with pytest.raises(ValueError, match="ENGINE_FAULT"):
        faults.parse("explode", 0)


@pytest.mark.parametrize(
    ("kind", "can"),
    [
        ("patched", (1, 0, 1, 1, 1)),
        ("no-extended", (1, 0, 0, 0, 0)),
        ("skip-tree", (0, 1, 0, 0, 0)),
        ("stock", (0,) * 5),
    ],
)
def test_a_library_can_what_its_strings_say(tmp_path: Path, kind: str, can: tuple[int, ...]) -> None:
    digest = build(tmp_path / "it", markers=KINDS[kind])
    found = library.read(tmp_path / "it")
    assert (found.sha256, found.release, found.code, found.cuda) == (digest, "2.30.7", 23007, "13.2")
    abilities = found.ring_only, found.skip_tree, found.extended_gids, found.preserve_domain, found.diagnostics
    assert abilities == can


def test_a_file_that_tells_no_version_is_no_library(tmp_path: Path) -> None:
    (tmp_path / "it").write_bytes(b"NCCL_SWITCHLESS_RING_ONLY\0")
    with pytest.raises(library.LibraryError, match="undefined symbol: ncclGetVersion"):
        library.read(tmp_path / "it")


@pytest.mark.parametrize(
    ("listing", "ring"),
    [("", True), ("Ring", True), ("ring,tree", True), ("Tree", False), ("^Ring", False), ("^Tree", True)],
)
def test_algorithms_are_listed_as_the_library_reads_them(listing: str, ring: bool) -> None:
    assert routing.allows(listing, "Ring") == ring
