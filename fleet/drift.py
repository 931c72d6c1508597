"""What the nodes really are, against what this run wants them to be.

Drift is observed against the desired state of *this* run, never against what was applied last: a run that was killed
half-way, a setting put back by hand and a foreign edit then look the same, and are repaired the same way. A stage
that the node's journal does not hold, holds unfinished, or holds with another desired state is drift as well, even
where nothing on the wire differs: the way back would be wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from fleet.facts import parse
from fleet.lastwords import ended
from fleet.plan import NodePlan, Plan
from fleet.verdicts import Verdict, row_of
from node import forwarding, markers, nccl, neighbours, nic, plane, relay
from node.deviation import Deviation
from node.digest import digest
from node.mesh import STAGES as MESH

Observed = Mapping[str, Any]

DEVIATIONS = {
    "plane0": plane.deviations,
    "plane1": plane.deviations,
    "relay": relay.deviations,
    "nccl": nccl.deviations,
    "nic": nic.deviations,
    "forwarding": forwarding.deviations,
    "markers": markers.deviations,
}
PLANES = ("plane0", "plane1")
FABRIC = (*PLANES, "relay")
NEIGHBOURS = "neighbours"
"""No stage: the check of the whole fabric puts them right, on all nodes at once."""

BELOW = {
    "nic": PLANES,
    "forwarding": (*PLANES, "nic"),
    "markers": (*PLANES, "nic"),
    "mesh-verified": (*PLANES, *MESH),
}
"""What takes something of a stage along when it changes, on the node or on its neighbour."""

SHOWN = 4  # deviations named in one resource's diff; the rest are counted


@dataclass(frozen=True)
class StageDrift:
    """Why one stage of one node is to be applied although its settings may be unchanged."""

    node: str
    stage: str
    reasons: tuple[str, ...]
    disruptive: bool  # the repair would be felt by a running engine: it is stopped first

    def text(self) -> str:
        """One line for a diff."""
        more = len(self.reasons) - SHOWN
        return "; ".join(self.reasons[:SHOWN]) + (f"; and {more} more" if more > 0 else "")


@dataclass(frozen=True)
class Drift:
    """All drift of a fleet. The texts end with what changes at each repair, so that the same drift is seen twice."""

    stages: Mapping[tuple[str, str], StageDrift] = field(default_factory=dict)
    generations: Mapping[str, int] = field(default_factory=dict)

    def repair(self, node: str, stage: str, below: Collection[str] = ()) -> str | None:
        """What the update of one stage says; None where nothing deviates.

        `below` are the stages on which it rests: the repair of one, on whatever node, has this one applied again too.
        """
        own = self.stages.get((node, stage))
        carried = self._summary([found for found in self.stages.values() if found.stage in below])
        if carried:
            return f"{own.text()}; after {carried}" if own else f"after {carried}"
        return f"{own.text()} (generation {self.generations.get(node, 0)})" if own else None

    def mesh(self) -> str | None:
        """What the check of the mesh says when it is to be made once more: only while no engine runs."""
        below = BELOW["mesh-verified"]
        return self._summary([found for found in self.stages.values() if found.disruptive and found.stage in below])

    def fabric(self, *more: str) -> str | None:
        """What the checks of the whole fabric say when they are to be made once more, by its stages and `more`."""
        return self._summary([found for found in self.stages.values() if found.stage in (*FABRIC, *more)])

    def disruptive(self) -> str | None:
        """Why all engines must be stopped first; None where every repair can be made under them."""
        return self._summary([found for found in self.stages.values() if found.disruptive])

    def lines(self) -> list[str]:
        """All of it as text, a line for each stage."""
        return [f"{found.node} {found.stage}: {found.text()}" for found in self.stages.values()]

    def _summary(self, found: list[StageDrift]) -> str | None:
        if not found:
            return None
        total = sum(self.generations.values())
        return "; ".join(f"{one.node} {one.stage}: {one.text()}" for one in found) + f" (generation {total})"


def of_fleet(plan: Plan, observed: Mapping[str, Observed]) -> Drift:
    """The drift of every node that was observed."""
    stages: dict[tuple[str, str], StageDrift] = {}
    generations = {}
    for node in plan.nodes:
        seen = observed.get(node.name)
        if seen is None:
            continue
        # A journal that is gone begins to count anew, and a second loss would look as the first: the clock tells them.
        generations[node.name] = int((seen.get("journal") or {}).get("generation") or seen.get("time") or 0)
        for stage in node.stages:
            found = of_stage(node, stage, seen, plan.settings.preflight.refuse)
            if found:
                stages[node.name, stage] = found
        wrong = of_neighbours(node, seen, plan.settings.preflight.refuse)
        if wrong:
            stages[node.name, NEIGHBOURS] = wrong
        gone = of_image(node, plan.image_ref, seen)
        if gone:
            stages[node.name, "image"] = gone
    return Drift(stages, generations)


def deviations_of(node: NodePlan, stage: str, seen: Observed) -> list[Deviation]:
    """Everything in which a node differs from one stage's desired state, what is somebody else's included."""
    if stage == NEIGHBOURS:
        return neighbours.deviations((node.verify or {}).get("ports") or [], seen.get("neighbours") or [])
    look = DEVIATIONS.get(stage)
    return look(dict(node.stages[stage]), dict(seen)) if look else []


def of_stage(node: NodePlan, stage: str, seen: Observed, refuse: Collection[str] = ()) -> StageDrift | None:
    """The drift of one stage of one node; None where it is as desired.

    What the table has as a problem, or not at all, is none, and nothing with a code in `refuse`.
    """
    desired = dict(node.stages[stage])
    record = ((seen.get("journal") or {}).get("stages") or {}).get(stage)
    deviations = [(one, row_of(one, stage)) for one in deviations_of(node, stage, seen) if one.code not in refuse]
    drift = [(one, row) for one, row in deviations if row and row.is_drift]
    reasons = [deviation.text() for deviation, _ in drift]
    disruptive = any(row.idle is Verdict.DISRUPTIVE for _, row in drift)
    off = desired.get("state") == "off"
    if record is None:
        if not off:
            reasons = ["not applied on this node"]  # what is missing there is everything
    elif record["status"] != "applied":
        reasons.insert(0, f"an earlier change was not finished ({record['status']})")
        disruptive = True
    elif record["digest"] != digest(desired) and not reasons:
        reasons.append("the node's journal holds another desired state")
    if stage == "node" and (seen.get("owner") or {}).get("adoptable"):
        # Taking it counts as no change on the node, so the time tells this adoption from the one before.
        reasons.append(f"is up for adoption (seen at {seen.get('time', 0):.0f})")
    if not reasons:
        return None
    return StageDrift(node.name, stage, tuple(reasons), disruptive)


def of_neighbours(node: NodePlan, seen: Observed, refuse: Collection[str] = ()) -> StageDrift | None:
    """Neighbours that a node has entered with a wrong MAC; None where there are none.

    Asking anew changes nothing that the node counts, so the time tells these from those before.
    """
    found = [one for one in deviations_of(node, NEIGHBOURS, seen) if one.code not in refuse]
    when = f" (seen at {seen.get('time', 0):.0f})"
    return StageDrift(node.name, NEIGHBOURS, tuple(one.text() + when for one in found), False) if found else None


def of_image(node: NodePlan, ref: str, seen: Observed) -> StageDrift | None:
    """Whether the rank's image has gone, or the tag has moved; None where it is there, or its id is not known yet.

    Bringing it back changes nothing that the node counts, so the time tells this loss from the one before.
    """
    docker = seen.get("docker")
    if node.container is None or docker is None:
        return None
    wanted, present = node.container.image_id, parse(seen).images.get(ref)
    gone = present != wanted if wanted else node.container.by_name and present is None
    if not gone:
        return None
    state = f"is {present[7:19]}, not {wanted[7:19]}" if present and wanted else "is not there"
    return StageDrift(node.name, "image", (f"{ref} {state} (seen at {seen.get('time', 0):.0f})",), disruptive=False)


@dataclass(frozen=True)
class Group:
    """Whether the running engines are one group of this stack, and what the next start is called."""

    broken: str | None
    start: str
    reasons: tuple[str, ...] = ()  # what is broken about it, one by one


def _not_as_started(node: NodePlan, mark: Mapping[str, Any], container: Mapping[str, Any]) -> str | None:
    """What to say of a container with our labels that is not the one which was started, or not of the image any more.

    A name that says which image it is means another one where that was lost on all nodes and built anew.
    """
    planned, is_ = node.container.image_id if node.container else None, container.get("image_id") or ""
    image = f" of image {is_[7:19]}, not {planned[7:19]}" if planned and is_ != planned else ""
    if mark.get("container") not in (None, container.get("id")):
        return f"{container['name']} was made anew by somebody else{image}"
    by_name = node.container is not None and node.container.by_name
    return f"{container['name']} is{image}" if image and is_ and by_name else None


def _state(container: Mapping[str, Any]) -> str:
    """How a container is, and how one ended that has run."""
    state = str(container["state"])
    return f"{state}, {ended(container)}" if state in ("exited", "dead") else state


def of_group(plan: Plan, observed: Mapping[str, Observed], new_start: str) -> Group:
    """Compare all containers of the stack with the ranks that should run.

    `new_start` names the next start if one is needed; it must differ from every earlier one.
    """
    reasons: list[str] = []
    starts: dict[str, str] = {}
    groups = set()
    put_back: list[str] = []
    for node in plan.nodes:
        seen = observed.get(node.name)
        if seen is None:
            continue
        containers = [
            container
            for container in (seen.get("docker") or {}).get("containers") or []
            if container["labels"].get("spark-fabric.stack") == plan.label
        ]
        running = [container for container in containers if container["state"] == "running"]
        if node.rank is None:
            reasons += [f"{node.name}: has no rank, yet {c['name']} is {c['state']}" for c in containers]
            continue
        if len(running) != 1 or len(containers) != 1:
            states = ", ".join(f"{c['name']} {_state(c)}" for c in containers) or "no container"
            reasons.append(f"rank {node.rank} ({node.name}): {states}")
            continue
        labels = running[0]["labels"]
        starts[node.name] = labels.get("spark-fabric.start", "")
        groups.add(labels.get("spark-fabric.group", ""))
        if labels.get("spark-fabric.rank") != str(node.rank):
            reasons.append(f"{node.name}: runs rank {labels.get('spark-fabric.rank')}, not {node.rank}")
        mark = seen.get("started") or {}
        if mark.get("start") != starts[node.name]:
            reasons.append(f"rank {node.rank} ({node.name}): its start was never completed")
        elif "back" in mark:
            put_back.append(f"the engine that served last was put back: {mark['back']}")
        elif wrong := _not_as_started(node, mark, running[0]):
            reasons.append(f"rank {node.rank} ({node.name}): {wrong}")
    reasons += dict.fromkeys(put_back)  # the same on all
    if len(set(starts.values())) > 1:
        reasons.append("the ranks are of different starts")
    if len(groups) > 1:
        reasons.append("the ranks are of different groups")
    known = set(starts.values())
    if reasons:
        return Group(f"{'; '.join(reasons)} (start {new_start})", new_start, tuple(reasons))
    same = known and groups == {plan.group}
    return Group(None, known.pop() if same else new_start)
