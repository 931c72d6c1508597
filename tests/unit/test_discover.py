"""When nodes are made to listen, and what of it is kept for the next look."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from fleet import __main__ as command
from fleet import discover, on_node, survey
from fleet.asking import ask
from fleet.loading import load
from fleet.on_node import Answer, Link
from fleet.probe import Probe
from fleet.problems import Problem
from fleet.stack import StackName
from fleet.survey import look
from fleet.topology import Cabling
from fleet.topology import ring as usual
from tests.unit import fakes, heard, observed
from tests.unit.fakes import link
from tests.unit.stacks import changed, ring, switched
from tests.unit.test_cabling import CROSSED, FOUR, RAIL

STACK = StackName("spark-fabric", "test")
LINKS = [link(number) for number in range(1, 5)]
AROUND = heard.ring(*FOUR)

Raw = dict[str, dict[str, Any]]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept of a stack lies in a folder of the test's own."""
    monkeypatch.setattr(on_node, "folder", lambda stack: tmp_path / "stacks" / stack)


class Fleet:
    """Nodes that are wired in some way, and how long they were made to listen each time."""

    def __init__(self, patch: pytest.MonkeyPatch, wires: Iterable[str] = AROUND) -> None:
        self.raw: Raw = observed.fleet(4)
        for node in self.raw.values():
            node["docker"]["images"] = {"engine:1": "sha256:" + "1" * 64}
        self.wires = list(wires)
        self.silent: dict[str, str] = {}
        self.deaf: set[str] = set()
        self.requests: list[dict[str, dict[str, Any]]] = []
        patch.setattr("fleet.asking.probe", lambda *_, **__: Probe(self.raw, self.silent))
        patch.setattr("fleet.overlay.holds", lambda *_: True)
        patch.setattr(discover, "on_all", self._on_all)

    def _on_all(
        self, verb: str, stack: str, links: list[Link], requests: dict[str, dict[str, Any]], limit: float
    ) -> list[Answer]:
        assert (verb, stack) == ("cabling", "test")
        assert limit < 15
        self.requests.append(requests)
        reports = heard.reports(4, self.wires)
        for report in reports.values() if len(self.requests) == 1 else ():
            for port in report["ports"]:
                port["heard"] = [who for who in port["heard"] if not {who["node"]} & self.deaf]
        for name in self.deaf if len(self.requests) == 1 else ():
            for port in reports[name]["ports"]:
                port["heard"] = []
        return [Answer(one.name, 0, reports[one.name], "") for one in links]

    def seconds(self) -> list[float]:
        return [round_["spark1"]["desired"]["seconds"] for round_ in self.requests]

    def look(self, **changes: Any) -> tuple[survey.Survey, list[Problem]]:
        settings = load(changed(ring(), changes))
        return look(settings, STACK, ask(settings, STACK, LINKS))


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """A ring of four."""
    return Fleet(monkeypatch)


def test_all_nodes_listen_in_one_round_of_their_own(fleet: Fleet) -> None:
    found = discover.listen(STACK, load(ring()), LINKS)
    assert len(found.wires) == 4
    assert fleet.seconds() == [1.5]
    runs = {request["desired"]["run"] for request in fleet.requests[0].values()}
    discover.listen(STACK, load(ring()), LINKS)
    runs |= {request["desired"]["run"] for request in fleet.requests[1].values()}
    assert len(runs) == 2
    assert {name: request["node"] for name, request in fleet.requests[0].items()} == {name: name for name in FOUR}


def test_a_port_that_nobody_heard_gets_a_second_and_longer_round(fleet: Fleet) -> None:
    fleet.deaf = {"spark2"}
    assert len(discover.listen(STACK, load(ring()), LINKS).wires) == 4
    assert fleet.seconds() == [1.5, 4.0]


def test_a_node_that_does_not_answer_costs_no_second_round_and_the_others_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh = fakes.install(tmp_path, monkeypatch)
    for name, report in heard.reports(4, AROUND).items():
        for port in report["ports"]:
            port["heard"] = [who for who in port["heard"] if who["node"] != "spark3"]
        ssh.answers(name, report)
    ssh.answers("spark3", None, status=255, said="ssh: connect to host 192.168.1.13 port 22: Connection timed out")
    found = discover.listen(STACK, load(ring()), LINKS)
    assert sorted(ssh.calls()) == list(FOUR)
    assert found.nodes == {"spark1", "spark2", "spark4"}
    assert len(found.wires) == 2
    assert "Connection timed out. Is it on?" in found.silent["spark3"]


def test_a_fresh_fleet_listens_once_and_its_next_look_does_not(fleet: Fleet) -> None:
    for _ in range(2):
        found, problems = fleet.look()
        assert problems == []
        assert found.plan.topology == usual(4)
    assert fleet.seconds() == [1.5]


def test_the_plan_follows_the_cables_and_what_was_kept_of_them(fleet: Fleet) -> None:
    fleet.wires = heard.ring(*FOUR[::-1])
    for _ in range(2):
        assert fleet.look()[0].plan.topology == usual(4, Cabling.REVERSED)
    assert fleet.seconds() == [1.5]
    assert [one.code for one in fleet.look(**{"fabric.cabling": "ring"})[1]] == ["cabling-direction"]
    assert fleet.seconds() == [1.5]


