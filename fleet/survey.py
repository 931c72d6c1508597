"""Settings in, everything a run needs to know out: what the nodes are, the plan, the drift, the problems.

`pulumi preview`, `pulumi up` and `python -m fleet` all come through here, so that they cannot disagree.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleet import cabling, environment, overlay, preflight
from fleet.asking import Asked, begin, offline
from fleet.brought import Brought
from fleet.context import built_of
from fleet.discover import listen, remember, remembered
from fleet.drift import Drift, Group, Observed, of_fleet, of_group
from fleet.facts import Facts, parse
from fleet.look import Look, with_plan
from fleet.manifest import Reading, readings
from fleet.on_node import Link, lost_nodes, remember_links
from fleet.picture import picture, table
from fleet.plan import Plan, PlanError
from fleet.planner import make
from fleet.probe import Probe
from fleet.problems import Problem, ProblemsError
from fleet.settings import Settings
from fleet.stack import StackName
from fleet.topology import Topology
from fleet.verdicts import judge
from node.docker import STACK

OFFLINE_GROUP = Group(None, "offline")


@dataclass(frozen=True)
class Survey:
    """One look at the whole fleet."""

    plan: Plan
    links: Mapping[str, Link]
    seen: Probe
    drift: Drift
    group: Group
    warnings: tuple[Problem, ...]
    notes: tuple[Problem, ...] = ()
    ignored: tuple[Problem, ...] = ()  # what preflight.ignore keeps quiet
    readings: Sequence[Reading] = ()  # of weights, where there is a manifest of them

    @property
    def ours(self) -> frozenset[str]:
        """The nodes that answered and belong to this stack."""
        stack, fleet_id = self.plan.stack, self.plan.settings.fleet.id
        owners = {name: observed.get("owner") for name, observed in self.seen.observed.items()}
        return frozenset(name for name, owner in owners.items() if owner and stack.owns(owner, fleet_id))

    @property
    def others(self) -> frozenset[str]:
        """The nodes that answered and belong to another stack."""
        return frozenset(name for name, observed in self.seen.observed.items() if observed.get("owner")) - self.ours

    def outputs(self, *, hidden: bool = False) -> dict[str, Any]:
        """What the stack shows. `hidden` leaves out what the operator set by hand in the engines' environment."""
        mesh, containers = self.plan.mesh, self.plan.containers
        weights = {one.node: one.weights for one in containers} if self.plan.settings.engine.weights else {}
        return {
            "apiUrl": self.plan.api_url,
            "environment": environment.resolved(self.plan, hidden=hidden),
            "picture": picture(self.plan),
            "nodes": table(self.plan),
            **({"weights": weights} if weights else {}),
            **({"mesh": mesh.outputs([node.name for node in self.plan.ranks])} if mesh else {}),
        }


class Refused(ProblemsError):
    """Something stands in the way. What deviates on the nodes that can be read is told all the same, in `drift`."""

    def __init__(self, problems: Iterable[Problem], warnings: Iterable[Problem], drift: Iterable[str]) -> None:
        super().__init__(problems)
        self.warnings = tuple(warnings)
        self.drift = tuple(drift)

    def report(self) -> str:
        """The problems, then the warnings and the drift."""
        lines = [super().report()]
        if self.warnings:
            lines += ["Warnings:", *(f"  {one.text()}" for one in self.warnings)]
        if self.drift:
            lines += ["Deviations, which `up` repairs when the problems are gone:", *(f"  {one}" for one in self.drift)]
        return "\n".join(lines)


def survey(settings: Settings, stack: StackName, asked: Asked | None = None) -> Survey:
    """Look at every node once, if that has not begun, and plan; changes nothing.

    Raises ProblemsError with every problem of settings, and Refused with every problem of nodes and plan.
    """
    asked = asked or begin(settings, stack)
    if offline():
        plan = _planned(settings, stack, asked.brought, None)
        here = {link.name: link for link in asked.links}
        return Survey(plan, here, Probe({}, {}), Drift(), OFFLINE_GROUP, plan.warnings, plan.notes)
    found, problems = look(settings, stack, asked)
    if problems:
        raise Refused(problems, found.warnings, _deviations(found))
    return found


