"""The engine that served last: of each rank a second container, never started, of which it can be made again.

Docker keeps everything that a container was told, secrets too, in the container itself. So what is kept of a rank is a
container: nothing that it was told lies in a file of ours, and its image cannot be removed meanwhile. It does not
carry the label by which engines are found, and is none.
"""

from typing import Any

from .docker import KEPT, OF_GROUND, STACK, START, Docker
from .request import FAILED, Failure
from .steps import Report

SUFFIX = "-kept"

Json = dict[str, Any]


def kept(containers: list[Json], label: str) -> Json | None:
    """{"start", "ground"} of what is kept here for a stack; None without it."""
    found = next((one["labels"] for one in containers if one["labels"].get(KEPT) == label), None)
    return {"start": found.get(START, ""), "ground": found.get(OF_GROUND, "")} if found is not None else None


def keep(docker: Docker, report: Report, label: str, start: str, ground: str) -> None:
    """Keep the rank that runs, of this start, in place of what was kept before.

    `ground` names what the engine rests on, its fabric above all: on another one it cannot be started again. Raises
    `Failure` where no such rank runs, and `OSError` where docker does not do it.
    """
    containers = docker.containers()
    if kept(containers, label) == {"start": start, "ground": ground}:
        return
    ours = [one for one in containers if one["labels"].get(STACK) == label and one["state"] == "running"]
    if [one["labels"].get(START) for one in ours] != [start]:
        raise Failure(FAILED, f"no container of start {start} runs here that could be kept")
    forget(docker, report, label)
    [one] = ours
    told = docker.told(one["id"])
    told["Labels"] = {key: value for key, value in told["Labels"].items() if key != STACK}
    told["Labels"] |= {KEPT: label, OF_GROUND: ground}
    docker.create(one["name"] + SUFFIX, told)
    report.note(f"container {one['name']}{SUFFIX}: kept, to go back to")


def start_again(docker: Docker, report: Report, label: str, start: str, ground: str) -> None:
    """Make the rank that is kept an engine again, and start it. Raises `Failure` where it is not the one kept."""
    containers = docker.containers()
    if kept(containers, label) != {"start": start, "ground": ground}:
        raise Failure(FAILED, f"of start {start} nothing is kept here")
    one = next(one for one in containers if one["labels"].get(KEPT) == label)
    told = docker.told(one["id"])
    told["Labels"] = {key: value for key, value in told["Labels"].items() if key not in (KEPT, OF_GROUND)}
    told["Labels"][STACK] = label
    name = one["name"].removesuffix(SUFFIX)
    docker.start(docker.create(name, told))
    report.did(f"container {name}: started again as it was in start {start}")


def forget(docker: Docker, report: Report, label: str) -> None:
    """Remove what is kept for a stack."""
    for one in docker.containers():
        if one["labels"].get(KEPT) == label:
            docker.remove(one["id"])
            report.note(f"container {one['name']}: removed")
