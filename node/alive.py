"""Who would be disturbed: engine containers and processes that use RDMA."""

from typing import Any

from .docker import STACK, connect
from .request import ENGINE_ALIVE, Failure
from .system import System

RUNNING = ("running", "paused", "restarting", "removing")


def rdma_users(system: System) -> list[dict[str, Any]]:
    """The processes that hold an RDMA device open."""
    found = []
    for pid in (name for name in system.names("/proc") if name.isdigit()):
        handles = (system.target(f"/proc/{pid}/fd/{name}") for name in system.names(f"/proc/{pid}/fd"))
        if any(handle.startswith("/dev/infiniband/uverbs") for handle in handles):
            command = (system.read(f"/proc/{pid}/cmdline") or b"").replace(b"\0", b" ").decode(errors="replace").strip()
            found.append({"pid": int(pid), "command": command[:200]})
    return found


def reasons(system: System) -> list[str]:
    """What speaks against disturbing the fabric of this node now, each a line that names who it is."""
    found = []
    if system.exists(system.docker_socket):
        try:
            containers = connect(system).containers()
        except OSError as error:
            found += [
                f"docker does not answer ({error}), and a container's process runs: {line}"
                for line in _contained(system)
            ]
        else:
            found += [
                f"engine container {container['name']} of {container['labels'][STACK]} is {container['state']}"
                for container in containers
                if STACK in container["labels"] and container["state"] in RUNNING
            ]
    return found + [f"process {user['pid']} uses RDMA: {user['command']}" for user in rdma_users(system)]


def _contained(system: System) -> list[str]:
    """Processes in a container of Docker, found without its help."""
    found = []
    for pid in (name for name in system.names("/proc") if name.isdigit()):
        group = (system.read(f"/proc/{pid}/cgroup") or b"").decode(errors="replace")
        if "/docker/" in group or "/docker-" in group:
            found.append(f"{pid} {system.text(f'/proc/{pid}/comm') or ''}".strip())
    return found[:3]


def refuse(system: System, node: str, what: str) -> None:
    """Raise `Failure` where somebody would be disturbed by `what`."""
    found = reasons(system)
    if found:
        lines = [f"{node}: {line}" for line in found]
        advice = f"{what} would disturb it: stop the engine on all nodes first (pulumi up does, without --target)"
        raise Failure(ENGINE_ALIVE, *lines, advice)
