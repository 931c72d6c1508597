"""Whether data crosses the mesh: writes, and the counters that must and must not move."""

from typing import Any

import pytest

from node.meshcounts import kernel_forwarded
from node.meshverify import Tool, tool, typical, verify
from node.request import Failure
from node.run import TIMED_OUT, Result
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

ONE, TWO = "enP2p1s0f0np0", "enP2p1s0f1np1"
IMAGE = "engine:1"

Json = dict[str, Any]


def ask(machine: MeshMachine, action: str, **more: Any) -> Json:
    return verify(machine, "spark1", {**_desired(), "action": action, **more})


def _counted(machine: MeshMachine, forwarded: int, received: int | None) -> None:
    """What the kernel has forwarded, and what one of the mesh's ports gave it."""
    machine.put("/proc/net/snmp", SNMP.format(forwarded))
    for netdev in (ONE, TWO):
        machine.put(f"/sys/class/net/{netdev}/statistics/rx_packets", "?" if received is None else str(received))


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
    _counted(machine, 7, 100)
    machine.tool = lambda _: Result(0, TABLE)
    return machine


def test_a_path_is_good_when_its_write_completes_and_its_rules_count(mesh: MeshMachine) -> None:
    assert ask(mesh, "before") == {"unverified": None}
    assert ask(mesh, "turn0")["latency_us"] == {PATH: 10.08}
    assert ask(mesh, "turn1")["latency_us"] == {}
    ask(mesh, "turn2")
    mesh.packets += 50
    assert ask(mesh, "after") == {"problems": [], "notes": []}
    words = "-d rocep1s0f0 -x 3 --flow_label=16383 -s 61440 -n 1000 -F -p"
    assert f"{words} 18700 198.18.0.13".split() in mesh.perftest
    assert f"{words} 18702".split() in mesh.perftest


def test_every_counter_that_is_wrong_is_told(mesh: MeshMachine) -> None:
    ask(mesh, "before")
    _counted(mesh, 2007, 1100)
    mesh.flows["enP2p1s0f1np1"][0]["in_hw"] = False
    mesh.sw_packets = 3
    with pytest.raises(Failure) as caught:
        ask(mesh, "after")
    said = str(caught.value)
    first = "spark1 enP2p1s0f0np0 pref 49159 (restore-rank1-to-rank3-diagonal-counter_clockwise-via-rank0-function1)"
    assert f"{first}: has counted 4 packets as before the write, plan wants more" in said
    assert f"{first}: sw_packets is 3, plan wants 0" in said
    assert "pref 49165 (restore-rank3-to-rank1-diagonal-clockwise-via-rank0-function1): not in hardware" in said
    assert "spark1 IpForwDatagrams grew by 2000 while the mesh's ports gave the kernel 2000 packets, plan wants" in said


@pytest.mark.parametrize(("forwarded", "received"), [(90_000, 20), (900, 90_000)])
def test_what_containers_make_the_kernel_forward_is_not_the_meshs(
    mesh: MeshMachine, forwarded: int, received: int
) -> None:
    ask(mesh, "before")
    mesh.packets += 50
    _counted(mesh, 7 + forwarded, 100 + received)
    (note,) = ask(mesh, "after")["notes"]
    assert f"IpForwDatagrams grew by {forwarded} while the mesh's ports gave the kernel {2 * received} packets" in note
    assert "something else is forwarded" in note


def test_forwarding_by_ports_that_nobody_counts_leaves_it_open(mesh: MeshMachine) -> None:
    _counted(mesh, 7, None)
    ask(mesh, "before")
    mesh.packets += 50
    _counted(mesh, 9, None)
    assert "IpForwDatagrams grew by 2, and nobody tells by which ports" in ask(mesh, "after")["unverified"]


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
    assert (
        answer["unverified"]
        == "ib_write_lat (perftest) is neither on the node nor, with timeout, in the engine's image"
    )
    assert answer["notes"] == [f"mesh unverified: {answer['unverified']}"]


def test_perftest_of_the_image_does_too(mesh: MeshMachine) -> None:
    mesh.hooks["ib_write_lat"] = lambda _: Result(127)
    mesh.hooks["docker"] = lambda argv: Result(0 if IMAGE in argv else 1)
    assert tool(mesh, IMAGE) == Tool(IMAGE)
    assert tool(mesh, "other:1") is None


def test_no_container_of_the_check_outlives_it(mesh: MeshMachine) -> None:
    """Each is timed from the inside, removed where it had to be given up, and one of a killed run goes before."""
    called: list[list[str]] = []

    def docker(argv: list[str]) -> Result:
        called.append(argv)
        return Result(TIMED_OUT if "--network=host" in argv else 0)

    mesh.hooks |= {"ib_write_lat": lambda _: Result(127), "docker": docker}
    with pytest.raises(Failure, match="did not complete"):
        ask(mesh, "turn0", image=IMAGE)
    look, clear, run, given_up = called
    names = [f"spark-fabric-mesh-verify-{port}" for port in (18702, 18700)]
    assert "--network=none" in look
    assert clear == ["docker", "rm", "-f", *names]
    assert f"--name={names[1]}" in run
    inside = run[run.index(IMAGE) + 1 :]
    assert inside[:4] == ["-c", 'exec timeout -k 2 "$0" ib_write_lat "$@"', "20", "-d"]
    assert inside[-1] == WRITE["host"]
    assert given_up == ["docker", "rm", "-f", names[1]]


def test_tables_and_counters_are_read_by_name() -> None:
    assert typical(TABLE) == 10.08
    assert typical("nothing") is None
    assert kernel_forwarded(SNMP.format(12)) == 12
    assert kernel_forwarded("") is None
