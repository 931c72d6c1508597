"""Checks of weights that are shared over NFS, and of docker volumes that somebody else made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import AddressValueError, IPv4Address, IPv4Network, NetmaskValueError
from typing import Any

from fleet.look import Observed, Planned, shown
from fleet.problems import Problem
from fleet.share import Share
from node.nfs import PORT, SHARED, same, told

NAMED = "engine.volumes"


def kernels(look: Planned) -> Iterator[Problem]:
    """Workers whose kernel mounts no NFS, and a head whose kernel serves none."""
    share = _share(look)
    for node, seen in _asked(look):
        if share is None:
            return
        if share.volume(node) and not seen["kernel"]["client"]:
            wanted, hint = "a kernel that mounts NFS 4", "Install its module nfsv4, or put the weights on the node."
            yield Problem("nfs-client", node, "has no NFS client in its kernel and no module of one", wanted, hint)
        if share.exporter and share.exporter.node == node and not seen["kernel"]["server"]:
            wanted, hint = "a kernel that serves NFS 4", "Install its module nfsd, or name a server elsewhere."
            yield Problem("nfs-kernel", node, "has no NFS server in its kernel and no module of one", wanted, hint)


def server(look: Planned) -> Iterator[Problem]:
    """What keeps our server from being started on the head."""
    share = _share(look)
    nfs, exporter = look.settings.nfs, share.exporter if share else None
    for node, observed in look.ranks:
        docker = observed.get("docker")
        if nfs is None or share is None or exporter is None or exporter.node != node.name or docker is None:
            continue
        if nfs.image not in docker["images"]:
            hint = f"Build or load it on {node.name}: it serves weights there."
            yield Problem("nfs-image", node.name, f"has no image {nfs.image}", "it", hint)
        for container in docker["containers"]:
            if container["name"] == nfs.name and container["labels"].get(SHARED) != share.label:
                seen, hint = f"has a container {nfs.name} that is not this stack's", "Set engine.weights.nfs.name."
                more = f"With engine.weights.nfs.reuse: {nfs.name} it is used as it is."
                yield Problem("nfs-name", node.name, seen, "the name free", f"{hint} {more}")
        running = [one["labels"] for one in docker["containers"] if one["state"] == "running"]
        taken = next((one for one in observed.get("listeners") or [] if one["port"] == PORT), None)
        if taken and share.label not in [labels.get(SHARED) for labels in running]:
            hint = "End that server, or use it: engine.weights.nfs.reuse names its container, server any other."
            more = "If it is what a server that was killed left: echo 0 | sudo tee /proc/fs/nfsd/threads"
            path = f"{node.name} TCP port {PORT}"
            yield Problem("nfs-port", path, f"is taken by {shown(taken)}", "it free", f"{hint} {more}")


def reach(look: Planned) -> Iterator[Problem]:
    """Servers that are there already and do not answer a worker, or do not let it in."""
    share, lines = _share(look), None
    if share is None or share.exporter:
        return
    for node, seen in _asked(look):
        volume = share.volume(node)
        if volume is None and share.reuse:
            lines = seen["exports"]
            if lines is None:
                hint = "Start it, or correct engine.weights.nfs.reuse."
                yield Problem("nfs-reuse", node, f"runs no container {share.reuse}", "the server of the weights", hint)
        if volume and seen["reached"]:
            path, silent = f"{node} {volume.server}", f"does not answer on TCP {PORT}: {seen['reached']}"
            hint = "Start it, open its firewall, or set nodes[].weights.server to another of its addresses."
            yield Problem("nfs-reach", path, silent, "the server of the weights", hint)
        if volume and lines is not None and not _listed(lines, share.clients[node]):
            clients = " or ".join(share.clients[node])
            hint = f"Add {clients} there, and: docker exec {share.reuse} exportfs -ra"
            yield Problem("nfs-acl", f"{node} {volume.server}", f"does not let {clients} in", "an export to it", hint)


def volumes(look: Planned) -> Iterator[Problem]:
    """Volumes in the place of ours that are others, and those of the operator that are on a network, or not there."""
    share = _share(look)
    for node, seen in _asked(look):
        ours = share.volume(node) if share else None
        found = seen["volumes"].get(ours.name) if ours else None
        if ours and share and found and found["labels"].get(SHARED) != share.label and not same(found, ours.wanted()):
            hint = (
                "It is not removed for you: docker volume rm, once nothing needs it, or set engine.weights.nfs.volume."
            )
            yield Problem("nfs-volume", f"{node} {ours.name}", f"is {told(found)}", told(ours.wanted()), hint)
        for one in look.settings.engine.volumes:
            there = seen["volumes"].get(one.source)
            path = f"{node} {one.source}"
            if one.source in seen["volumes"] and there is None:
                hint = f"Make it, or correct {NAMED}: docker would make an empty one."
                yield Problem("volume-missing", path, "is not there", "that volume", hint)
            elif there and there["options"].get("type", "").startswith("nfs"):
                hint = "A server that goes away can hang the node. For weights over NFS: engine.weights.nfs."
                yield Problem("volume-network", path, f"is {told(there)}", "a volume on the node's own disk", hint)


def _share(look: Planned) -> Share | None:
    assert look.plan
    return look.plan.share


def _asked(look: Planned) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The ranks that told about it, head first."""
    return ((node.name, seen) for node, observed in look.ranks if (seen := _of(observed)))


def _of(observed: Observed) -> Mapping[str, Any] | None:
    found: Mapping[str, Any] | None = observed.get("nfs")
    return found


def _listed(lines: list[str], clients: tuple[str, ...]) -> bool:
    """Whether a line of /etc/exports lets every one of these addresses in."""
    texts = [word.partition("(")[0] for line in lines for word in line.partition("#")[0].split()[1:]]
    return all(any(_lets_in(text, IPv4Address(client)) for text in texts) for client in clients)


def _lets_in(text: str, client: IPv4Address) -> bool:
    try:
        return text in ("*", "") or client in IPv4Network(text, strict=False)
    except (AddressValueError, NetmaskValueError, ValueError):
        return False  # a host's name: not ours to resolve
