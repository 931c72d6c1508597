"""One node: its undo, the node program's ownership, its image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pulumi
from pulumi_command import local

from components.remote import ON_NODE, Owner, on_nodes, stage
from fleet.on_node import Link


@dataclass(frozen=True)
class NodeArgs:
    """What one node is to become."""

    link: Link
    owner: Owner
    desired: Mapping[str, Any]  # of the stage "node"
    repair: str | None
    after: local.Command  # the standstill


class Node(pulumi.ComponentResource):
    """Ownership of one node and, first of all, the way back.

    The undo has nothing to do at create. It is in the state before anything is changed on the node, so that a run
    killed in its very first change can be undone all the same: at delete, after every other resource of the node, it
    reverts whatever the node's journal still holds and removes the program.
    """

    def __init__(self, name: str, args: NodeArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("spark-fabric:components:Node", name, None, opts)
        self.undo = on_nodes(
            f"{name}-undo",
            [args.link],
            args.owner,
            "undo",
            delete=f"{ON_NODE} revert",
            opts=pulumi.ResourceOptions(parent=self, depends_on=[args.after]),
        )
        self.stage = stage(
            f"{name}-node",
            args.link,
            args.owner,
            "node",
            args.desired,
            repair=args.repair,
            opts=pulumi.ResourceOptions(parent=self, depends_on=[self.undo]),
        )
        self.register_outputs({})
