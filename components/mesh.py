"""The mesh: driver values, forwarding in hardware and markers of every node, and the proof that its paths carry data.

A stage waits for the stage before it on *all* nodes: a function that is re-initialised takes the carrier of its
neighbour's port, and a packet that is marked before the last rule is there is lost. What is taken away goes in the
other order, before anything of the fabric changes: so stages that are off wait for each other the other way round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi
from pulumi_command import local

from components.remote import LONGEST_S, ON_NODE, Owner, on_nodes, stage, timeouts
from fleet.drift import BELOW, Drift
from fleet.on_node import Link
from fleet.plan import NodePlan, Plan
from fleet.sending import SLOWEST
from node.mesh import STAGES
from node.sent import files

# Phases: the counters, the writes of each rank in turn, the counters again.
VERIFY = f"{ON_NODE} mesh-verify:before+turn0+turn1+turn2+turn3+after"


@dataclass(frozen=True)
class MeshArgs:
    """The mesh of all nodes that have, or had, one."""

    plan: Plan
    links: Mapping[str, Link]
    owner: Owner
    drift: Drift
    parent: pulumi.Resource  # the same whether the mesh is on or off: these are the same resources


def take_away(args: MeshArgs, after: Sequence[pulumi.Resource]) -> list[pulumi.Resource]:
    """Markers, then rules and routes, then driver values of the nodes whose mesh is off; what others wait for."""
    last = list(after)
    for name in reversed(STAGES):
        gone: list[pulumi.Resource] = [
            _stage(args, node, name, args.drift.repair(node.name, name), last)
            for node in args.plan.nodes
            if _is_off(node, name)
        ]
        last = gone or last
    return last


def bring_up(args: MeshArgs, after: Sequence[pulumi.Resource]) -> list[pulumi.Resource]:
    """Driver values, then rules and routes, then markers, then the proof; what the engine waits for.

    A plane that comes up anew, or a function, takes routes, rules and markers along although nothing in their own
    desired states has changed. So they are applied again whenever something below them changes, on any node: the
    carrier of a neighbour is enough.
    """
    plan, last = args.plan, list(after)
    if plan.mesh is None:
        return last
    for name in STAGES:
        last = [
            _stage(args, node, name, args.drift.repair(node.name, name, BELOW[name]), last, plan.below(BELOW[name]))
            for node in plan.ranks
        ]
    checks = plan.mesh_checks
    verified = on_nodes(
        "mesh-verified",
        [args.links[name] for name in checks],
        args.owner,
        "all",
        checks,
        create=VERIFY,
        update=VERIFY,
        repair=args.drift.mesh(),
        below=plan.below(BELOW["mesh-verified"]),
        opts=pulumi.ResourceOptions(parent=args.parent, depends_on=last),
    )
    return [verified]


def _is_off(node: NodePlan, name: str) -> bool:
    return name in node.stages and node.stages[name]["state"] == "off"


def _stage(
    args: MeshArgs,
    node: NodePlan,
    name: str,
    repair: str | None,
    after: Sequence[pulumi.Resource],
    below: str | None = None,
) -> local.Command:
    desired = node.stages[name]
    sending = sum(file.size or 0 for file in files(desired)) // SLOWEST
    return stage(
        f"{node.name}-{name}",
        args.links[node.name],
        args.owner,
        name,
        desired,
        repair=repair,
        below=below,
        opts=pulumi.ResourceOptions(
            parent=args.parent, depends_on=list(after), custom_timeouts=timeouts(LONGEST_S + sending)
        ),
    )
