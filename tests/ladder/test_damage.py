"""Damage behind the program's back: named exactly, repaired with the least that is needed or refused, and then gone.

The tables are in `damages.py`. A round does all damages of one at once, since every look at a fleet and every start of
an engine takes time: one doctor, one preview, one `up`, one empty preview. The tests read what the round has seen, each
kind of damage in its own. The rounds share one stack, in the order of this file, and leave it whole.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from fleet.verdicts import DEVIATIONS, Verdict
from lab import api
from lab.shell import wait_for
from lab.snapshot import Snapshot, diff

from . import damages
from .conftest import NewRig
from .damages import CLAIM, DISRUPTIVE, ENGINES, IN_PLACE, REFUSED, STACK, WARNED, Damage, Engine
from .operations import Key, logged_up
from .rig import Rig, Unexpected
from .witness import Record, Witness, watching

DRIFT = sorted({row.code for row in DEVIATIONS if row.is_drift})
FABRIC = {("update", "fabric-staged"), ("update", "fabric-verified")}
GROUP = {("replace", name) for name in ("stop", "gate", "halt", "health")}
OWN = "/var/lib/spark-fabric/"  # the journal, and what lies beside it

Line = tuple[str, str, str, str]  # code, node, object, what was seen


@dataclass(frozen=True)
class Look:
    """What was said of a damaged fleet."""

    lines: list[Line]  # everything that fails or warns, by the doctor
    engine: list[str]
    exit: int

    def found(self, damage: Damage) -> None:
        """All lines of a damage are there, each once."""
        for node, told in damage.lines:
            hits = [line for line in self.lines if _is(line, node, told)]
            assert len(hits) == 1, f"{node} {told} is {hits} among {self.lines}"

    def nothing_but(self, table: Iterable[Damage]) -> None:
        """Every line is of a damage."""
        wanted = [one for damage in table for one in damage.lines]
        strange = [line for line in self.lines if not any(_is(line, *one) for one in wanted)]
        assert strange == []


def _is(line: Line, node: str, told: damages.Told) -> bool:
    return line[:3] == (told.code, node, told.subject) and line[3].startswith(told.seen)


@dataclass(frozen=True)
class Round:
    """What one round has seen: of the damages, of what would be done, of what was done, and of what is left."""

    look: Look
    reasons: dict[str, str]  # resource -> the text that its update ends with
    planned: set[Key]
    done: set[Key]
    record: Record
    since: int
    left: list[str]  # that is not as before the damage
    empty: str  # "" where the next preview finds nothing to do, else what it said


@dataclass
class Fleet:
    """A stack that is up, and the nodes' own record."""

    rig: Rig
    witness: Witness

    def harm(self, table: Iterable[Damage | Engine]) -> None:
        """Do all damages, side by side on the nodes."""
        self._everywhere([(one.node, one.harm) for one in table])

    def undo(self, table: Iterable[Damage | Engine]) -> None:
        """Take away what no `up` does, the last first."""
        self._everywhere([(one.node, one.undo) for one in reversed([*table])])

    def _everywhere(self, commands: Iterable[tuple[str, str]]) -> None:
        scripts: dict[str, list[str]] = {}
        for node, command in commands:
            scripts.setdefault(node, ["set -e"]).append(command)
        with ThreadPoolExecutor(len(scripts)) as pool:
            lab = self.rig.lab
            list(pool.map(lambda node: lab.run(node, "\n".join(scripts[node]), timeout=120), scripts))

    def look(self, *, refuse: bool = True) -> Look:
        """What the doctor says. With `refuse`, deviations come one by one with their codes."""
        with self.rig.changed("preflight.refuse", DRIFT if refuse else []):
            run = self.rig.fleet("doctor", "--json", ok=None)
        said: dict[str, Any] = json.loads(run.out)
        assert said["exit"] == run.code
        bad = [line for line in said["lines"] if line["word"] in ("fail", "warn")]
        lines = [
            (line["code"], line["node"] or "", line["subject"], line["seen"])
            for line in bad
            if line["code"] != "engine" and not line["code"].startswith("drift ")
        ]
        return Look(lines, [line["seen"] for line in bad if line["code"] == "engine"], run.code)

    def reasons(self) -> tuple[set[Key], dict[str, str]]:
        """What an `up` would do, and the reason that each update shows."""
        out = self.rig.pulumi("preview", "--json").out
        steps = [step for step in json.loads(out[out.index("{") :])["steps"] if step["op"] != "same"]
        names = {step["urn"].rsplit("::", 1)[-1]: step for step in steps}
        texts = {
            name: str(step["newState"].get("inputs", {}).get("update") or "").partition(" # ")[2]
            for name, step in names.items()
            if step["op"] == "update"
        }
        kinds = {("replace" if "replace" in step["op"] else step["op"], name) for name, step in names.items()}
        return kinds, texts

    def round(self, table: Iterable[Damage | Engine], settled: Any = None) -> Round:
        """Damage, look, preview, repair, and look whether all is as before."""
        lab, rig = self.rig.lab, self.rig
        before = self.before
        self.harm(table)
        if settled:
            assert wait_for(settled, 30, every=0.5)
        look = self.look()
        planned, reasons = self.reasons()
        since = time.time_ns()
        _, done = logged_up(rig)
        record = self.witness.record(since)
        try:
            rig.unchanged()
            empty = ""
        except Unexpected as error:
            empty = str(error)
        after = lab.snapshots(like=before)
        left = [f"{name} {line}" for name in before for line in diff(before[name], after[name]) if OWN not in line]
        return Round(look, reasons, planned, done.kinds, record, since, left, empty)

    before: dict[str, Snapshot] = None  # type: ignore[assignment]


