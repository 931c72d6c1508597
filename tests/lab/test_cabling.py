"""Which ports a cable joins, and what plugging and pulling do to the others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.cabling import FUNCTIONS, Cable, Port, factory, parse_cable, plug, pull
from lab.shell import LabError

NODES = 4
ports = st.builds(Port, st.integers(1, NODES), st.integers(0, 1))
pairs = st.tuples(ports, ports).filter(lambda pair: pair[0] != pair[1])


def words(one: Port, other: Port | None) -> list[str]:
    return [str(one), str(other) if other else "switch"]


def test_a_new_ring_leads_from_f0_to_the_next_nodes_f1() -> None:
    assert [str(cable) for cable in factory("ring", 4)] == [
        "spark1:f0 - spark2:f1",
        "spark2:f0 - spark3:f1",
        "spark3:f0 - spark4:f1",
        "spark4:f0 - spark1:f1",
    ]


def test_a_new_switched_lab_has_every_f0_in_the_switch() -> None:
    assert [cable.name for cable in factory("switched", 3)] == ["1-switch", "2-switch", "3-switch"]
    assert {cable.segment for cable in factory("switched", 3)} == {"switch"}


def test_twins_share_a_port_and_differ_in_the_domain() -> None:
    assert [(f.netdev, f.domain, f.mac_offset) for f in Port(1, 0).functions] == [
        ("enp1s0f0np0", 0, 1),
        ("enP2p1s0f0np0", 2, 5),
    ]
    assert sorted(f.mac_offset for f in FUNCTIONS) == [1, 2, 5, 6]


@given(st.lists(pairs, max_size=12))
def test_no_port_ever_holds_two_cables(plugged: list[tuple[Port, Port]]) -> None:
    cables = factory("ring", NODES)
    for one, other in plugged:
        cables = plug(cables, words(one, other), "ring", NODES)
        assert Cable.between(one, other) in cables
        held = [port for cable in cables for port in cable.ports]
        assert len(held) == len(set(held))
        segments = [cable.segment for cable in cables]
        assert len(segments) == len(set(segments))


@given(pairs)
def test_a_cable_is_the_same_from_either_end(pair: tuple[Port, Port]) -> None:
    one, other = pair
    assert Cable.between(one, other) == Cable.between(other, one)
    cables = plug([], words(one, other), "ring", NODES)
    assert pull(cables, words(other, one), "ring", NODES) == []
    assert pull(cables, [str(other)], "ring", NODES) == []


def test_plugging_pulls_what_was_in_both_ports() -> None:
    cables = plug(factory("ring", 4), ["spark1:f0", "spark3:f1"], "ring", 4)
    assert {cable.name for cable in cables} == {"1-3", "3-4", "4-1"}


def test_names_work_from_both_sides_and_pulling_twice_changes_nothing() -> None:
    once = pull(factory("ring", 4), ["3-2"], "ring", 4)
    assert {cable.name for cable in once} == {"1-2", "3-4", "4-1"}
    assert pull(once, ["2-3"], "ring", 4) == once
    assert set(plug(once, ["2-3"], "ring", 4)) == set(factory("ring", 4))


@pytest.mark.parametrize("bad", [["5-6"], ["spark9:f0", "spark1:f1"], ["spark1:f2"], ["switch", "switch"], []])
def test_a_wrong_name_says_which_there_are(bad: list[str]) -> None:
    with pytest.raises(LabError):
        parse_cable(bad, "ring", 4)


def test_a_port_is_not_cabled_to_itself() -> None:
    with pytest.raises(LabError, match="two ends"):
        plug([], ["spark1:f0", "1:f0"], "ring", 4)
