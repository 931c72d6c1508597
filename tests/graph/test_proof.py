"""The proof in the graph: what it is told, what makes it measure again, and what it leaves alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from components.cluster import Cluster, ClusterArgs
from fleet.drift import Drift
from fleet.expected import asked
from tests.graph.conftest import WHOLE, Register, links_of, planned
from tests.graph.recorder import CONTAINER, STATE_ID, Graph, record
from tests.unit.stacks import changed, ring

MEASURED = {"proof", "proven"}


def different(found: Graph, graph: Graph) -> set[str]:
    return {one.name for one in found.managed if one.inputs != graph[one.name].inputs}


def test_the_proof_is_told_what_the_plan_expects_of_each_rank(graph: Graph) -> None:
    told = json.loads(graph["proof"].inputs["stdin"])
    assert told == json.loads(json.dumps(asked(planned(ring()), WHOLE.start)))


def test_the_verdict_is_about_what_was_measured(graph: Graph) -> None:
    assert graph["proven"].inputs["stdin"] == STATE_ID  # what every command prints here
    assert "environment" not in graph["proven"].inputs  # it asks no node


def test_a_proof_that_is_off_is_not_there_and_changes_nothing_else(register: Register, graph: Graph) -> None:
    found = register(changed(ring(), {"proof.enabled": "off"}))
    assert {one.name for one in graph.managed} - {one.name for one in found.managed} == MEASURED
    assert different(found, graph) == set()


@pytest.mark.parametrize(
    "change",
    [{"minimum": "1g"}, {"planeShare": 30}, {"edgeShare": 30}, {"arrival": 99}, {"requests": 5}, {"timeout": 60}],
    ids=lambda change: next(iter(change)),
)
def test_another_threshold_measures_again_under_the_running_engine(
    register: Register, graph: Graph, change: dict[str, Any]
) -> None:
    found = register(ring(proof=change))
    assert different(found, graph) == {"proof"}
    assert found["gate"].trigger == graph["gate"].trigger


def test_lines_of_nccl_are_another_group_of_engines(register: Register, graph: Graph) -> None:
    found = register(changed(ring(), {"proof.logs": "on"}))
    assert found["gate"].trigger != graph["gate"].trigger
    assert found["standstill"].trigger == graph["standstill"].trigger
    assert different(found, graph) == {"proof", *(one.name for one in graph.of(CONTAINER))}


def test_a_key_of_the_api_is_not_in_what_the_proof_is_told(register: Register) -> None:
    config = changed(ring(), {"engine.headEnv.API_KEY": "hunter2"})
    found = register(config, secret_keys=("engine",))
    assert "hunter2" not in json.dumps(dict(found["proof"].inputs))


def test_a_proof_that_failed_last_is_made_again_with_the_reason_in_the_diff(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failed(stack: str, start: str) -> str:
        return f"the last proof of {stack} {start} failed"

    monkeypatch.setattr("components.cluster.last_failure", failed)
    plan = planned(ring())
    found = record(lambda: Cluster("cluster", ClusterArgs(plan, links_of(plan), Drift(), WHOLE)))
    assert different(found, graph) == {"proof"}
    assert found["proof"].inputs["update"] == "exec python3 -IS fleet/prove.py # the last proof of test 100 failed"
    assert found["proof"].ignored == {"triggers"}
