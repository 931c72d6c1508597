"""Whether data really crosses the mesh: one RDMA write for each path, and what rules and kernels count meanwhile.

The fleet's side asks all nodes at once, phase by phase: `before` (counters are kept), `turn0` to `turn3` (the node of
that rank writes over its paths, its peers listen; one rank at a time, so that no path disturbs another's latency),
`after` (counters are compared). A path is good when its write ends well, its rule has counted packets, none of them in
software or dropped, and the kernel that is passed by has forwarded nothing of it.

Where neither the node nor the engine's image has `ib_write_lat`, the answer has "unverified" with the reason, and so it
does where the kernel forwards and cannot tell for whom.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from . import meshcounts
from .perftest import figure, once_heard
from .request import BAD_REQUEST, READ_BACK, Failure
from .run import ABSENT, TIMED_OUT, Result
from .system import Meta, System

TOOL = "ib_write_lat"
ITERATIONS = 1000
LISTEN = 30.0  # seconds for a listener to be found and to end
WRITE = 20.0  # seconds for a write
CONTAINER = 10.0  # seconds more for a container to start and to go
KEPT = "/run/spark-fabric-mesh-counters.json"
_TURN = re.compile(r"turn(\d)")

Json = dict[str, Any]


def verify(system: System, node: str, desired: Json) -> Json:
    """Do one phase of {"action", "size", "flow_label", "gid_index", "image", "listen", "write", "forward"}.

    "listen" and "write" are lists of {"path", "hca", "turn", "port"}, those of "write" with "host" and "peer", the name
    of the far node; "forward" has the node's rules as the stage `forwarding` has them. Raises `Failure` with every
    problem of the phase.
    """
    action = str(desired.get("action"))
    if action == "before":
        return _before(system, desired)
    if action == "after":
        return _after(system, node, desired)
    turn = _TURN.fullmatch(action)
    if turn is None:
        raise Failure(BAD_REQUEST, f"{action!r} is no phase: before, turn0 to turn3, after")
    return _turn(system, node, desired, int(turn[1]))


@dataclass(frozen=True)
class Tool:
    """`ib_write_lat` on the node, or in containers of the engine's `image`.

    What ends `docker run` does not end its container: the process in it would hold port and device for ever, and keep
    every change of the mesh from the node. So each run is timed inside its container too, and the container has a name
    by which it is removed, at the latest when the next check begins.
    """

    image: str = ""

    def run(self, system: System, port: int, words: list[str], seconds: float) -> Result:
        """One run, of at most `seconds` seconds and the container's own. `port` is no other run's of that time."""
        if not self.image:
            return system.run([TOOL, *words], timeout=seconds)
        rights = ["--network=host", "--device=/dev/infiniband", "--cap-add=IPC_LOCK", "--ulimit=memlock=-1"]
        name = ["--rm", "--pull=never", f"--name={_container(port)}"]
        script = f'exec timeout -k 2 "$0" {TOOL} "$@"'
        command = ["docker", "run", *name, *rights, "--entrypoint=/bin/sh", self.image, "-c", script, f"{seconds:g}"]
        result = system.run([*command, *words], timeout=seconds + CONTAINER)
        if result.rc == TIMED_OUT:
            self.clear(system, [port])
        return result

    def clear(self, system: System, ports: list[int]) -> None:
        """Remove containers that are left over, whatever state they are in."""
        if self.image and ports:
            system.change(["docker", "rm", "-f", *map(_container, ports)], timeout=CONTAINER)


def _container(port: int) -> str:
    return f"spark-fabric-mesh-verify-{port}"


def tool(system: System, image: str) -> Tool | None:
    """Where `ib_write_lat` is, None where neither the node nor the image has it. An image needs `timeout` beside it."""
    if system.run([TOOL, "--version"]).rc != ABSENT:
        return Tool()
    if not image:
        return None
    look = ["docker", "run", "--rm", "--pull=never", "--network=none", "--entrypoint=/bin/sh", image]
    found = system.run([*look, "-c", f"command -v {TOOL} && command -v timeout"]).ok
    return Tool(image) if found else None


def _before(system: System, desired: Json) -> Json:
    if tool(system, str(desired.get("image") or "")) is None:
        reason = f"{TOOL} (perftest) is neither on the node nor, with timeout, in the engine's image"
        return {"unverified": reason, "notes": [f"mesh unverified: {reason}"]}
    counts = meshcounts.read(system, desired.get("forward", []))
    system.write(KEPT, json.dumps(counts).encode() + b"\n", Meta(0o600, 0, 0, 0))
    return {"unverified": None}


def _after(system: System, node: str, desired: Json) -> Json:
    kept = json.loads(system.text(KEPT) or "null")
    if kept is None:
        raise Failure(READ_BACK, f"{node}: the counters of before are gone: run the check again")
    system.remove(KEPT)
    rules = desired.get("forward", [])
    now = meshcounts.read(system, rules)
    found = [line for rule in rules for line in meshcounts.wrong(rule, kept["rules"], now["rules"], "the write")]
    forwarded, arrived = (meshcounts.more(kept[what], now[what]) for what in ("kernel", "received"))
    through, told = meshcounts.passed_by(forwarded, arrived, ITERATIONS, "the packets of one path")
    if through is True:
        found.append(told)
    if found:
        raise Failure(READ_BACK, *(f"{node} {line}" for line in found))
    notes = [told] if told else []
    if through is None:
        return {"unverified": told, "notes": [f"mesh unverified: {told}"]}
    return {"problems": [], "notes": notes}


def _turn(system: System, node: str, desired: Json, turn: int) -> Json:
    command = tool(system, str(desired.get("image") or ""))
    if command is None:
        return {"unverified": f"{TOOL} is missing"}
    command.clear(system, [one["port"] for key in ("listen", "write") for one in desired.get(key, [])])
    listen = [one for one in desired.get("listen", []) if one["turn"] == turn]
    write = [one for one in desired.get("write", []) if one["turn"] == turn]
    calls: list[Callable[[], list[Json]]] = [
        partial(_listen, system, command, _words(desired, one), one) for one in listen
    ]
    # One after the other: both paths of a rank to its opposite share its bus.
    calls.append(lambda: [_write(system, node, command, _words(desired, one), one) for one in write])
    results = [result for part in system.parallel(calls) for result in part]
    problems = [result["problem"] for result in results if result["problem"]]
    if problems:
        raise Failure(READ_BACK, *problems)
    latencies = {result["path"]: result["latency"] for result in results if result["path"]}
    return {"latency_us": latencies, "notes": [f"{path}: {latency} us" for path, latency in latencies.items()]}


def _words(desired: Json, one: Json) -> list[str]:
    size, label = str(desired.get("size", 61440)), str(desired.get("flow_label", 16383))
    device = ["-d", one["hca"], "-x", str(desired.get("gid_index", 3)), f"--flow_label={label}"]
    return [*device, "-s", size, "-n", str(ITERATIONS), "-F", "-p", str(one["port"])]


def _listen(system: System, command: Tool, words: list[str], one: Json) -> list[Json]:
    """What becomes of a listener shows at the writer."""
    command.run(system, one["port"], words, LISTEN)
    return []


def _write(system: System, node: str, command: Tool, words: list[str], one: Json) -> Json:
    result = once_heard(system, lambda: command.run(system, one["port"], [*words, one["host"]], WRITE))
    latency = typical(result.out) if result.ok else None
    problem = ""
    if latency is None:
        problem = (
            f"{node} {one['path']}: the write on {one['hca']} to {one['peer']} did not complete: {result.reason()}"
        )
    return {"path": one["path"], "latency": latency, "problem": problem}


def typical(text: str) -> float | None:
    """The typical latency in microseconds of `ib_write_lat`'s table."""
    return figure(text, "t_typical[usec]")
