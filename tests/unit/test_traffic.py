"""Shares of planes and cables, whatever the ranks have moved: figures that add up, verdicts that follow from them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.proof import Verdict
from fleet.traffic import (
    Limits,
    Load,
    Moved,
    Port,
    arrivals,
    busiest,
    edge_shares,
    moved_between,
    plane_shares,
    size,
    traffic,
)

MIB = 1 << 20
LIMITS = Limits(minimum=MIB, plane_share=20, edge_share=25, arrival=90)
ANSWERED = Load(4)
DOMAIN = {0: "rocep1s0f", 1: "roceP2p1s0f"}

Traffic = dict[Port, Moved]


def ring_ports(size: int, planes: int = 2) -> list[Port]:
    """The ports of a ring, cable k from rank k's f0 to the next one's f1."""
    return [
        Port(rank, plane, f"spark{rank + 1}", f"{DOMAIN[plane]}{socket}", "", "", f"cable {cable}", f"cable {cable}")
        for rank in range(size)
        for plane in range(planes)
        for socket, cable in ((0, rank), (1, (rank - 1) % size))
    ]


def switch_ports(size: int, planes: int = 2) -> list[Port]:
    """The ports of a switched fabric: one link a rank and plane."""
    return [
        Port(rank, plane, f"spark{rank + 1}", f"{DOMAIN[plane]}0", "", "", f"spark{rank + 1} f0", "the switch")
        for rank in range(size)
        for plane in range(planes)
    ]


def one_way(ports: list[Port], sent: Mapping[int, int], acknowledged: int = 0) -> Traffic:
    """Every f0 sends so many bytes by plane, every f1 receives them; little comes back."""
    return {
        port: Moved(sent[port.plane], acknowledged) if port.hca.endswith("0") else Moved(acknowledged, sent[port.plane])
        for port in ports
    }


ports = st.one_of(
    st.builds(ring_ports, st.integers(3, 9), st.integers(1, 2)),
    st.builds(switch_ports, st.integers(2, 9), st.integers(1, 2)),
)
amounts = st.one_of(st.just(0), st.integers(0, 1 << 50))


@st.composite
def anything(draw: st.DrawFn) -> Traffic:
    return {port: Moved(draw(amounts), draw(amounts)) for port in draw(ports)}


@given(anything())
def test_the_planes_of_a_rank_share_all_of_its_bytes(moved: Traffic) -> None:
    shares = plane_shares(moved)
    for rank in {port.rank for port in moved}:
        total = sum(one.both for port, one in moved.items() if port.rank == rank)
        assert sum(share for (of, _), share in shares.items() if of == rank) == pytest.approx(1 if total else 0)
    assert all(0 <= share <= 1 for share in shares.values())


@given(anything())
def test_the_edges_of_a_plane_have_a_mean_of_one(moved: Traffic) -> None:
    shares = edge_shares(moved)
    for plane in {port.plane for port in moved}:
        of_plane = [share for (at, _), share in shares.items() if at == plane]
        total = sum(one.both for port, one in moved.items() if port.plane == plane)
        assert sum(of_plane) / len(of_plane) == pytest.approx(1 if total else 0)


@given(anything(), st.integers(2, 1000))
def test_shares_do_not_depend_on_how_much_was_moved(moved: Traffic, times: int) -> None:
    more = {port: Moved(one.sent * times, one.received * times) for port, one in moved.items()}
    assert plane_shares(more) == pytest.approx(plane_shares(moved))
    assert edge_shares(more) == pytest.approx(edge_shares(moved))


@given(anything())
def test_shares_do_not_depend_on_the_direction(moved: Traffic) -> None:
    turned = {port: Moved(one.received, one.sent) for port, one in moved.items()}
    assert plane_shares(turned) == plane_shares(moved)
    assert edge_shares(turned) == edge_shares(moved)


@given(anything())
def test_what_is_sent_is_counted_once(moved: Traffic) -> None:
    assert sum(sent for sent, _ in arrivals(moved).values()) == sum(one.sent for one in moved.values())


@given(anything(), st.integers(0, 1 << 52))
def test_too_little_is_unknown_and_nothing_else_is(moved: Traffic, minimum: int) -> None:
    verdict = traffic(moved, ANSWERED, Limits(minimum, 20, 25, 90)).verdict
    assert (verdict is Verdict.UNKNOWN) == (busiest(moved) < minimum)


@given(ports, st.integers(MIB, 1 << 50))
def test_traffic_that_is_the_same_everywhere_passes(listed: list[Port], each: int) -> None:
    same = {port: Moved(each, each) for port in listed}
    assert traffic(same, ANSWERED, LIMITS).verdict is Verdict.PASSED
    if listed[0].segment != "the switch":
        assert traffic(one_way(listed, {0: each, 1: each}, each // 100), ANSWERED, LIMITS).verdict is Verdict.PASSED


@given(st.integers(3, 9), st.integers(MIB, 1 << 50), st.integers(0, 1))
def test_a_plane_that_carries_nothing_fails_as_one_fault(ranks: int, each: int, idle: int) -> None:
    found = traffic(one_way(ring_ports(ranks), {idle: 0, 1 - idle: each}, each // 100), ANSWERED, LIMITS)
    assert found.verdict is Verdict.FAILED
    (fault,) = found.faults
    assert fault.startswith(f"plane {idle} carries ")
    assert fault.endswith("of all that the ranks move, at least 20 % is wanted")


@given(st.integers(4, 9), st.integers(MIB, 1 << 40), st.data())
def test_a_cable_that_carries_nothing_is_named_in_both_planes(ranks: int, each: int, data: st.DataObject) -> None:
    dead = f"cable {data.draw(st.integers(0, ranks - 1))}"
    moved = {
        port: Moved(0, 0) if port.edge == dead else one
        for port, one in one_way(ring_ports(ranks), {0: each, 1: each}).items()
    }
    found = traffic(moved, ANSWERED, LIMITS)
    assert found.verdict is Verdict.FAILED
    assert found.faults == tuple(
        f"{dead} carries 0.0 % of the mean in plane {plane}, at least 25 % is wanted" for plane in (0, 1)
    )


def test_one_rank_that_leaves_a_plane_out_is_named() -> None:
    moved = one_way(ring_ports(4), {0: 10 * MIB, 1: 10 * MIB})
    moved |= {port: Moved(0, 0) for port in moved if (port.rank, port.plane) == (2, 1)}
    faults = traffic(moved, ANSWERED, LIMITS).faults
    assert faults[0] == "plane 1 carries 0.0 % of what rank 2 on spark3 moves, at least 20 % is wanted"
    assert "cable 1, plane 1: 0 B of 10.0 MiB arrived at the far ends, at least 90 % is wanted" in faults


def test_bytes_that_arrive_at_the_twin_are_not_where_they_should_be() -> None:
    """With a twin's MAC in the neighbour table the wire is right and the function is not."""
    moved = one_way(ring_ports(4), {0: 10 * MIB, 1: 10 * MIB})
    receivers = [port for port in moved if port.hca.endswith("1")]
    moved |= {port: Moved(0, 0 if port.plane else 20 * MIB) for port in receivers}
    found = traffic(moved, ANSWERED, LIMITS)
    assert "cable 0, plane 1: 0 B of 10.0 MiB arrived at the far ends, at least 90 % is wanted" in found.faults


