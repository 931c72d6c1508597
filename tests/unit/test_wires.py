"""From what single devices hear to cables and switches between QSFP ports."""

from __future__ import annotations

import pytest

from fleet.loading import load
from fleet.topology import Socket
from fleet.wires import Port, read
from tests.unit import heard
from tests.unit.stacks import changed, ring, switched

F0, F1 = Socket
FOUR = ("spark1", "spark2", "spark3", "spark4")


def test_twins_are_one_port_and_two_ports_that_hear_each_other_are_a_cable() -> None:
    found = heard.wires(load(ring()), heard.ring(*FOUR))
    assert len(found.ports) == 8
    assert found.wires == (
        (Port("spark1", F0), Port("spark2", F1)),
        (Port("spark1", F1), Port("spark4", F0)),
        (Port("spark2", F0), Port("spark3", F1)),
        (Port("spark3", F0), Port("spark4", F1)),
    )
    assert found.netdevs(Port("spark1", F0)) == "enp1s0f0np0, enP2p1s0f0np0"
    assert found.unheard == ()


def test_more_ports_that_hear_each_other_are_a_switch() -> None:
    found = heard.wires(load(switched(3)), ["spark1:f0 spark2:f0 spark3:f0"])
    assert found.wires == (tuple(Port(f"spark{number}", F0) for number in (1, 2, 3)),)
    assert found.others(Port("spark2", F0)) == (Port("spark1", F0), Port("spark3", F0))
    assert not found.has_carrier(Port("spark1", F1))


def test_being_heard_by_one_device_of_one_end_is_enough() -> None:
    """A node that began early was gone when the other one spoke."""
    reports = heard.reports(3, heard.ring("spark1", "spark2", "spark3"))
    for port in reports["spark2"]["ports"]:
        port["heard"] = []
    for port in reports["spark1"]["ports"]:
        port["heard"] = [who for who in port["heard"] if who["node"] != "spark2" or port["domain"]]
    assert len(read(load(ring(3)), reports, {}).wires) == 3


def test_a_port_that_hears_only_its_own_twin_is_on_no_wire() -> None:
    reports = heard.reports(3, ["spark1:f0 spark1:f0"])
    for port in reports["spark1"]["ports"]:
        port["carrier"] = True
    found = read(load(ring(3)), reports, {})
    assert found.wires == ()
    assert found.unheard == (Port("spark1", F0), Port("spark1", F1))


def test_a_cable_from_a_node_to_itself_is_seen() -> None:
    found = heard.wires(load(ring(3)), ["spark2:f0 spark2:f1"])
    assert found.wires == ((Port("spark2", F0), Port("spark2", F1)),)


@pytest.mark.parametrize("kind", ["netdev", "hca"])
def test_a_device_that_the_operator_named_is_the_port_that_it_was_named_for(kind: str) -> None:
    """Where PCI tells nothing. The node's own report and what others heard of it name the same device."""
    name = {"netdev": "eth7", "hca": "mlx5_7"}[kind]
    nowhere = {"domain": None, "function": None}
    one = {"netdev": "eth7", "hca": "mlx5_7", "mac": "", **nowhere}
    here = {"netdev": "enp1s0f0np0", "hca": "rocep1s0f0", "mac": "", "domain": 0, "function": 0}
    state = {"up": True, "carrier": True, "error": ""}
    reports = {
        "spark1": {"ports": [{**here, **state, "heard": [{**one, "node": "spark2"}]}]},
        "spark2": {"ports": [{**one, **state, "heard": [{**here, "node": "spark1"}]}]},
    }
    config = changed(ring(3), {"nodes[1].ports.plane0.f1": {kind: name}})
    assert read(load(config), reports, {}).wires == ((Port("spark1", F0), Port("spark2", F1)),)
    assert read(load(ring(3)), reports, {}).wires == ()


def test_a_device_of_no_known_place_is_none_of_the_fabric() -> None:
    reports = heard.reports(3, heard.ring("spark1", "spark2", "spark3"))
    reports["spark1"]["ports"][0] |= {"domain": 7}
    found = read(load(ring(3)), reports, {})
    assert found.netdevs(Port("spark1", F0)) == "enP2p1s0f0np0"
    assert len(found.wires) == 3


def test_the_listing_has_every_port_once() -> None:
    found = heard.wires(load(ring(3)), ["spark1:f0 spark2:f1", "spark2:f0 spark3:f1"], down=["spark3:f1"])
    lines = [" ".join(line.split()) for line in found.listing()]
    assert lines == [
        "cable spark1 f0 enp1s0f0np0, enP2p1s0f0np0 spark2 f1 enp1s0f1np1, enP2p1s0f1np1",
        "- spark1 f1 enp1s0f1np1, enP2p1s0f1np1 no carrier",
        "- spark2 f0 enp1s0f0np0, enP2p1s0f0np0 no carrier",
        "- spark3 f0 enp1s0f0np0, enP2p1s0f0np0 no carrier",
        "- spark3 f1 enp1s0f1np1, enP2p1s0f1np1 down",
    ]
    rail = heard.wires(load(switched(3)), ["spark1:f0 spark2:f0 spark3:f0"]).listing()
    assert [" ".join(line.split())[:17] for line in rail[:3]] == [
        "switch spark1 f0 ",
        "spark2 f0 enp1s0f",
        "spark3 f0 enp1s0f",
    ]
