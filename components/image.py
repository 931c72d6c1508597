"""The engine's image: built on one node, brought to each, while an old engine may still run; kept at destroy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pulumi
from pulumi_command import local

from components.config import holds_secret
from components.remote import Owner, on_nodes, timeouts
from fleet import bringing, building
from fleet.docker_on_node import ASK_LIMIT_S
from fleet.drift import Drift
from fleet.image import LOOK_LIMIT_S, looks
from fleet.on_node import Link
from fleet.plan import Plan

ENSURE = "exec python3 -IS fleet/image.py"
BUILD = "exec python3 -IS fleet/building.py"
IN_PLAIN = (
    "engine.image.build.secrets is plain text in the stack file, and so in the history of its updates: "
    "set each with `pulumi config set --secret --path`"
)
AT_ONCE = 2
"""Copies: each may take the room of an image on the node that has it, and all share this machine's line."""

AS = re.compile(r", (sha256:[0-9a-f]{64})$", re.MULTILINE)  # behind the name, which may end with another digest


def images_on(
    plan: Plan, links: Mapping[str, Link], owner: Owner, drift: Drift, parent: pulumi.Resource
) -> dict[str, local.Command]:
    """The resources that make sure of the image, by the names of the ranks' nodes."""
    after: list[pulumi.Resource] = []
    sources: list[Link] = []
    if plan.build is not None:
        builder = plan.settings.builder
        sources = [links[builder]]
        ranks = [links[node.name] for node in plan.ranks]
        after = [_built(plan.build, ranks, builder, owner, drift.repair(builder, "image"), parent)]
    images: dict[str, local.Command] = {}
    copies: list[local.Command] = []
    for node in plan.ranks:
        others = [one for one in sources if one.name != node.name]
        ahead = copies[-AT_ONCE] if others and len(copies) >= AT_ONCE else None
        images[node.name] = _image_on(
            [links[node.name], *others],
            plan.image,
            owner,
            drift.repair(node.name, "image"),
            [*after, *([ahead] if ahead else [])],
            parent,
        )
        copies += [images[node.name]] if others else []
    return images


def identity(image: local.Command) -> pulumi.Output[str | None]:
    """The id that the image turned out to have on a node."""
    return image.stdout.apply(lambda said: found[1] if (found := AS.search(said)) else None)


def _built(
    wanted: Mapping[str, Any],
    ranks: list[Link],
    builder: str,
    owner: Owner,
    repair: str | None,
    parent: pulumi.Resource,
) -> local.Command:
    """The resource that has the image built. What it is told is a secret, since secrets are in it."""
    if wanted["secrets"] and not holds_secret("engine"):
        pulumi.warn(IN_PLAIN)
    longest = building.LIMIT_S + bringing.LIMIT_S + building.REMOVE_LIMIT_S + 8 * ASK_LIMIT_S
    return on_nodes(
        "image-build",
        ranks,
        owner,
        "image",
        {builder: wanted},
        create=BUILD,
        update=BUILD,
        repair=repair,
        secret=bool(wanted["secrets"]) or holds_secret("engine"),
        opts=pulumi.ResourceOptions(parent=parent, custom_timeouts=timeouts(longest)),
    )


def _image_on(
    links: list[Link],
    wanted: Mapping[str, Any],
    owner: Owner,
    repair: str | None,
    after: Sequence[pulumi.Resource],
    parent: pulumi.Resource,
) -> local.Command:
    """The resource that makes sure of the image on the first node. `repair` says that it is gone although it was there.

    Behind that node comes the one that it is copied from, if there is one.
    """
    return on_nodes(
        f"{links[0].name}-image",
        links,
        owner,
        "image",
        {links[0].name: wanted},
        create=ENSURE,
        update=ENSURE,
        repair=repair,
        opts=pulumi.ResourceOptions(
            parent=parent,
            depends_on=list(after),
            custom_timeouts=timeouts(bringing.LIMIT_S + looks(wanted) * LOOK_LIMIT_S + 8 * ASK_LIMIT_S),
        ),
    )
