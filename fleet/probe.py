"""Read every node's state at once: one ssh connection per node, one deadline for all, nothing changed anywhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleet.on_node import Answer, Link, holder, on_all
from fleet.stack import StackName

DEADLINE_S = 11  # a dead node is known by then, and the others' facts are kept: with Pulumi's own start below 15 s
PATIENCE_S = 60  # for a change that somebody is just making on a node


@dataclass(frozen=True)
class Probe:
    """What the nodes are right now."""

    observed: Mapping[str, Mapping[str, Any]]  # node name -> the answer of the node program's `observe`
    unreachable: Mapping[str, str]  # node name -> why, in a sentence that says what to do
    clocks: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # seconds ahead of ours: between these two


@dataclass(frozen=True)
class Question:
    """What the nodes behind `links` are asked for beside what they always tell.

    `libraries` are paths on nodes, by the nodes' names, where the operator says that NCCL's library lies, `weights` the
    folders with the engine's weights, `nfs` what is to be known of sharing them; `folders` are those that the engine
    gets, on all nodes. `mesh` asks for that of a node too where there is nothing of one yet. `image` is the engine's,
    by name.
    """

    stack: StackName
    fleet_id: str
    links: Sequence[Link]
    libraries: Mapping[str, str] = field(default_factory=dict)
    folders: Sequence[str] = ()
    weights: Mapping[str, str] = field(default_factory=dict)
    mesh: bool = False
    nfs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    image: str = ""


def probe(question: Question, deadline: float = DEADLINE_S) -> Probe:
    """Ask all nodes in parallel, each for at most `deadline` seconds. Raises nothing for a node's sake."""
    stack, libraries, links = question.stack, question.libraries, list(question.links)
    owner = stack.reader(question.fleet_id)
    requests = {
        link.name: {
            "owner": owner,
            "node": link.name,
            "holder": holder(),
            "desired": {
                "libraries": [libraries[link.name]] if link.name in libraries else [],
                "folders": list(question.folders),
                "mesh": question.mesh,
                "image": question.image,
                **({"weights": question.weights[link.name]} if link.name in question.weights else {}),
                **({"nfs": question.nfs[link.name]} if link.name in question.nfs else {}),
            },
        }
        for link in links
    }
    answers = on_all("observe", stack.stack, links, requests, deadline)
    clocks = {
        answer.node: (answer.result["time"] - answer.came, answer.result["time"] - answer.sent)
        for answer in answers
        if answer.result and "time" in answer.result
    }
    return Probe(*outcomes(answers), clocks)


def outcomes(answers: Sequence[Answer]) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """By node name: what the node program answered, and of the other nodes why there is no answer."""
    found = {answer.node: answer.result for answer in answers if answer.status == 0 and answer.result}
    failed = {
        answer.node: answer.text if not answer.reached else f"{answer.node}: cannot be read: {answer.text[-500:]}"
        for answer in answers
        if answer.node not in found
    }
    return found, failed


def at_rest(look: Callable[[], Probe], patience: float = PATIENCE_S) -> Probe:
    """Look again while nodes are being changed: by another run, or by what a killed run has left going.

    A plan made of a half-done change would be wrong as soon as that change is done. After `patience` seconds nodes
    may still be busy; the answer then says so. A node without an answer is asked once more: it may only have been slow,
    and without it much would be stopped or refused.
    """
    end = time.monotonic() + patience
    told: set[str] = set()
    seen = look()
    if seen.unreachable:
        seen = look()
    while True:
        busy = {name: observed["lock"] for name, observed in seen.observed.items() if observed.get("lock")}
        if not busy or time.monotonic() > end:
            return seen
        for name, lock in busy.items():
            if name not in told:
                print(f"{name}: waiting for {lock.get('holder')}, who is changing it", flush=True)
        told |= busy.keys()
        time.sleep(1)
        seen = look()
