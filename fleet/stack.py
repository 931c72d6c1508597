"""Which stack: the marks by which nodes, files and containers are known as its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fleet.settings import Settings


@dataclass(frozen=True)
class StackName:
    """Which stack: the marks that nodes, files and containers carry."""

    project: str
    stack: str

    def label(self, fleet_id: str) -> str:
        """The value of the label `spark-fabric.stack`."""
        return f"{self.project}/{self.stack}/{fleet_id}"

    def container(self, settings: Settings) -> str:
        """The container's name, the same on every node."""
        return settings.engine.name or f"spark-fabric-{self.stack}"

    def reader(self, fleet_id: str) -> dict[str, str]:
        """Who asks in a request that only reads: it needs no state id, and which state holds a node is an answer."""
        return {"project": self.project, "stack": self.stack, "fleet_id": fleet_id, "state_id": "any"}

    def owns(self, owner: Mapping[str, Any], fleet_id: str) -> bool:
        """Whether a node with this owner (as `observe` has it) belongs to the stack, from whatever state."""
        return StackName(owner["project"], owner["stack"]).label(owner["fleet_id"]) == self.label(fleet_id)
