"""The ways of the mesh, their numbers, loads and peer maps, against the published values and in every other order."""

from collections import Counter
from itertools import permutations

import pytest
from hypothesis import given

from fleet.mesh.paths import Direction, NotARingError, Ring
from fleet.mesh.peers import native_paths, peer_map, peer_maps
from fleet.ports import USUAL
from fleet.topology import Cabling, End, Topology, ring
from tests.unit.mesh_fleets import F0, F1, cabling, topologies

HCAS = {place: hca for place, (_, hca) in USUAL.items()}
IN_ORDER = Ring.of(ring(4))
REVERSED = Ring.of(ring(4, Cabling.REVERSED))


def test_sixteen_candidates_are_numbered_and_eight_are_taken() -> None:
    assert [path.number for path in IN_ORDER.diagonals()] == list(range(49152, 49168))
    assert [path.number for path in IN_ORDER.taken()] == [49152, 49155, 49156, 49159, 49161, 49162, 49165, 49166]


def test_names_say_ranks_direction_and_function() -> None:
    assert [path.name for path in IN_ORDER.taken()] == [
        "rank0-to-rank2-diagonal-clockwise-via-rank1-function0",
        "rank0-to-rank2-diagonal-counter_clockwise-via-rank3-function1",
        "rank1-to-rank3-diagonal-clockwise-via-rank2-function0",
        "rank1-to-rank3-diagonal-counter_clockwise-via-rank0-function1",
        "rank2-to-rank0-diagonal-clockwise-via-rank3-function1",
        "rank2-to-rank0-diagonal-counter_clockwise-via-rank1-function0",
        "rank3-to-rank1-diagonal-clockwise-via-rank0-function1",
        "rank3-to-rank1-diagonal-counter_clockwise-via-rank2-function0",
    ]
    assert next(IN_ORDER.direct()).name == "rank0-to-rank1-direct-clockwise-function0"


def test_a_reversed_ring_is_numbered_along_its_cables() -> None:
    """Positions go along f0 from rank 0: what is numbered 49152 starts at rank 0 and goes by rank 3."""
    assert REVERSED.order == (0, 3, 2, 1)
    first = REVERSED.taken()[0]
    assert (first.number, first.name) == (49152, "rank0-to-rank2-diagonal-clockwise-via-rank3-function0")


def test_the_loads_of_the_cables() -> None:
    assert {f"{low}-{high}/function{plane}": load for ((low, high), plane), load in IN_ORDER.loads().items()} == {
        "0-1/function0": 2,
        "0-1/function1": 2,
        "0-3/function0": 0,
        "0-3/function1": 4,
        "1-2/function0": 4,
        "1-2/function1": 0,
        "2-3/function0": 2,
        "2-3/function1": 2,
    }


def test_the_peer_maps_where_rank_order_is_ring_order() -> None:
    assert peer_maps(IN_ORDER) == (
        "1=0/2,2=0/3,3=1/3;0=1/3,2=0/2,3=0/3;0=1/2,1=1/3,3=0/2;0=0/2,1=1/2,2=1/3"
    )  # fmt: skip


def test_the_peer_maps_where_the_ranks_run_against_the_cables() -> None:
    assert peer_maps(REVERSED) == "1=1/3,2=0/3,3=0/2;0=0/2,2=1/3,3=1/2;0=1/2,1=0/2,3=1/3;0=1/3,1=0/3,2=0/2"


# destination, function, device, hops; a line for each rank
NATIVE = """
1,0,rocep1s0f0,1 1,1,roceP2p1s0f0,1 2,0,rocep1s0f0,2 2,1,roceP2p1s0f1,2 3,0,rocep1s0f1,1 3,1,roceP2p1s0f1,1
0,0,rocep1s0f1,1 0,1,roceP2p1s0f1,1 2,0,rocep1s0f0,1 2,1,roceP2p1s0f0,1 3,0,rocep1s0f0,2 3,1,roceP2p1s0f1,2
0,0,rocep1s0f1,2 0,1,roceP2p1s0f0,2 1,0,rocep1s0f1,1 1,1,roceP2p1s0f1,1 3,0,rocep1s0f0,1 3,1,roceP2p1s0f0,1
0,0,rocep1s0f0,1 0,1,roceP2p1s0f0,1 1,0,rocep1s0f1,2 1,1,roceP2p1s0f0,2 2,0,rocep1s0f1,1 2,1,roceP2p1s0f1,1
"""


@pytest.mark.parametrize(("rank", "line"), list(enumerate(NATIVE.strip().splitlines())))
def test_the_native_path_arguments(rank: int, line: str) -> None:
    wanted = [",".join((*path.split(",")[:3], "3", path.split(",")[3])) for path in line.split()]
    assert list(native_paths(IN_ORDER, rank, HCAS, 3)) == wanted


