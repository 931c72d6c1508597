"""What `doctor --bandwidth` measures, in which rounds, and what it says of the answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleet import __main__ as command
from fleet import bandwidth, on_node, overlay, survey
from fleet.bandwidth import Flow, flows, rounds
from fleet.loading import load
from fleet.on_node import UNREACHABLE, Answer, Link
from fleet.planner import make
from fleet.probe import Probe
from fleet.stack import StackName
from tests.unit import heard, observed
from tests.unit.fakes import link
from tests.unit.stacks import changed, ring, switched

NAME = StackName("spark-fabric", "test")
HEALTHY = 106.4
TWO_OF_ONE = 8  # lines of a node: two cables, both ways, both planes

Json = dict[str, Any]
End = Callable[[str, Json], Json]


def both_ways(config: Json) -> list[Flow]:
    return flows(make(load(config), None, NAME))


def ends(flow: Flow) -> str:
    return f"{flow.place}: {flow.source} > {flow.target}"


def test_every_cable_of_a_ring_is_measured_both_ways_in_both_planes() -> None:
    found = [ends(flow) for flow in both_ways(ring())]
    assert len(found) == len(set(found)) == 4 * 2 * 2
    assert "cable 1, plane 0: spark2 enp1s0f0np0 > spark3 enp1s0f1np1" in found
    assert "cable 1, plane 0: spark3 enp1s0f1np1 > spark2 enp1s0f0np0" in found
    assert "cable 3, plane 1: spark1 enP2p1s0f1np1 > spark4 enP2p1s0f0np0" in found


def test_a_plane_that_is_off_is_not_measured() -> None:
    assert {flow.place for flow in both_ways(changed(ring(), {"fabric.plane1.enabled": False}))} == {
        f"cable {cable}, plane 0" for cable in range(4)
    }


@pytest.mark.parametrize("size", [2, 3, 4, 7])
def test_every_link_to_a_switch_sends_once_and_receives_once_in_each_plane(size: int) -> None:
    found = both_ways(switched(size))
    everyone = sorted((f"spark{number}", plane) for number in range(1, size + 1) for plane in ("0", "1"))
    assert sorted((flow.source.node, flow.place[-1]) for flow in found) == everyone
    assert sorted((flow.target.node, flow.place[-1]) for flow in found) == everyone
    assert all(flow.source.node != flow.target.node for flow in found)


@pytest.mark.parametrize(("config", "most"), [(ring(), 8), (ring(3), 12), (ring(8), 8), (ring(5), 12), (switched(), 4)])
def test_no_node_is_in_two_measurements_of_a_round(config: Json, most: int) -> None:
    wanted = both_ways(config)
    made = rounds(wanted)
    for one in made:
        nodes = [node for flow in one for node in flow.nodes]
        assert len(nodes) == len(set(nodes))
    assert sorted(ends(flow) for one in made for flow in one) == sorted(map(ends, wanted))
    assert len(made) <= most


class Fleet:
    """A ring whose engines are stopped, and what its nodes answer."""

    def __init__(self, patch: pytest.MonkeyPatch, config: Json | None = None) -> None:
        self.config = config or ring()
        plan = make(load(self.config), None, NAME)
        self.raw = observed.fleet_applied(plan, journaled=True)
        self.unreachable: dict[str, str] = {}
        self.answer: End = lambda _, asked: {"gbits": HEALTHY if "host" in asked else None, "problem": ""}
        self.failing: dict[str, Answer] = {}
        self.rounds: list[dict[str, Json]] = []
        patch.setattr("fleet.asking.probe", lambda *_, **__: Probe(self.raw, self.unreachable))
        patch.setattr(survey, "listen", lambda *_: heard.CABLED)
        patch.setattr(overlay, "holds", lambda *_: True)
        patch.setattr(bandwidth, "on_all", self._on_all)

    def _on_all(self, verb: str, _: str, links: list[Link], requests: dict[str, Json]) -> list[Answer]:
        assert verb == "bandwidth"
        assert [one.name for one in links] == sorted(requests)
        self.rounds.append({name: request["desired"] for name, request in requests.items()})
        return [
            self.failing.get(name) or Answer(name, 0, self.answer(name, request["desired"]), "")
            for name, request in sorted(requests.items())
        ]

    def doctor(self, least: float = bandwidth.AT_LEAST, *, as_json: bool = False) -> int:
        links = [link(number) for number in range(1, 5) if f"spark{number}" in self.raw]
        return command.weigh(NAME, load(self.config), links, least, as_json=as_json)


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """Four nodes; what is kept of the stack lies in a folder of the test's own."""
    monkeypatch.setattr(on_node, "folder", lambda stack: tmp_path / "stacks" / stack)
    return Fleet(monkeypatch)


