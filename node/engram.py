"""The packed engram of this node's rank, made once by the engine's own program in a container of its own.

The folder is the operator's: nothing of this is in the journal, and nothing undoes it. The program writes beside each
file and renames, so that it may be ended and called again. Its container is no rank, and is gone afterwards.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .alive import refuse_rank
from .docker import PACKS, Docker, connect
from .platform import refuse_folder
from .request import FAILED, Failure
from .system import System
from .transaction import Run

SCRIPT = "/opt/dsv41/scripts/pack_engram.py"
TARGET = "/engram"
LONGEST = 4 * 3600  # seconds for all of it: it reads a good part of 500 GB, and writes 48
STEP = 1.0  # seconds between two looks at the container
PATIENCE = 120.0  # seconds in which docker may not answer: the disk is busy
LINES = 20  # of its log that are told where it fails

WHY = "an engine reads and writes the same files"

Json = dict[str, Any]


def engram(run: Run) -> Json:
    """{"packed", "seconds", "files": {name: bytes}, "said", "notes"}; not "packed" where all files are there already.

    Desired: {"files": names of what has to be there afterwards, "folder", "weights": {"source", "target"},
    "checkpoint": its path in the container, "image", "name" of the container, "rank", "size": how many ranks}.
    "said" is the program's last line. Raises `Failure` before anything is begun where a rank of the stack runs, the
    name is taken, or something is missing; and with the last lines of its log where the program fails, or leaves a
    file out.
    """
    desired, system, node = run.request.desired, run.system, run.node
    began, folder = system.clock(), str(desired["folder"])
    refuse_folder(system, node, folder, writing=True)
    if not _missing(system, desired):
        return _answer(run, packed=False)
    refuse_rank(system, node, run.request.owner.label(), WHY)
    docker = connect(system)
    try:
        _refuse(docker, node, desired)
        with _told_to_end(node):
            code, log = _packed(run, docker, began + LONGEST)
    except OSError as error:
        raise Failure(FAILED, f"{node}: docker does not answer: {error}") from None
    if code:
        why = " (killed; out of memory?)" if code == 128 + signal.SIGKILL else ""
        raise Failure(FAILED, f"{node}: packing ended with exit code {code}{why}; its last lines:", *log)
    if missing := _missing(system, desired):
        seen = f"has no {' and no '.join(missing)}, although packing ended well; its last lines:"
        raise Failure(FAILED, f"{node} {folder}: {seen}", *log)
    return _answer(run, packed=True, seconds=system.clock() - began, said=log[-1] if log else "")


def _answer(run: Run, *, packed: bool, seconds: float = 0.0, said: str = "") -> Json:
    desired = run.request.desired
    files = {name: run.system.size(f"{desired['folder']}/{name}") for name in desired["files"]}
    return {"packed": packed, "seconds": seconds, "files": files, "said": said, "notes": run.report.notes}


def _missing(system: System, desired: Json) -> list[str]:
    return [name for name in desired["files"] if not system.size(f"{desired['folder']}/{name}")]


def _refuse(docker: Docker, node: str, desired: Json) -> None:
    """Raise `Failure` for what docker would make something else of, or refuse in other words."""
    name, source = desired["name"], desired["weights"]["source"]
    taken = next((one for one in docker.containers() if one["name"] == name), None)
    if taken:
        seen = f"has a container {name} already, which is {taken['state']}"
        raise Failure(FAILED, f"{node}: {seen}", f"unless somebody packs right now: sudo docker rm -f {name}")
    if docker.image(desired["image"]) is None:
        raise Failure(FAILED, f"{node}: has no image {desired['image']}", "`up` brings it, or `docker load` does")
    if not source.startswith("/") and docker.get(f"/volumes/{source}") is None:
        raise Failure(FAILED, f"{node}: has no docker volume {source} with the checkpoint", "`up` makes it")


def _packed(run: Run, docker: Docker, until: float) -> tuple[int, list[str]]:
    """Exit code and last lines of the program, whose container is gone."""
    name = str(run.request.desired["name"])
    container = docker.create(name, _container(run))
    try:
        docker.start(container)
        code = _awaited(run, docker, container, until)
        return code, docker.logs(container, LINES)
    finally:
        try:
            docker.remove(container)
        except (OSError, Failure) as error:
            run.report.note(f"{run.node}: container {name} may be there still ({error}): sudo docker rm -f {name}")


def _container(run: Run) -> Json:
    """The container as docker's API takes it. What is mounted has to be there: docker makes no folder in its place."""
    desired = run.request.desired
    weights, rank, size = desired["weights"], str(desired["rank"]), str(desired["size"])
    bind = "bind" if weights["source"].startswith("/") else "volume"
    return {
        "Image": desired["image"],
        "Entrypoint": ["python3"],
        "Cmd": [SCRIPT, "--rank", rank, "--tp", size, "--out", TARGET],
        "Env": [f"DSV41_SOURCE={desired['checkpoint']}"],
        "Labels": {PACKS: run.request.owner.label()},
        "Healthcheck": {"Test": ["NONE"]},  # that of the image is the engine's
        "HostConfig": {
            "NetworkMode": "host",
            "Mounts": [
                {"Type": bind, "Source": weights["source"], "Target": weights["target"], "ReadOnly": True},
                {"Type": "bind", "Source": desired["folder"], "Target": TARGET, "ReadOnly": False},
            ],
        },
    }


def _awaited(run: Run, docker: Docker, container: str, until: float) -> int:
    """The exit code of a container. Raises `Failure` where nobody waits for it any more, or it takes too long."""
    heard = run.system.clock()
    while True:
        try:
            found = docker.get(f"/containers/{container}/json")
        except OSError:
            if run.system.clock() - heard > PATIENCE:
                raise
        else:
            heard = run.system.clock()
            if found is None:
                raise Failure(FAILED, f"{run.node}: somebody removed the container while it packed: run it again")
            if not found["State"]["Running"]:
                return int(found["State"]["ExitCode"])
        if run.system.caller_gone():
            raise Failure(FAILED, f"{run.node}: whoever asked is gone: packing was ended; run it again")
        if run.system.clock() > until:
            raise Failure(FAILED, f"{run.node}: packing was ended after {LONGEST} s", *docker.logs(container, LINES))
        run.system.sleep(STEP)


@contextmanager
def _told_to_end(node: str) -> Iterator[None]:
    """So that what ends this program, a shutdown for one, leaves no container."""

    def end(*_: object) -> None:
        raise Failure(FAILED, f"{node}: was told to end: packing was ended; run it again")

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
