"""Rings and rails of every size: who is whose neighbour, which way is nearer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.topology import Cabling, End, Kind, Socket, Topology, cabled, ring, switched

F0, F1 = Socket
sizes = st.integers(3, 12)
rings = st.builds(ring, sizes, st.sampled_from(Cabling))


def distance(topology: Topology, one: int, other: int) -> int:
    around = abs(one - other)
    return min(around, topology.size - around)


@given(rings)
def test_each_socket_has_one_cable_and_cable_k_starts_at_rank_k(topology: Topology) -> None:
    ends = [member.end for segment in topology.segments for member in segment.members]
    assert len(ends) == len(set(ends)) == 2 * topology.size
    for index, segment in enumerate(topology.segments):
        first, second = segment.members
        assert (segment.index, first.end, first.host) == (index, End(index, F0), 10)
        assert (second.end.socket, second.host) == (F1, 11)


@given(sizes)
def test_a_reversed_ring_leads_to_the_previous_rank(size: int) -> None:
    for index, segment in enumerate(ring(size, Cabling.REVERSED).segments):
        assert segment.members[1].end == End((index - 1) % size, F1)


@given(rings)
def test_hops_lead_nearer_and_a_tie_goes_out_of_f0(topology: Topology) -> None:
    for rank, hops in topology.hops.items():
        near = {topology.segment(end).index for end in topology.ends(rank)}
        assert set(hops) == set(range(topology.size)) - near
        for far, hop in hops.items():
            members = [member.end.rank for member in topology.segments[far].members]
            assert hop.out.rank == rank
            assert hop.via in [member.end for member in topology.segment(hop.out).others(hop.out)]
            here = min(distance(topology, rank, member) for member in members)
            assert min(distance(topology, hop.via.rank, member) for member in members) == here - 1
            ways = {
                end.socket
                for end in topology.ends(rank)
                for other in topology.segment(end).others(end)
                if min(distance(topology, other.end.rank, member) for member in members) == here - 1
            }
            if len(ways) == 2:
                assert hop.out.socket is F0


@given(rings)
def test_following_the_hops_arrives_without_a_loop(topology: Topology) -> None:
    for start in range(topology.size):
        for far in topology.hops[start]:
            rank, seen = start, set()
            while far in topology.hops[rank]:
                assert rank not in seen
                seen.add(rank)
                rank = topology.hops[rank][far].via.rank
            assert far in {topology.segment(end).index for end in topology.ends(rank)}


@pytest.mark.parametrize("size", [3, 5, 7])
def test_an_odd_ring_has_a_tie_for_each_rank(size: int) -> None:
    topology = ring(size)
    for rank in range(size):
        assert topology.hops[rank][(rank + size // 2) % size].out.socket is F0


@given(st.integers(2, 16), st.sampled_from(Socket))
def test_a_rail_joins_the_same_socket_of_every_rank(size: int, socket: Socket) -> None:
    topology = switched(size, socket)
    (rail,) = topology.segments
    assert topology.kind is Kind.SWITCHED
    assert [(member.end, member.host) for member in rail.members] == [(End(r, socket), 10 + r) for r in range(size)]
    assert topology.sockets == (socket,)
    assert not any(topology.hops.values())


def test_flipped_nodes_are_described_by_their_cables() -> None:
    # Rank 1 has its two cables swapped: f0 meets f0 and f1 meets f1 there.
    topology = cabled(3, [(End(0, F0), End(1, F0)), (End(1, F1), End(2, F1)), (End(2, F0), End(0, F1))])
    assert topology.segments[0].members[0].end == End(0, F0)
    assert {other.rank for _, other in topology.neighbours(1)} == {0, 2}


def test_the_f0_end_comes_first_whichever_way_a_cable_is_written() -> None:
    topology = cabled(3, [(End(1, F1), End(0, F0)), (End(2, F1), End(1, F0)), (End(0, F1), End(2, F0))])
    assert topology == ring(3)


@pytest.mark.parametrize(
    "cables",
    [
        [(End(0, F0), End(1, F1)), (End(1, F0), End(2, F1))],
        [(End(0, F0), End(1, F1)), (End(1, F0), End(2, F1)), (End(2, F0), End(1, F1))],
        [(End(0, F0), End(0, F1)), (End(1, F0), End(2, F1)), (End(2, F0), End(1, F1))],
    ],
    ids=["open", "socket twice", "two rings"],
)
def test_cables_that_make_no_ring_are_refused(cables: list[tuple[End, End]]) -> None:
    with pytest.raises(ValueError, match="cable"):
        cabled(3, cables)


def test_too_small_fabrics_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 3"):
        ring(2)
    with pytest.raises(ValueError, match="at least 2"):
        switched(1)
