"""What a machine is made of and has left: system, driver, memory, disks, and folders that somebody asks about."""

import json
import re
from collections.abc import Iterable
from typing import Any

from .digest import sha256
from .journal import HOME
from .request import FAILED, Failure
from .system import System

DOCKER = "/var/lib/docker"
FILES = 64  # of a folder that are told
TABLES = ("dspark_sps.json", "dspark_sts.json")  # of the engine's speculation, in its folder of state

Json = dict[str, Any]


def observe(system: System) -> Json:
    """{"levels", "memory", "disks", "boot_options"}: versions as text, sizes in bytes, null where there is none."""
    return {
        "levels": {"system": _system(system), "driver": _driver(system)},
        "memory": _memory(system),
        "disks": {path: _space(system, path) for path in ("/etc", HOME, _docker_root(system))},
        "boot_options": system.text("/proc/cmdline"),
    }


def _system(system: System) -> str | None:
    """The name of the operating system: DGX OS with the version of its last update, else what it calls itself."""
    own = _assignments(system.text("/etc/dgx-release"))
    version = own.get("DGX_OTA_VERSION") or own.get("DGX_SWBUILD_VERSION")
    if version:
        return f"DGX OS {version}"
    name = _assignments(system.text("/etc/os-release")).get("PRETTY_NAME")
    return name.removesuffix(" LTS") if name else None


def _assignments(text: str | None) -> dict[str, str]:
    """`KEY="value"` lines; the last of a key counts."""
    return dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', text or "", re.MULTILINE))


def _driver(system: System) -> str | None:
    """The version of NVIDIA's driver that is loaded."""
    found = re.search(r"^NVRM version:.*?\s(\d+\.\d+[.\d]*)\s", system.text("/proc/driver/nvidia/version") or "")
    return found.group(1) if found else None


def _memory(system: System) -> Json | None:
    text = system.text("/proc/meminfo")
    if text is None:
        return None
    sizes = {key: int(value) * 1024 for key, value in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}
    names = {"total": "MemTotal", "available": "MemAvailable", "cma_total": "CmaTotal", "cma_free": "CmaFree"}
    return {name: sizes.get(key) for name, key in names.items()}


def _docker_root(system: System) -> str:
    """Where Docker keeps images."""
    try:
        given = json.loads(system.text("/etc/docker/daemon.json") or "{}")
    except ValueError:
        return DOCKER  # Docker does not start with such a file either
    return str(given.get("data-root") or given.get("graph") or DOCKER) if isinstance(given, dict) else DOCKER


def _space(system: System, path: str) -> Json | None:
    """What is left where `path` lies, or would lie."""
    while not system.exists(path) and path != "/":
        path = path.rpartition("/")[0] or "/"
    return system.space(path)


def folders(system: System, named: Iterable[str]) -> Json:
    """What is at the paths that somebody names: whether it is there, what is left, the first files with their sizes.

    "tables" are the digests of the engine's speculation tables there, "folder" is owner, mode and whether it can be
    written to, null of a file. All of it is null where the path lies on a network: looking there may take for ever.
    """
    mounted = far(system)
    return {path: None if under(path, mounted) else _folder(system, path) for path in named}


def far(system: System) -> list[str]:
    """Where file systems of the network are mounted: what is below such a place may never answer."""
    mounts = [line.split() for line in (system.text("/proc/self/mounts") or "").splitlines()]
    return [
        fields[1] for fields in mounts if len(fields) > 2 and fields[2].startswith(("nfs", "cifs", "ceph", "fuse."))
    ]


def under(path: str, folders: list[str]) -> bool:
    """Whether a path is one of these folders, or in one."""
    return any(path == folder or path.startswith(f"{folder.rstrip('/')}/") for folder in folders)


def refuse_folder(system: System, node: str, path: str, *, writing: bool) -> None:
    """Raise `Failure` where a folder of the operator's cannot be used: not there, on a network, or not writable."""
    if under(path, far(system)):
        do = "a folder of the node's own disk is wanted"
        raise Failure(FAILED, f"{node} {path}: is on a file system of the network, which may never answer", do)
    found = system.folder(path)
    if found is None:
        raise Failure(FAILED, f"{node} {path}: is no folder that is there", "make it, or correct engine.volumes")
    if writing and not found["writable"]:
        raise Failure(FAILED, f"{node} {path}: is on a file system that is mounted read-only", "mount it anew")


def _folder(system: System, path: str) -> Json:
    sizes = {name: system.size(f"{path}/{name}") for name in system.names(path)[:FILES]}
    there = system.exists(path)
    tables = {name: sha256(data) for name in TABLES if (data := system.read(f"{path}/{name}")) is not None}
    own = system.folder(path)
    return {"there": there, "space": _space(system, path), "files": sizes, "folder": own, "tables": tables}
