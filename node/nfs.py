"""Weights over NFS, as a node sees them: what its kernel can, docker's volumes, a server that answers. Looks only,
but for `unshare`.

Nothing here touches a mount: one whose server went away may never answer.
"""

import io
from typing import Any

from .docker import NOT_FOUND, OK, Docker, connect
from .request import FAILED, READ_BACK, Failure
from .steps import Report
from .system import System

PORT = 2049  # of NFS 4, which needs no other
SHARED = "spark-fabric.shared"  # the label of what shares weights, whose value is that of the stack
MADE = "spark-fabric.made"  # the label that tells one that was made anew from the one before

CONNECT = 3.0  # seconds for a server to take a connection
GRACE = 10  # seconds for our server to take its exports back
RISE = 30.0  # seconds for a server that was just started
MODULES = {"client": ("nfs4", "nfsv4"), "server": ("nfsd", "nfsd")}
"""What a kernel calls it in /proc/filesystems, and its module."""

Json = dict[str, Any]


def observe(system: System, asked: Json) -> Json:
    """What is asked about weights that are shared.

    "kernel" tells of "client" and "server" whether this kernel is one, or can load it. "volumes" has by name those that
    `asked` names, null where there is none; "reached" why the server does not answer, "" where it does, null without
    one; "exports" the lines of the container that serves already, null where it does not run.
    """
    docker, server, reuse = connect(system), asked.get("server"), asked.get("reuse")
    return {
        "kernel": {what: _can(system, what) for what in MODULES},
        "volumes": {name: _volume(docker, name) for name in asked.get("volumes") or ()},
        "reached": system.reach(server, PORT, CONNECT) if server else None,
        "exports": _exports(docker, reuse) if reuse else None,
    }


def _can(system: System, what: str) -> bool:
    name, module = MODULES[what]
    if name in (system.text("/proc/filesystems") or "").split():
        return True
    folder = f"/lib/modules/{system.text('/proc/sys/kernel/osrelease')}"
    listings = (system.text(f"{folder}/{listing}") or "" for listing in ("modules.dep", "modules.builtin"))
    return any(f"/{module}.ko" in listing for listing in listings)


def _volume(docker: Docker, name: str) -> Json | None:
    found = docker.get(f"/volumes/{name}")
    if found is None:
        return None
    options = {key: str(value) for key, value in (found.get("Options") or {}).items()}
    return {"driver": found.get("Driver", ""), "options": options, "labels": found.get("Labels") or {}}


def _exports(docker: Docker, container: str) -> list[str] | None:
    """The lines of /etc/exports of a container that runs; docker gives a file as an archive."""
    found = docker.get(f"/containers/{container}/json")
    if not ((found or {}).get("State") or {}).get("Running"):
        return None
    status, body = docker.call("GET", f"/containers/{container}/archive?path=/etc/exports", 10)
    if status == NOT_FOUND:
        return []
    if status != OK:
        message = f"docker gives no /etc/exports of {container}: {status}"
        raise OSError(message)
    import tarfile  # noqa: PLC0415 - of no use to whoever has no such container

    with tarfile.open(fileobj=io.BytesIO(body)) as archive:
        file = archive.extractfile(archive.getmembers()[0])
        return (file.read() if file else b"").decode(errors="replace").splitlines()


def reach(system: System, node: str, desired: Json) -> Json:
    """{"problems": []} where the server answers on this node and the volume's name is free, or that of such a volume.

    One of the same stack may be another: it is made anew. Raises `Failure` with everything that is not so.
    """
    problems, volume = [], desired["volume"]
    silent = _risen(system, desired["server"])
    if silent:
        problems.append(f"{node}: {desired['server']} does not answer on TCP {PORT}: {silent}")
    try:
        found = _volume(connect(system), volume["name"])
    except OSError as error:
        raise Failure(READ_BACK, *problems, f"{node}: docker does not answer: {error}") from None
    if found and found["labels"].get(SHARED) != desired["label"] and not same(found, volume):
        problems.append(f"{node}: volume {volume['name']} is {told(found)}, wanted {told(volume)}")
    if problems:
        raise Failure(READ_BACK, *problems)
    return {"problems": []}


def same(found: Json, wanted: Json) -> bool:
    """Whether a volume is as planned: its driver and every option."""
    return bool(found["driver"] == wanted["driver"] and found["options"] == wanted["options"])


def told(volume: Json) -> str:
    """A volume's driver and options for people."""
    options = ", ".join(f"{key}={value}" for key, value in sorted(volume["options"].items()))
    return f"{volume['driver']} with {options or 'no options'}"


def _risen(system: System, server: str) -> str:
    """Why a server does not answer, once it had time to come up; "" where it does."""
    end = system.clock() + RISE
    while (silent := system.reach(server, PORT, CONNECT)) and system.clock() < end:
        system.sleep(0.5)
    return silent


def unshare(system: System, label: str, desired: Json, report: Report) -> None:
    """Remove what a killed run may have left of ours: {"action": "volumes" | "exporter" | "other"}.

    "other" is one volume: that with the name of "volume" (see `reach`), where it is another. Volumes go before their
    server does, since a mount without one hangs. Raises `Failure`.
    """
    docker, action = connect(system), desired.get("action")
    try:
        if action == "exporter":
            for container in _exporters(docker, label):
                docker.stop(container["id"], GRACE)  # killed, it would leave its server in the kernel
                docker.remove(container["id"])
                report.did(f"container {container['name']}: removed")
        elif action == "other":
            _remove_other(docker, label, desired["volume"], report)
        else:
            _remove_volumes(docker, label, report)
    except OSError as error:
        if system.exists(system.docker_socket):
            raise Failure(FAILED, f"docker does not answer: {error}") from None
        report.note("there is no docker on this node, so nothing that shares weights either")


def forget(docker: Docker, report: Report, label: str) -> None:
    """The same on a node that is put back alone. Its server stays, which others may have mounted. Raises `OSError`."""
    try:
        _remove_volumes(docker, label, report)
    except Failure as failure:
        report.note(f"{failure}: remove it with its container")
    for container in _exporters(docker, label):
        name = container["name"]
        report.note(f"container {name} serves weights: once no node mounts them any more, docker rm -f {name}")


def _exporters(docker: Docker, label: str) -> list[Json]:
    return [one for one in docker.containers() if one["labels"].get(SHARED) == label]


def _remove_other(docker: Docker, label: str, wanted: Json, report: Report) -> None:
    """Docker makes none in the place of another, and an engine would get its weights from there."""
    found = _volume(docker, wanted["name"])
    if found and found["labels"].get(SHARED) == label and not same(found, wanted):
        docker.remove_volume(wanted["name"])
        report.did(f"volume {wanted['name']}: removed")


def _remove_volumes(docker: Docker, label: str, report: Report) -> None:
    for volume in (docker.get("/volumes") or {}).get("Volumes") or []:
        if (volume.get("Labels") or {}).get(SHARED) == label:
            docker.remove_volume(volume["Name"])
            report.did(f"volume {volume['Name']}: removed")
