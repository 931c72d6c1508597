"""What has to be in the image, known before any engine is stopped: the file that the library is to lie over, and the
modules that variables need of an image of the operator's own.

What an image holds follows from its id, so one node is asked once for each image, and the answer is kept beside the
stack's ssh files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fleet import on_node
from fleet.docker_on_node import ImageError
from fleet.engine_rules import modules, where
from fleet.image import IN_PATH, SET_TARGET, has_module, holds
from fleet.on_node import Link
from fleet.plan import Plan
from fleet.probe import Probe
from fleet.problems import Problem, config_path
from fleet.profiles import CAPABILITIES

LISTING = "targets.json"
KEPT = 20  # answers
TARGET = config_path(("nccl", "target"))

Ask = Callable[[Path, Link, str, str], bool]


@dataclass(frozen=True)
class Question:
    """Whether the image has something. `no` is the problem where it has not."""

    ask: Ask
    about: str
    no: Problem


def problems(plan: Plan, seen: Probe, links: Mapping[str, Link]) -> list[Problem]:
    """What the image lacks, or that it cannot be asked; nothing while no node has the image."""
    identity, stack = plan.image_id, plan.stack.stack
    having = [node.name for node in plan.ranks if identity in _images(seen, node.name)]
    if identity is None or not having:
        return []
    found: list[Problem] = []
    link = links[having[0]]
    for question in _questions(plan):
        answer, known_answers = f"{identity} {question.about}", _known(stack)
        if answer in known_answers:
            continue
        try:
            there = question.ask(on_node.ssh_config(stack, link), link, identity, question.about)
        except ImageError as error:
            place, _, said = str(error).partition(": ")
            hint = "The image needs /bin/sh."
            return [*found, Problem("image-look", place, said, f"a look for {question.about} in it", hint)]
        if there:
            listing = json.dumps([*known_answers, answer][-KEPT:], indent=1) + "\n"
            on_node.replace(on_node.folder(stack) / LISTING, listing)
        else:
            found.append(question.no)
    return found


def _questions(plan: Plan) -> Iterator[Question]:
    """What this plan needs of the image; an `up` that brings it asks the same (`Plan.image`)."""
    settings = plan.settings
    ref, target = plan.image_ref, settings.overlay_target
    if target is not None:
        seen = f"is {target}, and {ref} holds no such file"
        yield Question(
            holds, target, Problem("overlay-target", TARGET, seen, "a file of the image, to lie over", SET_TARGET)
        )
    for name, module in modules(settings).items():
        path, seen = config_path(where(settings, name)), f"is set, and {ref} has no module {module}"
        wanted = f"an image with it: {_what(module)}"
        yield Question(has_module, module, Problem("image-module", path, seen, wanted, IN_PATH))


def _what(module: str) -> str:
    return next(one.what for one in CAPABILITIES.values() if one.module == module)


def _images(seen: Probe, name: str) -> set[str]:
    return set((((seen.observed.get(name) or {}).get("docker") or {}).get("images") or {}).values())


def _known(stack: str) -> list[str]:
    try:
        known_answers: list[str] = json.loads((on_node.folder(stack) / LISTING).read_text())
    except (OSError, ValueError):
        return []
    return known_answers
