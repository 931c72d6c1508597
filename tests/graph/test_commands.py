"""The commands: constant texts, everything that varies on standard input or in the environment, no secret anywhere."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from fleet.on_node import GRACE_S, LIMITS_S
from node import limits as node_limits
from tests.graph.conftest import Register
from tests.graph.recorder import COMMAND, Graph, plain
from tests.unit.stacks import NO_PROFILE, changed, ring, switched

ON_NODE = "exec python3 -IS fleet/on_node.py"
IMAGE = "exec python3 -IS fleet/image.py"
STAGE = {"create": f"{ON_NODE} apply", "update": f"{ON_NODE} apply", "delete": f"{ON_NODE} revert"}
VERBS = ("create", "update", "delete")

# State files hold these texts. A changed one runs on every node of every fleet at the next upgrade: do not change them.
TEXTS: dict[str, dict[str, str]] = {
    "state-id": {"create": "exec python3 -IS -c 'import uuid; print(uuid.uuid4())'"},
    "image": {"create": IMAGE, "update": IMAGE},
    "standstill": {"create": "true"},
    "undo": {"delete": f"{ON_NODE} revert"},
    "node": STAGE,
    "plane0": STAGE,
    "plane1": STAGE,
    "relay": STAGE,
    "nccl": STAGE,
    "fabric-staged": {"create": f"{ON_NODE} check", "update": f"{ON_NODE} check"},
    "fabric-verified": {"create": f"{ON_NODE} verify", "update": f"{ON_NODE} verify"},
    "stop": {"create": f"{ON_NODE} engines:ours", "update": "true", "delete": f"{ON_NODE} engines:stop"},
    "gate": {"create": f"{ON_NODE} engines:remove", "update": "true", "delete": f"{ON_NODE} engines:remove"},
    "halt": {"create": f"{ON_NODE} engines:mark", "update": "true", "delete": f"{ON_NODE} engines:stop"},
    "health": {"create": "exec python3 -IS fleet/health.py", "update": "true"},
    "proof": dict.fromkeys(("create", "update"), "exec python3 -IS fleet/prove.py"),
    "proven": dict.fromkeys(("create", "update"), "exec python3 -IS fleet/prove.py verdict"),
}
CONFIGS = [
    ring(),
    ring(5),
    switched(2),
    changed(ring(), {"fabric.mtu": 4200, "fabric.plane1.enabled": "off", "engine.env.A": "1", "engine.name": "other"}),
    changed(
        ring(),
        {
            **NO_PROFILE,
            "nodes[1].state": "leaving",
            "fleet.id": "desk",
            "ssh.user": "root",
            "ssh.identity": "~/.ssh/id",
        },
    ),
]


@pytest.mark.parametrize("config", CONFIGS)
def test_the_texts_are_the_same_for_all_settings_nodes_and_versions(register: Register, config: dict[str, Any]) -> None:
    for command in register(config).of(COMMAND):
        kind = re.sub(r"^spark\d+-", "", command.name)
        assert {verb: command.inputs[verb] for verb in VERBS if verb in command.inputs} == TEXTS[kind], command.name


def test_settings_reach_commands_by_standard_input_and_environment_alone(register: Register, graph: Graph) -> None:
    for config in CONFIGS[1:]:
        for command in register(config).of(COMMAND):
            if command.name in graph:
                before = {key: value for key, value in graph[command.name].inputs.items() if key != "triggers"}
                now = {key: value for key, value in command.inputs.items() if key != "triggers"}
                assert {key for key in before if before[key] != now[key]} <= {"stdin", "environment"}, command.name


def test_every_command_that_has_a_delete_is_deleted_before_it_is_created_anew(graph: Graph) -> None:
    """Else the new create would run first, and the old delete would undo it."""
    with_delete = [command for command in graph.of(COMMAND) if "delete" in command.inputs]
    assert {"gate", "halt", "spark1-undo", "spark4-plane1"} <= {command.name for command in with_delete}
    assert all(command.deleted_first for command in with_delete)


def test_a_create_that_must_not_run_at_an_update_has_an_update_of_its_own(graph: Graph) -> None:
    """Without `update`, a changed list of nodes would run `create`: the gate's removes running engines."""
    for command in graph.of(COMMAND):
        if "create" in command.inputs and "environment" in command.inputs:
            assert command.inputs.get("update"), command.name


def test_each_command_reaches_its_own_nodes_and_names_the_owner(graph: Graph) -> None:
    for command in graph.of(COMMAND):
        if "environment" not in command.inputs:
            continue
        links = [link["name"] for link in json.loads(command.environment["FLEET_LINKS"])]
        own = command.name.split("-")[0]
        assert links == ([own] if own.startswith("spark") else [f"spark{number}" for number in range(1, 5)])
        assert json.loads(command.environment["FLEET_OWNER"]) == {
            "project": "spark-fabric",
            "stack": "test",
            "fleet_id": "default",
            "state_id": "3e9c7f5a",
        }
        if "stdin" in command.inputs:
            assert sorted(json.loads(command.inputs["stdin"])) == sorted(links), command.name


def test_the_stage_in_the_environment_is_the_one_in_the_name(graph: Graph) -> None:
    for name in ("undo", "node", "plane0", "plane1", "relay", "nccl", "image"):
        assert graph[f"spark2-{name}"].environment["FLEET_STAGE"] == name


def test_no_key_reaches_an_input(register: Register) -> None:
    """Paths of keys are inputs; what they hold is not. The public host key is."""
    found = register(changed(ring(), {"ssh.identity": "keys/id_ed25519", "nodes[0].ssh.identity": "keys/other"}))
    text = json.dumps([plain(one.inputs) for one in found.all])
    assert "keys/id_ed25519" in text
    assert "PRIVATE KEY" not in text
    names = {key for command in found.of(COMMAND) for key in command.inputs.get("environment", {})}
    assert names == {"FLEET_LINKS", "FLEET_OWNER", "FLEET_STAGE"}
    assert not any("connection" in one.inputs for one in found.all)


def seconds(text: str) -> int:
    assert text.endswith("s")
    return int(text[:-1])


def test_pulumi_waits_longer_than_each_command_may_take(register: Register) -> None:
    found = register(changed(ring(), {"engine.readyTimeout": 7200, "engine.stopGrace": 600}))
    for command in found.of(COMMAND):
        if "environment" not in command.inputs:
            continue
        limits = command.request.customTimeouts
        changes = (node_limits.seconds(stage, {}) for stage in ("plane0", "nic", "markers", "undo"))
        slowest = (
            max(*changes, *(limit for verb, limit in LIMITS_S.items() if verb not in ("load", "weigh", "pack-engram")))
            + GRACE_S
        )
        if command.name in ("gate", "halt"):
            slowest = node_limits.BASE + GRACE_S + 600
        elif command.name == "health":
            slowest = 7200
        elif command.name == "proof":
            slowest = 2 * (LIMITS_S["load"] + GRACE_S) + LIMITS_S["loaded"] + LIMITS_S["verify"]
        elif command.name.endswith("-image"):
            slowest = 3600
        for limit in (limits.create, limits.update, limits.delete):
            assert seconds(limit) > slowest, command.name
