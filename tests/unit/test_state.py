"""Taking a dead node out of an exported state: all of it, nothing else, and what is said about what stays there."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from fleet import state
from fleet.facts import parse
from fleet.loading import load
from fleet.planner import make
from fleet.stack import StackName
from fleet.state import StateError, left_on, without_node
from tests.unit import observed
from tests.unit.stacks import mesh, ring

STACK = StackName("spark-fabric", "test")
CLUSTER, NODE = "spark-fabric:components:Cluster", "spark-fabric:components:Node"
PLANES, ENGINE = "spark-fabric:components:FabricPlanes", "spark-fabric:components:Engine"
COMMAND, PROVIDER, CONTAINER = "command:local:Command", "pulumi:providers:docker", "docker:index/container:Container"
VOLUME = "docker:index/volume:Volume"


def urn(*kinds: str, name: str) -> str:
    return f"urn:pulumi:test::spark-fabric::{'$'.join(kinds)}::{name}"


def command(*kinds: str, name: str, stdin: object = None) -> dict[str, Any]:
    owner = {"project": "spark-fabric", "stack": "test", "fleet_id": "default", "state_id": "1"}
    inputs = {"stdin": json.dumps(stdin), "environment": {"FLEET_OWNER": json.dumps(owner)}}
    return {"urn": urn(CLUSTER, *kinds, COMMAND, name=name), "inputs": inputs}


def exported(
    names: tuple[str, ...] = ("spark1", "spark2", "spark3", "spark4"), config: dict[str, Any] | None = None
) -> dict[str, Any]:
    """A state as Pulumi exports it, with as much of each resource as counts here."""
    config = config or ring(len(names))
    config["nodes"] = [{**node, "name": name} for node, name in zip(config["nodes"], names, strict=True)]
    raw = {name: observed.fresh(number) for number, name in enumerate(names, start=1)}
    plan = make(load(config), {name: parse(answer) for name, answer in raw.items()}, STACK)
    resources: list[dict[str, Any]] = [command(name="standstill")]
    for node in plan.nodes:
        resources += [
            command(name=f"{node.name}-image"),
            {"urn": urn(CLUSTER, NODE, name=node.name)},
            command(NODE, name=f"{node.name}-undo"),
            command(NODE, name=f"{node.name}-node", stdin={node.name: node.stages["node"]}),
            {"urn": urn(CLUSTER, PLANES, name=f"{node.name}-fabric")},
            *(
                command(PLANES, name=f"{node.name}-{stage}", stdin={node.name: node.stages[stage]})
                for stage in ("plane0", "plane1", "relay")
            ),
            *(
                command(name=f"{node.name}-{stage}", stdin={node.name: node.stages[stage]})
                for stage in ("nccl", "nic", "forwarding", "markers")
                if stage in node.stages
            ),
        ]
    relays = [urn(CLUSTER, PLANES, COMMAND, name=f"{name}-relay") for name in names]
    resources.append({**command(name="gate"), "dependencies": relays, "propertyDependencies": {"stdin": relays}})
    for name in names:
        container = {"urn": urn(CLUSTER, ENGINE, CONTAINER, name=f"{name}-engine"), "inputs": {"name": "engine"}}
        provider = urn(CLUSTER, ENGINE, PROVIDER, name=f"{name}-docker")
        resources += [{"urn": provider}, {**container, "provider": f"{provider}::id"}]
    return {"version": 3, "deployment": {"resources": resources}}


def test_everything_of_the_node_goes_and_nothing_else() -> None:
    before = exported()
    after, names = without_node(copy.deepcopy(before), "spark2")
    own = [
        "spark2",
        *(f"spark2-{part}" for part in "docker engine fabric image nccl node plane0 plane1 relay undo".split()),
    ]
    assert names == sorted(own)
    kept = [one["urn"] for one in after["deployment"]["resources"]]
    assert kept == [one["urn"] for one in before["deployment"]["resources"] if one["urn"].rsplit("::")[-1] not in own]


def test_what_shares_weights_goes_with_its_node_and_is_said_to_stay_there() -> None:
    before = exported()
    for name, of, kind in (
        ("spark1", "exporter", CONTAINER),
        ("spark2", "weights", VOLUME),
        ("spark3", "weights", VOLUME),
    ):
        one = {"urn": urn(CLUSTER, ENGINE, kind, name=f"{name}-{of}"), "inputs": {"name": f"our-{of}"}}
        before["deployment"]["resources"].append(one)
    told = {name: [line for line in left_on(before, name) if "our-" in line] for name in ("spark1", "spark2")}
    assert told == {
        "spark1": ["container our-exporter (stopped, if the node was off)"],
        "spark2": ["docker volume our-weights"],
    }
    _, names = without_node(before, "spark2")
    assert "spark2-weights" in names
    assert "spark3-weights" not in names


def test_no_reference_to_the_node_is_left() -> None:
    after, _ = without_node(exported(), "spark2")
    assert "::spark2" not in json.dumps(after)
    gate = next(one for one in after["deployment"]["resources"] if one["urn"].endswith("::gate"))
    assert len(gate["dependencies"]) == len(gate["propertyDependencies"]["stdin"]) == 3


def test_operations_that_were_begun_on_the_node_go_too() -> None:
    before = exported()
    pending = [
        {"type": "creating", "resource": command(PLANES, name=f"{name}-plane0")} for name in ("spark1", "spark2")
    ]
    before["deployment"]["pending_operations"] = pending
    after, _ = without_node(before, "spark2")
    assert [one["resource"]["urn"].rsplit("::")[-1] for one in after["deployment"]["pending_operations"]] == [
        "spark1-plane0"
    ]


def test_nodes_whose_names_continue_the_name_stay() -> None:
    names = ("spark", "spark-undo", "spark-image", "sparky")
    after, gone = without_node(exported(names), "spark")
    assert len(gone) == 11
    kept = {one["urn"].rsplit("::")[-1] for one in after["deployment"]["resources"]}
    assert {"spark-undo", "spark-undo-undo", "spark-image", "spark-image-node", "sparky", "sparky-engine"} <= kept
    assert not any(one["urn"].endswith(f"{NODE}$undo") for one in after["deployment"]["resources"])


def test_a_node_that_is_not_in_the_state_changes_nothing() -> None:
    after, names = without_node(exported(), "spark9")
    assert (after["deployment"]["resources"], names) == (exported()["deployment"]["resources"], [])


def test_an_empty_state_holds_no_node() -> None:
    assert without_node({"deployment": {"resources": None}}, "spark1")[1] == []
    assert left_on({"deployment": {}}, "spark1") == []


def test_the_mesh_of_a_node_goes_too_and_what_stays_of_it_is_told() -> None:
    before = exported(config=mesh())
    _, names = without_node(copy.deepcopy(before), "spark2")
    assert {"spark2-nic", "spark2-forwarding", "spark2-markers"} <= set(names)
    told = left_on(before, "spark2")
    assert "pci/0000:01:00.0: 4 hairpin queues of 8192" in told
    assert "enp1s0f1np1: rule 49152 restore-rank0-to-rank2-diagonal-clockwise-via-rank1-function0" in told
    assert "units dsv41-mesh.service and dsv41-mesh-marker@.service, which bring the mesh back at each boot" in told
    assert len([line for line in told if line.startswith("marker on ")]) == 2


def test_what_stays_on_the_node_is_told_thing_by_thing() -> None:
    pairs = ("enp1s0f0np0 and enp1s0f1np1", "enP2p1s0f0np0 and enP2p1s0f1np1")
    assert left_on(exported(), "spark2") == [
        "/var/lib/spark-fabric/test/: the journal, and the program that puts all of this back",
        "file /etc/netplan/41-spark-fabric-plane0.yaml",
        "file /etc/sysctl.d/60-spark-fabric-plane0.conf",
        "enp1s0f0np0: address 10.10.1.10/24, MTU 9000",
        "enp1s0f0np0: route to 10.10.2.0/24 via 10.10.1.11",
        "enp1s0f1np1: address 10.10.0.11/24, MTU 9000",
        "enp1s0f1np1: route to 10.10.3.0/24 via 10.10.0.10",
        "file /etc/netplan/41-spark-fabric-plane1.yaml",
        "file /etc/sysctl.d/60-spark-fabric-plane1.conf",
        "enP2p1s0f0np0: address 10.20.1.10/24, MTU 9000",
        "enP2p1s0f0np0: route to 10.20.2.0/24 via 10.20.1.11",
        "enP2p1s0f1np1: address 10.20.0.11/24, MTU 9000",
        "enP2p1s0f1np1: route to 10.20.3.0/24 via 10.20.0.10",
        f"unit spark-fabric-relay.service: forwarding between {', '.join(pairs)}",
        "container engine (stopped, if the node was off)",
    ]


def test_a_library_that_was_sent_stays_and_one_of_the_operators_is_not_named() -> None:
    path = "/var/lib/spark-fabric/test/nccl/0/libnccl.so.2"
    sent = {"state": "on", "source": "sent", "path": path, "sha256": "0", "size": 1}
    before = exported()
    for one in before["deployment"]["resources"]:
        if one["urn"].endswith("::spark2-nccl"):
            one["inputs"]["stdin"] = json.dumps({"spark2": sent})
    assert f"file {path}" in left_on(before, "spark2")
    assert not any("nccl" in line for line in left_on(before, "spark3"))


def test_a_stage_that_is_off_leaves_nothing() -> None:
    before = exported()
    for one in before["deployment"]["resources"]:
        if one["urn"].endswith("::spark2-plane1"):
            one["inputs"]["stdin"] = json.dumps({"spark2": {"state": "off", "plane": 1, "ports": []}})
    assert not any("plane1" in line for line in left_on(before, "spark2"))


# With a pulumi that is none


def fake_pulumi(folder: Path, patch: pytest.MonkeyPatch, script: str) -> None:
    program = folder / "pulumi"
    program.write_text(f"#!/bin/sh\ncd {folder}\n{script}\n")
    program.chmod(0o755)
    patch.setattr(state, "pulumi", lambda: str(program))


def test_the_edited_state_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "state.json").write_text(json.dumps(exported()))
    fake_pulumi(tmp_path, monkeypatch, 'if [ "$2" = export ]; then cat state.json; else cat >imported.json; fi')
    names, left = state.forget("test", "spark2")
    assert "spark2-plane0" in names
    assert any(line.startswith("enp1s0f0np0: address") for line in left)
    assert json.loads((tmp_path / "imported.json").read_text()) == without_node(exported(), "spark2")[0]


def test_a_state_without_the_node_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "state.json").write_text(json.dumps(exported()))
    fake_pulumi(tmp_path, monkeypatch, 'test "$2" = export && cat state.json')
    assert state.forget("test", "spark9") == ([], [])


def test_what_pulumi_refuses_is_told_in_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_pulumi(tmp_path, monkeypatch, "echo 'error: no stack named test' >&2; exit 255")
    with pytest.raises(StateError, match="pulumi stack export failed: error: no stack named test"):
        state.forget("test", "spark2")
