"""Whether data really crosses the mesh: one RDMA write for each path, and what rules and kernels count meanwhile.

The fleet's side asks all nodes at once, phase by phase: `before` (counters are kept), `turn0` to `turn3` (the node of
that rank writes over its paths, its peers listen; one rank at a time, so that no path disturbs another's latency),
`after` (counters are compared). A path is good when its write ends well, its rule has counted packets, none of them in
software or dropped, and the kernel that is passed by has forwarded nothing.

Where neither the node nor the engine's image has `ib_write_lat`, the answer has "unverified" with the reason.
"""

import itertools
import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from . import flow, tc
from .request import BAD_REQUEST, READ_BACK, Failure
from .run import ABSENT
from .system import Meta, System

TOOL = "ib_write_lat"
ITERATIONS = 1000
LISTEN = 30.0  # seconds for a listener to be found and to end
CONNECT = 15.0  # seconds in which a writer looks for its listener
WRITE = 20.0  # seconds for a write
KEPT = "/run/spark-fabric-mesh-counters.json"
_STEP = 0.3
_REFUSED = ("Couldn't connect", "Unable to init the socket connection", "Failed to exchange data")
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


def tool(system: System, image: str) -> list[str] | None:
    """How `ib_write_lat` is called: on the node, or in a container of the engine's image; None where neither has it."""
    if system.run([TOOL, "--version"]).rc != ABSENT:
        return [TOOL]
    if not image:
        return None
    look = ["docker", "run", "--rm", "--pull=never", "--network=none", "--entrypoint=/bin/sh", image]
    if not system.run([*look, "-c", f"command -v {TOOL}"], timeout=30).ok:
        return None
    rights = ["--network=host", "--device=/dev/infiniband", "--cap-add=IPC_LOCK", "--ulimit=memlock=-1"]
    return ["docker", "run", "--rm", "--pull=never", *rights, f"--entrypoint={TOOL}", image]


def _before(system: System, desired: Json) -> Json:
    if tool(system, str(desired.get("image") or "")) is None:
        reason = f"{TOOL} (perftest) is neither on the node nor in the engine's image"
        return {"unverified": reason, "notes": [f"mesh unverified: {reason}"]}
    system.write(KEPT, json.dumps(_counters(system, desired)).encode() + b"\n", Meta(0o600, 0, 0, 0))
    return {"unverified": None}


def _counters(system: System, desired: Json) -> Json:
    """What every rule of the node has counted, and how many packets its kernel forwarded."""
    rules: Json = {}
    for rule in desired.get("forward", []):
        rows = [row for row in tc.filters(system, rule["netdev"]) if flow.of_filter(row) == flow.meaning(rule)]
        names = ("packets", "sw_packets", "drops")
        rules[rule["name"]] = {**{name: rows[0][name] for name in names}, "in_hw": rows[0]["in_hw"]} if rows else None
    return {"rules": rules, "kernel": kernel_forwarded(system.text("/proc/net/snmp") or "")}


def kernel_forwarded(text: str) -> int | None:
    """`ForwDatagrams` of the line "Ip:" in /proc/net/snmp, which `nstat` calls IpForwDatagrams."""
    lines = [line.split() for line in text.splitlines() if line.startswith("Ip:")]
    if len(lines) != 2 or "ForwDatagrams" not in lines[0]:
        return None
    return int(lines[1][lines[0].index("ForwDatagrams")])


def _after(system: System, node: str, desired: Json) -> Json:
    kept = json.loads(system.text(KEPT) or "null")
    if kept is None:
        raise Failure(READ_BACK, f"{node}: the counters of before are gone: run the check again")
    system.remove(KEPT)
    now = _counters(system, desired)
    found = [line for rule in desired.get("forward", []) for line in _rule(rule, kept["rules"], now["rules"])]
    if now["kernel"] != kept["kernel"]:
        found.append(
            f"IpForwDatagrams went from {kept['kernel']} to {now['kernel']}, plan wants it still: packets of the mesh "
            "go through the kernel"
        )
    if found:
        raise Failure(READ_BACK, *(f"{node} {line}" for line in found))
    return {"problems": []}


def _rule(rule: Json, kept: Json, now: Json) -> list[str]:
    label = f"{flow.slot(rule)} ({rule['name']})"
    old, new = kept.get(rule["name"]), now.get(rule["name"])
    if old is None or new is None:
        return [f"{label}: the rule is missing"]
    found = [] if new["in_hw"] else [f"{label}: not in hardware"]
    if new["packets"] is None or (old["packets"] is not None and new["packets"] <= old["packets"]):
        found.append(f"{label}: has counted {new['packets']} packets as before the write, plan wants more")
    found += [
        f"{label}: {name} is {new[name]}, plan wants {old[name] or 0}"
        for name in ("sw_packets", "drops")
        if (new[name] or 0) != (old[name] or 0)
    ]
    return found


def _turn(system: System, node: str, desired: Json, turn: int) -> Json:
    command = tool(system, str(desired.get("image") or ""))
    if command is None:
        return {"unverified": f"{TOOL} is missing"}
    listen = [one for one in desired.get("listen", []) if one["turn"] == turn]
    write = [one for one in desired.get("write", []) if one["turn"] == turn]
    calls: list[Callable[[], list[Json]]] = [
        partial(_listen, system, [*command, *_words(desired, one)]) for one in listen
    ]
    # One after the other: both paths of a rank to its opposite share its bus.
    calls.append(lambda: [_write(system, node, [*command, *_words(desired, one)], one) for one in write])
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


def _listen(system: System, command: list[str]) -> list[Json]:
    """What becomes of a listener shows at the writer."""
    system.run(command, timeout=LISTEN)
    return []


def _write(system: System, node: str, command: list[str], one: Json) -> Json:
    end = system.clock() + CONNECT
    while True:
        result = system.run([*command, one["host"]], timeout=WRITE)
        early = any(text in result.err + result.out for text in _REFUSED)
        if result.ok or not early or system.clock() > end:
            break
        system.sleep(_STEP)
    latency = typical(result.out) if result.ok else None
    problem = ""
    if latency is None:
        problem = (
            f"{node} {one['path']}: the write on {one['hca']} to {one['peer']} did not complete: {result.reason()}"
        )
    return {"path": one["path"], "latency": latency, "problem": problem}


def typical(text: str) -> float | None:
    """The typical latency in microseconds of `ib_write_lat`'s table: the column `t_typical[usec]`."""
    lines = text.splitlines()
    for head, row in itertools.pairwise(lines):
        names = head.replace("% percentile", "%_percentile").split()
        values = row.split()
        if "t_typical[usec]" in names and len(values) == len(names):
            try:
                return float(values[names.index("t_typical[usec]")])
            except ValueError:
                return None
    return None
