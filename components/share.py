"""Weights that the head shares with the workers: its server, the way there, and a volume on each worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi
import pulumi_docker as docker

from components.leftover import clear_leftover
from components.remote import ON_NODE, Owner, on_nodes
from fleet.on_node import Link
from fleet.plan import Plan
from fleet.share import FOLDER, Exporter, Share, SharedVolume
from node.digest import digest

STOP_S = 10  # seconds for the server to take its exports back


@dataclass(frozen=True)
class ShareArgs:
    """The plan of all ranks, the docker daemons of their nodes, and what is waited for."""

    plan: Plan
    links: Mapping[str, Link]
    owner: Owner
    daemons: Mapping[str, docker.Provider]
    after: Sequence[pulumi.Resource]


def share_weights(args: ShareArgs, parent: pulumi.Resource) -> list[pulumi.Resource]:
    """Server, then the look whether every worker reaches it, then the volumes; what the engine waits for.

    Engines depend on the volumes, and these on the server, so that a destroy takes engines, volumes and server away in
    that order: a node whose mount has lost its server can hang. What changes does so behind the standstill, where
    nothing is mounted. `weights-left` does nothing until its delete, the last of all: it removes what a killed run has
    made and no state knows.
    """
    share = args.plan.share
    if share is None:
        return list(args.after)
    ranks = [args.links[node.name] for node in args.plan.ranks]
    last: list[pulumi.Resource] = [
        on_nodes(
            "weights-left",
            ranks,
            args.owner,
            "share",
            create="true",
            update="true",
            delete=f"{ON_NODE} unshare:volumes+exporter",
            opts=pulumi.ResourceOptions(parent=parent, depends_on=list(args.after)),
        )
    ]
    if share.exporter:
        last = [_server(share, share.exporter, args, last, parent)]
    reached = on_nodes(
        "weights-reached",
        [args.links[one.node] for one in share.volumes],
        args.owner,
        "share",
        share.reached(),
        create=f"{ON_NODE} reach",
        update=f"{ON_NODE} reach",
        below=digest({"server": share.arguments()["exporter"], "made": share.made[args.plan.head.name]}),
        opts=pulumi.ResourceOptions(parent=parent, depends_on=last),
    )
    return [_volume(share, one, args.daemons[one.node], reached, parent) for one in share.volumes]


def _server(
    share: Share, plan: Exporter, args: ShareArgs, after: Sequence[pulumi.Resource], parent: pulumi.Resource
) -> docker.Container:
    """The server on the head. Every argument is a plain value, and in the standstill's digest."""
    clear = clear_leftover(args.links[plan.node], args.owner, "unshare:exporter")
    return docker.Container(
        f"{plan.node}-exporter",
        name=plan.name,
        image=plan.image,
        envs=plan.envs,
        labels=[docker.ContainerLabelArgs(label=key, value=value) for key, value in share.labels(plan.node).items()],
        mounts=[docker.ContainerMountArgs(type="bind", source=plan.path, target=FOLDER, read_only=True)],
        privileged=plan.privileged,
        network_mode=plan.network_mode,
        restart=plan.restart,
        destroy_grace_seconds=STOP_S,
        must_run=True,
        opts=pulumi.ResourceOptions(
            parent=parent,
            provider=args.daemons[plan.node],
            depends_on=list(after),
            hooks=pulumi.ResourceHookBinding(before_create=[clear]),
        ),
    )


def _volume(
    share: Share, plan: SharedVolume, daemon: docker.Provider, reached: pulumi.Resource, parent: pulumi.Resource
) -> docker.Volume:
    """The volume of one worker. One that was there before has no label of ours, and is kept."""
    labels = {} if plan.adopted else share.labels(plan.node)
    return docker.Volume(
        f"{plan.node}-weights",
        name=plan.name,
        driver=plan.driver,
        driver_opts=plan.driver_opts,
        labels=[docker.VolumeLabelArgs(label=key, value=value) for key, value in labels.items()],
        opts=pulumi.ResourceOptions(
            parent=parent,
            provider=daemon,
            depends_on=[reached],
            delete_before_replace=True,
            retain_on_delete=plan.adopted,
        ),
    )
