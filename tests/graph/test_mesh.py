"""The mesh's resources: up behind the whole fabric, a stage after the other on all nodes; away before any of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from components.mesh import VERIFY
from fleet.drift import StageDrift
from node.mesh import STAGES
from tests.graph.conftest import Register, planned
from tests.graph.recorder import COMMAND, Graph
from tests.graph.test_drift import changed_commands, drift
from tests.graph.test_order import every
from tests.unit.stacks import NO_PROFILE, changed, mesh, ring

OFF = changed(mesh(), {"mesh.enabled": "off"})
ALL = frozenset().union(*(every(stage) for stage in STAGES))
RULE = "enp1s0f0np0 ingress pref 49152: rule is missing, plan wants restore-rank1-to-rank3"


@pytest.fixture(scope="session")
def meshed(register: Register) -> Graph:
    """A ring of four with the mesh, in which nothing deviates."""
    return register(mesh())


def after(found: Graph, name: str) -> set[str]:
    return {one for one in found[name].after if one != "state-id"}


def test_without_a_mesh_there_is_nothing_of_one(graph: Graph) -> None:
    assert not {*ALL, "mesh-verified"} & graph.resources.keys()


def test_each_stage_waits_for_the_one_before_on_all_nodes(meshed: Graph) -> None:
    for stage, before in (("nic", "nccl"), ("forwarding", "nic"), ("markers", "forwarding")):
        for name in every(stage):
            assert after(meshed, name) == every(before)
    assert after(meshed, "mesh-verified") == every("markers")
    assert after(meshed, "gate") == {"mesh-verified"}


def test_no_engine_starts_before_the_mesh_is_verified_and_no_stage_before_the_standstill(meshed: Graph) -> None:
    for name in every("engine"):
        assert {*ALL, "mesh-verified", "fabric-verified"} <= meshed.before(name)
    for name in ALL:
        assert {"standstill", "fabric-verified", f"{name.split('-')[0]}-undo"} <= meshed.before(name)


def test_a_mesh_that_is_off_goes_the_other_way_round_before_the_fabric_changes(register: Register) -> None:
    found = register(OFF)
    for stage, before in (("markers", "node"), ("forwarding", "markers"), ("nic", "forwarding")):
        for name in every(stage):
            assert after(found, name) == every(before)
            assert "standstill" in found.before(name)
    assert after(found, "fabric-staged") == {*every("node"), *every("nic")}
    assert after(found, "gate") == every("nccl")
    assert "mesh-verified" not in found


def test_on_and_off_are_the_same_resources_changed_in_place(register: Register, meshed: Graph) -> None:
    off = register(OFF)
    for name in ALL:
        one, other = meshed[name], off[name]
        assert (one.type, one.request.parent) == (other.type, other.request.parent)
        assert one.texts == other.texts
        assert one.trigger is None
        assert not one.replace_with
        assert json.loads(other.inputs["stdin"]) == {name.split("-")[0]: {"state": "off"}}
    assert {meshed[name].trigger == off[name].trigger for name in ("stop", "standstill")} == {False}


def test_a_node_that_leaves_loses_its_mesh_before_the_others_change(register: Register) -> None:
    nodes = [*mesh()["nodes"], {"name": "spark5", "address": "192.168.1.15", "state": "leaving"}]
    found = register({**mesh(), "nodes": nodes})
    assert after(found, "spark5-forwarding") == {"spark5-markers"}
    assert after(found, "spark5-nic") == {"spark5-forwarding"}
    assert {"spark5-nic"} <= found.before("fabric-staged") <= found.before("spark1-nic")
    assert after(found, "spark1-markers") == every("forwarding")


def test_the_check_writes_what_is_planned_in_all_its_phases(meshed: Graph) -> None:
    check = meshed["mesh-verified"]
    assert check.texts == {"create": VERIFY, "update": VERIFY, "delete": None}
    assert json.loads(check.inputs["stdin"]) == planned(mesh()).mesh_checks
    assert VERIFY.split(":")[1].split("+") == ["before", *(f"turn{rank}" for rank in range(4)), "after"]


def test_a_preview_registers_the_same(register: Register, meshed: Graph) -> None:
    preview = register(mesh(), preview=True)
    assert {one.name: one.after for one in preview.managed} == {one.name: one.after for one in meshed.managed}


def test_nothing_of_the_marker_on_this_side_is_in_a_resource(register: Register) -> None:
    marker = {"file": "secret-place/marker", "sha256": "2" * 64}
    found = register(changed(mesh(), {"mesh.marker": marker}))
    assert "secret-place" not in json.dumps([one.inputs for one in found.of(COMMAND)])
    assert json.loads(found["spark2-markers"].inputs["stdin"])["spark2"]["binary"]["source"] == "sent"


@pytest.mark.parametrize(
    ("change", "stages"),
    [
        ({"mesh.hairpinQueueSize": 4096}, STAGES),
        ({"fabric.plane1.pool": "10.99.0.0/16"}, STAGES),
        ({"fabric.mtu": 4200}, STAGES),
        ({"mesh.marker.sha256": "2" * 64}, ("markers",)),
        ({"engine.servedModelName": "other"}, ()),
    ],
    ids=str,
)
def test_what_takes_rules_or_markers_along_has_them_applied_again_everywhere(
    register: Register, meshed: Graph, change: dict[str, Any], stages: tuple[str, ...]
) -> None:
    found = register(changed(mesh(), change))
    moved = {one.name for one in found.managed if one.inputs != meshed[one.name].inputs}
    assert moved & {*ALL, "mesh-verified"} == {
        *(name for stage in stages for name in every(stage)),
        *(["mesh-verified"] if stages else []),
    }
    assert (found["standstill"].trigger != meshed["standstill"].trigger) == bool(stages)


def test_a_changed_comment_of_a_plane_moves_nothing_of_the_mesh(meshed: Graph) -> None:
    plan = planned(mesh())
    before = plan.below(("plane0",))
    for node in plan.ranks:
        node.stages["plane0"]["text"] = "# another comment"
    assert plan.below(("plane0",)) == before


def test_a_lost_rule_changes_its_stage_and_the_check_with_all_engines_stopped(
    register: Register, meshed: Graph
) -> None:
    found = register(mesh(), drift=drift(StageDrift("spark2", "forwarding", (RULE,), disruptive=True)))
    assert changed_commands(found, meshed) == {"spark2-forwarding", "mesh-verified", "stop", "standstill"}
    assert found["spark2-forwarding"].inputs["update"].endswith(f" apply # {RULE} (generation 3)")


def test_a_function_or_plane_that_deviates_has_rules_and_markers_applied_again(
    register: Register, meshed: Graph
) -> None:
    expected = {"mesh-verified", "stop", "standstill", *every("forwarding"), *every("markers")}
    queue = "0000:01:00.0 (enp1s0f0np0): hairpin_queue_size is 1024, plan wants 8192"
    found = register(mesh(), drift=drift(StageDrift("spark3", "nic", (queue,), disruptive=True)))
    assert changed_commands(found, meshed) == {"spark3-nic", *expected}
    assert found["spark1-markers"].inputs["update"].endswith(f" apply # after spark3 nic: {queue} (generation 12)")
    found = register(mesh(), drift=drift(StageDrift("spark3", "plane1", ("MTU is 1500",), disruptive=True)))
    fabric = {"spark3-plane1", "fabric-staged", "fabric-verified"}
    assert changed_commands(found, meshed) == {*fabric, *every("nic"), *expected}


def test_a_check_of_the_mesh_never_runs_beside_an_engine(register: Register, meshed: Graph) -> None:
    found = register(mesh(), drift=drift(StageDrift("spark3", "markers", ("is not enabled",), disruptive=False)))
    assert changed_commands(found, meshed) == {"spark3-markers"}


def test_drift_of_a_plane_does_not_move_a_mesh_that_is_off(register: Register) -> None:
    found = register(OFF, drift=drift(StageDrift("spark3", "plane1", ("MTU is 1500",), disruptive=True)))
    assert not changed_commands(found, register(OFF)) & ALL


def test_four_nodes_without_a_mesh_may_become_three(register: Register) -> None:
    config = changed(OFF, {"nodes[2].state": "leaving", **NO_PROFILE, "engine.image": ring()["engine"]["image"]})
    assert after(register(config), "spark3-nic") == every("forwarding")
