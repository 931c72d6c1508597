"""What is there of a set-up that somebody made by hand, and what becomes of each part of it. Pure.

It is judged by what the stages themselves would find, so that this and the first preview cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fleet.drift import PLANES, deviations_of
from fleet.plan import NodePlan, Plan
from fleet.scalars import LibraryMode
from fleet.settings import Settings
from node import meshunits
from node.mesh import STAGES as MESH
from node.netplan import is_nm_stanza, mentions
from node.nfs import same, told

EXPORTER = "nfs"  # in the name of the launcher's container that serves weights
Json = Mapping[str, Any]


class Fate(StrEnum):
    """What becomes of a part."""

    ADOPT = "adopt"  # it means the same as the plan, and stays
    TAKE_OVER = "take over"  # saved by `up`, returned by `destroy`
    STOP = "stop by hand"  # in the way, and nobody's but the operator's to end
    LEAVE = "leave"  # of no use here, and in nobody's way


@dataclass(frozen=True)
class Part:
    """One part of the old set-up on one node. `open` says that the operator has to do something before `up`."""

    fate: Fate
    node: str
    what: str
    why: str
    open: bool = False

    def text(self) -> str:
        """A line for people."""
        return f"{self.fate:<12} {self.node:<10} {self.what}: {self.why}"


def inherited(plan: Plan, observed: Mapping[str, Json], by_hand: Mapping[str, Json]) -> list[Part]:
    """Everything that was found, node by node. `by_hand` is what the node program's verb of that name answers."""
    parts: list[Part] = []
    for node in plan.nodes:
        seen = observed.get(node.name)
        if seen is not None:
            parts += [*_netplan(node, seen), *_mesh(plan.settings, node, seen)]
            parts += _docker(plan, node, by_hand.get(node.name) or {})
            parts += _image(node, by_hand.get(node.name) or {}, seen)
    return parts


# Netplan.


def _netplan(node: NodePlan, seen: Json) -> Iterator[Part]:
    """Files that speak for fabric ports."""
    ports = [port for plane in PLANES for port in node.stages[plane].get("ports", []) if "address" in port]
    found = {
        one.subject: one.code
        for plane in PLANES
        for one in deviations_of(node, plane, seen)
        if one.code in ("netplan.foreign", "netplan.stanza")
    }
    for path, code in sorted(found.items()):
        text = seen["netplan"][path]["text"] or ""
        spoken = [port for port in ports if _speaks(text, port["netdev"], seen)]
        others = [name for name in seen["links"] if name not in {port["netdev"] for port in ports}]
        also = [name for name in others if _speaks(text, name, seen)]
        then = "; ".join(_addresses(port, seen) for port in spoken)
        if is_nm_stanza(path):
            yield Part(Fate.TAKE_OVER, node.name, path, f"NetworkManager's own, set aside without asking. {then}")
        elif also:
            why = f"it speaks for {', '.join(also)} too: move the stanzas of fabric ports into a file of their own"
            yield Part(Fate.STOP, node.name, path, why, open=True)
        elif code == "netplan.stanza":
            yield Part(Fate.TAKE_OVER, node.name, path, f"it is in fabric.setAside. {then}")
        else:
            why = f"once its path is in fabric.setAside. {then}"
            yield Part(Fate.TAKE_OVER, node.name, path, why, open=True)


def _speaks(text: str, netdev: str, seen: Json) -> bool:
    return mentions(text, netdev, (seen["links"].get(netdev) or {}).get("mac") or "")


def _addresses(port: Json, seen: Json) -> str:
    has = (seen["links"].get(port["netdev"]) or {}).get("addresses") or []
    if has == [port["address"]]:
        return f"{port['netdev']} keeps {port['address']}"
    return f"{port['netdev']} gets {port['address']} and has {', '.join(has) or 'none'}"


# The mesh.


def _mesh(settings: Settings, node: NodePlan, seen: Json) -> Iterator[Part]:
    """What is installed at /opt/dsv41-mesh, and relay tables of newer tools. What this stack wrote is not by hand."""
    mesh = seen.get("mesh") or {}
    held = ((seen.get("journal") or {}).get("stages") or {}).keys() & set(MESH)
    for unit in mesh.get("others") or []:
        yield Part(Fate.STOP, node.name, unit, f"a relay table: systemctl disable --now {unit}", open=True)
    if held or not (mesh.get("files") or mesh.get("binary") or mesh.get("service")):
        return
    down = f"systemctl disable --now {meshunits.SERVICE}, with no engine running"
    if not settings.mesh.enabled:
        why = f"{down}; or set mesh.enabled: on, to see whether it is the same"
        yield Part(Fate.STOP, node.name, meshunits.HOME, why, open=True)
        return
    found = [one for stage in MESH if stage in node.stages for one in deviations_of(node, stage, seen)]
    foreign = [one.text() for one in found if one.foreign]
    if foreign:
        yield Part(Fate.STOP, node.name, meshunits.HOME, f"{foreign[0]}. {down}", open=True)
    else:
        yield Part(Fate.ADOPT, node.name, meshunits.HOME, "it means the same: what is there stays, also at destroy")


# Docker.


def _docker(plan: Plan, node: NodePlan, by_hand: Json) -> Iterator[Part]:
    for container in by_hand.get("containers") or []:
        yield _container(plan.settings, node, container)
    mounts = {
        mount["target"]: mount
        for container in by_hand.get("containers") or []
        if EXPORTER not in container["name"]
        for mount in container["mounts"]
    }
    volumes = by_hand.get("volumes") or {}
    for mount in mounts.values():
        yield _mount(plan, node, mount, volumes.get(mount["source"]) or {})
    used = {mount["source"] for mount in mounts.values()}
    for name in sorted(volumes.keys() - used):
        yield _volume(plan, node, name, volumes[name])


