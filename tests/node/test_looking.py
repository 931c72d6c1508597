"""What `observe`, `verify` and `status` see."""

import json
from typing import Any

import pytest

from node import httpcall, neighbours, netplan, nm, observe
from node.docker import _plain
from node.request import Failure
from node.run import Result
from node.status import status
from node.verify import problems, verify
from tests.node.helpers import OWNER, ask, plane, take
from tests.node.machine import Machine

pytestmark = pytest.mark.usefixtures("no_guard")

PEER_MAC = "02:5a:ab:00:02:12"


def _desired() -> dict[str, Any]:
    port = plane()["ports"][0]
    peer = {"node": "spark2", "netdev": "enp1s0f1np1", "address": "10.10.0.11/24", "mac": PEER_MAC}
    wanted = {key: port[key] for key in ("netdev", "hca", "address", "mtu")}
    return {
        "ports": [{**wanted, "plane": 0, "cable": 0, "peers": [peer]}],
        "far": [{"address": "10.10.1.11", "node": "spark3"}],
        "gid": True,
    }


@pytest.fixture
def fabric(machine: Machine) -> Machine:
    """A machine whose plane 0 is on and whose neighbour answers."""
    take(machine)
    ask(machine, "apply", "plane0", plane())
    machine.neighbours = [{"dst": "10.10.0.11", "dev": "enp1s0f0np0", "lladdr": PEER_MAC, "state": ["REACHABLE"]}]
    return machine


def test_a_fabric_that_works_has_no_problems(fabric: Machine) -> None:
    assert verify(fabric, "spark1", _desired()) == {"problems": []}


def _inet6(flags: str) -> str:
    local = "fe80000000000000005aaafffe010110"
    other = "fe80000000000000005aaafffe0101ff 02 40 20 40 enP7s7"  # of a port that is none of the fabric's
    return f"{local} 03 40 20 {flags} enp1s0f0np0\n{other}\n"


def test_an_address_that_the_kernel_still_checks_is_waited_for(fabric: Machine) -> None:
    fabric.put("/proc/net/if_inet6", _inet6("40"))
    waited: list[float] = []

    def checked(_: list[str]) -> None:
        waited.append(fabric.clock())
        if len(waited) == 3:
            fabric.put("/proc/net/if_inet6", _inet6("80"))

    fabric.hooks["sleep"] = checked
    assert verify(fabric, "spark1", _desired()) == {"problems": []}
    assert len(waited) == 3


def test_a_port_that_is_not_in_the_plan_is_waited_for_and_no_problem(fabric: Machine) -> None:
    fabric.put("/proc/net/if_inet6", _inet6("c8").replace("enp1s0f0np0", "enp1s0f1np1"))
    began = fabric.clock()
    assert verify(fabric, "spark1", _desired()) == {"problems": []}
    assert fabric.clock() - began > 5


def test_an_address_that_somebody_else_has_is_told(fabric: Machine) -> None:
    fabric.put("/proc/net/if_inet6", _inet6("c8"))
    assert problems(fabric, "spark1", _desired()) == [
        "spark1 enp1s0f0np0 (cable 0, plane 0): its IPv6 address is not in use after 15 s: a duplicate?"
    ]


def test_every_problem_of_a_node_is_told_at_once(fabric: Machine) -> None:
    fabric.links["enp1s0f0np0"].update(mtu=1500, addresses=[], carrier=False)
    fabric.silent = {"10.10.0.11", "10.10.1.11"}
    found = "\n".join(problems(fabric, "spark1", _desired()))
    for text in (
        "spark1 enp1s0f0np0 (cable 0, plane 0): no carrier",
        "address is none, plan wants 10.10.0.10/24",
        "MTU is 1500, plan wants 9000",
        "rocep1s0f0 is 1: DOWN",
        "spark2 enp1s0f1np1 10.10.0.11 does not answer",
        "spark3 10.10.1.11 does not answer",
    ):
        assert text in found
    with pytest.raises(Failure) as caught:
        verify(fabric, "spark1", _desired())
    assert caught.value.code == 12


def test_a_neighbour_with_a_small_mtu_is_told_from_one_that_is_silent(fabric: Machine) -> None:
    fabric.hooks["ping"] = lambda argv: Result(1 if "do" in argv else 0)
    assert "answers, but not to 9000 bytes in one piece" in problems(fabric, "spark1", _desired())[0]


