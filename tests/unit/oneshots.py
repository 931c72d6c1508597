"""Fleets for commands that change the engine's folders once."""

from __future__ import annotations

from typing import Any

from fleet.drift import Drift, Group
from fleet.facts import parse
from fleet.loading import load
from fleet.planner import make
from fleet.probe import Probe
from fleet.stack import StackName
from fleet.survey import Survey
from tests.unit import observed
from tests.unit.fakes import link
from tests.unit.stacks import changed, ring

NAME = StackName("spark-fabric", "test")
NODES = [f"spark{number}" for number in range(1, 5)]
OWNER = {"project": "spark-fabric", "stack": "test", "fleet_id": "default", "state_id": "7"}

Json = dict[str, Any]


def owned() -> dict[str, Json]:
    """Four nodes that belong to the stack."""
    return {name: {**node, "owner": {**OWNER, "adoptable": False}} for name, node in observed.fleet(4).items()}


def survey(raw: dict[str, Json], changes: Json, silent: dict[str, str] | None = None, **brought: Any) -> Survey:
    """A look at a ring of them with changed settings."""
    seen = {name: node for name, node in raw.items() if name not in (silent or {})}
    plan = make(load(changed(ring(), changes)), {name: parse(node) for name, node in raw.items()}, NAME, **brought)
    links = {name: link(number) for number, name in enumerate(NODES, start=1)}
    return Survey(plan, links, Probe(seen, silent or {}), Drift(), Group("rank 0 (spark1): no container", "200"), ())


def runs(raw: dict[str, Json], node: str, rank: int) -> None:
    """Let a rank of the stack run on a node."""
    labels = {"spark-fabric.stack": "spark-fabric/test/default", "spark-fabric.rank": str(rank)}
    raw[node]["docker"]["containers"].append({"name": "spark-fabric-test", "labels": labels, "state": "running"})
