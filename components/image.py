"""The engine's image on one node: loaded while an old engine may still run, and kept at destroy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pulumi
from pulumi_command import local

from components.remote import Owner, on_nodes, timeouts
from fleet.image import ASK_LIMIT_S, LOAD_LIMIT_S, LOOK_LIMIT_S, looks
from fleet.on_node import Link

ENSURE = "exec python3 -IS fleet/image.py"


def image_on(
    link: Link, wanted: Mapping[str, Any], owner: Owner, repair: str | None, parent: pulumi.Resource
) -> local.Command:
    """The resource that makes sure of the image on one node. `repair` says that it is missing although it was there."""
    return on_nodes(
        f"{link.name}-image",
        [link],
        owner,
        "image",
        {link.name: wanted},
        create=ENSURE,
        update=ENSURE,
        repair=repair,
        opts=pulumi.ResourceOptions(
            parent=parent, custom_timeouts=timeouts(LOAD_LIMIT_S + looks(wanted) * LOOK_LIMIT_S + 4 * ASK_LIMIT_S)
        ),
    )