def test_a_ping_is_given_a_second_try(fabric: Machine) -> None:
    tries: list[list[str]] = []

    def ping(argv: list[str]) -> Result:
        tries.append(argv)
        return Result(1 if len(tries) == 1 else 0)

    fabric.hooks["ping"] = ping
    assert problems(fabric, "spark1", _desired()) == []


def test_the_twin_in_the_neighbour_table_is_a_problem_with_both_macs(fabric: Machine) -> None:
    twin = "02:5a:ab:00:02:16"
    fabric.neighbours[0]["lladdr"] = twin

    def answers_again(argv: list[str]) -> Result | None:
        if argv[-1] == "10.10.0.11":
            fabric.neighbours = [{"dst": "10.10.0.11", "dev": "enp1s0f0np0", "lladdr": twin}]
        return None

    fabric.hooks["ping"] = answers_again
    found = problems(fabric, "spark1", _desired())
    assert len(found) == 1
    assert twin in found[0]
    assert PEER_MAC in found[0]


def test_a_wrong_neighbour_entry_goes_before_anybody_is_asked(fabric: Machine) -> None:
    fabric.neighbours[0]["lladdr"] = "02:5a:ab:00:02:16"
    fabric.hooks["ping"] = lambda _: Result(1 if fabric.neighbours else 0)
    assert problems(fabric, "spark1", _desired()) == []


def test_the_table_of_neighbours_is_looked_at_and_tells_who_is_entered_wrongly(fabric: Machine) -> None:
    fabric.neighbours += [{"dst": "10.10.9.9", "dev": "enp1s0f0np0", "state": ["FAILED"]}]

    def found() -> list[str]:
        table = observe.observe(fabric, OWNER)["neighbours"]
        return [one.text() for one in neighbours.deviations(_desired()["ports"], table)]

    assert found() == []
    fabric.neighbours[0]["lladdr"] = "02:5A:AB:00:02:16"
    assert found() == [
        f"enp1s0f0np0: 10.10.0.11 is at 02:5a:ab:00:02:16, plan wants {PEER_MAC} of spark2 enp1s0f1np1",
    ]


def test_a_missing_gid_is_a_problem(fabric: Machine) -> None:
    fabric.put("/sys/class/infiniband/rocep1s0f0/ports/1/gid_attrs/types/3", "IB/RoCE v1")
    assert "no RoCE v2 GID of 10.10.0.10" in problems(fabric, "spark1", _desired())[0]


def test_a_gid_of_another_port_is_none(fabric: Machine) -> None:
    fabric.put("/sys/class/infiniband/rocep1s0f0/ports/1/gid_attrs/ndevs/3", "enp1s0f1np1")
    assert "no RoCE v2 GID of 10.10.0.10" in problems(fabric, "spark1", _desired())[0]


def test_a_gid_elsewhere_than_planned_is_a_problem_by_name(fabric: Machine) -> None:
    assert problems(fabric, "spark1", _desired() | {"gid_index": 3}) == []
    (found,) = problems(fabric, "spark1", _desired() | {"gid_index": 5})
    assert found.startswith("spark1 enp1s0f0np0 (cable 0, plane 0): rocep1s0f0 has the RoCE v2 GID of 10.10.0.10")
    assert "at index 3, plan wants 5. Run up again" in found


def test_observing_changes_nothing(fabric: Machine) -> None:
    before = fabric.snapshot()
    fabric.steps.clear()
    json.dumps(observe.observe(fabric, OWNER))
    assert fabric.snapshot() == before
    assert fabric.steps == []


def test_for_which_machine_the_engines_image_is_is_told_where_it_is_there(machine: Machine) -> None:
    machine.images = {"engine:1": {"Id": "sha256:1", "Architecture": "arm64"}}
    for name, image in (("engine:1", {"architecture": "arm64"}), ("engine:2", None), ("", None)):
        assert observe.observe(machine, OWNER, image=name)["docker"]["image"] == image


@pytest.mark.parametrize(("word", "version"), [("Docker/27.3.1 (linux)", "27.3.1"), ("", "20.10")])
def test_dockers_version_is_its_own_word_or_else_asked_for(machine: Machine, word: str, version: str) -> None:
    machine.docker_word = word
    assert observe.observe(machine, OWNER)["docker"]["version"] == version


