"""What a node counts of the mesh: its rules, its kernel, its queues; and whether packets went where they should.

A rule counts what the card passes on. The kernel counts what it forwards itself, whoever sent it, and each port what it
gives the kernel: a packet that is not marked, or misses its rule, is in both. A hairpin queue that is full drops, and
does not hold the sender back: `rx_out_of_buffer` of the port by which the packet came in (mlx5; the launcher's authors
saw it rise with queues of 1024). The ends of the queue pair then count `out_of_sequence` and `packet_seq_err`.
"""

import re
from functools import partial
from typing import Any

from . import flow, tc
from .system import System

LOST = ("out_of_sequence", "packet_seq_err")
"""Counters of an RDMA device at an end of a queue pair whose packets were lost on the way."""

OVERRUN = "rx_out_of_buffer"
_OVERRUN = re.compile(rf"^\s*{OVERRUN}: (\d+)\s*$", re.MULTILINE)

Json = dict[str, Any]


def read(system: System, rules: list[Json]) -> Json:
    """{"rules": {name: {"packets", "sw_packets", "drops", "in_hw"} or null}, "kernel", "received": {netdev: …}}.

    `rules` as the stage `forwarding` has them; null where there is none with that meaning. "kernel" is what the kernel
    has forwarded, "received" what each port of the rules gave it, in packets; null where that cannot be read. Raises
    `Failure` where tc does not answer.
    """
    found: Json = {}
    for rule in rules:
        rows = [row for row in tc.filters(system, rule["netdev"]) if flow.of_filter(row) == flow.meaning(rule)]
        names = ("packets", "sw_packets", "drops", "in_hw")
        found[rule["name"]] = {name: rows[0][name] for name in names} if rows else None
    return {
        "rules": found,
        "kernel": kernel_forwarded(system.text("/proc/net/snmp") or ""),
        "received": {netdev: _count(system, f"/sys/class/net/{netdev}/statistics/rx_packets") for netdev in _of(rules)},
    }


def overruns(system: System, rules: list[Json]) -> dict[str, int | None]:
    """`rx_out_of_buffer` of each port of the rules; null where the driver does not tell it. A process a port."""
    netdevs = _of(rules)
    shown = system.parallel([partial(system.run, ["ethtool", "-S", netdev]) for netdev in netdevs])
    counts = (_OVERRUN.search(one.out) if one.ok else None for one in shown)
    return {netdev: int(count[1]) if count else None for netdev, count in zip(netdevs, counts, strict=True)}


def lost(system: System, hca: str) -> dict[str, int | None]:
    """The counters `LOST` of an RDMA device; null where there is none."""
    return {name: _count(system, f"/sys/class/infiniband/{hca}/ports/1/hw_counters/{name}") for name in LOST}


def _of(rules: list[Json]) -> list[str]:
    """The ports that rules take packets in by and send them out of."""
    return sorted({rule[end] for rule in rules for end in ("netdev", "egress")})


def _count(system: System, path: str) -> int | None:
    text = system.text(path) or ""
    return int(text) if text.isdigit() else None


def kernel_forwarded(text: str) -> int | None:
    """`ForwDatagrams` of the line "Ip:" in /proc/net/snmp, which `nstat` calls IpForwDatagrams. Pure."""
    lines = [line.split() for line in text.splitlines() if line.startswith("Ip:")]
    if len(lines) != 2 or "ForwDatagrams" not in lines[0]:
        return None
    return int(lines[1][lines[0].index("ForwDatagrams")])


def more(old: Any, new: Any) -> int | None:
    """By how much a count has grown, or several of the same names together; None where one cannot be read. Pure."""
    before, after = (side if isinstance(side, dict) else {"": side} for side in (old, new))
    if None in (*before.values(), *after.values()):
        return None
    return sum(int(after[key]) - int(before[key]) for key in after)


def wrong(rule: Json, old: Json, new: Json, meanwhile: str) -> list[str]:
    """What is wrong with a rule by its counts before and after traffic of its path, such as "the write". Pure."""
    label = f"{flow.slot(rule)} ({rule['name']})"
    before, after = old.get(rule["name"]), new.get(rule["name"])
    if before is None or after is None:
        return [f"{label}: the rule is missing"]
    found = [] if after["in_hw"] else [f"{label}: not in hardware"]
    if after["packets"] is None or (before["packets"] is not None and after["packets"] <= before["packets"]):
        found.append(f"{label}: has counted {after['packets']} packets as before {meanwhile}, plan wants more")
    found += [
        f"{label}: {name} is {after[name]}, plan wants {before[name] or 0}"
        for name in ("sw_packets", "drops")
        if (after[name] or 0) != (before[name] or 0)
    ]
    return found


def passed_by(forwarded: int | None, arrived: int | None, least: int, of: str) -> tuple[bool | None, str]:
    """Whether packets of the mesh went through the kernel, None where that is open, and what to say about it. Pure.

    `forwarded` is what the kernel has forwarded meanwhile, `arrived` what the mesh's ports gave it in that time; both
    in packets. Containers make a kernel forward as well, but by other ports. `least` packets, those `of` something, are
    what a path brings at least by a port of the mesh that is not marked, or misses its rule.
    """
    if not forwarded and forwarded is not None:
        return False, ""
    seen = f"IpForwDatagrams grew by {forwarded}"
    if forwarded is None or arrived is None:
        gap = "IpForwDatagrams cannot be read" if forwarded is None else f"{seen}, and nobody tells by which ports"
        return None, f"{gap}: whether packets of the mesh go through the kernel is open"
    seen += f" while the mesh's ports gave the kernel {arrived} packets"
    if min(forwarded, arrived) < least:
        return False, f"{seen}, fewer than {least}, {of}: something else is forwarded, such as containers'"
    return True, (
        f"{seen}, plan wants fewer than {least}, {of}: packets of the mesh go through the kernel, or somebody "
        "else's do by these ports"
    )
