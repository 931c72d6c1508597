"""Whether data crosses the mesh: writes, and the counters that must and must not move."""

from typing import Any

import pytest

from node.meshverify import kernel_forwarded, tool, typical, verify
from node.request import Failure
from node.run import Result
from tests.node.meshhelpers import forwarding, meshed
from tests.node.meshmachine import MeshMachine

pytestmark = pytest.mark.usefixtures("no_guard")

SNMP = "Ip: Forwarding DefaultTTL ForwDatagrams\nIp: 1 64 {}\nIcmp: InMsgs\nIcmp: 4\n"
TABLE = """ #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] 
 61440   1000          9.90           10.90        10.08              10.02          0.05            10.20                  10.60 
---------------------------------------------------------------------------------------
"""  # noqa: E501, W291
PATH = "rank0-to-rank2-diagonal-clockwise-via-rank1-function0"
LISTEN = {"path": "rank2-to-rank0", "hca": "rocep1s0f0", "turn": 2, "port": 18702}
WRITE = {"path": PATH, "hca": "rocep1s0f0", "turn": 0, "port": 18700, "host": "198.18.0.13", "peer": "spark3"}

Json = dict[str, Any]


def ask(machine: MeshMachine, action: str) -> Json:
    return verify(machine, "spark1", {**_desired(), "action": action})


def _desired() -> Json:
    return {
        "size": 61440,
        "flow_label": 16383,
        "gid_index": 3,
        "listen": [LISTEN],
        "write": [WRITE],
        "forward": forwarding()["rules"],
    }


@pytest.fixture
def mesh() -> MeshMachine:
    """A machine whose mesh is up, with perftest and counters that move as they should."""
    machine = MeshMachine()
    meshed(machine)
    machine.put("/proc/net/snmp", SNMP.format(7))
    machine.tool = lambda _: Result(0, TABLE)
    return machine


def test_a_path_is_good_when_its_write_completes_and_its_rules_count(mesh: MeshMachine) -> None:
    assert ask(mesh, "before") == {"unverified": None}
    assert ask(mesh, "turn0")["latency_us"] == {PATH: 10.08}
    assert ask(mesh, "turn1")["latency_us"] == {}
    ask(mesh, "turn2")
    mesh.packets += 50
    assert ask(mesh, "after") == {"problems": []}
    words = "-d rocep1s0f0 -x 3 --flow_label=16383 -s 61440 -n 1000 -F -p"
    assert f"{words} 18700 198.18.0.13".split() in mesh.perftest
    assert f"{words} 18702".split() in mesh.perftest


def test_every_counter_that_is_wrong_is_told(mesh: MeshMachine) -> None:
    ask(mesh, "before")
    mesh.put("/proc/net/snmp", SNMP.format(9))
    mesh.flows["enP2p1s0f1np1"][0]["in_hw"] = False
    mesh.sw_packets = 3
    with pytest.raises(Failure) as caught:
        ask(mesh, "after")
    said = str(caught.value)
    first = "spark1 enP2p1s0f0np0 pref 49159 (restore-rank1-to-rank3-diagonal-counter_clockwise-via-rank0-function1)"
    assert f"{first}: has counted 4 packets as before the write, plan wants more" in said
    assert f"{first}: sw_packets is 3, plan wants 0" in said
    assert "pref 49165 (restore-rank3-to-rank1-diagonal-clockwise-via-rank0-function1): not in hardware" in said
    assert "spark1 IpForwDatagrams went from 7 to 9, plan wants it still" in said


def test_a_rule_that_is_gone_is_told(mesh: MeshMachine) -> None:
    ask(mesh, "before")
    mesh.flows.clear()
    with pytest.raises(Failure, match="the rule is missing"):
        ask(mesh, "after")


def test_a_write_that_does_not_complete_names_path_device_and_peer(mesh: MeshMachine) -> None:
    mesh.tool = lambda _: Result(1, "", " Completion with error at client\n Failed status 12: wr_id 0")
    with pytest.raises(Failure) as caught:
        ask(mesh, "turn0")
    assert f"spark1 {PATH}: the write on rocep1s0f0 to spark3 did not complete: Completion with error" in str(
        caught.value
    )


def test_a_writer_waits_for_its_listener(mesh: MeshMachine) -> None:
    early = [Result(1, "", "Couldn't connect to 198.18.0.13:18700")] * 3
    mesh.tool = lambda _: early.pop() if early else Result(0, TABLE)
    assert ask(mesh, "turn0")["latency_us"] == {PATH: 10.08}


def test_a_node_without_perftest_is_unverified(mesh: MeshMachine) -> None:
    mesh.hooks["ib_write_lat"] = lambda _: Result(127, "", "ib_write_lat is not installed")
    answer = ask(mesh, "before")
    assert answer["unverified"] == "ib_write_lat (perftest) is neither on the node nor in the engine's image"
    assert answer["notes"] == [f"mesh unverified: {answer['unverified']}"]


def test_perftest_of_the_image_does_too(mesh: MeshMachine) -> None:
    mesh.hooks["ib_write_lat"] = lambda _: Result(127)
    mesh.hooks["docker"] = lambda argv: Result(0 if "engine:1" in argv else 1)
    found = tool(mesh, "engine:1")
    assert found is not None
    assert found[-2:] == ["--entrypoint=ib_write_lat", "engine:1"]
    assert "--network=host" in found
    assert tool(mesh, "other:1") is None


def test_tables_and_counters_are_read_by_name() -> None:
    assert typical(TABLE) == 10.08
    assert typical("nothing") is None
    assert kernel_forwarded(SNMP.format(12)) == 12
    assert kernel_forwarded("") is None
