"""Order, as the nodes themselves wrote it down: when engines ran, and when anything disruptive happened.

Knows nothing of the product: calls of programs come from the lab's trace, lives of engines from docker, and what
really changed from each node's kernel. All nodes have the clock of the machine that simulates them, so that their
times compare.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lab import api
from lab.shell import LabError, wait_for

from . import kernel_watch

if TYPE_CHECKING:
    from lab.trace import Call, Event

STACK_LABEL = "spark-fabric.stack"
FOREVER = 1 << 63
# Everything here may be felt by a running engine; what the trace knows beyond it may not.
CHANGES = "add del change replace append flush set".split()
PROFILE_VERBS = "up down add modify edit delete reload load clone import set u d a m r l mod del".split()
DEVICE_VERBS = "connect reapply disconnect set modify delete up down c d m r mod del".split()
DISRUPTIVE = {
    "netplan": {"apply", "try", "set", "rebind", "generate"},
    "nmcli": {
        *(f"connection-{verb}" for verb in PROFILE_VERBS),
        *(f"device-{verb}" for verb in DEVICE_VERBS),
        *(f"networking-{verb}" for verb in ("on", "off")),
    },
    "ip": {"batch", *(f"{thing}-{verb}" for thing in ("addr", "link", "route", "neigh", "rule") for verb in CHANGES)},
    "tc": {"batch", *(f"{thing}-{verb}" for thing in ("qdisc", "filter") for verb in CHANGES)},
    "devlink": {"dev-reload", "dev-param-set", "dev-eswitch-set"},
    "ethtool": {"K"},
    "marker": {"attach", "detach"},
}
UNITS = ("spark-fabric", "dsv41-mesh", "NetworkManager", "systemd-networkd", "docker", "containerd")


def is_disruptive(call: Call) -> bool:
    """Whether a call of a program on a node may be felt by an engine that runs there or on another node."""
    if call.tool in ("sysctl", "iptables"):
        return True  # the trace has only those that change something
    if call.tool == "systemctl":
        return any(word.startswith(UNITS) for word in call.argv)
    return call.verb in DISRUPTIVE.get(call.tool, set())


@dataclass(frozen=True)
class Span:
    """Something on a node, from one moment to another, in ns since 1970."""

    node: str
    what: str
    began: int
    ended: int

    def meets(self, other: Span) -> bool:
        """Whether both were there at one time."""
        return self.began <= other.ended and other.began <= self.ended

    def __str__(self) -> str:
        return f"{self.node}: {self.what} [{self.began / 1e9:.3f} to {self.ended / 1e9:.3f}]"


@dataclass(frozen=True)
class Record:
    """All that the nodes wrote down since a moment."""

    calls: list[Call]  # that change something
    changes: list[Span]  # that the kernel saw, of fabric ports
    lives: list[Span]  # of engine containers, from their create to their end; also of those from before

    @property
    def disturbances(self) -> list[Span]:
        """Everything that no engine may see, in order of time."""
        called = [
            Span(call.node, shlex.join([call.tool, *call.argv]), call.began, call.ended or time.time_ns())
            for call in self.calls
            if is_disruptive(call)
        ]
        return sorted([*called, *self.changes], key=lambda span: span.began)

    def disturbed(self) -> list[str]:
        """Every disturbance that an engine anywhere in the fleet lived to see; empty if the order was right."""
        seen = [f"{one} while {life}" for one in self.disturbances for life in self.lives if one.meets(life)]
        seen += [
            f"{call.node}: {shlex.join([call.tool, *call.argv])} found {engine[:12]} running"
            for call in self.calls
            if is_disruptive(call)
            for engine in sorted(call.engines)
        ]
        return seen

    def naming(self, *words: str) -> list[str]:
        """Calls and changes that name one of the words."""
        texts = [f"{call.node}: {shlex.join([call.tool, *call.argv])}" for call in self.calls]
        texts += [str(change) for change in self.changes]
        return [text for text in texts if any(word in text for word in words)]

    def ended(self, since: int) -> set[str]:
        """Nodes on which an engine ended after a moment."""
        return {life.node for life in self.lives if since <= life.ended < FOREVER}

    def assert_disruption_without_engine(self) -> None:
        """Something disruptive happened, and no engine anywhere in the fleet lived to see any of it."""
        assert self.disturbances, "nothing disruptive happened at all"
        disturbed = self.disturbed()
        assert not disturbed, f"{len(disturbed)} times, such as\n" + "\n".join(disturbed[:20])

    def assert_all_replaced(self, since: int, before: Iterable[str], after: Iterable[str] | None = None) -> None:
        """Every engine of one set of nodes was gone before the first one of the other (or the same) began."""
        old = {life.node: life.ended for life in self.lives if life.began < since}
        new = {life.node: life.began for life in self.lives if life.began >= since}
        assert set(old) == set(before), f"engines ran on {sorted(old)}"
        assert set(new) == set(before if after is None else after), f"engines were started on {sorted(new)}"
        assert max(old.values()) < min(new.values()), "an engine was started beside old ones"


@dataclass(frozen=True)
class Witness:
    """What is written down on the nodes of a lab while it is watched."""

    lab: api.Handle

    def record(self, since: int) -> Record:
        """Everything since a moment (`time.time_ns()`)."""
        calls, events = self.lab.traces()
        return Record(
            [call for call in calls if (call.ended or time.time_ns()) >= since],
            [change for change in self._changes() if change.began >= since],
            [life for life in lives(events) if life.ended >= since],
        )

    def _changes(self) -> Iterator[Span]:
        for node, text in self.lab.everywhere(f"cat {kernel_watch.LOG} 2>/dev/null || :").items():
            for row in map(json.loads, text.splitlines()):
                yield Span(node, f"kernel {row['kind']}: {row['text']}", row["time"], row["time"])


def lives(events: Iterable[Event]) -> Iterator[Span]:
    """From the create of each engine's container to its end, or to the end of time."""
    created: dict[tuple[str, str], int] = {}
    for event in events:
        if STACK_LABEL not in event.attributes:
            continue
        key = event.node, event.container
        match event.verb:
            case "create" | "start":
                created.setdefault(key, event.time)
            case "die" | "destroy" if event.verb == "die" or key in created:  # one that never ran does not die
                yield Span(event.node, f"engine {event.container[:12]}", created.pop(key, 0), event.time)
    for (node, container), began in created.items():
        yield Span(node, f"engine {container[:12]}", began, FOREVER)


@contextmanager
def watching(lab: api.Handle) -> Iterator[Witness]:
    """Watch the kernels of all nodes for a while. The lab has to have a trace."""
    program = shlex.quote(Path(kernel_watch.__file__).read_text())
    end = f"kill -- -$(cat {kernel_watch.LEADER}) 2>/dev/null; rm -rf {kernel_watch.FOLDER}"
    lab.everywhere(f"{end}; setsid -f python3 -IS -c {program} </dev/null >/dev/null 2>&1")
    try:
        if not wait_for(lambda: _all_watched(lab), every=0.2):
            raise LabError(f"{lab.lab.name}: the kernels cannot be watched")
        yield Witness(lab)
    finally:
        lab.everywhere(end, check=False)


def _all_watched(lab: api.Handle) -> bool:
    return all(lab.everywhere(f"cat {kernel_watch.LEADER} 2>/dev/null || :").values())
