"""What the nodes of a lab with `--trace` have recorded: commands that change something, and containers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

FILE = "/var/log/lab-trace.jsonl"
BREAK, BROKEN = "/run/lab/break", "/run/lab/broken"


@dataclass
class Call:
    """One call of a command that changes something. Times are the node's, in ns since 1970."""

    node: str
    tool: str
    verb: str
    argv: list[str]
    parent: str  # name of the calling program
    began: int
    engines_before: list[str]  # ids of the stack's containers that ran
    ended: int | None = None  # None: still running, or cut off
    code: int | None = None
    engines_after: list[str] = field(default_factory=list)

    @property
    def engines(self) -> set[str]:
        """Every container of the stack that ran at its begin or at its end."""
        return {*self.engines_before, *self.engines_after}


@dataclass(frozen=True)
class Event:
    """What docker said of a container: create, start, kill, stop, die, oom, destroy."""

    node: str
    time: int
    verb: str
    container: str
    attributes: dict[str, str]  # its labels, `name`, `image`, `exitCode`


def parse(node: str, lines: Iterable[str]) -> tuple[list[Call], list[Event]]:
    """Calls and events of one node, each in order of time."""
    calls: list[Call] = []
    events: list[Event] = []
    running: dict[str, Call] = {}
    for line in lines:
        row: dict[str, Any] = json.loads(line)
        match row["event"]:
            case "docker":
                events.append(Event(node, row["time"], row["verb"], row["id"], row["attributes"]))
            case "begin":
                call = Call(node, row["tool"], row["verb"], row["argv"], row["parent"], row["time"], row["engines"])
                running[row["call"]] = call
                calls.append(call)
            case "end":
                call = running.pop(row["call"])
                call.ended, call.code, call.engines_after = row["time"], row["code"], row["engines"]
    return sorted(calls, key=lambda call: call.began), sorted(events, key=lambda event: event.time)
