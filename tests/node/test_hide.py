"""What engines print of themselves is told without their secrets."""

import json

from node import loaded, status
from node.hide import hide
from tests.node.helpers import OWNER
from tests.node.machine import Machine

ENV = ["API_KEY=hunter22", "HF_TOKEN=hunter2", "PATH=/usr/bin", "KEYBOARD=hunter", "MY_KEY=on"]


def test_values_of_variables_that_are_named_like_secrets_are_left_out() -> None:
    assert hide(["ServerArgs(api_key='hunter22', token=hunter2) on /usr/bin"], ENV) == [
        "ServerArgs(api_key='[secret]', token=[secret]) on /usr/bin"
    ]


def test_short_values_and_those_of_other_variables_stay() -> None:
    assert hide(["hunter on"], ENV) == ["hunter on"]
    assert hide(["a-b xaax"], ["A_KEY=a-b", "B_KEY=x..x"]) == ["a-b xaax"]


def test_lines_of_a_container_are_told_without_them(machine: Machine) -> None:
    """Both where an engine does not get ready, and where it is proven, whose report is plain in the state."""
    labels = {"spark-fabric.stack": OWNER.label()}
    told = {"Config": {"Env": ["API_KEY=ready"]}}
    machine.containers = [{"id": "a", "name": "engine", "labels": labels, "state": "running", "told": told}]
    [container] = status.status(machine, OWNER, {})["containers"]
    assert container["log"] == ["loading", "[secret]"]
    seen = loaded.loaded(machine, OWNER, {"lines": {"first": "."}})
    assert "ready" not in json.dumps(seen)
