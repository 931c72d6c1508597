"""The containers of a stack on this node, whatever the operator's state says about them: stopped, removed, put back."""

import json
from functools import partial
from typing import Any

from . import kept, leftover
from .alive import RUNNING
from .docker import STACK, START, Docker, connect
from .holders import rdma_users
from .journal import MARK, PRIVATE
from .request import FAILED, OTHER_OWNER, Failure
from .transaction import Run

GRACE = 30  # seconds
GENERATION = ("keep", "back", "forget")  # actions about the engine that served last
QUIET = 10.0  # seconds for RDMA resources to be given back after the last container ended


def engines(run: Run) -> None:
    """Do {"action": "stop" | "remove" | "mark", "grace": seconds, "name": a name that must be free afterwards}.

    "keep" has the rank that runs kept, and "back" starts what is kept again, both of {"start", "ground"}; "forget"
    removes it. With "stop" and "remove" goes what a packing left as well.
    "ours" does nothing: on a node of another owner, or of the same stack's other state, it was refused by now.
    """
    desired = run.request.desired
    action, grace = desired.get("action"), int(desired.get("grace", GRACE))
    if action == "ours":
        return
    if action not in ("stop", "remove", "mark", *GENERATION):
        raise Failure(FAILED, f"engines can be stopped, removed, marked, kept, brought back, forgotten, not {action!r}")
    docker = connect(run.system)
    try:
        containers = docker.containers()
    except OSError as error:
        if run.system.exists(run.system.docker_socket):
            raise Failure(FAILED, f"{run.node}: docker does not answer: {error}") from None
        run.report.note("there is no docker on this node, so no engine either")
        return
    ours = [c for c in containers if c["labels"].get(STACK) == run.request.owner.label()]
    if action == "mark":
        _mark(run, ours)
        return
    if action in GENERATION:
        _generation(run, docker, action)
        return
    run.system.remove(f"{run.journal.folder}/{MARK}")  # whatever comes next, that start is over
    if action == "remove":
        _refuse_strangers(run, containers)
    running = [container for container in ours if container["state"] in RUNNING]
    run.system.parallel([partial(_end, run, docker, container, action, grace) for container in ours])
    try:
        leftover.remove(docker, run.report, run.request.owner.label())
    except OSError as error:
        raise Failure(FAILED, f"{run.node}: docker does not answer: {error}") from None
    if running:
        _wait_for_rdma(run)


def _mark(run: Run, ours: list[dict[str, Any]]) -> None:
    """Write down that the state knows this rank's container: only then is a start of the group complete.

    With its id, since one that somebody makes anew with the same labels has maybe another image or other variables.
    One that has ended already counts too: who waits for the engine tells that, with the log lines of all ranks.
    """
    start = str(run.request.desired.get("start"))
    if [container["labels"].get(START) for container in ours] != [start]:
        names = ", ".join(f"{c['name']} of start {c['labels'].get(START)}" for c in ours) or "none"
        raise Failure(FAILED, f"{run.node}: one container of start {start} is wanted, there is {names}")
    _write_mark(run, {"start": start, "container": ours[0]["id"]})


def _write_mark(run: Run, mark: dict[str, Any]) -> None:
    run.system.make_folder(run.journal.folder, 0o700)
    run.system.write(f"{run.journal.folder}/{MARK}", json.dumps(mark).encode() + b"\n", PRIVATE)


def _generation(run: Run, docker: Docker, action: str) -> None:
    """Keep the engine that serves, or start the one that is kept, or forget it.

    The mark tells of one that was started again that it was put back, and why.
    """
    desired, label = run.request.desired, run.request.owner.label()
    start, ground = str(desired.get("start")), str(desired.get("ground"))
    try:
        if action == "keep":
            kept.keep(docker, run.report, label, start, ground)
        elif action == "forget":
            kept.forget(docker, run.report, label)
        else:
            kept.start_again(docker, run.report, label, start, ground)
            _write_mark(run, {"start": start, "back": str(desired.get("cause"))})
    except OSError as error:
        raise Failure(FAILED, f"{run.node}: {error}") from None


def _refuse_strangers(run: Run, containers: list[dict[str, Any]]) -> None:
    name, label = run.request.desired.get("name"), run.request.owner.label()
    for container in containers:
        if container["name"] == name and container["labels"].get(STACK) != label:
            whose = container["labels"].get(STACK) or "nobody (it has no label of ours)"
            raise Failure(
                OTHER_OWNER,
                f"{run.node}: container {name!r} ({container['id'][:12]}) belongs to {whose}, not to {label}",
                f"remove it (docker rm -f {name}), rename it, or choose another engine name",
            )


def _end(run: Run, docker: Docker, container: dict[str, Any], action: str, grace: int) -> None:
    try:
        if container["state"] in RUNNING:
            docker.stop(container["id"], grace)
            run.report.did(f"container {container['name']}: stopped")
        if action == "remove":
            docker.remove(container["id"])
            run.report.did(f"container {container['name']}: removed")
    except OSError as error:
        raise Failure(FAILED, f"{run.node}: container {container['name']}: {error}") from None


def _wait_for_rdma(run: Run) -> None:
    """The kernel gives back queue pairs and memory a little after a process ended."""
    end = run.system.clock() + QUIET
    while (users := rdma_users(run.system)) and run.system.clock() < end:
        run.system.sleep(0.1)
    for user in users:
        run.report.note(f"process {user['pid']} still uses RDMA: {user['command']}")
