"""The engine's NCCL library on one node: put in place, with its file, when the whole fabric is verified."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pulumi
from pulumi_command import local

from components.remote import LONGEST_S, Owner, stage, timeouts
from fleet.on_node import Link
from fleet.sending import SLOWEST


def library_on(
    link: Link,
    desired: Mapping[str, Any],
    owner: Owner,
    repair: str | None,
    parent: pulumi.Resource,
    after: pulumi.Resource,
) -> local.Command:
    """The resource of the stage `nccl`. "Off" is one of its states: the image's own library is used."""
    sending = (desired.get("size") or 0) // SLOWEST
    opts = pulumi.ResourceOptions(parent=parent, depends_on=[after], custom_timeouts=timeouts(LONGEST_S + sending))
    return stage(f"{link.name}-nccl", link, owner, "nccl", desired, repair=repair, opts=opts)
