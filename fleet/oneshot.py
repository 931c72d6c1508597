"""What commands have in common that change the engine's folders once, on the operator's word: what stands in the way.

Those folders are the operator's, so that no run of Pulumi does this.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fleet.engine_settings import Volume
from fleet.look import Look
from fleet.on_node import Answer, holder
from fleet.problems import Problem, config_path
from fleet.survey import Survey


def strangers(found: Survey) -> Iterator[Problem]:
    """Nodes with a rank that do not answer, or are not of this stack: those that may be adopted are nobody's yet."""
    for node in found.plan.ranks:
        adoptable = node.name in found.ours and found.seen.observed[node.name]["owner"].get("adoptable")
        if node.name in found.ours and not adoptable:
            continue
        silent = found.seen.unreachable.get(node.name)
        seen = f"does not answer ({silent})" if silent else f"does not carry the mark of {found.plan.label}"
        if adoptable:
            seen = "was freed by `fleet adopt`, and no `up` has taken it since"
        hint = "It needs all ranks." if silent else f"`./pulumiw up -s {found.plan.stack.stack}` comes first."
        yield Problem("rank-missing", node.name, seen, "a node of this stack that answers", hint)


def engines(found: Survey, why: str) -> Iterator[Problem]:
    """Ranks that run, on any node of the stack. `why` none may, as a sentence."""
    look = Look(found.plan.settings, found.plan.stack, found.seen)
    for node, observed in look.nodes:
        for one in look.engines(observed):
            rank = one["labels"].get("spark-fabric.rank", "?")
            hint = f"{why} On every node: sudo docker stop {one['name']}; the next `up` starts it anew."
            yield Problem("engine-runs", node, f"rank {rank} runs, in container {one['name']}", "no engine", hint)


def folder(found: Survey, target: str, what: str) -> Volume | Problem:
    """The folder of the nodes that the engine has at `target`, which is for `what`."""
    path = config_path(("engine", "volumes"))
    volume = next((one for one in found.plan.settings.engine.volumes if one.target == target), None)
    if volume is None:
        return Problem("volume-none", path, f"has nothing for {target}", what, f"Add it: /FOLDER:{target}.")
    if not volume.source.startswith("/"):
        seen = f"has the docker volume {volume.source} for {target}"
        return Problem("volume-docker", path, seen, "a folder of the nodes", "What is in a docker volume is docker's.")
    return volume


def requests(found: Survey, desired: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """A request for each node that something is desired of. Each is asked as its own owner: it is of this stack."""
    keys = ("project", "stack", "fleet_id", "state_id")
    owners = {name: found.seen.observed[name]["owner"] for name in desired}
    return {
        name: {
            "owner": {key: owners[name][key] for key in keys},
            "node": name,
            "desired": dict(wanted),
            "holder": holder(),
        }
        for name, wanted in desired.items()
    }


def failed(answers: Iterable[Answer]) -> list[str]:
    """What nodes said that did not do what they were asked, each line with its node in front; at least one of each."""
    told = []
    for answer in answers:
        if answer.status == 0 and answer.result is not None:
            continue
        # An ssh that is killed says nothing.
        lines = answer.text.splitlines() or [f"ended with status {answer.status} and said nothing"]
        told += [line if line.startswith(answer.node) else f"{answer.node}: {line}" for line in lines]
    return told
