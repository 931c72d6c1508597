"""The whole fleet, in the order that keeps a running engine's fabric still."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi
from pulumi_command import local

from components.engine import Engine, EngineArgs
from components.fabric import FabricPlanes, FabricPlanesArgs, FleetCheckArgs, fleet_check
from components.image import identity, images_on
from components.mesh import MeshArgs, bring_up, take_away
from components.nccl import library_on
from components.node import Node, NodeArgs
from components.proof import Proof, ProofArgs
from components.remote import ON_NODE, Owner, digest_only, on_nodes
from components.weights import weights_read
from fleet.awaited import engines
from fleet.drift import NEIGHBOURS, Drift, Group
from fleet.expected import asked
from fleet.manifest import Reading
from fleet.on_node import Link
from fleet.plan import Plan
from fleet.prove import last_failure

# Printed once, kept in the state: tells this state's nodes from those of another state with the same names.
NEW_STATE_ID = "exec python3 -IS -c 'import uuid; print(uuid.uuid4())'"


@dataclass(frozen=True)
class ClusterArgs:
    """The plan, and what was found of it."""

    plan: Plan
    links: Mapping[str, Link]
    drift: Drift
    group: Group
    readings: Sequence[Reading] = ()  # of weights, where there is a manifest of them


class Cluster(pulumi.ComponentResource):
    """Everything that one stack manages.

    Images come first, and the reading of weights: what is missing must not cost a running engine. On a node that is not
    ours yet weights are read last before the engine: what was read is kept with what is ours, and the reading holds the
    node's lock, which stages want. Then the stop, which whatever replaces the
    group replaces: its delete stops all ranks side by side, before Pulumi deletes the containers one by one. Then the
    standstill: whatever is disruptive replaces it, and with it gate and containers; these are deleted first, the stages
    change in place, and the group starts anew.
    """

    def __init__(self, name: str, args: ClusterArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("spark-fabric:components:Cluster", name, None, opts)
        plan, drift, links = args.plan, args.drift, args.links
        here = pulumi.ResourceOptions(parent=self)
        state_id = local.Command("state-id", create=NEW_STATE_ID, opts=here)
        owner = Owner(plan.stack, plan.settings.fleet.id, state_id.stdout)

        images = images_on(plan, links, owner, drift, self)
        self.image_ids: Mapping[str, pulumi.Input[str | None]] = {
            name: plan.image_id or identity(image) for name, image in images.items()
        }
        ours = weights_read(links, (one for one in args.readings if one.ours), owner, [], self)
        disruptive = drift.disruptive() or ""
        stop = on_nodes(
            "stop",
            list(links.values()),
            owner,
            "engines",
            dict.fromkeys(links, engines(plan)),
            create=f"{ON_NODE} engines:ours",  # a state that does not own the nodes must not come to stop anything
            update="true",
            delete=f"{ON_NODE} engines:stop",
            restart=disruptive or args.group.broken or "",
            opts=pulumi.ResourceOptions(
                parent=self, depends_on=[*images.values(), *ours], replacement_trigger=f"{plan.standstill} {plan.group}"
            ),
        )
        standstill = digest_only("standstill", plan.standstill, disruptive, self, [stop])

        nodes = []
        for node in plan.nodes:
            repair = drift.repair(node.name, "node")
            nodes.append(
                Node(node.name, NodeArgs(links[node.name], owner, node.stages["node"], repair, standstill), here)
            )
        mesh = MeshArgs(plan, links, owner, drift, self)
        without_mesh = take_away(mesh, [node.stage for node in nodes])
        checked = fleet_check(
            "fabric-staged",
            FleetCheckArgs(
                list(links.values()),
                owner,
                "check",
                plan.staged,
                drift.fabric(),
                [*(node.stage for node in nodes), *without_mesh],
            ),
            self,
        )
        planes = [
            FabricPlanes(
                f"{node.name}-fabric", FabricPlanesArgs(links[node.name], owner, node.stages, drift, checked), here
            )
            for node in plan.nodes
        ]
        verified = fleet_check(
            "fabric-verified",
            FleetCheckArgs(
                [links[name] for name in plan.verify],
                owner,
                "verify",
                plan.verify,
                drift.fabric(NEIGHBOURS),
                [each.last for each in planes],
            ),
            self,
        )
        libraries = [
            library_on(links[node.name], node.stages["nccl"], owner, drift.repair(node.name, "nccl"), self, verified)
            for node in plan.nodes
        ]
        ready = bring_up(mesh, libraries)
        ready = weights_read(links, (one for one in args.readings if not one.ours), owner, ready, self) or ready
        self.engine = Engine("engine", EngineArgs(plan, owner, links, args.group, standstill, ready), here)
        self.proof: pulumi.Input[str] = "off"
        if plan.settings.proof.enabled:
            start = args.group.start
            proof = ProofArgs(
                [links[node.name] for node in plan.ranks],
                owner,
                asked(plan, start),
                last_failure(plan.stack.stack, start),
                self.engine.health,
                [standstill, self.engine.gate],
            )
            self.proof = Proof("proofs", proof, here).text
        self.register_outputs({})
