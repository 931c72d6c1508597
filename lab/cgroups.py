"""A control group per node, in every hierarchy that the machine has.

Each node's systemd then sees a root of its own, and everything that a node runs can be found,
measured and ended by membership.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from .shell import wait_for

if TYPE_CHECKING:
    from .model import Node

PARENT = "spark-fabric-lab"


def _hierarchies() -> list[Path]:
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [Path(fields[1]) for fields in mounts if fields[2] in ("cgroup", "cgroup2")]


def _groups(node: Node) -> list[Path]:
    return [root / PARENT / node.lab / node.name for root in _hierarchies()]


def create(node: Node) -> list[Path]:
    """Make the node's groups and return them."""
    groups = _groups(node)
    for group in groups:
        levels = (group.parent.parent, group.parent, group)
        for level in levels:
            level.mkdir(exist_ok=True)
            for file in ("cpuset.cpus", "cpuset.mems"):  # v1: empty until set, and unusable so
                if (level / file).exists() and not (level / "cgroup.controllers").exists():
                    (level / file).write_text((level.parent / file).read_text())
        for level in (level.parent for level in levels):  # v2: hand the controllers down
            available = level / "cgroup.controllers"
            if available.exists():
                for controller in available.read_text().split():
                    (level / "cgroup.subtree_control").write_text(f"+{controller}")
    return groups


def members(node: Node) -> set[int]:
    """Every process of the node, as the machine numbers them."""
    found: set[int] = set()
    for group in _groups(node):
        for listing in group.rglob("cgroup.procs"):
            try:
                found.update(int(number) for number in listing.read_text().split())
            except OSError:  # the group went away meanwhile
                continue
    return found


def kill(node: Node) -> bool:
    """Cut the node's power; False if something is left after a minute."""

    def empty() -> bool:
        left = members(node)
        for process in left:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        return not left

    return wait_for(empty)


def remove(node: Node) -> None:
    """Remove the node's empty groups."""
    for group in _groups(node):
        below = sorted((p for p in group.rglob("*") if p.is_dir()), reverse=True)
        for directory in (*below, group):
            if directory.exists():
                directory.rmdir()


def remove_parents(lab: str, last: bool) -> None:
    """Remove what held a lab's groups and, with the machine's last lab, what held all labs'."""
    for root in _hierarchies():
        for group in (root / PARENT / lab, *([root / PARENT] if last else [])):
            if group.exists():
                group.rmdir()


def memory(node: Node) -> int:
    """Bytes of anonymous memory that the node holds."""
    for group in _groups(node):
        stat = group / "memory.stat"
        if stat.exists():
            values = dict(line.split() for line in stat.read_text().splitlines())
            return int(values.get("total_rss") or values.get("anon") or 0)
    return 0