@given(topologies)
def test_a_rank_has_six_ways_three_in_each_plane(topology: Topology) -> None:
    found = Ring.of(topology)
    for rank in range(4):
        paths = found.paths_from(rank)
        assert [(path.destination, path.plane) for path in paths] == [
            (peer, plane) for peer in range(4) if peer != rank for plane in (0, 1)
        ]
    assert sum(len(path.edges) for rank in range(4) for path in found.paths_from(rank)) == 16 + 2 * 8


@given(topologies)
def test_every_way_runs_over_cables_that_are_there(topology: Topology) -> None:
    joined = {frozenset(member.end for member in segment.members) for segment in topology.segments}
    found = Ring.of(topology)
    for path in found.direct():
        assert frozenset((path.origin, path.arrival)) in joined
    for path in found.diagonals():
        assert frozenset((path.origin, path.ingress)) in joined
        assert frozenset((path.egress, path.arrival)) in joined
        assert path.ingress.rank == path.egress.rank == path.via
        assert path.ingress.socket is not path.egress.socket
        assert len({path.source, path.via, path.destination}) == 3


@given(topologies)
def test_each_way_has_its_way_back_over_the_same_node_and_plane(topology: Topology) -> None:
    taken = Ring.of(topology).taken()
    for path in taken:
        back = [
            one
            for one in taken
            if (one.source, one.destination, one.via) == (path.destination, path.source, path.via)
            and (one.plane, one.ingress, one.egress) == (path.plane, path.egress, path.ingress)
        ]
        assert len(back) == 1
    assert Counter(path.via for path in taken) == dict.fromkeys(range(4), 2)
    assert len({(path.via, path.ingress, path.plane, path.number) for path in taken}) == 8
    assert len({(path.origin, path.plane) for path in taken}) == 8  # one sport on each device


@given(topologies)
def test_loads_are_balanced_whatever_the_order(topology: Topology) -> None:
    loads = Ring.of(topology).loads()
    assert sorted(loads.values()) == [0, 0, 2, 2, 2, 2, 4, 4]
    assert sum(loads.values()) == 16


@given(topologies)
def test_maps_of_two_peers_agree(topology: Topology) -> None:
    """Path i has the same plane at both ends, and between neighbours the ports at the two ends of one cable."""
    maps = []
    for text in peer_maps(Ring.of(topology)).split(";"):
        entries = [entry.split("=") for entry in text.split(",")]
        maps.append({int(peer): [int(hca) for hca in hcas.split("/")] for peer, hcas in entries})
    for rank, peer in permutations(range(4), 2):
        mine, theirs = maps[rank][peer], maps[peer][rank]
        assert [hca // 2 for hca in mine] == [hca // 2 for hca in theirs] == [0, 1]
        cables = [
            {(member.end.rank, member.end.socket.function) for member in segment.members}
            for segment in topology.segments
        ]
        neighbours = any({rank, peer} == {end[0] for end in cable} for cable in cables)
        if neighbours:
            for here, there in zip(mine, theirs, strict=True):
                assert {(rank, here % 2), (peer, there % 2)} in cables
        assert len(set(mine)) == 2


def test_numbering_starts_along_the_f0_of_rank_0() -> None:
    turned = cabling((0, 1, 2, 3), (True, False, False, False))  # rank 0's f0 leads to rank 3
    found = Ring.cabled(turned)
    assert found.order == (0, 3, 2, 1)
    assert found.end(0, Direction.CLOCKWISE) == End(0, F0)
    assert found.end(1, Direction.CLOCKWISE) == End(3, F1)
    assert peer_map(found, 0).startswith("1=1/3,")


NO_RINGS = {
    "two pairs": [(End(0, F0), End(1, F1)), (End(1, F0), End(0, F1)), (End(2, F0), End(3, F1)),
                  (End(3, F0), End(2, F1))],
    "a node to itself": [(End(0, F0), End(0, F1)), (End(1, F0), End(2, F1)), (End(2, F0), End(3, F1)),
                         (End(3, F0), End(1, F1))],
    "a cable out": cabling((0, 1, 2, 3), (False,) * 4)[:3],
    "a port twice": [*cabling((0, 1, 2, 3), (False,) * 4)[:3], (End(3, F0), End(1, F1))],
    "a ring of three": [(End(0, F0), End(1, F1)), (End(1, F0), End(2, F1)), (End(2, F0), End(0, F1))],
    "nothing": [],
}  # fmt: skip


@pytest.mark.parametrize("cables", NO_RINGS.values(), ids=NO_RINGS)
def test_cables_that_make_no_ring_are_refused_with_what_is_there(cables: list[tuple[End, End]]) -> None:
    with pytest.raises(NotARingError) as raised:
        Ring.cabled(cables)
    for one, other in cables:
        assert f"rank {one.rank} {one.socket} to rank {other.rank} {other.socket}" in raised.value.seen
    assert "0 to 1, 1 to 2, 2 to 3 and 3 to 0" in raised.value.wanted


@pytest.mark.parametrize("size", [3, 5, 8])
def test_rings_of_other_sizes_have_no_mesh(size: int) -> None:
    with pytest.raises(NotARingError):
        Ring.of(ring(size))
