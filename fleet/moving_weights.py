"""From the launcher's file to `engine.weights`: the head's folder, and how the workers get it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from fleet import launcher
from fleet.launcher_file import LauncherFile

UNKNOWN = "Its folder is not known: set engine.weights.path."
SHARING = frozenset(
    name for name in launcher.SETTINGS if name.startswith(("NFS_", "HF_EXPORT_")) or "FABRIC_IP" in name
)
"""The launcher's settings that say something only where the head shares its folder."""

Section = dict[str, Any]


class Left(Protocol):
    """Tells that a setting is not carried over."""

    def __call__(self, name: str, why: str, *, needless: bool = False) -> None: ...


def shares(file: LauncherFile) -> bool:
    """Whether the head shares its folder; else every node has its own."""
    return file.get("NFS_SHARE") != "0"


def weights(file: LauncherFile, nodes: list[Section], take: Callable[[str], str], left: Left) -> Section:
    """The section `engine.weights`; empty where the folder is not known. A worker's own server goes to its node.

    `take` gives a setting, and notes where it is a default of the launcher's.
    """
    model = take("MODEL_DIR")
    if not model:
        left("MODEL_DIR", UNKNOWN)
        return {}
    if not shares(file):
        volume = file.get("NFS_VOLUME")
        where = f"Workers have theirs in a docker volume, {volume}; here it is {model} on every node."
        left("NFS_VOLUME", f"{where} Where one has it elsewhere: nodes[].weights.path.")
        return {"path": model}
    nfs = {"image": take("NFS_IMAGE")} | dict(_options(file))
    server = _servers(file, nodes, left)
    return {"path": model, "nfs": nfs | ({"server": server} if server else {})}


def _options(file: LauncherFile) -> Iterator[tuple[str, str]]:
    """Options that somebody has chosen. The launcher's own are not those here."""
    for key, name in (("options", "NFS_OPTS_CLIENT"), ("exportOptions", "NFS_OPTS")):
        if file.get(name) != launcher.SETTINGS[name].default:
            yield key, file.get(name)


def _servers(file: LauncherFile, nodes: list[Section], left: Left) -> str | None:
    """The server's address for all workers, where it is not the head's own; those of single ones go to their nodes."""
    head, workers = nodes[0], nodes[1:]
    listed = file.get("NFS_SERVER_IPS").replace(",", " ").split()
    if len(listed) not in (0, 1, len(workers)):
        left("NFS_SERVER_IPS", f"It has {len(listed)} addresses for {len(workers)} workers, and was not used.")
        listed = []
    own = listed if len(listed) > 1 else []
    common = listed[0] if len(listed) == 1 else ""
    if not listed:
        own = [file.get(f"NFS_SERVER_IP_{number}") for number in range(1, len(workers) + 1)]
        common = file.get("NFS_SERVER_IP")
    for node, server in zip(workers, own, strict=False):
        if server and server != (common or head["address"]):
            node["weights"] = {"server": server}
    return common if common != head["address"] else None
