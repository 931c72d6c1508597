"""Settings in, everything a run needs to know out: what the nodes are, the plan, the drift, the problems.

`pulumi preview`, `pulumi up` and `python -m fleet` all come through here, so that they cannot disagree.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fleet import preflight
from fleet.drift import Drift, Group, of_fleet, of_group
from fleet.facts import parse
from fleet.image import ImageError, archive_id
from fleet.on_node import ROOT, Link
from fleet.picture import picture, table
from fleet.plan import Plan, PlanError, StackName, agreed_image, make
from fleet.probe import Probe, probe
from fleet.problems import Problem, ProblemsError, config_path
from fleet.settings import Settings
from fleet.ssh import links as links_of

OFFLINE = "SPARK_FABRIC_OFFLINE"  # set to 1: plan with the usual names, without any node; refuses `up`

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

    def outputs(self) -> dict[str, str | list[str] | dict[str, str | None]]:
        """What the stack shows when it is up."""
        return {
            "apiUrl": self.plan.api_url,
            "picture": picture(self.plan),
            "nodes": table(self.plan),
            "imageIds": {node.name: node.container.image_id for node in self.plan.ranks if node.container},
        }


def offline() -> bool:
    """Whether the operator asked for a plan without nodes."""
    return os.environ.get(OFFLINE, "") not in ("", "0")


def survey(settings: Settings, stack: StackName) -> Survey:
    """Look at every node once and plan; changes nothing.

    Raises ProblemsError with every problem of settings, nodes and plan.
    """
    links, problems = links_of(settings, keys_needed=not offline())
    archived, image_problems = _archived(settings)
    problems += image_problems
    if problems:
        raise ProblemsError(problems)
    if offline():
        plan = make(settings, None, stack, image_id=archived)
        return Survey(plan, {link.name: link for link in links}, Probe({}, {}), Drift(), OFFLINE_GROUP, plan.warnings)
    seen = probe(stack, settings.fleet.id, links)
    facts = {name: parse(observed) for name, observed in seen.observed.items()}
    problems, warnings = preflight.before_plan(settings, stack, seen)
    try:
        plan = make(settings, facts, stack, image_id=archived or agreed_image(settings, facts))
    except PlanError as error:
        raise ProblemsError([*problems, *(one for one in error.problems if one.code != "not-probed")]) from None
    more, further = preflight.check(plan, seen)
    if problems or more:
        raise ProblemsError([*problems, *more])
    found = of_fleet(plan, seen.observed)
    group = of_group(plan, seen.observed, new_start=f"{time.time():.0f}")
    return Survey(plan, {link.name: link for link in links}, seen, found, group, (*plan.warnings, *warnings, *further))


def _archived(settings: Settings) -> tuple[str | None, list[Problem]]:
    """The image id that the operator's archive stands for, if there is one."""
    image = settings.engine.image
    if image.archive is None:
        return None, []
    try:
        return archive_id(ROOT / Path(image.archive).expanduser(), image.ref), []
    except ImageError as error:
        path = config_path(("engine", "image", "archive"))
        return None, [Problem("image-archive", path, f"cannot be used: {error}", "an archive of `docker save`", "")]
