"""Checks of what the engine's containers need on the nodes: docker, the image, the name, folders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fleet.docker_on_node import ANOTHER_MACHINE
from fleet.engine_settings import Volume
from fleet.facts import parse
from fleet.look import Planned
from fleet.problems import Problem, config_path

STATE = "/state"
"""Where the engine keeps its state, and looks for the tables of its speculation."""

ENGRAM = "/engram"
"""Where the engine looks for its packed engram: `engram-l<layer>-r<rank>of<ranks>.bin`, two layers."""

LAYERS = (1, 14)
PACKING = 50 << 30  # bytes that the engine needs there to pack it


def docker(look: Planned) -> Iterator[Problem]:
    """Daemons that do not answer, and users whom they shut out: containers are made over ssh, without sudo."""
    for node, observed in look.ranks:
        seen = observed.get("docker")
        if seen is None:
            hint = "sudo systemctl start docker"
            yield Problem("docker", node.name, "docker does not answer", "a running daemon", hint)
        elif user := seen.get("shut_out"):
            said, wanted = f"{user} may not use docker there", f"{user} in the group docker"
            yield Problem("docker-rights", node.name, said, wanted, f"On {node.name}: sudo usermod -aG docker {user}")


def image(look: Planned) -> Iterator[Problem]:
    """Nodes without the image where nobody brings it, and different ones where nobody says which is right."""
    assert look.plan
    wanted, ref = look.settings.engine.image, look.plan.image_ref
    if wanted.archive is not None or wanted.build is not None:
        return
    ids: dict[str, list[str]] = {}
    for node, observed in look.ranks:
        if observed.get("docker") is None:
            continue  # said already
        found = parse(observed).images.get(ref)
        if found:
            ids.setdefault(found, []).append(node.name)
        elif not wanted.pull:
            yield Problem(
                "image-missing",
                node.name,
                f"has no image {ref}",
                "the same image as on the other nodes",
                "Load it with `docker load` from one archive on every node, or set engine.image.archive, pull or "
                "build.",
            )
    if len(ids) > 1:
        listing = "; ".join(f"{identity[7:19]} on {', '.join(names)}" for identity, names in ids.items())
        hint = "Load the same archive on every node: images built or imported per node differ."
        yield Problem(
            "image-ids",
            config_path(("engine", "image")),
            f"{ref} is not the same image everywhere: {listing}",
            "one image id",
            "Do all nodes keep images the same way (docker info: Storage Driver)?" if wanted.pull else hint,
        )


MACHINES = {"aarch64": "arm64", "x86_64": "amd64"}
"""A machine as `uname -m` has it, and docker's word for it."""


def architecture(look: Planned) -> Iterator[Problem]:
    """Nodes for which the image is not: as they have it, or as the archive does."""
    assert look.plan
    ref = look.plan.image_ref
    for node, observed in look.ranks:
        here = MACHINES.get(str(observed.get("arch")), str(observed.get("arch")))
        seen = ((observed.get("docker") or {}).get("image") or {}).get("architecture")
        for what, for_machine in ((ref, seen), (f"{ref} in the archive", look.machine)):
            if for_machine and for_machine != here:
                yield Problem(
                    "image-machine", node.name, f"{what} is for {for_machine}", f"one for {here}", ANOTHER_MACHINE
                )


def names(look: Planned) -> Iterator[Problem]:
    """Containers of others that have our name."""
    assert look.plan
    for node, observed in look.ranks:
        for container in (observed.get("docker") or {}).get("containers") or []:
            ours = container["labels"].get("spark-fabric.stack") == look.plan.label
            if node.container and container["name"] == node.container.name and not ours:
                yield Problem(
                    "container-name",
                    node.name,
                    f"has a container {container['name']} that is not this stack's",
                    "the name free",
                    "Remove or rename it, or set engine.name.",
                )


def folders(look: Planned) -> Iterator[Problem]:
    """Folders without which docker makes no container, that an engine could not write to, or that are another one's."""
    for node, observed in look.ranks:
        seen = observed.get("folders") or {}
        for volume in look.settings.engine.volumes:
            found = seen.get(volume.source)
            if found:
                yield from _folder(node.name, volume, found)


