"""What an `up` did resource by resource, and in which order, from the log of the Pulumi engine."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from .rig import Rig, Run, Step

BEGIN, END = "resourcePreEvent", "resOutputsEvent"
NOTHING = ("same", "replace")  # `replace` only announces `delete-replaced` or `create-replacement`
GONE = "remove-pending-replace"
ENGINE_LOG = {"PULUMI_DEBUG_COMMANDS": "true"}  # without it there is no --event-log

Key = tuple[str, str]  # operation, resource name


@dataclass
class Operations:
    """Everything that was done, each with its begin and end as places in the log."""

    spans: dict[Key, tuple[int, int]]

    @classmethod
    def parse(cls, lines: Iterable[str]) -> Operations:
        """Read the log of one run."""
        begun: dict[Key, int] = {}
        spans: dict[Key, tuple[int, int]] = {}
        for event in map(json.loads, lines):
            for kind in event.keys() & {BEGIN, END}:
                metadata = event[kind]["metadata"]
                key = metadata["op"], metadata["urn"].rsplit("::", 1)[-1]
                if key[0] in NOTHING:
                    continue
                if kind == BEGIN:
                    begun[key] = event["sequence"]
                else:
                    spans[key] = begun[key], event["sequence"]
        return cls(spans)

    @property
    def kinds(self) -> set[Key]:
        """The operations as a preview names them.

        A replacement is one operation. What a chain of replacements takes away for good is in no preview.
        """
        return {(_kind(op), name) for op, name in self.spans if (GONE, name) not in self.spans}

    def assert_exactly(self, *groups: Iterable[Key]) -> None:
        """Nothing but the groups was done, and each group was finished before the next began."""
        sets = [set(group) for group in groups]
        assert set(self.spans) == set().union(*sets), set(self.spans) ^ set().union(*sets)
        for earlier, later in pairwise(sets):
            last = max(earlier, key=lambda key: self.spans[key][1])
            first = min(later, key=lambda key: self.spans[key][0])
            assert self.spans[last][1] < self.spans[first][0], f"{first} began before {last} ended"

    def assert_chain(self, *keys: Key) -> None:
        """Each operation ended before the next began."""
        for earlier, later in pairwise(keys):
            assert self.spans[earlier][1] < self.spans[later][0], f"{later} began before {earlier} ended"


def _kind(op: str) -> str:
    return "replace" if op in ("delete-replaced", "create-replacement", "replace") else op


def planned(preview: Mapping[str, Step]) -> set[Key]:
    """The operations of a preview."""
    return {(_kind(step.op), step.name) for step in preview.values()}


def logged_up(rig: Rig) -> tuple[Run, Operations]:
    """`pulumi up`, and what it did."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "events"
        run = rig.pulumi("up", "--yes", "--skip-preview", "--event-log", str(log), env=ENGINE_LOG)
        return run, Operations.parse(log.read_text().splitlines())
