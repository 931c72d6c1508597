"""What waits for what: each resource for the nearest stage, and everything that may disturb for the standstill."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.graph.conftest import Register
from tests.graph.recorder import COMMAND, Graph
from tests.unit.stacks import NO_PROFILE, changed, ring, switched

NAMES = [f"spark{number}" for number in range(1, 5)]


def every(suffix: str) -> set[str]:
    return {f"{name}-{suffix}" for name in NAMES}


def test_each_resource_waits_for_the_nearest_stage_only(graph: Graph) -> None:
    expected: dict[str, set[str]] = {
        "state-id": set(),
        "stop": every("image"),
        "standstill": {"stop"},
        "fabric-staged": every("node"),
        "fabric-verified": every("relay"),
        "gate": every("nccl"),
        "halt": every("engine"),
        "health": {"halt"},
        "proof": {"health"},
        "proven": {"proof"},
    }
    for name in NAMES:
        chain = ["standstill", f"{name}-undo", f"{name}-node"], ["fabric-staged"]
        chain[1].extend(f"{name}-{stage}" for stage in ("plane0", "plane1", "relay"))
        for stages in chain:
            expected |= {after: {before} for before, after in pairwise(stages)}
        expected |= {f"{name}-image": set(), f"{name}-engine": {"gate"}, f"{name}-nccl": {"fabric-verified"}}
    expected["spark1-engine"] |= every("engine") - {"spark1-engine"}
    assert {one.name: one.after - {"state-id"} for one in graph.managed} == expected


def test_whoever_names_the_owner_waits_for_the_state_id(graph: Graph) -> None:
    for command in graph.of(COMMAND):
        assert ("state-id" in command.after) == ("environment" in command.inputs), command.name


@pytest.mark.parametrize(
    "config", [ring(), ring(3), switched(2), changed(ring(), {**NO_PROFILE, "nodes[2].state": "leaving"})]
)
def test_only_images_and_the_state_id_come_before_the_standstill(register: Register, config: dict[str, object]) -> None:
    found = register(config)
    early = {one.name for one in found.managed if "standstill" not in found.before(one.name)}
    ranks = [name for name in NAMES if f"{name}-engine" in found]
    assert early == {"standstill", "stop", "state-id", *(f"{name}-image" for name in ranks)}
    assert found.before("standstill") == early - {"standstill"}


def test_the_undo_of_a_node_is_there_before_anything_else_of_it(graph: Graph) -> None:
    for name in NAMES:
        for stage in ("node", "plane0", "plane1", "relay", "nccl", "engine"):
            assert f"{name}-undo" in graph.before(f"{name}-{stage}")


def test_the_head_starts_after_all_workers(graph: Graph) -> None:
    workers = every("engine") - {"spark1-engine"}
    assert graph["spark1-engine"].after >= workers
    assert not any(graph[worker].after & every("engine") for worker in workers)


def test_the_head_is_whoever_is_named_first(register: Register) -> None:
    config = ring()
    config["nodes"].insert(0, config["nodes"].pop(2))
    found = register(config)
    assert found["spark3-engine"].after == {"gate", *(every("engine") - {"spark3-engine"})}
    assert found["spark1-engine"].after == {"gate"}


def test_no_engine_starts_before_the_whole_fabric_is_verified(graph: Graph) -> None:
    for name in NAMES:
        assert {"fabric-verified", *every("plane0"), *every("plane1")} <= graph.before(f"{name}-engine")


def test_a_preview_registers_what_an_up_registers(register: Register, graph: Graph) -> None:
    """A resource made inside `apply` would be missing while outputs are unknown."""
    preview = register(preview=True)
    assert [one.name for one in preview.all if one.name not in graph] == []
    assert sorted(one.name for one in preview.all) == sorted(one.name for one in graph.all)
    for one in preview.managed:
        assert one.after == graph[one.name].after, one.name


def test_what_follows_from_settings_is_known_in_the_first_preview(register: Register, graph: Graph) -> None:
    preview = register(preview=True)
    for one in preview.managed:
        unknown = {key for key, value in graph[one.name].inputs.items() if one.inputs.get(key) != value}
        expected = {"stdin"} if one.name == "proven" else {"environment"}  # what was measured; the state id
        assert unknown <= expected, one.name


def test_resources_of_a_node_carry_its_name(graph: Graph) -> None:
    fleet_wide = {"state-id", "stop", "standstill", "fabric-staged", "fabric-verified", "gate", "halt", "health"}
    fleet_wide |= {"cluster", "engine", "proofs", "proof", "proven"}
    for one in graph.all:
        assert one.name in fleet_wide or one.name.split("-")[0] in NAMES, one.name
    assert len({one.name for one in graph.all}) == len(graph.all)
