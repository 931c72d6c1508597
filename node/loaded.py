"""Which NCCL library the rank of this node has really loaded, and what it has said while it started."""

import re
from typing import Any

from . import elf
from .docker import STACK, connect
from .request import Owner
from .system import System

LIBRARY = re.compile(r"libnccl\.so(\.[\d.]+)?")  # plugins such as libnccl-net.so are none
ERROR = re.compile(r"NCCL WARN|Traceback|\b[A-Z]\w*(Error|Exception)\b|\bERROR\b")
MOST_LINES = 200_000
SHOWN = 500  # characters of a line
GONE = " (deleted)"

Json = dict[str, Any]


def loaded(system: System, owner: Owner, desired: Json) -> Json:
    """What is so of the stack's container on this node, for desired {"strings": […], "lines": {name: pattern}}.

    "container" is its name, or None where none runs; "libraries" has each file with "path", "sha256" (None where it
    cannot be read), "strings" (those asked for that are in it) and "processes" (how many have it loaded); "lines" the
    first line for each pattern, or None; "first_error" the first line that looks like one; "docker_error" why nothing
    is known.
    """
    answer: Json = {"container": None, "libraries": [], "lines": {}, "first_error": None, "docker_error": None}
    docker = connect(system)
    try:
        for container in docker.containers():
            if container["labels"].get(STACK) != owner.label() or container["state"] != "running":
                continue
            state = (docker.get(f"/containers/{container['id']}/json") or {}).get("State") or {}
            answer["container"] = container["name"]
            answer["libraries"] = _libraries(system, int(state.get("Pid") or 0), desired.get("strings", []))
            patterns = desired.get("lines", {})
            log = docker.logs(container["id"], MOST_LINES) if patterns else []
            answer["lines"] = {name: _first(re.compile(pattern), log) for name, pattern in patterns.items()}
            answer["first_error"] = _first(ERROR, log)
    except OSError as error:
        answer["docker_error"] = str(error) or type(error).__name__
    return answer


def _first(pattern: "re.Pattern[str]", log: list[str]) -> str | None:
    return next((line[:SHOWN] for line in log if pattern.search(line)), None)


def _libraries(system: System, first: int, strings: list[str]) -> list[Json]:
    """The NCCL libraries of all processes that share the container's process namespace, by path."""
    holders: dict[str, list[str]] = {}
    for pid in _processes(system, first):
        for path in sorted(_mapped(system, pid)):
            holders.setdefault(path, []).append(pid)
    found = []
    for path, pids in sorted(holders.items()):
        # As the process sees it: a file that lies over the image's is there, and nowhere else.
        file = None if path.endswith(GONE) else system.open_to_read(f"/proc/{pids[0]}/root{path}")
        sha256: str | None = None
        there: set[str] = set()
        if file is not None:
            with file:
                sha256, _, there = elf.search(file, strings)
        texts = [text for text in strings if text in there]
        found.append({"path": path, "sha256": sha256, "strings": texts, "processes": len(pids)})
    return found


def _processes(system: System, first: int) -> list[str]:
    """The processes of a container, of which `first` is the first one."""
    space = system.target(f"/proc/{first}/ns/pid") if first else ""
    if not space:
        return []
    pids = (name for name in system.names("/proc") if name.isdigit())
    return [pid for pid in pids if system.target(f"/proc/{pid}/ns/pid") == space]


def _mapped(system: System, pid: str) -> set[str]:
    """The NCCL libraries that a process has mapped."""
    rows = (line.split(maxsplit=5) for line in (system.text(f"/proc/{pid}/maps") or "").splitlines())
    paths = {row[5] for row in rows if len(row) == 6}
    return {path for path in paths if LIBRARY.fullmatch(path.removesuffix(GONE).rpartition("/")[2])}
