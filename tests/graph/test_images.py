"""The image's resources: built on one node, copied or pulled on each, all before any engine is stopped."""

from __future__ import annotations

import json
from typing import Any

import pulumi
import pytest

from components import image
from fleet.drift import Drift, StageDrift
from tests.graph.conftest import IMAGE_ID, Register, planned
from tests.graph.recorder import COMMAND, CONTAINER, Graph, is_secret, plain
from tests.unit.stacks import changed, ring

NAMES = [f"spark{number}" for number in range(1, 5)]
DIGEST = "sha256:" + "a" * 64
BUILD = {"context": "recipes", "args": {"PIP_INDEX": "hunter1"}, "secrets": {"TOKEN": "hunter2"}}


def building(**more: Any) -> dict[str, Any]:
    """A ring with an image that is built, and more keys about that."""
    return changed(ring(), {"engine.image": {"ref": "engine:1", "build": {**BUILD, **more}}})


BUILT = building()
PULLED = changed(ring(), {"engine.image": {"ref": f"engine@{DIGEST}", "pull": True}})
REF = "engine:1-0123456789ab"  # as a survey names what is built


@pytest.fixture(scope="module")
def built(register: Register) -> Graph:
    return register(BUILT, image_ref=REF, image_id=None)


def wanted(graph: Graph, node: str) -> Any:
    return json.loads(graph[f"{node}-image"].inputs["stdin"])


def links(graph: Graph, name: str) -> list[str]:
    return [link["name"] for link in json.loads(graph[name].environment["FLEET_LINKS"])]


def differing(one: Graph, other: Graph) -> set[str]:
    return {resource.name for resource in one.all if resource.inputs != other[resource.name].inputs}


def test_one_node_builds_and_the_others_copy_before_anything_stops(built: Graph) -> None:
    assert built["image-build"].after == {"state-id"}
    assert links(built, "image-build") == NAMES  # whoever has it can give it back
    for name in NAMES:
        assert built[f"{name}-image"].after >= {"state-id", "image-build"}
        assert wanted(built, name)[name]["from"] == "spark1"
        assert links(built, f"{name}-image") == list(dict.fromkeys([name, "spark1"]))
    assert {"image-build", *(f"{name}-image" for name in NAMES)} <= built.before("stop")


def test_two_nodes_copy_at_once(register: Register) -> None:
    """Each copy after the second begins when the one before the last has ended; the node that built copies nothing."""
    for builder in ("spark1", "spark3"):
        graph = register(building(node=builder))
        copying = [name for name in NAMES if name != builder]
        waits = {name: graph[f"{name}-image"].after - {"state-id", "image-build"} for name in NAMES}
        assert waits == {name: {f"{copying[0]}-image"} if name == copying[2] else set() for name in NAMES}
    graph = register(PULLED, image_id=None)
    assert all(graph[f"{name}-image"].after == {"state-id"} for name in NAMES)


def test_the_node_that_builds_can_be_chosen(register: Register) -> None:
    graph = register(building(node="spark3"))
    assert list(json.loads(plain(graph["image-build"].inputs["stdin"]))) == ["spark3"]
    assert links(graph, "spark1-image") == ["spark1", "spark3"]


def test_without_a_build_there_is_no_resource_for_one(register: Register, graph: Graph) -> None:
    assert "image-build" not in graph
    assert "image-build" not in register(PULLED, image_id=None)


def test_what_is_built_runs_by_its_name(built: Graph, register: Register) -> None:
    assert {one.inputs["image"] for one in built.of(CONTAINER)} == {REF}
    assert {one.inputs["image"] for one in register(PULLED, image_id=None).of(CONTAINER)} == {f"engine@{DIGEST}"}


@pytest.mark.parametrize("config", [BUILT, PULLED])
def test_to_learn_the_id_is_no_change(config: dict[str, Any], register: Register) -> None:
    """The first `up` does not know it, and every later one does."""
    ref = REF if config is BUILT else None
    before, after = (register(config, image_ref=ref, image_id=identity) for identity in (None, IMAGE_ID))
    assert differing(before, after) == set()
    assert before["gate"].trigger == after["gate"].trigger


def test_another_context_is_another_image_and_another_group_and_no_standstill(built: Graph, register: Register) -> None:
    other = register(BUILT, image_ref="engine:1-other", image_id=None)
    assert differing(built, other) == {
        "image-build",
        *(f"{name}-{what}" for name in NAMES for what in ("image", "engine")),
    }
    triggers = {one.name for one in built.managed if one.trigger != other[one.name].trigger}
    assert triggers == {"stop", "gate"}


def test_where_nobody_has_the_image_an_update_of_the_build_says_so(built: Graph, register: Register) -> None:
    gone = StageDrift("spark1", "image", ("engine:1 is not there",), disruptive=False)
    found = register(BUILT, image_ref=REF, image_id=None, drift=Drift({("spark1", "image"): gone}))
    assert differing(found, built) == {"image-build", "spark1-image"}
    update = found["image-build"].inputs["update"]
    assert update.startswith("exec python3 -IS fleet/building.py # engine:1 is not there")


def test_secrets_of_a_build_are_in_one_resource_and_encrypted(built: Graph, register: Register) -> None:
    told = built["image-build"].inputs["stdin"]
    assert is_secret(told)
    assert json.loads(plain(told))["spark1"]["secrets"] == {"TOKEN": "hunter2"}
    others = [plain(one.inputs) for one in built.all if one.name != "image-build"]
    assert "hunter" not in json.dumps(others)
    config = building(secrets={})
    assert not is_secret(register(config)["image-build"].inputs["stdin"])
    assert is_secret(register(config, secret_keys=("engine",))["image-build"].inputs["stdin"])


def test_secrets_in_plain_text_are_warned_of(register: Register, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(pulumi, "warn", said.append)
    register(building(secrets={"OTHER": "hunter3"}), secret_keys=("engine",))
    assert said == []
    register(building(secrets={"OTHER": "hunter3"}))
    assert said == [image.IN_PLAIN]


def test_a_build_has_one_text_in_all_versions(built: Graph) -> None:
    text = "exec python3 -IS fleet/building.py"
    assert built["image-build"].texts == {"create": text, "update": text, "delete": None}
    assert built["image-build"].type == COMMAND


def test_what_is_pulled_is_pulled_by_each_node_for_itself(register: Register) -> None:
    graph = register(PULLED, image_id=None)
    for name in NAMES:
        assert wanted(graph, name)[name]["pull"] is True
        assert links(graph, f"{name}-image") == [name]


def test_the_library_is_looked_for_in_an_image_that_is_built(built: Graph) -> None:
    assert wanted(built, "spark2")["spark2"]["target"] == planned(BUILT).settings.nccl.target
