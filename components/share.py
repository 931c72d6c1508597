"""Weights that the head shares with the workers: its server, the way there, and a volume on each worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi
import pulumi_docker as docker
from pulumi_command import local

from components.leftover import clear_leftover
from components.remote import ON_NODE, Owner, on_nodes
from fleet.awaited import engines
from fleet.on_node import Link
from fleet.plan import Plan
from fleet.share import FOLDER, Exporter, Share, SharedVolume
from node.digest import digest
from node.nfs import GRACE


@dataclass(frozen=True)
class ShareArgs:
    """The plan of all ranks, the docker daemons of their nodes, and what is waited for."""

    plan: Plan
    links: Mapping[str, Link]
    owner: Owner
    daemons: Mapping[str, docker.Provider]
    standstill: local.Command
    after: Sequence[pulumi.Resource]


def share_weights(args: ShareArgs, parent: pulumi.Resource) -> list[pulumi.Resource]:
    """Server, then the look whether every worker reaches it, then the volumes; what the engine waits for.

    Engines depend on the volumes, and these on the server, so that a destroy takes engines, volumes and server away in
    that order: a node whose mount has lost its server can hang. What changes does so behind the standstill, where
    nothing is mounted. `weights-left` is about what no state knows, of a killed run or of a state that was lost: its
    create stops engines before their server is made anew, and its delete, the last of all, removes volumes and server.
    `weights-kept` does nothing until its delete: docker removes no volume that a container has, even if that never ran,
    so the engine that is kept to go back to goes first. That is so at a standstill too, where volumes may change.
    """
    share = args.plan.share
    if share is None:
        return list(args.after)
    links = list(args.links.values())
    last: list[pulumi.Resource] = [
        on_nodes(
            "weights-left",
            links,
            args.owner,
            "share",
            dict.fromkeys(args.links, engines(args.plan)),
            create=f"{ON_NODE} engines:remove+forget",
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
        below=digest({"server": share.arguments()["exporter"], "made": share.made.get(args.plan.head.name)}),
        opts=pulumi.ResourceOptions(parent=parent, depends_on=last),
    )
    volumes = [_volume(share, one, args, reached, parent) for one in share.volumes]
    kept = on_nodes(
        "weights-kept",
        links,
        args.owner,
        "engines",
        create="true",
        update="true",
        delete=f"{ON_NODE} engines:forget",
        opts=pulumi.ResourceOptions(parent=parent, depends_on=volumes, replace_with=[args.standstill]),
    )
    return [kept]


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
        destroy_grace_seconds=GRACE,
        must_run=True,
        opts=pulumi.ResourceOptions(
            parent=parent,
            provider=args.daemons[plan.node],
            depends_on=list(after),
            hooks=pulumi.ResourceHookBinding(before_create=[clear]),
        ),
    )


def _volume(
    share: Share, plan: SharedVolume, args: ShareArgs, reached: pulumi.Resource, parent: pulumi.Resource
) -> docker.Volume:
    """The volume of one worker. One that was there before has no label of ours, and is kept with those that it has."""
    clear = clear_leftover(args.links[plan.node], args.owner, "unshare:other", {"volume": plan.wanted()})
    labels = {} if plan.adopted else share.labels(plan.node)
    return docker.Volume(
        f"{plan.node}-weights",
        name=plan.name,
        driver=plan.driver,
        driver_opts=plan.driver_opts,
        labels=[docker.VolumeLabelArgs(label=key, value=value) for key, value in labels.items()],
        opts=pulumi.ResourceOptions(
            parent=parent,
            provider=args.daemons[plan.node],
            depends_on=[reached],
            delete_before_replace=True,
            retain_on_delete=plan.adopted,
            ignore_changes=["labels"] if plan.adopted else [],
            hooks=pulumi.ResourceHookBinding(before_create=[clear]),
        ),
    )
