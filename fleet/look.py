"""What checks look at: the settings, the answers of the nodes, and the plan once there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fleet.plan import NodePlan, Plan
from fleet.probe import Probe
from fleet.problems import Problem
from fleet.settings import Settings
from fleet.stack import StackName

Observed = Mapping[str, Any]


@dataclass(frozen=True)
class Look:
    """One look at the fleet. `lost` are nodes that the operator has given up.

    `changing`: for a run that changes something itself. `archive`: the size of the image's archive in bytes;
    `machine`: docker's word for the machine that the image in it is for. `manifest`: the digests of weights that the
    operator gives.
    """

    settings: Settings
    stack: StackName
    seen: Probe
    lost: frozenset[str] = frozenset()
    changing: bool = False
    archive: int = 0
    manifest: Mapping[str, str] = field(default_factory=dict)
    machine: str = ""

    @property
    def nodes(self) -> Iterator[tuple[str, Observed]]:
        """Every node that answered, in the order of the settings, with what it is."""
        for node in self.settings.nodes:
            if node.name in self.seen.observed:
                yield node.name, self.seen.observed[node.name]

    def engines(self, observed: Observed) -> list[Observed]:
        """The running containers of this stack on a node."""
        label = self.stack.label(self.settings.fleet.id)
        containers = (observed.get("docker") or {}).get("containers") or []
        return [one for one in containers if one["labels"].get("spark-fabric.stack") == label and _runs(one)]

    @property
    def running(self) -> dict[str, bool]:
        """Of every node, whether an engine of this stack runs there."""
        seen = self.seen.observed
        return {node.name: bool(self.engines(seen.get(node.name) or {})) for node in self.settings.nodes}

    def others(self, observed: Observed, users: Iterable[Observed]) -> list[Observed]:
        """The processes of a node that are not in a container of this stack."""
        own = {one.get("pid") for one in self.engines(observed)} - {0, None}
        return [user for user in users if own.isdisjoint([user["pid"], *(user.get("parents") or ())])]


@dataclass(frozen=True)
class Planned(Look):
    """A look with the plan that was made of it, which is a draft where there are problems."""

    plan: Plan | None = None

    @property
    def planned(self) -> Iterator[tuple[NodePlan, Observed]]:
        """The nodes of the plan that answered, in its order."""
        assert self.plan
        for node in self.plan.nodes:
            if node.name in self.seen.observed:
                yield node, self.seen.observed[node.name]

    @property
    def ranks(self) -> Iterator[tuple[NodePlan, Observed]]:
        """The active ones of these, in rank order."""
        return ((node, observed) for node, observed in self.planned if node.active)


Check = Callable[[Look], Iterable[Problem]]
PlannedCheck = Callable[[Planned], Iterable[Problem]]


def with_plan(look: Look, plan: Plan) -> Planned:
    """The same look, with the plan."""
    return Planned(**vars(look), plan=plan)


def _runs(container: Observed) -> bool:
    return container["state"] in ("running", "paused", "restarting")


def shown(user: Observed) -> str:
    """A process for people."""
    command = str(user.get("command") or "")
    return f"process {user['pid']} ({command[:80]})" if user.get("pid") else "the kernel"