def _container(settings: Settings, node: NodePlan, container: Json) -> Part:
    name = f"container {container['name']}"
    if container["state"] not in ("running", "restarting", "paused"):
        return Part(Fate.LEAVE, node.name, name, f"it is {container['state']}")
    if settings.nfs and settings.nfs.reuse == container["name"] and node.rank == 0:
        return Part(Fate.ADOPT, node.name, name, "engine.weights.nfs.reuse has it; it serves on, also after destroy")
    if EXPORTER in container["name"]:
        why = "last of all, when no node mounts its weights any more: a mount without its server can hang a node"
        return Part(Fate.STOP, node.name, name, f"{why}. docker stop {container['name']}", open=True)
    return Part(Fate.STOP, node.name, name, f"docker stop {container['name']}, or the launcher's stop.sh", open=True)


def _image(node: NodePlan, by_hand: Json, seen: Json) -> Iterator[Part]:
    """The image that the launcher's engine runs, which it builds on each node: then all have another one."""
    engine = next((one for one in by_hand.get("containers") or [] if EXPORTER not in one["name"]), None)
    if engine is None or node.container is None:
        return
    listed = (seen.get("docker") or {}).get("containers") or []
    identity = next((one.get("image_id") for one in listed if one["name"] == engine["name"]), None)
    what, runs = f"image {engine['image']}", node.container
    if identity and identity == runs.image_id:
        yield Part(Fate.ADOPT, node.name, what, "the engine runs it; destroy leaves it")
    else:
        why = f"the engine runs {runs.image}. The launcher builds on each node; engine.image.build builds once for all"
        yield Part(Fate.LEAVE, node.name, what, why)


def _mount(plan: Plan, node: NodePlan, mount: Json, volume: Json) -> Part:
    settings = plan.settings
    source, target = mount["source"], mount["target"]
    what = f"{source} at {target}"
    if "nccl" in f"{source} {target}".lower():
        return _library(settings, node, source, what)
    if _networked(volume):
        return _network(plan, node, source, what, volume)
    given = node.container.volumes if node.container else ()
    ours = next((one for one in given if one.target == target), None)
    if ours is None:
        entry = f"{source}:{target}{':ro' if mount['read_only'] else ''}"
        return Part(
            Fate.LEAVE, node.name, what, f"the engine gets nothing there. To adopt it: {entry} in engine.volumes"
        )
    weights = settings.engine.weights
    key = "engine.weights" if weights and weights.mount == target else "engine.volumes"
    bound = _bound(volume) or source
    if ours.source not in (source, bound):
        take = f". To adopt it: {bound} in nodes[].weights.path" if key == "engine.weights" and not settings.nfs else ""
        return Part(Fate.LEAVE, node.name, what, f"the engine gets {ours.source} there, by {key}{take}")
    return Part(Fate.ADOPT, node.name, what, f"{key} has it; destroy leaves it")


def _library(settings: Settings, node: NodePlan, source: str, what: str) -> Part:
    named = next((settings.library_on(one) for one in settings.nodes if one.name == node.name), None)
    if settings.library_mode is LibraryMode.IMAGE:
        return Part(Fate.LEAVE, node.name, what, "the engine has the library of its image: nccl.mode")
    if named is None:
        why = f"the local file of nccl.library is sent beside it. To adopt it: {source} as nccl.library.onNode"
        return Part(Fate.LEAVE, node.name, what, why)
    if source == named or source.startswith(f"{named}/") or named.startswith(f"{source}/"):
        return Part(Fate.ADOPT, node.name, what, "the engine gets it from there; it is only read")
    return Part(Fate.LEAVE, node.name, what, f"the engine gets {named}, by nccl.library.onNode")


def _volume(plan: Plan, node: NodePlan, name: str, volume: Json) -> Part:
    what = f"volume {name}"
    if _networked(volume):
        return _network(plan, node, name, what, volume)
    if any(one.source == name for one in plan.settings.engine.volumes):
        return Part(Fate.ADOPT, node.name, what, "engine.volumes has it; destroy leaves it")
    return Part(Fate.LEAVE, node.name, what, "to adopt it, put its name as a source into engine.volumes")


def _network(plan: Plan, node: NodePlan, name: str, what: str, volume: Json) -> Part:
    ours = plan.share.volume(node.name) if plan.share else None
    if ours and ours.name == name:
        if same(dict(volume), ours.wanted()):
            return Part(Fate.ADOPT, node.name, what, "engine.weights.nfs has just such a volume; destroy leaves it")
        why = f"engine.weights.nfs wants {told(ours.wanted())}, and it is {told(dict(volume))}: docker volume rm {name}"
        return Part(Fate.STOP, node.name, what, why, open=True)
    if ours:
        why = f"the engine gets {ours.name}, by engine.weights.nfs: remove it before its server is stopped"
        return Part(Fate.STOP, node.name, what, why, open=True)
    why = "it is mounted over the network: put the weights on this node, and remove it before its server is stopped"
    return Part(Fate.STOP, node.name, what, why, open=True)


def _bound(volume: Json) -> str | None:
    """The folder of the node that a volume is, where it is one."""
    options = volume.get("options") or {}
    return str(options["device"]) if options.get("type") == "none" and options.get("device") else None


def _networked(volume: Json) -> bool:
    return str((volume.get("options") or {}).get("type", "")).startswith("nfs")
