"""A look at answers of `observe`, judged, for tests of checks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fleet.facts import parse
from fleet.look import Look, Planned, with_plan
from fleet.plan import PlanError
from fleet.planner import make
from fleet.preflight import before_plan
from fleet.probe import Probe
from fleet.settings import Settings
from fleet.stack import StackName
from fleet.verdicts import Judged, judge

STACK = StackName("spark-fabric", "test")


def at_first(
    settings: Settings, stack: StackName, seen: Probe, lost: Iterable[str] = (), *, changing: bool = False
) -> Judged:
    """What is found before planning."""
    look = Look(settings, stack, seen, frozenset(lost), changing)
    return judge(before_plan(look), look.running)


def planned(settings: Settings, raw: Mapping[str, Any], **more: Any) -> Planned:
    """A look at these nodes with their plan, or the draft of one."""
    try:
        plan = make(settings, {name: parse(node) for name, node in raw.items()}, STACK)
    except PlanError as error:
        plan = error.draft
    clocks = more.pop("clocks", {})
    return with_plan(Look(settings, STACK, Probe(raw, {}, clocks), **more), plan)
