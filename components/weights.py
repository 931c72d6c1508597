"""The reading of the weights: every file of the manifest once on each node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pulumi

from components.remote import LONGEST_S, Owner, on_nodes, timeouts
from fleet.manifest import Reading
from fleet.on_node import LIMITS_S, Link
from fleet.weigh import LIMIT_S

WEIGH = "exec python3 -IS fleet/weigh.py"


def weights_read(
    links: Mapping[str, Link],
    readings: Iterable[Reading],
    owner: Owner,
    after: Sequence[pulumi.Resource],
    parent: pulumi.Resource,
) -> list[pulumi.Resource]:
    """The resources, one of each node, that fail, naming the file, where it has others than the manifest says.

    Each keeps its name when its node becomes ours: then it only waits for something else.
    """
    return [
        on_nodes(
            f"{one.node}-weights-read",
            [links[one.node]],
            owner,
            "weights",
            {one.node: one.desired},
            create=WEIGH,
            update=WEIGH,
            repair=one.reason,
            opts=pulumi.ResourceOptions(
                parent=parent,
                depends_on=list(after),
                custom_timeouts=timeouts(LIMIT_S + LIMITS_S["weigh"] + LONGEST_S),  # a call that has begun goes on
            ),
        )
        for one in readings
    ]
