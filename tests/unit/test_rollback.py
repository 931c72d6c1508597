"""`python -m fleet rollback` and `smoke`: what stands in the way, one generation on all ranks, what is asked."""

from __future__ import annotations

from typing import Any

import pytest

from fleet import __main__ as fleet
from fleet import health, on_node
from fleet.awaited import awaited
from fleet.drift import Drift, Group, StageDrift
from fleet.facts import parse
from fleet.loading import load
from fleet.on_node import Answer, Link
from fleet.plan import Plan
from fleet.planner import make
from fleet.probe import Probe
from fleet.rollback import rollback
from fleet.stack import StackName
from fleet.survey import Survey
from tests.unit import observed
from tests.unit.fakes import link
from tests.unit.stacks import ring

NAME = StackName("spark-fabric", "test")
NODES = [f"spark{number}" for number in range(1, 5)]
OWNER = {"project": "spark-fabric", "stack": "test", "fleet_id": "default", "state_id": "7", "adoptable": False}
Acts = list[tuple[str, list[str], str]]


@pytest.fixture
def raw() -> dict[str, dict[str, Any]]:
    """Nodes that belong to the stack."""
    return {name: {**node, "owner": dict(OWNER)} for name, node in observed.fleet(4).items()}


def survey(raw: dict[str, dict[str, Any]], **drift: StageDrift) -> Survey:
    plan = make(load(ring()), {name: parse(node) for name, node in raw.items()}, NAME, image_id="sha256:1")
    links = {name: link(number) for number, name in enumerate(NODES, start=1)}
    stages = {(one.node, one.stage): one for one in drift.values()}
    return Survey(plan, links, Probe(raw, {}), Drift(stages), Group("rank 1 (spark2): no container", "200"), ())


def nodes_do(
    patch: pytest.MonkeyPatch, plan: Plan, state: str = "exited", *, start: str = "200", kept: str = "100"
) -> Acts:
    """Nodes on which a start of that name is in that state, until another one is brought back; what is done to them."""
    acts: Acts = []

    def on_all(verb: str, stack: str, links: list[Link], requests: dict[str, Any]) -> list[Answer]:
        assert stack == "test"
        assert all(requests[one.name]["owner"]["state_id"] == "7" for one in links)
        if verb == "engines":
            desired = requests[links[0].name]["desired"]
            acts.append((desired["action"], [one.name for one in links], desired["start"]))
            return [Answer(one.name, 0, {}, "") for one in links]
        back = any(action == "back" for action, _, _ in acts)
        labels = {"spark-fabric.start": kept if back else start}
        result = {
            "containers": [{"state": "running" if back else state, "exit_code": 1, "labels": labels}],
            "api": {"health": 200, "models": ["m"]},
            "kept": {"start": kept, "ground": plan.standstill} if kept else None,
        }
        return [Answer(one.name, 0, result, "") for one in links]

    patch.setattr(on_node, "on_all", on_all)
    return acts


def test_the_kept_engine_is_started_by_workers_first_and_waited_for(
    raw: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = survey(raw)
    acts = nodes_do(monkeypatch, found.plan)
    assert rollback(found) == []
    first, *workers = NODES
    assert acts == [("remove", NODES, "200"), ("back", workers, "100"), ("back", [first], "100")]
    assert "spark1: serves m" in capsys.readouterr().out


def test_what_runs_already_is_left_alone(
    raw: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = survey(raw)
    acts = nodes_do(monkeypatch, found.plan, "running", start="100")
    assert (rollback(found), acts) == ([], [])
    assert "runs (start 100): nothing was done" in capsys.readouterr().out


def test_it_is_not_started_on_another_fabric(raw: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    found = survey(raw, one=StageDrift("spark2", "plane0", ("MTU",), disruptive=True))
    acts = nodes_do(monkeypatch, found.plan)
    assert "run `up`: spark2 plane0: MTU" in rollback(found)[0]
    in_place = survey(raw, one=StageDrift("spark2", "plane0", ("mode",), disruptive=False))
    assert rollback(in_place) == []
    assert acts[0][0] == "remove"


def test_nodes_of_others_are_not_touched(raw: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    raw["spark3"]["owner"] = {**OWNER, "stack": "other"}
    found = survey(raw)
    acts = nodes_do(monkeypatch, found.plan)
    assert rollback(found) == ["spark3: does not answer, or is not of this stack"]
    assert not acts


def test_without_an_engine_that_served_it_says_so_and_fails(
    raw: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = survey(raw)
    acts = nodes_do(monkeypatch, found.plan, kept="")
    monkeypatch.setattr(fleet, "_looked", lambda *_: (found, []))
    assert fleet.go_back(NAME, found.plan.settings, list(found.links.values())) == fleet.FAILED
    assert "no engine of this stack has served yet" in capsys.readouterr().err
    assert not acts


def test_what_is_awaited_names_every_rank_its_start_and_what_it_rests_on(raw: dict[str, dict[str, Any]]) -> None:
    plan = survey(raw).plan
    found = awaited(plan, "200")
    assert list(found) == NODES
    assert [one["api"] for one in found.values()] == [True, False, False, False]
    assert {one["ground"] for one in found.values()} == {plan.standstill}
    assert {one["rollback"] for one in found.values()} == {False}
    assert health.FIRST_PAUSE_S < found["spark1"]["ready_s"] == plan.settings.engine.ready_timeout


@pytest.mark.parametrize(
    ("failed", "code"), [([], fleet.OK), ([["arithmetic", "19 + 23 is answered with '43', wanted 42"]], fleet.FAILED)]
)
def test_the_engine_that_runs_can_be_asked_at_any_time(
    failed: list[list[str]],
    code: int,
    raw: dict[str, dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = survey(raw)
    asked: list[dict[str, Any]] = []

    def on_all(verb: str, stack: str, links: list[Link], requests: dict[str, Any]) -> list[Answer]:
        assert (verb, [one.name for one in links]) == ("smoke", NODES[:1])
        asked.append(requests["spark1"]["desired"])
        result = {"passed": ["models"], "failed": failed, "refused": False, "seconds": 0.1}
        return [Answer("spark1", 0, result, "")]

    monkeypatch.setattr(on_node, "on_all", on_all)
    monkeypatch.setattr(fleet, "_looked", lambda *_: (found, []))
    assert fleet.ask(NAME, found.plan.settings, list(found.links.values())) == code
    assert (asked[0]["checks"], asked[0]["port"]) == ({"models": True, "arithmetic": True}, 8888)
    told = capsys.readouterr()
    assert "spark1: smoke test passed in 0.1 s: models" in told.out
    assert told.err == "".join(f"spark1: smoke test {check}: {why}\n" for check, why in failed)


def test_an_engine_of_somebody_else_is_asked_nothing(
    raw: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raw["spark1"]["owner"] = {**OWNER, "stack": "other"}
    found = survey(raw)
    monkeypatch.setattr(on_node, "on_all", lambda *_: pytest.fail("it was asked"))
    monkeypatch.setattr(fleet, "_looked", lambda *_: (found, []))
    assert fleet.ask(NAME, found.plan.settings, list(found.links.values())) == fleet.FAILED
    assert "is not of this stack" in capsys.readouterr().err
