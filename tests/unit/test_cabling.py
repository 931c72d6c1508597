"""What the wires say about the settings: cables in rank order are taken, all others are refused by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.cabling import Judgement, addressed, around, judge
from fleet.facts import Facts, parse
from fleet.loading import load
from fleet.planner import make
from fleet.problems import Problem
from fleet.settings import Settings
from fleet.stack import StackName
from fleet.topology import Cabling, End, Socket, Topology, cables_of
from fleet.topology import ring as usual
from fleet.wires import read
from tests.unit import heard, observed
from tests.unit.stacks import changed, ring, switched

STACK = StackName("spark-fabric", "test")
FOUR = ("spark1", "spark2", "spark3", "spark4")
CROSSED = ["spark1:f0 spark3:f0", "spark2:f1 spark4:f1", "spark2:f0 spark3:f1", "spark4:f0 spark1:f1"]
PAIRS = ["spark1:f0 spark4:f1", "spark4:f0 spark1:f1", "spark3:f0 spark2:f1", "spark2:f0 spark3:f1"]
RAIL = [" ".join(f"{name}:f0" for name in FOUR)]

sizes = st.integers(3, 8)


def names_of(size: int) -> list[str]:
    return [f"spark{number}" for number in range(1, size + 1)]


def said(word: str, size: int = 4) -> Settings:
    return load(changed(ring(size), {"fabric.cabling": word}))


def judged(settings: Settings, wires: Iterable[str], facts: dict[str, Facts] | None = None, **more: Any) -> Judgement:
    return judge(settings, facts or {}, heard.wires(settings, wires, **more))


def codes(problems: Iterable[Problem]) -> list[tuple[str, str]]:
    return [(one.code, one.path) for one in problems]


def applied(config: dict[str, Any], found: Topology | None = None) -> dict[str, Facts]:
    """A fleet that has the addresses of this config, as its journals say."""
    settings = load(config)
    facts = {name: parse(one) for name, one in observed.fleet(len(settings.nodes)).items()}
    plan = make(settings, facts, STACK, found=found)
    return {name: parse(one) for name, one in observed.fleet_applied(plan, journaled=True).items()}


ADDRESSED = {way: applied(changed(ring(), {"fabric.cabling": way})) for way in ("ring", "reversed")}


# Rings in rank order


@given(sizes, st.sampled_from([Cabling.RING, Cabling.REVERSED]))
def test_a_ring_is_right_in_either_direction_and_gets_the_addresses_of_that_word(size: int, way: Cabling) -> None:
    names = names_of(size)
    wires = heard.ring(*(names if way is Cabling.RING else names[::-1]))
    assert judged(load(ring(size)), wires) == Judgement(usual(size, way))
    assert judged(said(way.value, size), wires) == Judgement(usual(size, way))


@given(st.data(), sizes)
def test_the_sockets_of_any_node_may_be_exchanged(data: st.DataObject, size: int) -> None:
    flipped = data.draw(st.sets(st.integers(0, size - 1)))

    def end(rank: int, socket: Socket) -> End:
        return End(rank, Socket(f"f{socket.function ^ (rank in flipped)}"))

    cables = {frozenset((end(rank, Socket.F0), end((rank + 1) % size, Socket.F1))): rank for rank in range(size)}
    texts = [" ".join(f"spark{one.rank + 1}:{one.socket}" for one in cable) for cable in cables]
    found = judged(load(ring(size)), texts)
    assert found.problems == found.warnings == ()
    assert found.ring is not None
    assert cables_of(found.ring) == set(cables)
    if len(flipped) not in (0, size):  # else it is a usual ring, with the numbers of that one
        assert all(
            cables[frozenset(m.end for m in segment.members)] == segment.index for segment in found.ring.segments
        )


# Rings of another order


@given(st.permutations(names_of(6)))
def test_another_order_is_refused_with_the_one_that_the_cables_make(order: list[str]) -> None:
    settings = load(ring(6))
    wires = heard.wires(settings, heard.ring(*order))
    head = order.index("spark1")
    assert around(settings, wires) == order[head:] + order[:head]
    neighbours = {frozenset((one, other)) for one, other in zip(order, [*order[1:], order[0]], strict=True)}
    missing = [
        rank
        for rank, name in enumerate(names_of(6))
        if frozenset((name, names_of(6)[(rank + 1) % 6])) not in neighbours
    ]
    found = judge(settings, {}, wires)
    if not missing:
        assert found.problems == ()
        return
    assert found.ring is None
    *cables, last = found.problems
    assert {one.code for one in cables} == {"cable-wrong"}
    assert len(cables) == len(missing)
    assert last.code == "cabling-order"
    assert f"Put them in the order {' '.join(order[head:] + order[:head])}, " in last.hint


def test_a_ring_that_is_closed_in_another_order_than_configured_is_refused() -> None:
    """F013"""
    found = judged(load(ring()), heard.ring("spark1", "spark3", "spark2", "spark4"))
    assert codes(found.problems)[-1] == ("cabling-order", "spark-fabric:nodes")
    assert "but the cables join spark1 spark3 spark2 spark4" in found.problems[-1].seen


@pytest.mark.parametrize("word", ["discover", "ring"])
def test_two_swapped_cables_are_both_named_with_where_they_lead(word: str) -> None:
    *cables, order = (one.text() for one in judged(said(word), CROSSED).problems)
    leads = {"cable 0": ("spark1 f0 leads to spark3 f0, spark2 f1 leads to spark4 f1", "spark1 f0 to spark2 f1")}
    leads |= {"cable 2": ("spark3 f0 leads to spark1 f0, spark4 f1 leads to spark2 f1", "spark3 f0 to spark4 f1")}
    assert cables == [f"{cable}: is not there: {seen}, wanted {wanted}." for cable, (seen, wanted) in leads.items()]
    assert order == (
        "spark-fabric:nodes: are in the order spark1 spark2 spark3 spark4, but the cables join "
        "spark1 spark3 spark2 spark4, wanted neighbours that share a cable. Put them in the order "
        "spark1 spark3 spark2 spark4, which is then the rank order, or move the cables."
    )


def test_cables_that_make_no_ring_are_refused_and_all_told() -> None:
    found = judged(load(ring()), PAIRS)
    assert codes(found.problems) == [
        ("cable-wrong", "cable 0"),
        ("cable-wrong", "cable 2"),
        ("cabling-no-ring", "cables"),
    ]
    assert "spark1 f0 to spark4 f1, spark1 f1 to spark4 f0, spark2 f0 to" in found.problems[2].seen


def test_a_cable_to_a_node_that_leaves_is_named() -> None:
    config = changed(ring(4), {"nodes[3].state": "leaving", "engine.profile": "none"})
    found = judged(load(config), heard.ring(*FOUR))
    assert codes(found.problems) == [("cable-wrong", "cable 2"), ("cabling-no-ring", "cables")]
    assert "spark3 f0 leads to spark4 f1, spark1 f1 leads to spark4 f0" in found.problems[0].seen


@pytest.mark.parametrize(("word", "right"), [("ring", "reversed"), ("reversed", "ring")])
def test_a_direction_that_is_not_the_one_that_was_named_is_refused_with_the_word_to_set(word: str, right: str) -> None:
    found = judged(said(word), heard.ring(*(FOUR if right == "ring" else FOUR[::-1])))
    (problem,) = found.problems
    assert (problem.code, problem.path) == ("cabling-direction", "spark-fabric:fabric.cabling")
    assert problem.seen.startswith(f"is {word}, but the cables join spark1 f0 to ")
    assert problem.hint == f"The order of nodes is right. Set it to {right}, or to discover."


def test_exchanged_sockets_under_a_named_direction_are_refused() -> None:
    wires = ["spark1:f0 spark2:f0", "spark2:f1 spark3:f1", "spark3:f0 spark4:f1", "spark4:f0 spark1:f1"]
    (problem,) = judged(said("ring"), wires).problems
    assert problem.seen == "is ring, but the cables join spark1 f0 to spark2 f0, spark2 f1 to spark3 f1"
    assert problem.hint.endswith("Set it to discover.")


# Ports that nobody hears


def test_a_pulled_cable_is_told_at_both_ends() -> None:
    found = judged(load(ring()), heard.ring(*FOUR)[1:])
    assert codes(found.problems) == [
        ("port-no-carrier", "spark1 f0 (enp1s0f0np0, enP2p1s0f0np0)"),
        ("port-no-carrier", "spark2 f1 (enp1s0f1np1, enP2p1s0f1np1)"),
    ]
    assert found.ring is None


def test_a_port_that_is_down_is_told_and_not_the_end_that_lost_carrier_by_it() -> None:
    found = judged(load(ring()), heard.ring(*FOUR), down=["spark1:f0"])
    assert codes(found.problems) == [("port-down", "spark1 f0 (enp1s0f0np0, enP2p1s0f0np0)")]
    assert "On spark1: sudo ip link set enp1s0f0np0 up. Or name the direction" in found.problems[0].hint


def test_a_port_that_is_down_is_a_warning_where_the_cables_are_known() -> None:
    """`up` brings it up."""
    wires, down = heard.ring(*FOUR), ["spark1:f0"]
    for found in (judged(said("ring"), wires, down=down), judged(load(ring()), wires, applied(ring()), down=down)):
        assert found.problems == ()
        assert codes(found.warnings) == [("port-off", "spark1 f0 (enp1s0f0np0, enP2p1s0f0np0)")]
        assert found.ring in (None, usual(4))


def with_stranger(settings: Settings, facts: dict[str, Facts] | None = None) -> Judgement:
    """Cable 0 leads out of the fleet at both ends."""
    reports = heard.reports(4, [*heard.ring(*FOUR)[1:], "spark1:f0 x:f0", "spark2:f1 y:f0"])
    return judge(settings, facts or {}, read(settings, reports, {}))


def test_a_cable_that_leads_out_of_the_fleet_is_told() -> None:
    found = with_stranger(load(ring()))
    assert [one.code for one in found.problems] == ["port-silent", "port-silent"]
    assert "has carrier, but no other port of this fleet is heard on it, wanted spark2 f1 there" in (
        found.problems[0].text()
    )


def test_silence_on_a_port_that_holds_its_address_is_a_warning() -> None:
    found = with_stranger(load(ring()), applied(ring()))
    assert found.problems == ()
    assert [one.code for one in found.warnings] == ["port-unheard", "port-unheard"]
    assert found.ring == usual(4)


def test_a_node_that_could_not_listen_is_named_and_its_neighbours_are_not() -> None:
    reports = heard.reports(4, heard.ring(*FOUR))
    del reports["spark2"]
    for report in reports.values():
        for port in report["ports"]:
            port["heard"] = [who for who in port["heard"] if who["node"] != "spark2"]
    found = judge(load(ring()), {}, read(load(ring()), reports, {"spark2": "spark2: no answer"}))
    assert [one.text() for one in found.problems] == [
        "spark2: cannot listen on its ports: spark2: no answer, wanted an answer."
    ]
    assert found.ring is None


# Ports that were addressed


def test_the_journals_tell_the_ring_of_exchanged_sockets() -> None:
    cables = [
        (End(0, Socket.F0), End(1, Socket.F0)),
        (End(1, Socket.F1), End(2, Socket.F1)),
        (End(2, Socket.F0), End(3, Socket.F1)),
        (End(3, Socket.F0), End(0, Socket.F1)),
    ]
    found = judged(load(ring()), [" ".join(f"spark{e.rank + 1}:{e.socket}" for e in cable) for cable in cables]).ring
    assert found is not None
    facts = applied(ring(), found)
    assert addressed(load(ring()), facts) == found
    del facts["spark3"]
    assert addressed(load(ring()), facts) is None


@pytest.mark.parametrize("way", ["ring", "reversed"])
def test_the_journals_tell_the_direction(way: str) -> None:
    facts = applied(changed(ring(), {"fabric.cabling": way, "fabric.plane0.enabled": "off"}))
    assert addressed(load(ring()), facts) == usual(4, Cabling(way))


def test_ranks_in_another_order_are_not_the_ring_of_the_journals() -> None:
    facts = applied(ring())
    config = ring()
    config["nodes"][1:3] = config["nodes"][2:0:-1]
    assert addressed(load(config), facts) is None
    assert judged(load(config), heard.ring(*FOUR), facts).problems[-1].code == "cabling-order"


def test_cables_that_were_moved_to_another_good_ring_are_taken_with_a_warning() -> None:
    found = judged(load(ring()), heard.ring(*FOUR[::-1]), applied(ring()))
    assert found.problems == ()
    assert found.ring == usual(4, Cabling.REVERSED)
    assert codes(found.warnings) == [("cables-moved", "spark-fabric:fabric.cabling")]
    assert "finds 4 cables that were not there" in found.warnings[0].seen


@pytest.mark.parametrize("down", ["spark1:f1", "spark3:f0"])
def test_cables_that_contradict_the_addresses_are_told_while_another_port_is_down(down: str) -> None:
    """Its cable is not known then: no address says any more which one it is."""
    found = judged(load(ring()), heard.ring(*FOUR[::-1]), applied(ring()), down=[down])
    assert [(one.code, one.path.partition(" (")[0]) for one in found.problems] == [
        ("port-down", down.replace(":", " "))
    ]
    assert [one.code for one in found.warnings] == ["cables-moved"]
    assert "finds 3 cables that were not there when the ports got their addresses: spark1 f0 to spark4 f1" in (
        found.warnings[0].seen
    )
    assert "They are planned once every port is heard." in found.warnings[0].hint
    assert found.ring is None


def test_an_address_is_no_proof_of_a_silent_port_where_other_cables_contradict_the_addresses() -> None:
    facts, settings = applied(ring()), load(ring())
    reports = heard.reports(4, [*heard.ring(*FOUR[::-1])[1:], "spark4:f0 x:f0", "spark3:f1 y:f0"])
    found = judge(settings, facts, read(settings, reports, {}))
    assert [one.code for one in found.problems] == ["port-silent", "port-silent"]
    assert [one.code for one in found.warnings] == ["cables-moved"]


@given(st.data())
def test_cables_are_found_or_something_stands_in_the_way(data: st.DataObject) -> None:
    """Else addresses would be planned for cables that nobody has seen."""
    before = data.draw(st.sampled_from([None, "ring", "reversed"]), "before")
    facts = ADDRESSED[before] if before else {}
    lost = data.draw(st.sets(st.sampled_from(FOUR), max_size=1), "lost")
    wires = heard.ring(*data.draw(st.sampled_from([FOUR, FOUR[::-1]]), "order"))
    out = data.draw(st.sets(st.integers(0, 3), max_size=2), "out of the fleet")
    wires = [*(wire for place, wire in enumerate(wires) if place not in out)] + [
        f"{port} x{place}{end}:f0" for place in out for end, port in enumerate(wires[place].split())
    ]
    down = data.draw(st.sets(st.sampled_from([f"{name}:{socket}" for name in FOUR for socket in Socket]), max_size=2))
    settings = load(ring())
    seen = read(settings, heard.reports(4, wires, down=down), {})
    found = judge(settings, {name: one for name, one in facts.items() if name not in lost}, seen)
    assert found.ring or found.problems


# Switches


def test_a_rail_on_one_switch_is_right_whatever_else_is_plugged_there() -> None:
    assert judged(load(switched(4)), RAIL) == Judgement()
    assert judged(load(switched(4)), [f"{RAIL[0]} spark1:f1 spark2:f1"]) == Judgement()
    assert judged(load(switched(2)), ["spark1:f0 spark2:f0"]) == Judgement()


def test_a_switch_under_a_ring_and_cables_under_a_rail_are_refused() -> None:
    assert codes(judged(load(ring()), RAIL).problems) == [("cabling-kind", "spark-fabric:fabric.topology")]
    found = judged(load(switched(4)), heard.ring(*FOUR))
    assert codes(found.problems) == [("cabling-kind", "spark-fabric:fabric.topology")]
    assert "spark1 f0 to spark2 f1" in found.problems[0].seen


def test_a_switch_on_the_other_port_is_told() -> None:
    found = judged(load(switched(4)), [RAIL[0].replace("f0", "f1")])
    assert [one.text() for one in found.problems] == [
        "spark-fabric:fabric.port: is f0, but f1 is on the switch, wanted f1. Correct it."
    ]


def test_two_switches_without_a_link_are_told() -> None:
    found = judged(load(switched(5)), ["spark1:f0 spark2:f0 spark3:f0", "spark4:f0 spark5:f0"])
    assert codes(found.problems) == [("rail-split", "spark4 f0, spark5 f0")]
    assert "not on the switch of spark1 f0" in found.problems[0].seen


def test_a_port_that_is_not_plugged_into_the_switch_is_told() -> None:
    found = judged(load(switched(4)), ["spark1:f0 spark2:f0 spark3:f0"])
    assert codes(found.problems) == [("port-no-carrier", "spark4 f0 (enp1s0f0np0, enP2p1s0f0np0)")]
    assert judged(load(switched(4)), RAIL, down=["spark4:f0"]).problems == ()
