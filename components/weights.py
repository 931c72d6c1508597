"""The reading of the weights: every file of the manifest once on each node, while an engine may still run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pulumi
from pulumi_command import local

from components.remote import LONGEST_S, Owner, on_nodes, timeouts
from fleet.manifest import Reading
from fleet.on_node import LIMITS_S, Link
from fleet.weigh import LIMIT_S

WEIGH = "exec python3 -IS fleet/weigh.py"


def weights_read(
    links: Mapping[str, Link],
    reading: Reading,
    owner: Owner,
    after: Sequence[pulumi.Resource],
    parent: pulumi.Resource,
) -> local.Command:
    """The resource that fails, naming node and file, where a node has other files than the manifest says."""
    return on_nodes(
        "weights-read",
        [links[name] for name in reading.desired],
        owner,
        "weights",
        reading.desired,
        create=WEIGH,
        update=WEIGH,
        repair=reading.reason,
        opts=pulumi.ResourceOptions(
            parent=parent,
            depends_on=list(after),
            custom_timeouts=timeouts(LIMIT_S + LIMITS_S["weigh"] + LONGEST_S),  # a call that has begun goes on
        ),
    )
