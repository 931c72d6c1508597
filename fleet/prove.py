"""Prove that a serving engine uses all of its fabric. Run as `python3 -IS fleet/prove.py`.

Environment as for `on_node.py`; stdin maps each node to what `expected.py` makes of its rank. Counters of all ranks are
read, completions are asked for on the head, counters are read again. The report is on stdout, whatever the verdict; the
exit status is 1 where none could be reached. `prove.py verdict` takes a report on stdin and fails where that does: what
it says is in the state by then.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # -I leaves it out

from fleet import causes, on_node, proof, traffic
from fleet.mesh.crossing import crossing
from fleet.proof import Part, Proof, Verdict

SETTLE_S = 1.5  # a port's counters may be a second old
FIRST = 4  # completions of the first round; what they move says how many more are needed
MARGIN = 1.3
LAST = "proof.json"  # in the stack's folder: how the last proof ended, for the next run

Json = dict[str, Any]


class NotMeasured(Exception):
    """Nothing can be said; the message is what stood in the way, a line each."""


class Fleet:
    """The nodes of one command, asked all at once."""

    def __init__(self, owner: Mapping[str, Any], links: list[on_node.Link]) -> None:
        self.owner, self.links = owner, links

    def ask(self, verb: str, desired: Mapping[str, Json]) -> dict[str, on_node.Answer]:
        """One verb on the nodes that `desired` names."""
        links = [link for link in self.links if link.name in desired]
        requests = {
            name: {"owner": self.owner, "node": name, "desired": one, "holder": on_node.holder()}
            for name, one in desired.items()
        }
        return {answer.node: answer for answer in on_node.on_all(verb, self.owner["stack"], links, requests)}

    def results(self, verb: str, desired: Mapping[str, Json]) -> dict[str, Json]:
        """The same, all of which have to succeed. Raises NotMeasured."""
        answers = self.ask(verb, desired)
        failed = [answer.text or f"{name}: no answer" for name, answer in answers.items() if answer.status]
        if failed:
            raise NotMeasured("\n".join(failed))
        return {name: answer.result or {} for name, answer in answers.items()}


def measure(fleet: Fleet, desired: Mapping[str, Json]) -> Proof:
    """The proof of a fleet whose engine serves. Raises NotMeasured where a node does not answer."""
    limits = dict(next(iter(desired.values()))["limits"])
    most = limits.pop("requests")
    bounds, ports = traffic.Limits(**limits), traffic.ports_of(desired)
    first = last = _counters(fleet, desired)
    before = now = _ports(first)
    load = traffic.Load(0)
    while True:
        load = _load(fleet, desired, load, min(_wanted(ports, before, now, load, bounds), most - load.answered))
        last = _counters(fleet, desired)
        now = _ports(last)
        moved = _moved(ports, before, now)
        if load.ended or load.answered >= most or traffic.busiest(moved) >= bounds.minimum:
            break
        heard = f"{load.answered} completions moved {traffic.size(traffic.busiest(moved))}: more are needed"
        print(heard, file=sys.stderr, flush=True)  # stdout is the report
    loaded = fleet.results(
        "loaded",
        {
            name: {
                "strings": one["strings"],
                "lines": one["witness"] | {line["name"]: line["pattern"] for line in one["lines"] or ()},
            }
            for name, one in desired.items()
        },
    )
    judged = traffic.traffic(moved, load, bounds)
    mesh = _crossing(desired, first, last, load)
    parts = (judged, *mesh, proof.library(desired, loaded), proof.lines(desired, loaded))
    found: tuple[str, ...] = ()
    if judged.verdict is Verdict.FAILED:
        lost = [fault for part in mesh for fault in part.faults]
        found = causes.causes(desired, ports, now, loaded, _complaints(fleet, desired), lost)
    return Proof(parts, found)


def _counters(fleet: Fleet, desired: Mapping[str, Json]) -> dict[str, Json]:
    """By node, once they show what has been so far."""
    time.sleep(SETTLE_S)
    asked = {
        name: {
            "hcas": [port["hca"] for port in one["ports"]],
            "gid_index": one["gid_index"],
            "mesh": one["mesh"] and {**one["mesh"], "ends": [end["hca"] for end in one["mesh"]["ends"]]},
        }
        for name, one in desired.items()
    }
    return fleet.results("counters", asked)


def _ports(counters: Mapping[str, Json]) -> dict[str, Json]:
    """By node and HCA."""
    return {name: one["ports"] for name, one in counters.items()}


def _crossing(desired: Mapping[str, Json], first: Json, last: Json, load: traffic.Load) -> list[Part]:
    """The part of the mesh, where there is one."""
    if not any(one["mesh"] for one in desired.values()):
        return []
    before, after = ({name: one["mesh"] for name, one in counters.items()} for counters in (first, last))
    return [crossing(desired, before, after, load)]


def _moved(ports: tuple[traffic.Port, ...], before: Json, now: Json) -> dict[traffic.Port, traffic.Moved]:
    try:
        return traffic.moved_between(ports, before, now)
    except ValueError as error:
        raise NotMeasured(str(error)) from None


def _wanted(
    ports: tuple[traffic.Port, ...], before: Json, now: Json, load: traffic.Load, limits: traffic.Limits
) -> int:
    """How many completions more it takes, going by those that were answered."""
    if not load.answered:
        return FIRST
    each = traffic.busiest(_moved(ports, before, now)) / load.answered
    return int(limits.minimum * MARGIN / each) + 1 - load.answered if each else sys.maxsize


def _load(fleet: Fleet, desired: Mapping[str, Json], before: traffic.Load, requests: int) -> traffic.Load:
    head = next(name for name, one in desired.items() if one["load"])
    result = fleet.results("load", {head: {**desired[head]["load"], "requests": requests}})[head]
    answered = before.answered + result["answered"]
    return traffic.Load(
        answered, result["error"], result["refused"], ended=bool(result["error"]) or result["answered"] < requests
    )


def _complaints(fleet: Fleet, desired: Mapping[str, Json]) -> dict[str, list[str]]:
    """What does not work in each node's fabric now, in the words of the check before the engine's start."""
    answers = fleet.ask("verify", {name: one["verify"] for name, one in desired.items()})
    return {name: answer.text.splitlines() if answer.status else [] for name, answer in answers.items()}


def last_failure(stack: str, start: str) -> str | None:
    """Why the proof of this start of the engines is made again; None where it has not failed."""
    try:
        last = json.loads((on_node.folder(stack) / LAST).read_text())
        if last["verdict"] == Verdict.FAILED and last["start"] == start:
            return f"the last proof failed (at {last['time']:.0f})"
    except (OSError, ValueError, KeyError, TypeError):  # none yet, or of another version
        pass
    return None


def _remember(stack: str, start: str, verdict: Verdict) -> None:
    place = on_node.folder(stack) / LAST
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = place.with_name(f".{LAST}.{os.getpid()}")
    partial.write_text(json.dumps({"verdict": verdict, "start": start, "time": time.time()}) + "\n")
    partial.replace(place)


def verdict() -> int:
    """Fail where a report does, with all of it."""
    report = sys.stdin.read()
    if report.startswith(f"proof {Verdict.FAILED}"):
        print(report, file=sys.stderr)
        print("The engine still runs, for you to look. The next up measures again.", file=sys.stderr)
        return 1
    print(report.partition("\n")[0])
    return 0


def main() -> int:
    """Entry point."""
    if sys.argv[1:] == ["verdict"]:
        return verdict()
    owner = json.loads(os.environ["FLEET_OWNER"])
    asked: dict[str, Json] = json.load(sys.stdin)
    links = [link for link in on_node.links_of_command(owner["stack"]) if link.name in asked]
    desired = {link.name: asked[link.name] for link in links}
    try:
        found = measure(Fleet(owner, links), desired)
    except NotMeasured as error:
        print(error, file=sys.stderr)
        return 1
    _remember(owner["stack"], next(iter(desired.values()))["start"], found.verdict)
    print(found.text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
