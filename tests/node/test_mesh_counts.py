"""What a node counts of its mesh for the proof: rules, kernel, queues, and the far ends of paths."""

from typing import Any

import pytest

from node.counters import counters
from node.run import Result
from tests.node.meshhelpers import forwarding, meshed
from tests.node.meshmachine import MeshMachine

pytestmark = pytest.mark.usefixtures("no_guard")

ONE, TWO = "enP2p1s0f0np0", "enP2p1s0f1np1"
ENDS = ["rocep1s0f0", "roceP2p1s0f1"]
RULES = [rule["name"] for rule in forwarding()["rules"]]

Json = dict[str, Any]


@pytest.fixture
def mesh() -> MeshMachine:
    """A machine whose mesh is up and was used."""
    machine = MeshMachine()
    meshed(machine)
    machine.put("/proc/net/snmp", "Ip: Forwarding DefaultTTL ForwDatagrams\nIp: 1 64 11\n")
    machine.statistics = {ONE: {"rx_out_of_buffer": 163}, TWO: {"rx_out_of_buffer": 0}}
    for netdev, count in ((ONE, 40), (TWO, 2)):
        machine.put(f"/sys/class/net/{netdev}/statistics/rx_packets", f"{count}\n")
    for number, hca in enumerate(ENDS):
        for name in ("out_of_sequence", "packet_seq_err"):
            machine.put(f"/sys/class/infiniband/{hca}/ports/1/hw_counters/{name}", f"{number}\n")
    return machine


def read(machine: MeshMachine) -> Json:
    asked = {"forward": forwarding()["rules"], "ends": ENDS}
    found: Json = counters(machine, {"hcas": [], "gid_index": 3, "mesh": asked})["mesh"]
    return found


def test_rules_kernel_queues_and_far_ends_are_read(mesh: MeshMachine) -> None:
    counted = {"packets": 4, "sw_packets": 0, "drops": 0, "in_hw": True}
    assert read(mesh) == {
        "rules": dict.fromkeys(RULES, counted),
        "kernel": 11,
        "received": {ONE: 40, TWO: 2},
        "overruns": {ONE: 163, TWO: 0},
        "lost": {hca: {"out_of_sequence": n, "packet_seq_err": n} for n, hca in enumerate(ENDS)},
        "error": "",
    }


def test_a_rule_with_another_meaning_at_its_place_is_none(mesh: MeshMachine) -> None:
    mesh.flows[ONE][0]["dst_mac"] = "02:00:00:00:00:99"
    found = read(mesh)["rules"]
    assert [name for name in RULES if found[name] is None] == [
        rule["name"] for rule in forwarding()["rules"] if rule["netdev"] == ONE
    ]


def test_what_the_node_does_not_tell_is_null(mesh: MeshMachine) -> None:
    mesh.dialect = "5"  # whose rules have no counts
    mesh.statistics = {}
    for path in [path for path in mesh.files if "/hw_counters/" in path or path.endswith("rx_packets")]:
        mesh.drop(path)
    mesh.drop("/proc/net/snmp")
    found = read(mesh)
    assert {count for rule in found["rules"].values() for count in (rule["packets"], rule["sw_packets"])} == {None}
    assert (found["kernel"], found["received"]) == (None, {ONE: None, TWO: None})
    assert found["overruns"] == {ONE: None, TWO: None}
    assert found["lost"] == {hca: {"out_of_sequence": None, "packet_seq_err": None} for hca in ENDS}


def test_a_tc_that_does_not_answer_is_told(mesh: MeshMachine) -> None:
    mesh.hooks["tc"] = lambda _: Result(1, "", "Cannot open netlink socket")
    found = read(mesh)
    assert list(found) == ["error"]
    assert "Cannot open netlink socket" in found["error"]


def test_without_a_mesh_nothing_of_it_is_asked_for(mesh: MeshMachine) -> None:
    mesh.hooks["tc"] = mesh.hooks["ethtool"] = lambda argv: pytest.fail(f"{argv} was run")
    assert counters(mesh, {"hcas": [], "gid_index": 3, "mesh": None}) == {"ports": {}, "mesh": None}
