"""The engine's image: how it is named, and when it has to be brought back."""

from typing import Any

import pytest

from fleet.drift import of_fleet, of_group, of_image
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
        (f"docker.io/team/engine@{DIGEST}", f"team/engine@{DIGEST}"),
        ("index.docker.io/library/engine:1", "engine:1"),
        ("library/engine", "engine:latest"),
        ("library/team/engine:1", "library/team/engine:1"),
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


BUILT = {"engine.image": {"ref": "engine:1", "build": {"context": ".", "node": "spark3"}}}
REF = "engine:1-0123456789ab"


def of_a_build(having: dict[str, str]) -> tuple[Plan, dict[str, dict[str, Any]]]:
    """The plan of an image that is built, and nodes some of which have it, by their names."""
    raw = observed.fleet(4)
    for name, identity in having.items():
        raw[name]["docker"]["images"] = {REF: identity}
    facts = {name: parse(answer) for name, answer in raw.items()}
    return make(load(changed(ring(), BUILT)), facts, StackName("spark-fabric", "test"), image_ref=REF), raw


def drifted(having: dict[str, str]) -> list[str]:
    return [node for node, stage in of_fleet(*of_a_build(having)).stages if stage == "image"]


def test_of_a_build_the_image_of_the_node_that_built_is_the_right_one() -> None:
    assert of_a_build({"spark1": OTHER, "spark3": ID})[0].image_id == ID
    assert of_a_build({"spark1": OTHER})[0].image_id == OTHER  # it goes back from there
    assert of_a_build({"spark1": OTHER, "spark2": ID})[0].image_id is None
    assert drifted({"spark1": OTHER, "spark2": ID, "spark3": ID}) == ["spark1", "spark4"]


def test_what_is_built_is_missed_on_all_nodes_although_nobody_knows_its_id() -> None:
    assert drifted({}) == ["spark1", "spark2", "spark3", "spark4"]
    assert drifted(dict.fromkeys(("spark1", "spark2", "spark3", "spark4"), ID)) == []


def test_an_engine_whose_image_was_lost_everywhere_and_built_anew_is_started_anew() -> None:
    plan, raw = of_a_build(dict.fromkeys(("spark1", "spark2", "spark3", "spark4"), ID))
    for rank, node in enumerate(raw.values()):
        labels = {"stack": plan.label, "group": plan.group, "start": "100", "rank": str(rank)}
        labels = {f"spark-fabric.{key}": value for key, value in labels.items()}
        node["docker"]["containers"] = [{"name": "e", "state": "running", "labels": labels, "image_id": ID}]
        node["started"] = {"start": "100"}
    assert of_group(plan, raw, "200").broken is None
    raw["spark2"]["docker"]["containers"][0]["image_id"] = OTHER
    assert of_group(plan, raw, "200").reasons == (f"rank 1 (spark2): e is of image {'2' * 12}, not {'1' * 12}",)


def test_a_node_without_a_rank_needs_no_image() -> None:
    raw = observed.fleet(4)
    facts = {name: parse(answer) for name, answer in raw.items()}
    settings = load(changed(ring(), {**NO_PROFILE, "nodes[1].state": "leaving"}))
    plan = make(settings, facts, StackName("spark-fabric", "test"), image_id=ID)
    assert of_image(plan.nodes[1], "engine:1", raw["spark2"]) is None
