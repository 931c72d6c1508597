"""The RoCE fabric: both planes of every node, the relay between its ports, and the proof that all of it is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
from pulumi_command import local

from components.remote import ON_NODE, Owner, on_nodes, stage
from fleet.drift import Drift
from fleet.on_node import Link

STAGES = ("plane0", "plane1", "relay")  # in the order in which they are applied


@dataclass(frozen=True)
class FabricPlanesArgs:
    """The fabric stages of one node."""

    link: Link
    owner: Owner
    desired: Mapping[str, Mapping[str, Any]]  # stage -> desired state; "off" is one of them, never a missing stage
    drift: Drift
    after: pulumi.Resource


class FabricPlanes(pulumi.ComponentResource):
    """Plane 0, plane 1 and the relay of one node, one after the other."""

    def __init__(self, name: str, args: FabricPlanesArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("spark-fabric:components:FabricPlanes", name, None, opts)
        self.last: pulumi.Resource = args.after
        for stage_name in STAGES:
            self.last = stage(
                f"{args.link.name}-{stage_name}",
                args.link,
                args.owner,
                stage_name,
                args.desired[stage_name],
                repair=args.drift.repair(args.link.name, stage_name),
                opts=pulumi.ResourceOptions(parent=self, depends_on=[self.last]),
            )
        self.register_outputs({})


@dataclass(frozen=True)
class FleetCheckArgs:
    """A question put to all nodes at once."""

    links: Sequence[Link]
    owner: Owner
    verb: str  # of the node program: changes nothing
    desired: Mapping[str, Mapping[str, Any]]  # node -> what is expected there
    repair: str | None  # asks again although nothing in the settings has changed
    after: Sequence[pulumi.Resource]


def fleet_check(name: str, args: FleetCheckArgs, parent: pulumi.Resource) -> local.Command:
    """A barrier between stages that fails, naming every node and port that is not as planned."""
    return on_nodes(
        name,
        args.links,
        args.owner,
        "all",
        args.desired,
        create=f"{ON_NODE} {args.verb}",
        update=f"{ON_NODE} {args.verb}",
        repair=args.repair,
        opts=pulumi.ResourceOptions(parent=parent, depends_on=list(args.after)),
    )
