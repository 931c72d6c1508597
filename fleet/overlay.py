"""Whether the image has the file that the library is to lie over, known before any engine is stopped.

What an image holds follows from its id, so one node is asked once for each image, and the answer is kept beside the
stack's ssh files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from fleet import on_node
from fleet.image import SET_TARGET, ImageError, holds
from fleet.on_node import Link
from fleet.plan import Plan
from fleet.probe import Probe
from fleet.problems import Problem, config_path

LISTING = "targets.json"
KEPT = 20  # answers
TARGET = config_path(("nccl", "target"))


def problems(plan: Plan, seen: Probe, links: Mapping[str, Link]) -> list[Problem]:
    """That the image lacks the file, or cannot be asked; nothing while no node has the image."""
    target, identity, stack = plan.settings.overlay_target, plan.image_id, plan.stack.stack
    having = [node.name for node in plan.ranks if identity in _images(seen, node.name)]
    if target is None or identity is None or not having:
        return []
    answer, known = f"{identity} {target}", _known(stack)
    if answer in known:
        return []
    link = links[having[0]]
    try:
        there = holds(on_node.ssh_config(stack, link), link, identity, target)
    except ImageError as error:
        where, _, said = str(error).partition(": ")
        return [Problem("image-look", where, said, "a look for nccl.target in it", "The image needs /bin/sh.")]
    if there:
        listing = json.dumps([*known, answer][-KEPT:], indent=1) + "\n"
        on_node.replace(on_node.folder(stack) / LISTING, listing)
        return []
    seen_there = f"is {target}, and {plan.settings.engine.image.ref} holds no such file"
    return [Problem("overlay-target", TARGET, seen_there, "a file of the image, to lie over", SET_TARGET)]


def _images(seen: Probe, name: str) -> set[str]:
    return set((((seen.observed.get(name) or {}).get("docker") or {}).get("images") or {}).values())


def _known(stack: str) -> list[str]:
    try:
        known: list[str] = json.loads((on_node.folder(stack) / LISTING).read_text())
    except (OSError, ValueError):
        return []
    return known
