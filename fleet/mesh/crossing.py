"""Whether what opposite ranks send is passed on by the cards between, as a part of the proof. Pure.

Without any package, as the rest of what `prove.py` needs. What a node counts, and what is wrong with a rule by its
counts, is in `node/meshcounts.py`, which the check before the engine's start goes by as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fleet.proof import Json, Part, Verdict
from fleet.traffic import Load
from node import flow, meshcounts

NAME = "mesh"
STRAY = 100  # one in so many of the packets of a node's rules; fewer that its kernel forwards are of others


@dataclass(frozen=True)
class _Node:
    """What one node is asked for, and its readings before and after the completions."""

    name: str
    wanted: Json
    before: Json
    after: Json

    @property
    def unread(self) -> str:
        return str(self.before["error"] or self.after["error"])

    def passed_on(self, rule: str) -> int | None:
        """Packets that a rule has counted meanwhile."""
        old, new = self.before["rules"][rule], self.after["rules"][rule]
        return meshcounts.more(old["packets"], new["packets"]) if old and new else 0


def crossing(desired: Mapping[str, Json], before: Mapping[str, Json], after: Mapping[str, Json], load: Load) -> Part:
    """The part `mesh` of a proof. `before` and `after` are readings by node, as the node program gives them.

    `unknown` where no completion was begun, and where a counter cannot be read or began anew meanwhile; what is wrong
    all the same is a failure.
    """
    nodes = [_Node(name, one["mesh"], before[name], after[name]) for name, one in desired.items()]
    if load.refused or not (load.answered or load.error):
        return Part(NAME, Verdict.UNKNOWN, "no completion was begun")
    read = [node for node in nodes if not node.unread]
    open_ = [f"{node.name}: {node.unread}" for node in nodes if node.unread]
    faults: list[str] = []
    for node in read:
        for found, left in (_rules(node), _kernel(node), _queues(node), _ends(node)):
            faults += found
            open_ += left
    rules = sum(len(node.wanted["forward"]) for node in read)
    why = f"completions answered: {load.answered}, rules looked at: {rules}"
    figures = tuple(figure for node in read for figure in _figures(node))
    if faults:
        return Part(NAME, Verdict.FAILED, why, (*faults, *open_), figures)
    return Part(NAME, Verdict.UNKNOWN if open_ else Verdict.PASSED, why, tuple(open_), figures)


Found = tuple[list[str], list[str]]
"""What is wrong, and what could not be told."""


def _rules(node: _Node) -> Found:
    faults, left = [], []
    for rule in node.wanted["forward"]:
        count = node.passed_on(rule["name"])
        if count is None or count < 0:
            what = "counts no packets" if count is None else "has begun to count anew: it was installed anew meanwhile"
            left.append(f"{node.name} {flow.slot(rule)} ({rule['name']}): {what}")
            continue
        found = meshcounts.wrong(rule, node.before["rules"], node.after["rules"], "the completions")
        faults += [f"{node.name} {line}" for line in found]
    return faults, left


def _kernel(node: _Node) -> Found:
    """Others forward too, such as containers; a way that misses its card brings far more than a hundredth."""
    carried = sum(max(node.passed_on(rule["name"]) or 0, 0) for rule in node.wanted["forward"])
    forwarded, arrived = (meshcounts.more(node.before[what], node.after[what]) for what in ("kernel", "received"))
    least = max(1, carried // STRAY)
    through, told = meshcounts.passed_by(forwarded, arrived, least, "a hundredth of what its rules passed on")
    line = f"{node.name}: {told}"
    return ([line] if through else [], [line] if through is None else [])


def _queues(node: _Node) -> Found:
    faults, left = [], []
    for netdev, count in _grown(node.before["overruns"], node.after["overruns"]):
        where = f"{node.name} {netdev}: {meshcounts.OVERRUN}"
        if count is None:
            left.append(f"{where} cannot be read (ethtool -S {netdev})")
        elif count:
            faults.append(f"{where} grew by {count}: its hairpin queues ran over; {_sizes(node.wanted)}")
    return faults, left


def _ends(node: _Node) -> Found:
    faults, left = [], []
    for end in node.wanted["ends"]:
        seen = dict(_grown(node.before["lost"][end["hca"]], node.after["lost"][end["hca"]]))
        where = f"{node.name} {end['hca']}"
        left += [f"{where}: {name} cannot be read" for name, count in seen.items() if count is None]
        if grown := ", ".join(f"{name} grew by {count}" for name, count in seen.items() if count):
            way = f"packets between it and {end['peer']} over {end['via']} were lost, or on its own cable"
            faults.append(f"{where}: {grown}: {way}; {_sizes(node.wanted)}")
    return faults, left


def _grown(before: Mapping[str, int | None], after: Mapping[str, int | None]) -> Iterator[tuple[str, int | None]]:
    """By how much each count has grown; None where it cannot be read, or began anew."""
    for name, old in before.items():
        count = meshcounts.more(old, after[name])
        yield name, None if count is not None and count < 0 else count


def _sizes(wanted: Json) -> str:
    taken = f"of {wanted['queue']} packets (mesh.hairpinQueueSize) take messages of up to {wanted['cap']} bytes"
    return f"hairpin queues {taken}, the cap is {wanted['largest']} (mesh.maxSize, mesh.gatherSize)"


def _figures(node: _Node) -> Iterator[str]:
    """A line for each node."""
    rules = ", ".join(f"pref {rule['pref']} {node.passed_on(rule['name'])}" for rule in node.wanted["forward"])
    forwarded = meshcounts.more(node.before["kernel"], node.after["kernel"])
    grown = ", ".join(f"{netdev} {count}" for netdev, count in _grown(node.before["overruns"], node.after["overruns"]))
    yield f"{node.name}: packets by rule {rules}; IpForwDatagrams {forwarded}; {meshcounts.OVERRUN} {grown}"
