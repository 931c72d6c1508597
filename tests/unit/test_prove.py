"""The measurement itself: how much is asked for, what stands in its way, and what the next run is told."""

from __future__ import annotations

import copy
import io
import json
from typing import Any

import pytest

from fleet import on_node, prove
from fleet.on_node import Answer, Link
from tests.unit.fakes import link
from tests.unit.stacks import changed, mesh, ring
from tests.unit.test_crossing import counts
from tests.unit.test_proof import healthy, seen, wanted

MIB = 1 << 20

Json = dict[str, Any]


class Nodes:
    """Four nodes whose engine moves so many bytes for a completion, in each direction of each port."""

    def __init__(self, each: int, section: Json | None = None, *, with_mesh: bool = False) -> None:
        config = mesh() if with_mesh else ring()
        self.desired = wanted(changed(config, {f"proof.{key}": value for key, value in (section or {}).items()}))
        self.counts = counts(self.desired) if with_mesh else dict.fromkeys(self.desired)
        self.each = each
        self.planes: tuple[int, ...] = (0, 1)
        self.ports, self.loaded = seen(self.desired), healthy(self.desired)
        self.rounds: list[int] = []
        self.verbs: list[str] = []
        self.asked: dict[str, Json] = {}
        self.error = ""
        self.fails: dict[str, Answer] = {}

    def on_all(self, verb: str, stack: str, links: list[Link], requests: dict[str, Json]) -> list[Answer]:
        assert stack == "no-such-stack"
        self.verbs.append(verb)
        if verb in self.fails:
            return [self.fails[verb]]
        if verb == "load":
            assert list(requests) == ["spark1"]
            return [Answer("spark1", 0, self._load(requests["spark1"]["desired"]), "")]
        if verb == "counters":
            self.asked = {name: request["desired"] for name, request in requests.items()}
        answers: dict[str, Json] = {
            "counters": {name: {"ports": self.ports[name], "mesh": self.counts[name]} for name in self.desired},
            "loaded": self.loaded,
            "verify": {name: {} for name in self.desired},
        }
        return [Answer(one.name, 0, copy.deepcopy(answers[verb][one.name]), "") for one in links]

    def _load(self, asked: Json) -> Json:
        self.rounds.append(asked["requests"])
        answered = 0 if self.error else asked["requests"]
        for node, one in self.desired.items():
            for port in one["ports"]:
                if port["plane"] in self.planes:
                    self.ports[node][port["hca"]]["sent"] += self.each * answered
                    self.ports[node][port["hca"]]["received"] += self.each * answered
            for rule in filter(None, (self.counts[node] or {"rules": {}})["rules"].values()):
                rule["packets"] += max(answered, 1)  # one that fails has begun too
        return {"answered": answered, "error": self.error, "refused": False, "seconds": 1.0}


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Nobody waits, and nothing is written into the checkout."""
    monkeypatch.setattr("fleet.prove.time.sleep", lambda _: None)
    monkeypatch.setattr(on_node, "folder", lambda stack: tmp_path / stack)


def proven(patch: pytest.MonkeyPatch, nodes: Nodes) -> int:
    """The exit status of the command."""
    patch.setattr(on_node, "on_all", nodes.on_all)
    patch.setattr("sys.argv", ["prove.py"])
    patch.setattr("sys.stdin", io.StringIO(json.dumps(nodes.desired)))
    patch.setenv("FLEET_LINKS", on_node.as_json([link(number) for number in range(1, 5)]))
    patch.setenv("FLEET_OWNER", '{"stack": "no-such-stack"}')
    return prove.main()


def judged(patch: pytest.MonkeyPatch, report: str) -> int:
    """The exit status of the verdict on a report."""
    patch.setattr("sys.argv", ["prove.py", "verdict"])
    patch.setattr("sys.stdin", io.StringIO(report))
    return prove.main()


def test_a_fleet_that_uses_its_fabric_passes_after_one_round(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = Nodes(each=100 * MIB)
    assert proven(monkeypatch, nodes) == 0
    assert nodes.verbs == ["counters", "load", "counters", "loaded"]
    report = capsys.readouterr().out
    assert report.startswith("proof passed\ntraffic passed: completions answered: 4, ")
    assert "library passed: " in report
    assert "lines unknown: proof.logs is off" in report
    assert judged(monkeypatch, report) == 0


def test_more_is_asked_for_until_it_is_enough(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = Nodes(each=MIB)  # 4 MiB of a rank for a completion, 64 are wanted
    assert proven(monkeypatch, nodes) == 0
    assert nodes.rounds == [4, 17]
    told = capsys.readouterr()
    assert told.out.startswith("proof passed")
    assert "more are needed" in told.err


def test_too_little_is_unknown_once_nothing_more_may_be_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = Nodes(each=1000, section={"requests": 30})
    assert proven(monkeypatch, nodes) == 0
    assert sum(nodes.rounds) == 30
    report = capsys.readouterr().out
    assert report.startswith("proof unknown\ntraffic unknown: completions answered: 30")
    assert judged(monkeypatch, report) == 0


def test_an_idle_plane_is_measured_and_then_fails_with_its_cause(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = Nodes(each=100 * MIB)
    nodes.planes = (0,)
    for port in nodes.desired["spark2"]["ports"]:
        if port["plane"]:
            nodes.ports["spark2"][port["hca"]] |= {"gid": "", "gid_type": ""}
    assert proven(monkeypatch, nodes) == 0  # what was found must reach the state
    assert nodes.verbs[-1] == "verify"
    report = capsys.readouterr().out
    assert report.startswith("proof failed\n  cause: spark2 roceP2p1s0f0 (plane 1) has no RoCE v2 GID")
    assert judged(monkeypatch, report) == 1
    told = capsys.readouterr().err
    assert report.strip() in told
    assert "The engine still runs" in told


def test_with_a_mesh_its_rules_are_counted_over_all_rounds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = Nodes(each=MIB, with_mesh=True)
    assert proven(monkeypatch, nodes) == 0
    assert nodes.rounds == [4, 17]
    report = capsys.readouterr().out
    assert report.startswith("proof passed")
    assert "mesh passed: completions answered: 21, rules looked at: 8" in report
    assert "spark2: packets by rule pref 49152 21, pref 49162 21; IpForwDatagrams 0; " in report
    assert nodes.asked["spark3"]["mesh"]["ends"] == ["roceP2p1s0f0", "rocep1s0f1"]


def test_a_way_of_the_mesh_that_carries_nothing_is_the_cause_of_a_completion_that_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = Nodes(each=100 * MIB, with_mesh=True)
    nodes.error = "status 500: retries exceeded"
    one = nodes.counts["spark2"]
    assert one
    one["rules"] = {name: None if "rank0-to-rank2" in name else rule for name, rule in one["rules"].items()}
    assert proven(monkeypatch, nodes) == 0
    report = capsys.readouterr().out
    (cause,) = (line for line in report.splitlines() if "cause: " in line)
    rule = "restore-rank0-to-rank2-diagonal-clockwise-via-rank1-function0"
    assert cause == f"  cause: spark2 enp1s0f1np1 pref 49152 ({rule}): the rule is missing"
    assert judged(monkeypatch, report) == 1


def test_a_completion_that_fails_ends_the_measurement(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = Nodes(each=MIB)
    nodes.error = "timed out"
    assert proven(monkeypatch, nodes) == 0
    assert nodes.rounds == [4]
    assert "the next completion failed: timed out" in capsys.readouterr().out


def test_an_engine_that_moves_nothing_is_asked_for_all_that_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes(each=0)
    assert proven(monkeypatch, nodes) == 0
    assert nodes.rounds == [4, 60]


@pytest.mark.parametrize("verb", ["counters", "load", "loaded"])
def test_a_node_that_does_not_answer_is_no_verdict(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = Nodes(each=100 * MIB)
    nodes.fails[verb] = Answer("spark1", on_node.UNREACHABLE, None, "spark1: no route to host")
    assert proven(monkeypatch, nodes) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == "spark1: no route to host\n"


def test_only_a_failure_of_the_same_start_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert prove.last_failure("no-such-stack", "100") is None
    nodes = Nodes(each=100 * MIB)
    nodes.planes = (0,)
    proven(monkeypatch, nodes)
    first = prove.last_failure("no-such-stack", "100")
    assert first is not None
    assert first.startswith("the last proof failed (at ")
    assert prove.last_failure("no-such-stack", "200") is None
    nodes.planes = (0, 1)
    proven(monkeypatch, nodes)
    assert prove.last_failure("no-such-stack", "100") is None
