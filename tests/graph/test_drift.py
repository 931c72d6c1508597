"""Drift shows as a change of exactly the resource that deviates, with the reason in its text."""

from __future__ import annotations

from fleet.drift import Drift, Group, StageDrift
from tests.graph.conftest import Register
from tests.graph.recorder import COMMAND, CONTAINER, Graph

MTU = "enp1s0f0np0: MTU is 1500, plan wants 9000"
ROUTE = "enp1s0f0np0: route to 10.10.2.0/24 is missing, plan wants via 10.10.0.11"
FABRIC_CHECKS = {"fabric-staged", "fabric-verified"}


def drift(*found: StageDrift, generation: int = 3) -> Drift:
    generations = {f"spark{number}": generation for number in range(1, 5)}
    return Drift({(one.node, one.stage): one for one in found}, generations)


def changed_commands(found: Graph, graph: Graph) -> set[str]:
    """The commands that are no longer as in a fleet without drift: in their inputs or in what they ignore."""
    return {
        one.name
        for one in found.managed
        if one.inputs != graph[one.name].inputs or one.ignored != graph[one.name].ignored
    }


def test_without_drift_the_last_reason_is_ignored(graph: Graph) -> None:
    """A text that went with the drift would be another change, and another run."""
    for command in graph.of(COMMAND):
        if command.name != "state-id":
            assert command.ignored == {"update", "triggers"}, command.name
            assert "#" not in (command.inputs.get("update") or "")


def test_the_update_of_a_drifted_stage_says_why(register: Register, graph: Graph) -> None:
    found = register(drift=drift(StageDrift("spark2", "plane0", (ROUTE,), disruptive=False)))
    stage = found["spark2-plane0"]
    assert stage.inputs["update"] == f"exec python3 -IS fleet/on_node.py apply # {ROUTE} (generation 3)"
    assert stage.ignored == {"triggers"}
    assert stage.inputs["stdin"] == graph["spark2-plane0"].inputs["stdin"]
    assert changed_commands(found, graph) == {"spark2-plane0", *FABRIC_CHECKS}
    assert f"spark2 plane0: {ROUTE}" in found["fabric-verified"].inputs["update"]


def test_the_same_drift_is_seen_again_after_a_repair(register: Register) -> None:
    found = StageDrift("spark2", "plane0", (ROUTE,), disruptive=False)
    first, second = (register(drift=drift(found, generation=number))["spark2-plane0"] for number in (3, 4))
    assert first.inputs["update"] != second.inputs["update"]


def test_drift_that_an_engine_would_feel_replaces_the_standstill(register: Register, graph: Graph) -> None:
    found = register(drift=drift(StageDrift("spark3", "plane1", (MTU,), disruptive=True)))
    standstill = found["standstill"]
    assert standstill.inputs["triggers"] == [f"spark3 plane1: {MTU} (generation 12)"]
    assert standstill.ignored == {"update"}
    assert standstill.trigger == graph["standstill"].trigger
    assert changed_commands(found, graph) == {"stop", "standstill", "spark3-plane1", *FABRIC_CHECKS}


def test_a_stage_outside_the_fabric_does_not_have_it_checked_again(register: Register, graph: Graph) -> None:
    found = register(drift=drift(StageDrift("spark4", "node", ("not applied on this node",), disruptive=False)))
    assert changed_commands(found, graph) == {"spark4-node"}


def test_a_library_that_somebody_touched_changes_its_resource_and_the_standstill(
    register: Register, graph: Graph
) -> None:
    reason = "/var/lib/spark-fabric/test/nccl/0/libnccl.so.2: is 0123456789ab, plan wants the library ba9876543210"
    found = register(drift=drift(StageDrift("spark3", "nccl", (reason,), disruptive=True)))
    assert found["spark3-nccl"].inputs["update"].endswith(f" apply # {reason} (generation 3)")
    assert changed_commands(found, graph) == {"stop", "standstill", "spark3-nccl"}


def test_an_image_that_is_gone_is_brought_back_without_a_standstill(register: Register, graph: Graph) -> None:
    found = register(drift=drift(StageDrift("spark1", "image", ("engine:1 is not there",), disruptive=False)))
    assert changed_commands(found, graph) == {"spark1-image"}
    assert found["spark1-image"].inputs["update"].startswith("exec python3 -IS fleet/image.py # engine:1 is not there")


def test_what_a_node_says_stays_in_the_comment(register: Register) -> None:
    """The text is run by a shell on the operator's machine, and a comment ends where the line does."""
    reason = "/etc/netplan/a\nrm b\r\nrm c\x0brm d\u2028rm e.yaml: is there, plan wants no such file"
    found = register(drift=drift(StageDrift("spark2", "plane0", (reason,), disruptive=False)))
    for name in ("spark2-plane0", *FABRIC_CHECKS):
        text = found[name].inputs["update"]
        assert text.splitlines() == [text]
        command, _, comment = text.partition(" # ")
        assert command.split()[:3] == ["exec", "python3", "-IS"]
        assert "rm e.yaml" in comment


def test_a_broken_group_replaces_the_gate_and_not_the_standstill(register: Register, graph: Graph) -> None:
    reason = "rank 2 (spark3): no container (start 200)"
    found = register(group=Group(reason, "200"))
    assert found["gate"].inputs["triggers"] == [reason]
    assert found["gate"].ignored == {"update"}
    assert found["gate"].trigger == graph["gate"].trigger
    assert changed_commands(found, graph) == {
        *("stop", "gate", "halt", "health", "proof"),
        *(one.name for one in graph.of(CONTAINER)),
    }


def test_every_start_of_the_group_has_a_name_of_its_own(register: Register) -> None:
    found = register(group=Group("broken", "200"))
    for container in found.of(CONTAINER):
        labels = {label["label"]: label["value"] for label in container.inputs["labels"]}
        assert labels["spark-fabric.start"] == "200"
        assert labels["spark-fabric.group"] == found["gate"].trigger
    assert '"start": "200"' in found["halt"].inputs["stdin"]
