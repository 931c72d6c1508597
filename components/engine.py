"""The engine: a gate, one container per rank, halt and health.

The ranks are one group: whatever replaces one of them replaces all. `replace_with` is not transitive, so every
resource here names each upstream that takes it along.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_docker as docker
from pulumi_command import local

from components.config import as_kept
from components.leftover import clear_leftover
from components.remote import LONGEST_S, ON_NODE, Owner, on_nodes, timeouts
from components.share import ShareArgs, share_weights
from fleet.awaited import awaited, engines
from fleet.container import ContainerPlan
from fleet.drift import Group
from fleet.on_node import ROOT, Link, ssh_config
from fleet.plan import NodePlan, Plan
from fleet.scalars import Gpus

HEALTH = "exec python3 -IS fleet/health.py"
# Accepted as updates by the provider, but never sent to the daemon: only a replacement takes effect.
REPLACE_ON = ["healthcheck", "init", "tmpfs", "rm", "cpuPeriod", "cpuQuota"]
MIB = 1 << 20


@dataclass(frozen=True)
class EngineArgs:
    """The plan of all ranks, and what they wait for."""

    plan: Plan
    owner: Owner
    links: Mapping[str, Link]
    group: Group
    standstill: local.Command
    after: Sequence[pulumi.Resource]


class Engine(pulumi.ComponentResource):
    """All ranks of the engine and what surrounds them.

    The gate's create and delete remove every container of the stack on every node: the state may not know one that a
    killed run has made. Halt marks at create that a start was completed: every container is then in the state. In a
    destroy its delete, the first of all, stops the ranks side by side; in a replacement the stop before the standstill
    does that, since Pulumi deletes what one replacement takes along in no order to rely on.
    """

    def __init__(self, name: str, args: EngineArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("spark-fabric:components:Engine", name, None, opts)
        plan, links = args.plan, args.links
        ranks = [links[node.name] for node in plan.ranks]
        group, engine = engines(plan), plan.settings.engine
        providers = {link.name: self._daemon(plan.stack.stack, link) for link in links.values()}
        ready = share_weights(ShareArgs(plan, links, args.owner, providers, args.standstill, args.after), self)
        self.gate = on_nodes(
            "gate",
            list(links.values()),
            args.owner,
            "engines",
            dict.fromkeys(links, group),
            create=f"{ON_NODE} engines:remove",
            update="true",  # a changed list of nodes must not remove running engines: only a replacement may
            delete=f"{ON_NODE} engines:remove",
            restart=args.group.broken or "",
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=ready,
                replacement_trigger=plan.group,
                replace_with=[args.standstill],
            ),
        )
        upstream: list[pulumi.Resource] = [args.standstill, self.gate]
        self.containers: list[docker.Container] = []
        for node in reversed(plan.ranks):  # the head last: it serves only when all workers are there
            after = [self.gate, *(self.containers if node.rank == 0 else [])]
            self.containers.append(self._container(node, args, providers[node.name], after, upstream))
        marks = {node.name: {**group, "start": args.group.start} for node in plan.ranks}
        self.halt = on_nodes(
            "halt",
            ranks,
            args.owner,
            "engines",
            marks,
            create=f"{ON_NODE} engines:mark",
            update="true",
            delete=f"{ON_NODE} engines:stop",
            opts=pulumi.ResourceOptions(parent=self, depends_on=list(self.containers), replace_with=upstream),
        )
        self.health = on_nodes(
            "health",
            ranks,
            args.owner,
            "health",
            awaited(plan, args.group.start),
            create=HEALTH,
            update="true",
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=[self.halt],
                replace_with=upstream,
                # Twice, for the engine that is brought back where this one does not get ready.
                custom_timeouts=timeouts(2 * engine.ready_timeout + engine.smoke.timeout + LONGEST_S),
            ),
        )
        self.register_outputs({})

    def _daemon(self, stack: str, link: Link) -> docker.Provider:
        """The node's docker daemon, through the same ssh configuration as everything else."""
        config = ssh_config(stack, link).relative_to(ROOT)
        return docker.Provider(
            f"{link.name}-docker",
            host=f"ssh://{link.name}",
            ssh_opts=["-F", str(config), "-o", "BatchMode=yes"],
            opts=pulumi.ResourceOptions(parent=self),
        )

    def _container(
        self,
        node: NodePlan,
        args: EngineArgs,
        provider: docker.Provider,
        after: Sequence[pulumi.Resource],
        upstream: list[pulumi.Resource],
    ) -> docker.Container:
        """One rank. Every argument is a plain value, so that preview shows what will run."""
        plan = node.container
        assert plan is not None  # of a node with a rank
        labels = {**plan.labels, "spark-fabric.group": args.plan.group, "spark-fabric.start": args.group.start}
        left = {"name": plan.name, "grace": 1}
        clear = clear_leftover(args.links[node.name], args.owner, "engines:remove", left)
        return docker.Container(
            f"{node.name}-engine",
            name=plan.name,
            image=plan.runs,
            envs=as_kept("engine", plan.envs),
            labels=[docker.ContainerLabelArgs(label=key, value=value) for key, value in sorted(labels.items())],
            network_mode=plan.network_mode,
            ipc_mode=plan.ipc_mode,
            restart=plan.restart,
            shm_size=plan.shm_size // MIB,
            ulimits=[
                docker.ContainerUlimitArgs(name=limit, soft=value, hard=value)
                for limit, value in sorted(plan.ulimits.items())
            ],
            mounts=[
                docker.ContainerMountArgs(
                    type="bind" if volume.source.startswith("/") else "volume",
                    source=volume.source,
                    target=volume.target,
                    read_only=volume.read_only,
                )
                for volume in plan.volumes
            ],
            log_driver=plan.log_driver,
            log_opts=plan.log_options or None,
            healthcheck=docker.ContainerHealthcheckArgs(**plan.healthcheck) if plan.healthcheck else None,
            stop_timeout=plan.stop_timeout,
            **_rights(plan),
            **_gpus(plan),
            destroy_grace_seconds=args.plan.settings.engine.stop_grace,
            must_run=True,
            opts=pulumi.ResourceOptions(
                parent=self,
                provider=provider,
                depends_on=list(after),
                replace_with=upstream,
                replace_on_changes=REPLACE_ON,
                hooks=pulumi.ResourceHookBinding(before_create=[clear]),
            ),
        )


def _rights(plan: ContainerPlan) -> dict[str, Any]:
    """What an engine needs for RDMA, or everything where the operator asked for that."""
    if plan.privileged:
        return {"privileged": True}
    return {
        "capabilities": docker.ContainerCapabilitiesArgs(adds=list(plan.capabilities)),
        "devices": [docker.ContainerDeviceArgs(host_path=path, container_path=path) for path in plan.devices],
    }


def _gpus(plan: ContainerPlan) -> dict[str, Any]:
    """The GPU request. The provider's `device_requests` mean CDI unless they name a driver."""
    if plan.gpus is Gpus.REQUEST:
        return {"gpus": "all"}
    if plan.gpus is Gpus.CDI:
        request = docker.ContainerDeviceRequestArgs(driver="cdi", device_ids=["nvidia.com/gpu=all"])
        return {"device_requests": [request]}
    return {}
