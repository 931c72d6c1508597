"""What the shell launcher has on a node: its containers, what is mounted in them, docker volumes. Looks only."""

from typing import Any

from .docker import connect
from .system import System

PREFIX = "dsv41-"  # dsv41-head, dsv41-worker, dsv41-nfs, dsv41-local-weights: the launcher's defaults

Json = dict[str, Any]


def by_hand(system: System) -> Json:
    """{"containers": […], "volumes": {name: {"driver", "options"}}, "docker_error": null or why nothing is known}.

    A container is {"name", "state", "image", "mounts": [{"source", "target", "volume", "read_only"}]}; the source of
    a volume is its name.
    """
    docker = connect(system)
    answer: Json = {"containers": [], "volumes": {}, "docker_error": None}
    try:
        containers = [one for one in docker.containers() if one["name"].startswith(PREFIX)]
        for one in containers:
            told = docker.get(f"/containers/{one['id']}/json") or {}
            mounts = [_mount(mount) for mount in told.get("Mounts") or []]
            image = str((told.get("Config") or {}).get("Image") or "")
            answer["containers"].append({"name": one["name"], "state": one["state"], "image": image, "mounts": mounts})
        mounted = {mount["source"] for one in answer["containers"] for mount in one["mounts"] if mount["volume"]}
        for volume in (docker.get("/volumes") or {}).get("Volumes") or []:
            if volume["Name"] in mounted or volume["Name"].startswith(PREFIX):
                options = {key: str(value) for key, value in (volume.get("Options") or {}).items()}
                answer["volumes"][volume["Name"]] = {"driver": volume.get("Driver", ""), "options": options}
    except OSError as error:
        answer["docker_error"] = str(error) or type(error).__name__
    return answer


def _mount(mount: Json) -> Json:
    volume = mount.get("Type") == "volume"
    return {
        "source": str(mount.get("Name" if volume else "Source") or ""),
        "target": str(mount.get("Destination") or ""),
        "volume": volume,
        "read_only": not mount.get("RW", True),
    }
