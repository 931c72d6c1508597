"""Graphs of a fleet, made from canned facts: nothing is run, nothing is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from components.cluster import Cluster, ClusterArgs
from fleet.drift import Drift, Group
from fleet.facts import parse
from fleet.library import Choice
from fleet.loading import load
from fleet.on_node import Link
from fleet.plan import Plan
from fleet.planner import make
from fleet.stack import StackName
from tests.graph.recorder import Graph, record
from tests.unit import observed
from tests.unit.stacks import ring

STACK = StackName("spark-fabric", "test")
WHOLE = Group(None, "100")
IMAGE_ID = "sha256:" + "1" * 64

Register = Callable[..., Graph]


def planned(
    config: dict[str, Any],
    *,
    image_id: str | None = IMAGE_ID,
    image_ref: str | None = None,
    machines: dict[str, str] | None = None,
    library: Choice | None = None,
    weights: dict[str, dict[str, Any]] | None = None,
    seen: dict[str, dict[str, Any]] | None = None,
) -> Plan:
    """The plan for fresh nodes; `machines` gives some of them another machine id, `weights` what is in that folder.

    `library` is a local one, `seen` by node what else is there, `image_ref` the name of an image that is built.
    """
    settings = load(config)
    facts = {}
    for node in settings.nodes:
        raw = observed.fresh(int(node.name.removeprefix("spark")), str(node.address))
        raw["machine_id"] = (machines or {}).get(node.name, raw["machine_id"])
        raw["weights"] = (weights or {}).get(node.name)
        facts[node.name] = parse(raw | (seen or {}).get(node.name, {}))
    return make(settings, facts, STACK, image_id=image_id, image_ref=image_ref, library=library)


def links_of(plan: Plan) -> dict[str, Link]:
    """How the nodes of a plan are reached."""
    ssh = plan.settings.ssh
    return {
        node.name: Link(node.name, node.address, ssh.user, ssh.port, f"ssh-ed25519 AAAA{node.name}", ssh.identity or "")
        for node in plan.nodes
    }


@pytest.fixture(scope="session")
def register() -> Register:
    """Registers a whole fleet: `register(config, drift=…, group=…, image_id=…, machines=…, preview=…)`."""

    made: dict[str, Graph] = {}

    def run(
        config: dict[str, Any] | None = None,
        *,
        drift: Drift | None = None,
        group: Group = WHOLE,
        preview: bool = False,
        secret_keys: tuple[str, ...] = (),
        **facts: Any,
    ) -> Graph:
        asked = repr((config, drift, group, preview, secret_keys, facts))
        if asked not in made:
            plan = planned(config or ring(), **facts)
            args = ClusterArgs(plan, links_of(plan), drift or Drift(), group)
            made[asked] = record(lambda: Cluster("cluster", args), preview=preview, secret_keys=secret_keys)
        return made[asked]

    return run


@pytest.fixture(scope="session")
def graph(register: Register) -> Graph:
    """A ring of four in which nothing deviates."""
    return register()