def told(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_a_healthy_ring_has_a_passing_line_for_each_cable_plane_and_direction(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fleet.doctor() == command.OK
    *lines, _, summary = told(capsys)
    assert summary == "16 PASS"
    assert lines[0] == "PASS bandwidth cable 0, plane 0, spark1 enp1s0f0np0 to spark2 enp1s0f1np1: 106.4 Gb/s"
    assert len(set(lines)) == 16
    first = fleet.rounds[0]
    assert first["spark2"] == {"hca": "rocep1s0f1", "gid_index": 3, "port": 18515, "seconds": 5}
    assert first["spark1"] == {**first["spark2"], "hca": "rocep1s0f0", "host": "192.168.1.12"}
    assert len({one["port"] for asked in fleet.rounds for one in asked.values()}) == len(fleet.rounds)


def test_the_index_of_each_ends_own_gid_is_used(fleet: Fleet) -> None:
    for gid in fleet.raw["spark2"]["hcas"]["rocep1s0f1"]["gids"]:
        gid["index"] += 2
    fleet.doctor()
    assert (fleet.rounds[0]["spark1"]["gid_index"], fleet.rounds[0]["spark2"]["gid_index"]) == (3, 5)


def test_a_slow_direction_fails_alone(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    def slow(node: str, asked: Json) -> Json:
        mine = node == "spark2" and asked["hca"] == "rocep1s0f0"
        return {"gbits": (26.04 if mine else HEALTHY) if "host" in asked else None, "problem": ""}

    fleet.answer = slow
    assert fleet.doctor(as_json=True) == command.NOT_OK
    said = json.loads(capsys.readouterr().out)
    assert (said["result"], said["exit"], len(said["lines"])) == ("fail", command.NOT_OK, 16)
    (bad,) = (line for line in said["lines"] if line["word"] != "pass")
    assert (bad["code"], bad["node"], bad["subject"]) == ("bandwidth", "spark2", "enp1s0f0np0")
    assert (bad["seen"], bad["wanted"]) == ("26.0 Gb/s", "at least 95 Gb/s")
    assert bad["text"].startswith("cable 1, plane 0, spark2 enp1s0f0np0 to spark3 enp1s0f1np1: 26.0 Gb/s, wanted at")
    assert "boot both nodes" in bad["hint"]
    assert fleet.doctor(20.0) == command.OK


def test_a_direction_that_carries_nothing_fails_with_the_words_of_its_tool(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = "spark3 rocep1s0f0: ib_write_bw did not complete: Failed status 12"
    fleet.answer = lambda node, asked: (
        {"gbits": None, "problem": reason if asked["hca"] == "rocep1s0f0" else ""}
        if node == "spark3"
        else {"gbits": HEALTHY, "problem": ""}
    )
    assert fleet.doctor() == command.NOT_OK
    (line,) = (line for line in told(capsys) if reason in line)
    assert line.startswith("FAIL bandwidth cable 2, plane 0, spark3 enp1s0f0np0 to spark4 enp1s0f1np1: carries nothing")


def test_a_port_that_is_down_fails_without_a_try(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.raw["spark4"]["hcas"]["roceP2p1s0f0"]["state"] = "1: DOWN"
    del fleet.raw["spark3"]["hcas"]["rocep1s0f0"]
    assert fleet.doctor() == command.NOT_OK
    failed = [line for line in told(capsys) if line.startswith("FAIL")]
    places = [line.partition(",")[0].removeprefix("FAIL bandwidth ") for line in failed]
    assert places == ["cable 2", "cable 2", "cable 3", "cable 3"]
    assert "spark3 has no RDMA device rocep1s0f0" in failed[0]
    assert "spark4 roceP2p1s0f0 is 1: DOWN, wanted ACTIVE. Is the cable in?" in failed[2]
    assert not any(one["hca"] == "roceP2p1s0f0" for asked in fleet.rounds if (one := asked.get("spark4")))


def test_a_node_without_the_tool_leaves_its_cables_unmeasured_and_says_so(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    why = "spark2 has no ib_write_bw (package perftest)"
    absent = {"gbits": None, "problem": "", "unmeasured": why, "absent": True}
    healthy = fleet.answer
    fleet.answer = lambda node, asked: dict(absent) if node == "spark2" else healthy(node, asked)
    assert fleet.doctor() == command.FAILED
    lines = told(capsys)
    assert lines[-1] == f"{16 - TWO_OF_ONE} PASS, {TWO_OF_ONE} WARN"
    warned = [line for line in lines[:-2] if line.startswith("WARN")]
    assert all("spark2 enp1s0f" in line or "spark2 enP2p1s0f" in line for line in warned)
    assert all(line.endswith(f"not measured: {why}") for line in warned)
    assert sum("spark2" in asked for asked in fleet.rounds) == 1


def test_ends_that_do_not_meet_are_no_fault_of_a_cable(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    why = "spark4 and 192.168.1.11 did not meet by TCP, port 18515"
    healthy = fleet.answer

    def deaf(node: str, asked: Json) -> Json:
        met = node != "spark4" or "host" not in asked
        return healthy(node, asked) if met else {"gbits": None, "problem": "", "unmeasured": why}

    fleet.answer = deaf
    assert fleet.doctor() == command.FAILED
    lines = told(capsys)
    assert lines[-1] == "12 PASS, 4 WARN"
    assert all(line.endswith(f"not measured: {why}") for line in lines if line.startswith("WARN"))


def test_addresses_that_are_not_there_yet_are_no_fault_of_a_cable(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.raw |= observed.fleet(4)
    assert fleet.doctor() == command.FAILED
    assert fleet.rounds == []
    assert told(capsys)[-1] == "16 WARN"


def test_a_node_that_is_off_leaves_the_others_measured(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.unreachable = {"spark3": "spark3: No route to host"}
    del fleet.raw["spark3"]
    assert fleet.doctor() == command.FAILED
    lines = told(capsys)
    assert lines[-1] == f"{16 - TWO_OF_ONE} PASS, {TWO_OF_ONE} WARN"
    assert sum("not measured: spark3 does not answer" in line for line in lines) == TWO_OF_ONE


def test_a_node_that_dies_meanwhile_is_not_waited_for_again(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.failing["spark3"] = Answer("spark3", UNREACHABLE, None, "spark3: no answer within 75 s")
    assert fleet.doctor() == command.FAILED
    assert sum("spark3" in asked for asked in fleet.rounds) == 1
    assert sum("not measured: spark3 does not answer any more" in line for line in told(capsys)) == TWO_OF_ONE


def test_what_a_node_refuses_is_told(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.failing["spark1"] = Answer("spark1", 9, None, "spark1: process 7 uses RDMA: sglang\nmeasure while nothing")
    assert fleet.doctor() == command.FAILED
    assert "not measured: spark1: process 7 uses RDMA: sglang measure while nothing" in "\n".join(told(capsys))


def test_no_round_begins_after_the_deadline(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bandwidth, "DEADLINE_S", -1)
    assert fleet.doctor() == command.FAILED
    assert fleet.rounds == []
    assert told(capsys)[-1] == "16 WARN"


def test_nothing_is_measured_while_ranks_run_and_they_are_named(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    for node, rank in (("spark1", "0"), ("spark3", "2")):
        labels = {"spark-fabric.stack": "spark-fabric/test/default", "spark-fabric.rank": rank}
        container = {"name": "spark-fabric-test", "state": "running", "pid": 900, "labels": labels}
        fleet.raw[node]["docker"]["containers"] = [container]
        fleet.raw[node]["rdma_users"] = [{"pid": 901, "command": "sglang", "parents": [900]}]
    fleet.raw["spark4"]["rdma_users"] = [{"pid": 44, "command": "ib_write_lat", "parents": []}]
    fleet.raw["spark2"]["lock"] = {"holder": "anna@desk (pid 7)", "pid": 8, "since": 0.0}
    assert fleet.doctor(as_json=True) == command.FAILED
    said = json.loads(capsys.readouterr().out)
    assert fleet.rounds == []
    assert [(line["word"], line["code"], line["node"], line["seen"]) for line in said["lines"]] == [
        ("fail", "in-use", "spark1", "rank 0 runs, in container spark-fabric-test"),
        ("fail", "in-use", "spark2", "anna@desk (pid 7) is changing it"),
        ("fail", "in-use", "spark3", "rank 2 runs, in container spark-fabric-test"),
        ("fail", "in-use", "spark4", "process 44 (ib_write_lat) uses RDMA"),
    ]


@pytest.mark.parametrize("rate", ["0", "-3", "fast", "inf", "nan"])
def test_a_threshold_that_is_none_is_wrong_usage(rate: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(["doctor", "-s", "test", f"--bandwidth={rate}"])
    assert caught.value.code == command.USAGE
    assert "--bandwidth" in capsys.readouterr().err


def test_without_a_figure_the_threshold_is_that_of_healthy_cables() -> None:
    parse = command.parser().parse_args
    assert parse(["doctor", "-s", "test", "--bandwidth"]).bandwidth == 95
    assert parse(["doctor", "-s", "test", "--bandwidth", "80"]).bandwidth == 80
    assert parse(["doctor", "-s", "test"]).bandwidth is None