def _replugged(raw: Raw) -> None:
    raw["spark3"]["links"]["enP2p1s0f0np0"]["carrier_changes"] += 2


def _booted(raw: Raw) -> None:
    raw["spark3"]["boot_id"] = "another"


def _new_device(raw: Raw) -> None:
    raw["spark3"]["links"]["enp1s0f1np1"]["index"] += 100


def _other_machine(raw: Raw) -> None:
    raw["spark3"]["machine_id"] = "f" * 32


@pytest.mark.parametrize("happened", [_replugged, _booted, _new_device, _other_machine])
def test_whatever_may_have_moved_a_cable_makes_the_nodes_listen_again(happened: Any, fleet: Fleet) -> None:
    fleet.look()
    happened(fleet.raw)
    fleet.look()
    fleet.look()
    assert fleet.seconds() == [1.5, 1.5]


def test_other_names_for_a_nodes_ports_make_the_nodes_listen_again(fleet: Fleet) -> None:
    """They say which port a device is."""
    fleet.look()
    named = ring()["nodes"]
    named[1]["ports"] = {"plane0": {"f0": {"netdev": "enp1s0f0np0"}}}
    for _ in range(2):
        assert fleet.look(nodes=named)[1] == []
    assert fleet.seconds() == [1.5, 1.5]


def test_nodes_that_do_not_count_losses_of_carrier_listen_each_time(fleet: Fleet) -> None:
    del fleet.raw["spark2"]["links"]["enp1s0f0np0"]["carrier_changes"]
    fleet.look()
    fleet.look()
    assert fleet.seconds() == [1.5, 1.5]


def test_a_file_of_another_version_is_as_good_as_none(fleet: Fleet, tmp_path: Path) -> None:
    fleet.look()
    kept = tmp_path / "stacks" / "test" / discover.KEPT
    for text in ("", "{}", "[]", json.dumps({**json.loads(kept.read_text()), "wires": [[["spark1", "f7"]]]})):
        kept.write_text(text)
        assert fleet.look()[1] == []
    assert len(fleet.requests) == 5


def test_swapped_cables_stand_in_the_way_and_are_not_kept(fleet: Fleet) -> None:
    fleet.wires = CROSSED
    for _ in range(2):
        found, problems = fleet.look()
        assert [one.code for one in problems] == ["cable-wrong", "cable-wrong", "cabling-order"]
        assert found.plan.topology == usual(4)
    assert fleet.seconds() == [1.5, 1.5]


def test_nodes_in_another_order_are_refused_by_what_was_kept(fleet: Fleet) -> None:
    fleet.look()
    nodes = ring()["nodes"]
    _, problems = fleet.look(nodes=[nodes[0], nodes[2], nodes[1], nodes[3]])
    assert problems[-1].code == "cabling-order"
    assert "Put them in the order spark1 spark2 spark3 spark4" in problems[-1].hint
    assert fleet.seconds() == [1.5]


def test_nobody_listens_while_a_node_is_silent(fleet: Fleet) -> None:
    fleet.silent = {"spark3": "spark3 (nvidia@192.168.1.13:22): No route to host. Is it on?"}
    del fleet.raw["spark3"]
    assert [one.code for one in fleet.look()[1]] == ["unreachable"]
    assert fleet.requests == []


def test_nothing_more_is_done_on_nodes_where_one_is_somebody_elses(fleet: Fleet) -> None:
    fleet.raw["spark3"]["owner"] = {"project": "spark-fabric", "stack": "other", "fleet_id": "x", "state_id": "1"}
    assert [one.code for one in fleet.look()[1]] == ["other-owner"]
    assert fleet.requests == []


# The command


def cabling(config: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    code = command.VERBS["cabling"](STACK, load(config), LINKS)
    return code, [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_the_command_prints_the_ring_as_it_is(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = cabling(ring(), capsys)
    assert code == command.OK
    assert lines[0].startswith("4 of 4 nodes heard in ")
    assert lines[1] == "cable spark1 f0 enp1s0f0np0, enP2p1s0f0np0 spark2 f1 enp1s0f1np1, enP2p1s0f1np1"
    assert lines[5:] == ["ring: spark1 spark2 spark3 spark4 (out of f0 of the head)"]


def test_the_command_says_what_is_wrong_with_it(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.wires = CROSSED
    code, lines = cabling(ring(), capsys)
    assert code == command.NOT_OK
    assert lines[5] == "ring: spark1 spark3 spark2 spark4 (out of f0 of the head)"
    assert [line.partition(":")[0] for line in lines[6:]] == ["wrong cable 0", "wrong cable 2", "wrong spark-fabric"]
    fleet.wires = []
    code, lines = cabling(ring(), capsys)
    assert lines[9] == "no ring of all nodes"


def test_the_command_prints_a_switch(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.wires = RAIL
    code, lines = cabling(switched(4), capsys)
    assert code == command.OK
    assert lines[1].startswith("switch spark1 f0 ")
    assert not any("ring" in line for line in lines)
