"""Who would be disturbed: engine containers and processes that use RDMA."""

from collections.abc import Iterable
from typing import Any

from .docker import STACK, connect
from .holders import rdma_users
from .request import ENGINE_ALIVE, FAILED, Failure
from .system import System

RUNNING = ("running", "paused", "restarting", "removing")


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


def refuse(system: System, node: str, what: str, others: Iterable[str] = ()) -> None:
    """Raise `Failure` where somebody would be disturbed by `what`; `others` are more of them, each a line."""
    found = [*reasons(system), *others]
    if found:
        lines = [f"{node}: {line}" for line in found]
        advice = f"{what} would disturb it: stop the engine on all nodes first (pulumi up does, without --target)"
        raise Failure(ENGINE_ALIVE, *lines, advice)


def refuse_rank(system: System, node: str, label: str, why: str) -> None:
    """Raise `Failure` where a rank of the stack with this label runs here; `why` is what speaks against that.

    Also where nobody can tell, since docker does not answer.
    """
    if not system.exists(system.docker_socket):
        return
    try:
        containers = connect(system).containers()
    except OSError as error:
        raise Failure(FAILED, f"{node}: docker does not answer: {error}") from None
    if lines := ranks(node, containers, label):
        raise Failure(ENGINE_ALIVE, *lines, f"{why}: stop it first, on all nodes")


def ranks(node: str, containers: Iterable[dict[str, Any]], label: str) -> list[str]:
    """The ranks of a stack that run, each a line."""
    return [
        f"{node}: engine container {one['name']} is {one['state']}, wanted no engine"
        for one in containers
        if one["labels"].get(STACK) == label and one["state"] in RUNNING
    ]
