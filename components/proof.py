"""Proof that the engine uses all of its fabric, once it serves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
from pulumi_command import local

from components.remote import LONGEST_S, Owner, judgement, on_nodes, timeouts
from fleet.on_node import LIMITS_S, Link

PROVE = "exec python3 -IS fleet/prove.py"
VERDICT = "exec python3 -IS fleet/prove.py verdict"
ROUNDS = 2  # of completions, mostly


@dataclass(frozen=True)
class ProofArgs:
    """What is asked of each rank, and what the proof waits for and goes with."""

    links: Sequence[Link]
    owner: Owner
    desired: Mapping[str, Mapping[str, Any]]  # node -> its rank's part, as `fleet/expected.py` makes it
    repair: str | None  # why a proof is made again although nothing has changed
    after: pulumi.Resource
    replace_with: Sequence[pulumi.Resource]


class Proof(pulumi.ComponentResource):
    """A measurement that always succeeds where it can be made, and a verdict that fails where it does.

    Two resources, since outputs of a failed one are lost: what the first has found stays as the output `proof`, and the
    engine stays as it is.
    """

    def __init__(self, name: str, args: ProofArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("spark-fabric:components:Proof", name, None, opts)
        group = list(args.replace_with)
        self.measured = on_nodes(
            "proof",
            args.links,
            args.owner,
            "proof",
            args.desired,
            create=PROVE,
            update=PROVE,
            repair=args.repair,
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=[args.after],
                replace_with=group,
                custom_timeouts=timeouts(ROUNDS * LIMITS_S["load"] + LONGEST_S),
            ),
        )
        self.text: pulumi.Output[str] = self.measured.stdout
        self.verdict: local.Command = judgement("proven", VERDICT, self.measured, group, self)
        self.register_outputs({})
