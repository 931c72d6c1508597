"""Docker's API over its socket: one request costs a millisecond, one call of the `docker` program fifty."""

import json
import re
from typing import Any

from .hide import hide
from .request import FAILED, Failure
from .system import System

STACK = "spark-fabric.stack"
START = "spark-fabric.start"
KEPT = "spark-fabric.kept"  # in place of STACK, on what is kept of an engine that served
PACKS = "spark-fabric.pack"  # in place of STACK, on what packs a rank's engram
OF_GROUND = "spark-fabric.ground"

OK, CREATED, BAD_REQUEST, NOT_FOUND, CONFLICT = 200, 201, 400, 404, 409

Json = dict[str, Any]


class Docker:
    """A Docker daemon. Every method raises `OSError` where it does not answer."""

    def __init__(self, system: System) -> None:
        self.call, self.server = system.docker_call, system.docker_server

    def get(self, path: str) -> Any:
        """The JSON answer to a GET, or None where there is no such thing."""
        status, body = self.call("GET", path, 10)
        if status == NOT_FOUND:
            return None
        if status != OK:
            message = f"docker answers {path} with {status}: {body[:200]!r}"
            raise OSError(message)
        return json.loads(body)

    def containers(self) -> list[Json]:
        """All containers, those of stacks with exit code, start time and process (0: none), sorted by name."""
        found = []
        for item in self.get("/containers/json?all=1"):
            labels = item.get("Labels") or {}
            container = {
                "name": str((item.get("Names") or ["/?"])[0]).lstrip("/"),
                "id": item["Id"],
                "image_id": item.get("ImageID", ""),
                "labels": labels,
                "state": item.get("State", ""),
                "exit_code": 0,
                "started_at": "",
                "finished_at": "",
                "oom_killed": False,
                "health": "",
                "pid": 0,
            }
            if STACK in labels:
                state = (self.get(f"/containers/{item['Id']}/json") or {}).get("State") or {}
                container["exit_code"] = int(state.get("ExitCode", 0))
                container["started_at"] = str(state.get("StartedAt", ""))
                container["finished_at"] = str(state.get("FinishedAt", ""))
                container["health"] = str((state.get("Health") or {}).get("Status", ""))
                container["oom_killed"] = bool(state.get("OOMKilled"))
                container["pid"] = int(state.get("Pid") or 0)
            found.append(container)
        return sorted(found, key=lambda container: str(container["name"]))

    def images(self) -> dict[str, str]:
        """The id of every image that has a name, by tag and by digest."""
        return {
            name: image["Id"]
            for image in self.get("/images/json")
            for name in [*(image.get("RepoTags") or []), *(image.get("RepoDigests") or [])]
        }

    def image(self, name: str) -> Json | None:
        """For which machine an image is, in docker's word; None where there is none of that name."""
        found = self.get(f"/images/{name}/json")
        return {"architecture": str(found.get("Architecture", ""))} if found else None

    def version(self) -> str:
        """The daemon's version. It starts `containerd` and `runc` to answer /version: 30 ms of every look."""
        found = re.match(r"Docker/(\S+)", self.server())
        return found[1] if found else str(self.get("/version")["Version"])

    def logs(self, container: str, lines: int) -> list[str]:
        """The last lines that a container wrote on stdout and stderr, without the secrets that it was told."""
        status, body = self.call("GET", f"/containers/{container}/logs?stdout=1&stderr=1&tail={lines}", 10)
        if status != OK:
            return []
        told = (self.get(f"/containers/{container}/json") or {}).get("Config") or {}
        return hide(_plain(body).splitlines()[-lines:], told.get("Env") or [])

    def told(self, container: str) -> Json:
        """What a container was made of, as `create` takes it, with the very image. Raises `OSError` without it."""
        found = self.get(f"/containers/{container}/json")
        if found is None:
            message = f"docker has no container {container[:12]}"
            raise OSError(message)
        told: Json = {**found["Config"], "Image": found["Image"], "HostConfig": found["HostConfig"]}
        told["Labels"] = told.get("Labels") or {}
        return {key: value for key, value in told.items() if key not in ("Hostname", "Domainname")}  # the node's own

    def create(self, name: str, told: Json) -> str:
        """Make a container and return its id. Raises `Failure` where it is refused."""
        status, body = self.call("POST", f"/containers/create?name={name}", 60, json.dumps(told).encode())
        if status != CREATED:
            raise Failure(FAILED, f"docker cannot make {name}: {body[:200].decode(errors='replace')}")
        return str(json.loads(body)["Id"])

    def start(self, container: str) -> None:
        """Start a container. Raises `Failure` where it does not start."""
        status, body = self.call("POST", f"/containers/{container}/start", 60)
        if status >= BAD_REQUEST:
            raise Failure(FAILED, f"docker cannot start {container[:12]}: {body[:200].decode(errors='replace')}")

    def stop(self, container: str, grace: int) -> None:
        """Stop a container, by force after `grace` seconds. Raises `Failure` where it does not stop."""
        status, body = self.call("POST", f"/containers/{container}/stop?t={grace}", grace + 30)
        if status >= BAD_REQUEST and status != NOT_FOUND:
            raise Failure(FAILED, f"docker cannot stop {container[:12]}: {body[:200].decode(errors='replace')}")

    def remove(self, container: str) -> None:
        """Remove a container. Raises `Failure` where it stays."""
        status, body = self.call("DELETE", f"/containers/{container}?force=1&v=1", 60)
        busy = status == CONFLICT and b"already in progress" in body
        if status >= BAD_REQUEST and status != NOT_FOUND and not busy:
            raise Failure(FAILED, f"docker cannot remove {container[:12]}: {body[:200].decode(errors='replace')}")

    def remove_volume(self, name: str) -> None:
        """Remove a volume. Raises `Failure` where it stays, as one does that a container has."""
        status, body = self.call("DELETE", f"/volumes/{name}", 60)
        if status >= BAD_REQUEST and status != NOT_FOUND:
            raise Failure(FAILED, f"docker cannot remove volume {name}: {body[:200].decode(errors='replace')}")


def connect(system: System) -> Docker:
    """The daemon of this machine."""
    return Docker(system)


def _plain(body: bytes) -> str:
    """Log text without the frames that Docker puts around it for containers without a terminal."""
    parts, at = [], 0
    while at + 8 <= len(body) and body[at] in (0, 1, 2) and body[at + 1 : at + 4] == b"\0\0\0":
        size = int.from_bytes(body[at + 4 : at + 8], "big")
        parts.append(body[at + 8 : at + 8 + size])
        at += 8 + size
    return (b"".join(parts) if parts else body).decode(errors="replace")