def look(settings: Settings, stack: StackName, asked: Asked) -> tuple[Survey, list[Problem]]:
    """What nodes answer, and every problem. With problems, the plan is a draft that must not be applied.

    Without what the operator brings, the nodes have been asked for what they have.
    """
    seen, links, own = asked.answers(), asked.links, asked.brought
    facts = {name: parse(observed) for name, observed in seen.observed.items()}
    lost = frozenset(lost_nodes(stack.stack))
    taken = Look(settings, stack, seen, lost, asked.changing, own.archive, own.manifest, own.machine)
    found = preflight.before_plan(taken)
    doubtful = {one.path for one in found if one.code in ("other-node", "other-owner")}
    remember_links(stack.stack, [link for link in links if link.name in seen.observed.keys() - doubtful])
    wires = cabling.Judgement(cabling.addressed(settings, facts))
    refused = bool(seen.unreachable or doubtful)  # in any case, and soon: nobody's nodes are asked for more
    if not refused:
        wires = _judged(settings, stack, links, seen, facts)
    try:
        plan = _planned(settings, stack, own, facts, _built(settings, stack, seen.observed), wires.ring)
    except PlanError as error:
        plan = error.draft
        found += [one for one in error.problems if one.code != "not-probed"]  # unreachable, and said already
    here = {link.name: link for link in links}
    found += [*wires.problems, *wires.warnings, *plan.warnings, *plan.notes]
    found += preflight.check(with_plan(taken, plan))
    if not refused:
        found += overlay.problems(plan, seen, here)
    wishes = settings.preflight
    judged = judge(found, taken.running, ignore=wishes.ignore, refuse=wishes.refuse)
    drift = of_fleet(plan, seen.observed)
    group = of_group(plan, seen.observed, new_start=f"{time.time():.0f}")
    read = readings(plan, own.manifest, seen.observed)
    survey = Survey(plan, here, seen, drift, group, judged.warnings, judged.notes, judged.ignored, read)
    return survey, list(judged.problems)


def _planned(
    settings: Settings,
    stack: StackName,
    own: Brought,
    facts: Mapping[str, Facts] | None,
    built: str | None = None,
    ring: Topology | None = None,
) -> Plan:
    """The plan with what the operator brings. Raises PlanError, which has a draft."""
    return make(
        settings,
        facts,
        stack,
        image_id=own.image_id,
        image_ref=own.image_ref or built,
        library=own.library,
        marker_size=own.marker_size,
        found=ring,
    )


def _built(settings: Settings, stack: StackName, observed: Mapping[str, Observed]) -> str | None:
    """The name of an image that was built and that nodes have, best of one that the stack's ranks run.

    For commands that cannot read all of what is built of: its args may be encrypted.
    """
    image, label = settings.engine.image, stack.label(settings.fleet.id)
    if image.build is None:
        return None
    names: dict[str, set[str]] = {}
    run: set[str | None] = set()
    for seen in observed.values():
        docker = seen.get("docker") or {}
        run |= {one.get("image_id") for one in docker.get("containers") or [] if one["labels"].get(STACK) == label}
        for name, identity in (docker.get("images") or {}).items():
            if built_of(image.ref).fullmatch(name):
                names.setdefault(name, set()).add(identity)
    return min(names, key=lambda name: (not names[name] & run, name), default=None)


def _judged(
    settings: Settings, stack: StackName, links: Sequence[Link], seen: Probe, facts: Mapping[str, Facts]
) -> cabling.Judgement:
    """What the wires say, as they were heard last or, if anything may have moved since, as they are heard now."""
    wires = remembered(stack, settings, seen.observed)
    heard = wires or listen(stack, settings, links)
    judged = cabling.judge(settings, facts, heard)
    if not wires and not judged.problems and not judged.warnings:
        remember(stack, settings, heard, seen.observed)
    return judged


def _deviations(found: Survey) -> list[str]:
    """The drift as text; nothing of a fleet that this stack has never been on, where all would be missing."""
    if not found.ours:
        return []
    mine = {key: one for key, one in found.drift.stages.items() if one.node not in found.others}
    return [*Drift(mine).lines(), *(f"engine: {reason}" for reason in found.group.reasons)]