def reason_of(damage: Damage, reasons: dict[str, str]) -> str:
    """The text of the resource that repairs a damage."""
    name = "fabric-verified" if damage.stage == "neighbours" else f"{damage.node}-{damage.stage}"
    return reasons[name]


def updates(table: Iterable[Damage]) -> set[Key]:
    """What has to be updated for damages, no more."""
    stages = {(node, one.stage) for one in table for node, _ in one.lines}
    return FABRIC | {("update", f"{node}-{stage}") for node, stage in stages if stage != "neighbours"}


@pytest.fixture(scope="module")
def fleet(ring_lab: api.Handle, new_rig: NewRig) -> Iterator[Fleet]:
    """Four nodes in a ring, up."""
    rig = new_rig(ring_lab, STACK)
    fresh = ring_lab.snapshots()
    with watching(ring_lab) as witness:
        try:
            rig.up()
            found = Fleet(rig, witness)
            found.before = ring_lab.snapshots()
            yield found
        finally:
            rig.destroy()
    rig.assert_empty()
    for node, command in damages.AFTERWARDS:
        ring_lab.run(node, command)
    rig.assert_as(fresh)


@pytest.fixture(scope="module")
def in_place(fleet: Fleet) -> Round:
    """What is repaired under the engine."""
    return fleet.round(IN_PLACE)


@pytest.mark.parametrize("damage", IN_PLACE, ids=str)
def test_what_no_engine_feels_is_named_at_the_resource_that_repairs_it(in_place: Round, damage: Damage) -> None:
    in_place.look.found(damage)
    rows = [row for told in damage.told for row in DEVIATIONS if row.code == told.code and row.idle in Verdict]
    assert Verdict.IN_PLACE in {row.idle for row in rows}
    assert f"{damage.told[0].subject}: {damage.told[0].seen}" in reason_of(damage, in_place.reasons)


def test_what_no_engine_feels_is_repaired_under_it_and_nothing_else_is_touched(in_place: Round) -> None:
    in_place.look.nothing_but(IN_PLACE)
    assert in_place.planned == in_place.done == updates(IN_PLACE)
    assert in_place.record.ended(in_place.since) == set()
    assert in_place.record.naming("kernel link") == []
    assert in_place.empty == ""
    assert [line for line in in_place.left if damages.PROFILE not in line] == []