def _folder(node: str, volume: Volume, found: Mapping[str, Any]) -> Iterator[Problem]:
    path, folder = f"{node} {volume.source}", found.get("folder")
    if not found["there"]:
        hint = "Make it, or correct engine.volumes: docker refuses to start a container without it."
        yield Problem("volume-missing", path, "is not there", "that folder", hint)
    if not folder:  # a file, which docker mounts as well
        if found["there"] and (volume.owner or volume.mode):
            yield Problem("volume-owner", path, "is no folder", "one, with owner and mode", "Correct engine.volumes.")
        return
    if not folder["writable"] and not volume.read_only:
        hint = "Mount it anew, or write :ro in engine.volumes."
        yield Problem("volume-read-only", path, "is on a file system that is mounted read-only", "to write", hint)
    if volume.owner not in (None, folder["owner"]):
        hint = f"On {node}: sudo chown {volume.owner} {volume.source}"
        yield Problem("volume-owner", path, f"belongs to {folder['owner']}", str(volume.owner), hint)
    if volume.mode and int(volume.mode, 8) != int(folder["mode"], 8):
        hint = f"On {node}: sudo chmod {volume.mode} {volume.source}"
        yield Problem("volume-owner", path, f"has the mode {folder['mode']}", volume.mode, hint)


def unhealthy(look: Planned) -> Iterator[Problem]:
    """Ranks that run and fail docker's healthcheck."""
    assert look.plan
    for node, observed in look.ranks:
        for container in (observed.get("docker") or {}).get("containers") or []:
            ours = container["labels"].get("spark-fabric.stack") == look.plan.label
            if ours and container.get("health") == "unhealthy":
                seen, hint = "fails docker's healthcheck", f"On {node.name}: docker inspect {container['name']}"
                yield Problem("engine-unhealthy", f"{node.name} {container['name']}", seen, "an engine at work", hint)


def tables(look: Planned) -> Iterator[Problem]:
    """Speculation tables in the folder of state that workers have otherwise than the head: all ranks decode by them."""
    assert look.plan
    state = next((one for one in look.settings.engine.volumes if one.target == STATE), None)
    if state is None:
        return
    folders = {node.name: (observed.get("folders") or {}).get(state.source) or {} for node, observed in look.ranks}
    seen = {name: found.get("tables") for name, found in folders.items()}
    taken = _taken(look)
    head = seen.get(look.plan.head.name)
    for name, held in seen.items():
        if head is None or held is None:
            continue  # nobody could look
        for table in sorted(head.keys() | held.keys()):
            if held.get(table) == head.get(table):
                continue
            wanted, do = ("that of the head", f"copy it from {look.plan.head.name}")
            if table not in head:
                wanted, do = "none, as on the head", f"sudo rm {state.source}/{table}"
            hint = (
                f"While no engine runs: python -m fleet tables -s {look.stack.stack}" if taken else f"On {name}: {do}"
            )
            is_ = "is another one than on the head" if table in held else "is missing"
            yield Problem("spec-tables", f"{name} {state.source}/{table}", is_, wanted, hint)


def _taken(look: Planned) -> bool:
    """Whether all nodes with a rank are of this stack by now, as commands want that change its folders."""
    owners = [observed.get("owner") for _, observed in look.ranks]
    return all(
        owner and not owner.get("adoptable") and look.stack.owns(owner, look.settings.fleet.id) for owner in owners
    )


def engram_files(rank: int, size: int) -> list[str]:
    """The names of a rank's packed engram in a fleet of that size."""
    return [f"engram-l{layer}-r{rank}of{size}.bin" for layer in LAYERS]


def engram_space(path: str, rank: int, size: int, found: Mapping[str, Any]) -> Iterator[Problem]:
    """A folder without the room to pack a rank's engram. `found` is what a look has of it.

    What is there of its files, half written ones included, is written again in the same place, or not at all.
    """
    begun = tuple(engram_files(rank, size))
    needed = PACKING - sum(held or 0 for name, held in found["files"].items() if name.startswith(begun))
    space = found["space"]
    if space and space["free"] < needed:
        seen, wanted = (f"{count / (1 << 30):.1f} GiB" for count in (space["free"], needed))
        yield Problem("engram-space", path, f"has {seen} left", f"{wanted} to pack the engram", "Make room there.")


def engram(look: Planned) -> Iterator[Problem]:
    """Nodes whose rank would pack its engram first, and those that have no room for it."""
    size, taken = len(look.settings.ranks), _taken(look)
    mounted = next((volume for volume in look.settings.engine.volumes if volume.target == ENGRAM), None)
    for node, observed in look.ranks:
        found = (observed.get("folders") or {}).get(mounted.source) if isinstance(mounted, Volume) else None
        if not mounted or not found or not found["there"]:
            continue
        assert node.rank is not None
        missing = [name for name in engram_files(node.rank, size) if not found["files"].get(name)]
        if not missing:
            continue
        path, seen = f"{node.name} {mounted.source}", f"holds no {' and no '.join(missing)}"
        before = f"; before, while no engine runs: python -m fleet pack -s {look.stack.stack}" if taken else "."
        hint = f"The engine packs it at its first start, which takes long{before}"
        yield Problem("engram-missing", path, seen, "the packed engram of its rank", hint)
        yield from engram_space(path, node.rank, size, found)