def test_thresholds_count_to_the_percent() -> None:
    moved = one_way(ring_ports(4), {0: 80 * MIB, 1: 20 * MIB})
    assert traffic(moved, ANSWERED, LIMITS).verdict is Verdict.PASSED
    assert traffic(moved, ANSWERED, Limits(MIB, 21, 25, 90)).verdict is Verdict.FAILED


def test_a_completion_that_fails_is_a_failure_whatever_was_moved() -> None:
    found = traffic(one_way(ring_ports(4), {0: 0, 1: 0}), Load(0, "status 500: no step finished", ended=True), LIMITS)
    assert found.verdict is Verdict.FAILED
    assert found.faults == ("the next completion failed: status 500: no step finished",)


def test_a_key_that_is_not_the_containers_is_no_failure_of_the_fabric() -> None:
    found = traffic(one_way(ring_ports(4), {0: 0, 1: 0}), Load(0, "status 401: Unauthorized", refused=True), LIMITS)
    assert found.verdict is Verdict.UNKNOWN
    assert "another key" in found.why


def readings(sent: int | None, received: int | None) -> dict[str, dict[str, dict[str, int | None]]]:
    found: dict[str, dict[str, dict[str, int | None]]] = {}
    for port in ring_ports(3):
        found.setdefault(port.node, {})[port.hca] = {"sent": sent, "received": received}
    return found


def test_what_was_moved_is_the_difference_of_two_readings() -> None:
    moved = moved_between(ring_ports(3), readings(100, 40), readings(160, 50))
    assert set(moved.values()) == {Moved(60, 10)}
    assert len(moved) == 12


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [((100, 40), (20, 50), "begun to count anew"), ((None, 0), (10, 0), "no byte counters")],
)
def test_counters_that_tell_nothing_are_said_by_port(
    before: tuple[int | None, int], after: tuple[int, int], said: str
) -> None:
    with pytest.raises(ValueError, match=f"spark1 rocep1s0f0 has {said}"):
        moved_between(ring_ports(3), readings(*before), readings(*after))


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (MIB, "1.0 MiB"), (1 << 40, "1024.0 GiB")]
)
def test_sizes_are_for_people(count: int, text: str) -> None:
    assert size(count) == text