def test_a_look_at_all_sees_the_same_profiles_and_connections_as_a_stage(fabric: Machine) -> None:
    everything, stage = observe.observe(fabric, OWNER)["nm"], observe.observe(fabric, OWNER, ("nm",))["nm"]
    assert everything["profiles"] == stage["profiles"] != []
    connected = {netdev: seen["connection"] for netdev, seen in stage["devices"].items() if seen["connection"]}
    assert {netdev: seen["connection"] for netdev, seen in everything["devices"].items()} == connected != {}


def test_a_missing_tool_is_an_error_of_its_part_only(machine: Machine) -> None:
    def dead(method: str, path: str, timeout: float, body: bytes = b"") -> tuple[int, bytes]:
        raise OSError("connection refused")

    machine.docker_call = dead  # type: ignore[method-assign]
    machine.hooks["iptables"] = lambda _: Result(127, "", "iptables is not installed")
    seen = observe.observe(machine, OWNER)
    assert seen["docker"] is None
    assert seen["forward_rules"] is None
    assert seen["errors"] == ["docker: connection refused"]
    assert seen["links"]["enp1s0f0np0"]["mtu"] == 1500
    assert seen["nm"]["running"]


def test_gids_of_a_real_port_are_read_with_their_index(fabric: Machine) -> None:
    gids = observe.observe(fabric, OWNER, ("hcas",))["hcas"]["rocep1s0f0"]["gids"]
    assert [gid["index"] for gid in gids] == [0, 1, 2, 3]
    assert gids[3]["type"] == "RoCE v2"
    assert gids[3]["gid"] == "0000:0000:0000:0000:0000:ffff:0a0a:000a"


def test_status_shows_logs_and_exit_codes_of_this_stack_only(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    label = {"spark-fabric.stack": OWNER.label()}
    machine.containers = [
        {"id": "a", "name": "spark-fabric-lab", "labels": label, "state": "exited"},
        {"id": "b", "name": "other", "labels": {}, "state": "running"},
    ]
    where = ("127.0.0.2", 8888)
    answers = {(where, "/health"): (200, b""), (where, "/v1/models"): (200, b'{"data": [{"id": "m"}]}')}
    monkeypatch.setattr(httpcall, "call", lambda address, _method, path, _timeout: answers[address, path])
    seen = status(machine, OWNER, {"api": True, "address": "127.0.0.2", "port": 8888, "lines": 5})
    assert [(c["name"], c["exit_code"], c["log"]) for c in seen["containers"]] == [
        ("spark-fabric-lab", 1, ["loading", "ready"])
    ]
    assert seen["api"] == {"health": 200, "models": ["m"], "key_needed": False, "error": ""}


def test_an_api_that_is_not_there_is_an_answer_too(machine: Machine) -> None:
    seen = status(machine, OWNER, {"api": True, "address": "127.0.0.1", "port": 1})
    assert seen["api"]["health"] == 0
    assert seen["api"]["error"]
    assert status(machine, OWNER, {})["api"] is None


def test_log_frames_are_taken_away_and_plain_logs_are_left() -> None:
    frame = b"\2\0\0\0\0\0\0\3abc"
    assert _plain(frame + frame) == "abcabc"
    assert _plain(b"plain\n") == "plain\n"


def test_nmcli_escapes_are_undone() -> None:
    assert nm.fields(r"a\:b:c\\d:") == ["a:b", r"c\d", ""]


def test_a_profile_is_quieted_without_touching_the_rest() -> None:
    text = "# mine\n[connection]\nid=x\nautoconnect=true\n\n[ipv4]\nmethod=auto\n"
    assert nm.quiet(text) == "# mine\n[connection]\nautoconnect=false\nid=x\n\n[ipv4]\nmethod=auto\n"


def test_the_generator_is_called_directly_unless_it_is_split_in_two(machine: Machine) -> None:
    assert netplan.generate_command(machine) == ["/usr/libexec/netplan/generate"]
    machine.put("/usr/libexec/netplan/configure", "")
    assert netplan.generate_command(machine) == ["netplan", "generate"]
