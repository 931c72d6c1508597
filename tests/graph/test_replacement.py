"""What is replaced, by what, and together with what."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import Any

import pytest

from components.cluster import Cluster, ClusterArgs
from fleet.drift import Drift
from fleet.manifest import Reading
from fleet.on_node import GRACE_S, LIMITS_S
from fleet.weigh import LIMIT_S
from tests.graph.conftest import WHOLE, Register, links_of, planned
from tests.graph.recorder import COMMAND, CONTAINER, Graph, plain, record
from tests.unit.checkpoints import PATH, SHARDS, SMALL, checkpoint, sound
from tests.unit.stacks import DELETE, NO_PROFILE, changed, mesh, ring, switched

NODES = [f"spark{number}" for number in range(1, 5)]
TRIGGERED = {"stop", "standstill", "gate"}

# Every change that a running engine would feel.
DISRUPTIVE: dict[str, Callable[[], dict[str, Any]]] = {
    "MTU": lambda: changed(ring(), {"fabric.mtu": 4200}),
    "pool": lambda: changed(ring(), {"fabric.plane0.pool": "10.30.0.0/16"}),
    "plane 0 off": lambda: changed(ring(), {"fabric.plane0.enabled": "off"}),
    "plane 1 off": lambda: changed(ring(), {"fabric.plane1.enabled": "off"}),
    "relay off": lambda: changed(ring(), {"fabric.ipRelay": "off"}),
    "cabling": lambda: changed(ring(), {"fabric.cabling": "reversed"}),
    "topology": switched,
    "rank order": lambda: {**ring(), "nodes": [ring()["nodes"][rank] for rank in (0, 2, 1, 3)]},
    "head": lambda: {**ring(), "nodes": [ring()["nodes"][rank] for rank in (1, 2, 3, 0)]},
    "node leaves": lambda: changed(ring(), {**NO_PROFILE, "nodes[3].state": "leaving"}),
    "node joins": lambda: ring(5),
    "library": lambda: changed(ring(), {"nccl.library": {"file": "libnccl.so.2"}}),
    "management address": lambda: changed(ring(), {"nodes[1].address": "192.168.1.77"}),
}


@pytest.mark.parametrize("config", [ring(), changed(ring(), {"fabric.plane1.enabled": "off"})])
def test_the_digests_of_the_plan_are_the_triggers(register: Register, config: dict[str, Any]) -> None:
    found, plan = register(config), planned(config)
    assert found["standstill"].trigger == plan.standstill
    assert found["gate"].trigger == plan.group
    assert found["stop"].trigger == f"{plan.standstill} {plan.group}"


@pytest.mark.parametrize("what", DISRUPTIVE)
def test_a_disruptive_change_replaces_the_standstill(what: str) -> None:
    assert planned(DISRUPTIVE[what]()).standstill != planned(ring()).standstill


def test_another_machine_behind_the_same_name_replaces_the_standstill() -> None:
    assert planned(ring(), machines={"spark2": "f" * 32}).standstill != planned(ring()).standstill


def test_the_standstill_takes_gate_containers_and_what_follows_them_along(graph: Graph) -> None:
    """`replace_with` is not transitive: each names every upstream that takes it along."""
    containers = [one.name for one in graph.of(CONTAINER)]
    expected: dict[str, set[str]] = {"gate": {"standstill"}}
    expected |= {name: {"standstill", "gate"} for name in ("halt", "health", "proof", "proven", *containers)}
    assert {one.name: one.replace_with for one in graph.managed if one.replace_with} == expected


def test_only_stop_standstill_and_gate_have_a_trigger(graph: Graph) -> None:
    assert {one.name for one in graph.managed if one.trigger} == TRIGGERED
    assert {one.name for one in graph.of(COMMAND) if one.inputs.get("triggers")} == TRIGGERED


def test_stages_are_never_replaced(register: Register) -> None:
    """They change in place, after the standstill has taken the engine away."""
    for what in ("plane 1 off", "node leaves"):
        for one in register(DISRUPTIVE[what]()).managed:
            if one.name.rpartition("-")[2] in (
                "undo",
                "node",
                "plane0",
                "plane1",
                "relay",
                "nccl",
                "staged",
                "verified",
            ):
                assert not one.trigger
                assert not one.replace_with
                assert not one.inputs.get("triggers")


def test_a_variable_of_the_head_replaces_the_group_and_not_the_standstill(register: Register, graph: Graph) -> None:
    found = register(changed(ring(), {"engine.headEnv.A": "1"}))
    assert found["standstill"].trigger == graph["standstill"].trigger
    assert found["gate"].trigger != graph["gate"].trigger
    different = {one.name for one in found.managed if one.inputs != graph[one.name].inputs}
    assert different == {one.name for one in graph.of(CONTAINER)}  # the others by their labels


def test_another_shard_on_one_node_replaces_the_group_and_not_the_standstill(register: Register) -> None:
    config = changed(ring(), {"engine.weights": {"path": PATH}})
    names = [f"spark{number}" for number in range(1, 5)]
    before = register(config, weights={name: checkpoint() for name in names})
    weights = {name: checkpoint() for name in names}
    weights["spark3"]["files"][SHARDS[7]] = sound(SMALL + 1)
    after = register(config, weights=weights)
    assert after["standstill"].trigger == before["standstill"].trigger
    assert after["gate"].trigger != before["gate"].trigger
    different = {one.name for one in after.managed if one.inputs != before[one.name].inputs}
    assert different == {one.name for one in before.of(CONTAINER)}  # by their labels


def test_a_plane_that_is_off_is_a_desired_state(register: Register, graph: Graph) -> None:
    found = register(changed(ring(), {"fabric.plane1.enabled": "off"}))
    assert {one.name for one in found.all} == {one.name for one in graph.all}
    for number in range(1, 5):
        name = f"spark{number}"
        desired = json.loads(found[f"{name}-plane1"].inputs["stdin"])[name]
        assert desired["state"] == "off"
        assert found[f"{name}-plane0"].inputs == graph[f"{name}-plane0"].inputs  # nothing of plane 0 is touched


def test_a_relay_that_is_off_is_a_desired_state(register: Register, graph: Graph) -> None:
    found = register(changed(ring(), {"fabric.ipRelay": "off"}))
    assert {one.name for one in found.all} == {one.name for one in graph.all}
    assert json.loads(found["spark2-relay"].inputs["stdin"]) == {"spark2": {"state": "off"}}


def test_a_leaving_node_keeps_its_stages_and_loses_its_container(register: Register, graph: Graph) -> None:
    found = register(changed(ring(), {**NO_PROFILE, "nodes[2].state": "leaving"}))
    assert {one.name for one in graph.all} - {one.name for one in found.all} == {"spark3-engine", "spark3-image"}
    for stage in ("plane0", "plane1", "relay", "nccl"):
        assert json.loads(found[f"spark3-{stage}"].inputs["stdin"])["spark3"]["state"] == "off"
    assert "spark3-docker" in found  # the state's container is deleted through it

    def named(resource: str) -> list[str]:
        return [link["name"] for link in json.loads(found[resource].environment["FLEET_LINKS"])]

    assert "spark3" in named("gate")  # which clears its container away
    assert "spark3" in named("fabric-staged")
    for resource in ("halt", "health", "proof", "fabric-verified"):
        assert "spark3" not in named(resource)


def test_the_second_step_of_leaving_replaces_nothing(register: Register) -> None:
    leaving = register(changed(ring(), {**NO_PROFILE, "nodes[2].state": "leaving"}))
    gone = register(changed(ring(), {**NO_PROFILE, "nodes[2]": DELETE}))
    assert not any(one.name.startswith("spark3") for one in gone.all)
    for name in TRIGGERED:
        assert gone[name].trigger == leaving[name].trigger
    for container in gone.of(CONTAINER):
        assert plain(container.inputs) == plain(leaving[container.name].inputs)


def test_how_nodes_are_reached_replaces_nothing(register: Register, graph: Graph) -> None:
    found = register(changed(ring(), {"ssh.user": "root", "ssh.port": 2222, "ssh.identity": "keys/id_ed25519"}))
    assert {name: found[name].trigger for name in TRIGGERED} == {name: graph[name].trigger for name in TRIGGERED}
    for container in graph.of(CONTAINER):
        assert found[container.name].inputs == container.inputs


def reading(config: dict[str, Any], new: Collection[str] = ()) -> Graph:
    """A fleet whose weights are to be read. The nodes that are `new` are not ours yet."""
    plan, desired = planned(config), {"path": PATH, "files": {"a": "1" * 64}}
    each = [Reading(node.name, desired, "not read yet", node.name not in new) for node in plan.ranks]
    args = ClusterArgs(plan, links_of(plan), Drift(), WHOLE, each)
    return record(lambda: Cluster("cluster", args))


def test_weights_are_read_on_each_node_and_nobody_stops_for_it(graph: Graph) -> None:
    found = reading(ring())
    for name in NODES:
        read = found[f"{name}-weights-read"]
        assert json.loads(read.inputs["stdin"]) == {name: {"path": PATH, "files": {"a": "1" * 64}}}
        assert [link["name"] for link in json.loads(read.environment["FLEET_LINKS"])] == [name]
        assert read.texts == {
            "create": "exec python3 -IS fleet/weigh.py",
            "update": "exec python3 -IS fleet/weigh.py # not read yet",
            "delete": None,
        }
        assert int(read.request.customTimeouts.create[:-1]) > LIMIT_S + LIMITS_S["weigh"] + GRACE_S
    for name in TRIGGERED:
        assert found[name].trigger == graph[name].trigger


@pytest.mark.parametrize("config", [ring(), mesh()], ids=["ring", "mesh"])
@pytest.mark.parametrize("new", [[], ["spark4"], NODES], ids=["none", "one", "all"])
def test_weights_are_read_before_the_stop_and_on_a_new_node_after_all_that_needs_its_lock(
    config: dict[str, Any], new: list[str], register: Register
) -> None:
    found, stages = reading(config, new), register(config).before("gate")
    assert {name for name in NODES if f"{name}-weights-read" in found.before("stop")} == set(NODES) - set(new)
    for name in NODES:
        assert f"{name}-weights-read" in found.before("gate")
        assert (stages <= found.before(f"{name}-weights-read")) is (name in new)
