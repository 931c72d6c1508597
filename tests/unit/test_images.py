"""The engine's image: how it is named, and when it has to be brought back."""

from typing import Any

import pytest

from fleet.drift import of_fleet, of_image
from fleet.facts import parse
from fleet.loading import load
from fleet.plan import Plan
from fleet.planner import make
from fleet.stack import StackName
from tests.unit import observed
from tests.unit.stacks import NO_PROFILE, changed, ring

ID, OTHER = "sha256:" + "1" * 64, "sha256:" + "2" * 64
DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("engine:1", "engine:1"),
        ("engine", "engine:latest"),
        ("registry:5000/team/engine", "registry:5000/team/engine:latest"),
        ("registry:5000/team/engine:1", "registry:5000/team/engine:1"),
        (f"engine@{DIGEST}", f"engine@{DIGEST}"),
        (f"registry:5000/engine:1@{DIGEST}", f"registry:5000/engine@{DIGEST}"),
    ],
)
def test_an_image_is_looked_for_under_the_name_that_docker_lists(written: str, meant: str) -> None:
    assert load(changed(ring(), {"engine.image": written})).engine.image.ref == meant


def plan_and_nodes(images: dict[str, str]) -> tuple[Plan, dict[str, dict[str, Any]]]:
    raw = observed.fleet(4)
    for node in raw.values():
        node["docker"]["images"] = {"engine:1": ID}
        node["time"] = 1000.0
    raw["spark2"]["docker"]["images"] = images
    facts = {name: parse(answer) for name, answer in raw.items()}
    return make(load(ring()), facts, StackName("spark-fabric", "test"), image_id=ID), raw


def test_an_image_that_is_there_is_no_drift() -> None:
    plan, raw = plan_and_nodes({"engine:1": ID})
    assert not any(stage == "image" for _, stage in of_fleet(plan, raw).stages)


@pytest.mark.parametrize(
    ("images", "reason"),
    [({}, "engine:1 is not there"), ({"engine:1": OTHER}, f"engine:1 is {'2' * 12}, not {'1' * 12}")],
)
def test_an_image_that_went_or_moved_is_drift_that_no_engine_feels(images: dict[str, str], reason: str) -> None:
    plan, raw = plan_and_nodes(images)
    drift = of_fleet(plan, raw)
    assert (drift.repair("spark2", "image") or "").startswith(f"{reason} (seen at 1000)")
    assert not drift.stages["spark2", "image"].disruptive
    assert drift.repair("spark3", "image") is None


def test_the_same_loss_a_second_time_reads_differently() -> None:
    plan, raw = plan_and_nodes({})
    texts = [
        found.text()
        for time in (1000.0, 2000.0)
        if (found := of_image(plan.nodes[1], "engine:1", {**raw["spark2"], "time": time}))
    ]
    assert len(set(texts)) == 2


def test_a_node_without_a_rank_needs_no_image() -> None:
    raw = observed.fleet(4)
    facts = {name: parse(answer) for name, answer in raw.items()}
    settings = load(changed(ring(), {**NO_PROFILE, "nodes[1].state": "leaving"}))
    plan = make(settings, facts, StackName("spark-fabric", "test"), image_id=ID)
    assert of_image(plan.nodes[1], "engine:1", raw["spark2"]) is None
