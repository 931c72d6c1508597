"""Read every node's state at once: one ssh connection per node, one deadline for all, nothing changed anywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleet.on_node import Answer, Link, holder, on_all
from fleet.plan import StackName

DEADLINE_S = 12  # a dead node is known by then, and the others' facts are kept


@dataclass(frozen=True)
class Probe:
    """What the nodes are right now."""

    observed: Mapping[str, Mapping[str, Any]]  # node name -> the answer of the node program's `observe`
    unreachable: Mapping[str, str]  # node name -> why, in a sentence that says what to do


def probe(stack: StackName, fleet_id: str, links: Sequence[Link], deadline: float = DEADLINE_S) -> Probe:
    """Ask all nodes in parallel, each for at most `deadline` seconds. Raises nothing for a node's sake."""
    # Reading needs no state id: which state holds a node is one of the answers.
    owner = {"project": stack.project, "stack": stack.stack, "fleet_id": fleet_id, "state_id": "any"}
    requests = {link.name: {"owner": owner, "node": link.name, "holder": holder()} for link in links}
    answers: list[Answer] = on_all("observe", stack.stack, list(links), requests, deadline)
    observed = {answer.node: answer.result for answer in answers if answer.status == 0 and answer.result}
    failed = {
        answer.node: answer.text if not answer.reached else f"{answer.node}: cannot be read: {answer.text[-500:]}"
        for answer in answers
        if answer.node not in observed
    }
    return Probe(observed, failed)
