"""The packed engram of this node's rank, made once by the engine's own program in a container of its own.

The folder is the operator's: nothing of this is in the journal, and nothing undoes it. The program writes beside each
file and renames, so that it may be ended and called again. Its container is no rank, and is gone afterwards.
"""

import itertools
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from . import leftover
from .alive import ranks, refuse_rank
from .docker import PACKS, Docker, connect
from .platform import refuse_folder
from .request import ENGINE_ALIVE, FAILED, Failure
from .system import System
from .transaction import Run

SCRIPT = "/opt/dsv41/scripts/pack_engram.py"
TARGET = "/engram"
LONGEST = 4 * 3600  # seconds for all of it: it reads a good part of 500 GB, and writes 48
STEP = 1.0  # seconds between two looks at the container
RANKS = 10  # looks at the container between two at the ranks
PATIENCE = 120.0  # seconds in which docker may not answer: the disk is busy
LINES = 20  # of its log that are told where it fails

WHY = "an engine reads and writes the same files"

Json = dict[str, Any]


def engram(run: Run) -> Json:
    """{"packed", "seconds", "files": {name: bytes}, "said", "notes"}; not "packed" where all files are there already.

    Desired: {"files": names of what has to be there afterwards, "folder", "weights": {"source", "target"},
    "checkpoint": its path in the container, "image", "name" of the container, "rank", "size": how many ranks}.
    "said" is the program's last line. Raises `Failure` before anything is begun where a rank of the stack runs, others
    have the name, or something is missing; where a rank starts meanwhile, or nobody waits any more; and with the last
    lines of its log where the program fails, or leaves a file out.
    """
    desired, system, node = run.request.desired, run.system, run.node
    began, folder = system.clock(), str(desired["folder"])
    refuse_folder(system, node, folder, writing=True)
    if not _missing(system, desired):
        return _answer(run, packed=False)
    refuse_rank(system, node, run.request.owner.label(), WHY)
    docker = connect(system)
    try:
        _refuse(docker, run)
        leftover.remove(docker, run.report, run.request.owner.label())
        with _told_to_end() as told:
            code, log = _packed(run, docker, began + LONGEST, told)
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


def _refuse(docker: Docker, run: Run) -> None:
    """Raise `Failure` for what docker would make something else of, or refuse in other words."""
    node, desired, label = run.node, run.request.desired, run.request.owner.label()
    name, source = desired["name"], desired["weights"]["source"]
    taken = next((one for one in docker.containers() if one["name"] == name), None)
    if taken and taken["labels"].get(PACKS) != label:
        seen = f"has a container {name} that is not this stack's, and is {taken['state']}"
        raise Failure(FAILED, f"{node}: {seen}", "remove or rename it")
    if docker.image(desired["image"]) is None:
        raise Failure(FAILED, f"{node}: has no image {desired['image']}", "`up` brings it, or `docker load` does")
    if not source.startswith("/") and docker.get(f"/volumes/{source}") is None:
        raise Failure(FAILED, f"{node}: has no docker volume {source} with the checkpoint", "`up` makes it")


def _packed(run: Run, docker: Docker, until: float, told: list[int]) -> tuple[int, list[str]]:
    """Exit code and last lines of the program, whose container is gone."""
    name, container = str(run.request.desired["name"]), ""
    try:
        container = docker.create(name, _container(run))
        _refuse_unwanted(run, told)
        docker.start(container)
        code = _awaited(run, docker, container, until, told)
        return code, _log(docker, container)
    finally:
        try:
            if container:
                docker.remove(container)
            else:  # docker may have made it and not said so; what others have made under that name is theirs
                leftover.remove(docker, run.report, run.request.owner.label())
        except (OSError, Failure) as error:
            run.report.note(f"{run.node}: container {name} may be there still ({error}): sudo docker rm -f {name}")


def _log(docker: Docker, container: str) -> list[str]:
    """The last lines of the program, none where docker is too busy for them: how it ended counts more."""
    try:
        return docker.logs(container, LINES)
    except OSError:
        return []


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


def _awaited(run: Run, docker: Docker, container: str, until: float, told: list[int]) -> int:
    """The exit code of a container. Raises `Failure` where it is not wanted any more, or takes too long."""
    heard, turns = run.system.clock(), itertools.count()
    while True:
        try:
            found = docker.get(f"/containers/{container}/json")
            others = docker.containers() if next(turns) % RANKS == 0 else []
        except OSError:
            if run.system.clock() - heard > PATIENCE:
                raise
        else:
            heard = run.system.clock()
            if found is None:
                raise Failure(FAILED, f"{run.node}: somebody removed the container while it packed: run it again")
            if not found["State"]["Running"]:
                return int(found["State"]["ExitCode"])
            if alive := ranks(run.node, others, run.request.owner.label()):
                raise Failure(ENGINE_ALIVE, *alive, f"{WHY}: packing was ended; run it again while no engine runs")
        _refuse_unwanted(run, told)
        if run.system.clock() > until:
            raise Failure(FAILED, f"{run.node}: packing was ended after {LONGEST} s", *_log(docker, container))
        run.system.sleep(STEP)


def _refuse_unwanted(run: Run, told: list[int]) -> None:
    """Raise `Failure` where nobody waits for the container any more. `told` are signals that came."""
    if told:
        raise Failure(FAILED, f"{run.node}: was told to end: packing was ended; run it again")
    if run.system.caller_gone() or run.system.let_go():
        raise Failure(FAILED, f"{run.node}: whoever asked is gone: packing was ended; run it again")


@contextmanager
def _told_to_end() -> Iterator[list[int]]:
    """The signals to end that have come: what ends this program, a shutdown for one, has to leave no container.

    They are only noted: an exception could come between the making of a container and the knowledge of it.
    """
    told: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    try:
        yield told
    finally:
        signal.signal(signal.SIGTERM, before)
