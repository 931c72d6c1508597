"""The plan as plain values: everything that the fleet shall be. `planner.make` makes it of settings and facts.

Preview, `up`, `doctor` and tests use this one object. Desired states are the JSON values that the node program takes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fleet.addressing import PlaneAddresses
from fleet.container import ContainerPlan
from fleet.engine_rules import modules
from fleet.mesh.check import checks
from fleet.mesh.plan import MeshPlan
from fleet.ports import Device
from fleet.problems import Problem, ProblemsError
from fleet.settings import Settings
from fleet.share import Share
from fleet.stack import StackName
from fleet.topology import Socket, Topology
from node.digest import digest
from node.mesh import STAGES as MESH

STAGES = ("node", "plane0", "plane1", "relay", "nccl", *MESH)
"""In this order. Their desired states change only while no engine runs."""


class PlanError(ProblemsError):
    """The settings do not fit the nodes; `problems` has all of it.

    `draft` is the plan as it would be without them: good for telling the drift of the nodes, never to be applied.
    """

    def __init__(self, problems: Iterable[Problem], draft: "Plan") -> None:
        super().__init__(problems)
        self.draft = draft


@dataclass(frozen=True)
class NodePlan:
    """One node, with its desired state for each stage.

    A leaving node has no rank, nothing to verify and no container, and its stages are off. Those of the mesh are there
    only where the settings say something about one, or a node still has one.
    """

    name: str
    address: str
    rank: int | None
    management: str
    devices: Mapping[tuple[int, Socket], Device]
    stages: Mapping[str, dict[str, Any]]
    verify: dict[str, Any] | None = None
    container: ContainerPlan | None = None

    @property
    def active(self) -> bool:
        """Whether the node has a rank."""
        return self.rank is not None


@dataclass(frozen=True)
class Plan:
    """The fleet. `nodes` are in the order of the config, without those that the operator has given up."""

    settings: Settings
    stack: StackName
    topology: Topology
    planes: Mapping[int, PlaneAddresses]
    nodes: tuple[NodePlan, ...]
    standstill: str
    group: str
    mesh: MeshPlan | None = None
    share: Share | None = None
    warnings: tuple[Problem, ...] = field(default=())
    notes: tuple[Problem, ...] = field(default=())

    @property
    def ranks(self) -> tuple[NodePlan, ...]:
        """The active nodes in rank order."""
        return tuple(node for node in self.nodes if node.active)

    @property
    def head(self) -> NodePlan:
        """Rank 0."""
        return self.ranks[0]

    @property
    def label(self) -> str:
        """The value of the label `spark-fabric.stack`."""
        return self.stack.label(self.settings.fleet.id)

    @property
    def container_name(self) -> str:
        """The container's name, the same on every node."""
        return self.stack.container(self.settings)

    @property
    def containers(self) -> tuple[ContainerPlan, ...]:
        """The ranks' containers, head first."""
        return tuple(node.container for node in self.ranks if node.container)

    @property
    def image(self) -> dict[str, Any]:
        """What every rank's node must have: the image, from where it is had, and what has to be in it.

        Its id is no part of it where the name says enough: learned by the first `up`, it would be a change to the next.
        """
        image, target = self.settings.engine.image, self.settings.overlay_target
        needed = {} if "image-module" in self.settings.preflight.ignore else modules(self.settings)
        wanted: dict[str, Any] = {"ref": self.image_ref}
        if image.build:
            wanted |= {"from": self.settings.builder}
        elif image.pull:
            wanted |= {"pull": True}
        else:
            wanted |= {"id": self.image_id, "archive": image.archive}
        return {**wanted, **({"target": target} if target else {}), **({"modules": needed} if needed else {})}

    @property
    def build(self) -> dict[str, Any] | None:
        """What the node that builds the image is told; None where none is built. Holds the operator's secrets."""
        build = self.settings.engine.image.build
        if build is None:
            return None
        return {"ref": self.image_ref, **build.model_dump(include={"context", "dockerfile", "args", "secrets"})}

    @property
    def image_ref(self) -> str:
        """The image's name on the nodes."""
        return self.containers[0].image

    @property
    def image_id(self) -> str | None:
        """The id of the image of all ranks, where it is known."""
        return self.containers[0].image_id

    @property
    def staged(self) -> dict[str, dict[str, Any]]:
        """By node: both planes' desired states, to be tried together before anything is written."""
        return {node.name: {stage: node.stages[stage] for stage in ("plane0", "plane1")} for node in self.nodes}

    @property
    def verify(self) -> dict[str, dict[str, Any]]:
        """By node: what is checked once all planes are applied."""
        return {node.name: node.verify for node in self.ranks if node.verify}

    def below(self, stages: Iterable[str]) -> str:
        """Digest of stages of all ranks, for what has to be done again when one of them changes."""
        names = list(stages)
        return digest({node.name: bare({name: node.stages[name] for name in names}) for node in self.ranks})

    @property
    def mesh_checks(self) -> dict[str, dict[str, Any]]:
        """By node: what is written over the mesh once all its stages are applied; nothing without one."""
        if self.mesh is None:
            return {}
        names, addresses = [node.name for node in self.ranks], [node.address for node in self.ranks]
        return checks(self.mesh, names, addresses, self.containers[0].runs)

    @property
    def api_url(self) -> str:
        """Where the OpenAI-compatible API answers."""
        return f"http://{self.head.address}:{self.settings.engine.port}"


def bare(stages: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Desired states without rendered text: a changed comment changes no digest."""
    return {stage: {key: value for key, value in desired.items() if key != "text"} for stage, desired in stages.items()}
