"""`python -m fleet doctor --bandwidth`: what each cable carries each way in each plane, one line each.

A cable can be bad without any counter saying so: only what it carries tells. Both planes of a port share its cable, and
both ports of a node share a bus in each plane. So no node takes part in two measurements at the same time, and cables
that have no node in common are measured side by side. It needs `ib_write_bw` on the nodes, and no engine.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleet.doctor import Line, Word
from fleet.look import Look, shown
from fleet.on_node import Answer, Link, holder, on_all
from fleet.plan import Plan
from fleet.survey import Survey
from fleet.topology import End, Kind
from node.plane import gid_indexes

CODE = "bandwidth"

AT_LEAST = 95.0
"""Gb/s of one function one way. Healthy are 106.4 (13.3 GB/s, as users of rings measured with `ib_write_bw`) and 213
both ways, of which sparkring takes 190 as the least: half of that. Its bad cables had 119 and 26 both ways.
"""

WRITE_S = 5  # of each measurement, as sparkring's
FIRST_PORT = 18515  # perftest's own; another one for each round, so that none meets a listener of the one before
DEADLINE_S = 300  # for the last round to begin

WHY = ("problem", "unmeasured")  # of the node program's answer
SLOW = "Reseat both ends and boot both nodes, then measure again; else change the cable."

Json = dict[str, Any]
Round = tuple["Flow", ...]


@dataclass(frozen=True)
class Port:
    """One end of a flow: a function of a node's port."""

    node: str
    management: str  # the node's management address
    netdev: str
    hca: str
    address: str  # with prefix length

    def __str__(self) -> str:
        return f"{self.node} {self.netdev}"


@dataclass(frozen=True)
class Flow:
    """One way over a cable in one plane."""

    place: str
    source: Port
    target: Port

    @property
    def nodes(self) -> frozenset[str]:
        """Both ends."""
        return frozenset((self.source.node, self.target.node))

    def line(self, word: Word, seen: str, wanted: str = "", hint: str = "") -> Line:
        """What is said of it."""
        want = f", wanted {wanted}" if wanted else ""
        text = f"{self.place}, {self.source} to {self.target}: {seen}{want}" + (f". {hint}" if hint else "")
        return Line(word, CODE, text, self.source.node, self.source.netdev, seen, wanted, hint)


def flows(plan: Plan) -> list[Flow]:
    """Every cable both ways in every plane; on a switch, each rank to the next, which is each link both ways."""
    found = []
    for plane in plan.planes:
        if plan.topology.kind is Kind.RING:
            pairs = [(f"cable {one.index}", [member.end for member in one.members]) for one in plan.topology.segments]
            ways = [(name, one, other) for name, (one, other) in pairs]
            ways += [(name, other, one) for name, (one, other) in pairs]
        else:
            ends = [member.end for member in plan.topology.segments[0].members]
            ways = [("switch", one, other) for one, other in zip(ends, [*ends[1:], ends[0]], strict=True)]
        found += [Flow(f"{name}, plane {plane}", _port(plan, plane, a), _port(plan, plane, b)) for name, a, b in ways]
    return found


def _port(plan: Plan, plane: int, end: End) -> Port:
    node = plan.ranks[end.rank]
    device = node.devices[plane, end.socket]
    return Port(node.name, node.address, device.netdev, device.hca, str(plan.planes[plane].at(end)))


def rounds(wanted: Sequence[Flow]) -> list[Round]:
    """The flows, those of one round without a node in common."""
    made: list[list[Flow]] = []
    for flow in wanted:
        for one in made:
            if not any(flow.nodes & other.nodes for other in one):
                one.append(flow)
                break
        else:
            made.append([flow])
    return [tuple(one) for one in made]


def in_use(found: Survey) -> list[Line]:
    """Who uses the fabric, a line each: then nothing is measured."""
    look = Look(found.plan.settings, found.plan.stack, found.seen)
    told = []
    for node, observed in look.nodes:
        if lock := observed.get("lock"):
            told.append((node, f"{lock.get('holder')} is changing it"))
        engines = look.engines(observed)
        for one in engines:
            rank = one["labels"].get("spark-fabric.rank", "?")
            told.append((node, f"rank {rank} runs, in container {one['name']}"))
        users = look.others(observed, observed.get("rdma_users") or ())
        told += [(node, f"{shown(user)} uses RDMA") for user in users]
    hint = "Nothing was measured: stop it first, on all nodes."
    return [Line(Word.FAIL, "in-use", f"{node}: {seen}. {hint}", node, "", seen, "nobody", hint) for node, seen in told]


def measure(found: Survey, links: Sequence[Link], least: float) -> list[Line]:
    """A line for each flow, in the order of `flows`. `least` is the smallest rate that passes, in Gb/s."""
    began, wanted = time.monotonic(), flows(found.plan)
    out: dict[str, str] = {}  # nodes that can take no part any more, and why
    lines = {flow: line for flow in wanted if (line := _unready(found, flow))}
    for number, together in enumerate(rounds([flow for flow in wanted if flow not in lines])):
        todo = [flow for flow in together if not flow.nodes & out.keys()]
        if time.monotonic() - began > DEADLINE_S:
            todo, late = [], f"not measured: {DEADLINE_S} s were over"
            lines |= {flow: flow.line(Word.WARN, late) for flow in together}
        answers = _round(found, links, todo, FIRST_PORT + number) if todo else {}
        for name, answer in answers.items():
            if not answer.reached:
                out[name] = f"{name} does not answer any more"
            elif (answer.result or {}).get("absent"):
                out[name] = str((answer.result or {})["unmeasured"])
        for flow in together:
            if flow not in lines:
                lines[flow] = _judged(flow, answers, out, least)
    return [lines[flow] for flow in wanted]


def _unready(found: Survey, flow: Flow) -> Line | None:
    """Why a flow cannot be measured, as far as the look tells."""
    for port in (flow.source, flow.target):
        if port.node in found.seen.unreachable:
            return flow.line(Word.WARN, f"not measured: {port.node} does not answer")
        hca = (found.seen.observed[port.node].get("hcas") or {}).get(port.hca)
        if hca is None:
            return flow.line(Word.FAIL, f"{port.node} has no RDMA device {port.hca}", "the device", "Is the cable in?")
        if not str(hca["state"]).startswith("4"):
            return flow.line(Word.FAIL, f"{port.node} {port.hca} is {hca['state']}", "ACTIVE", "Is the cable in?")
        if not _indexes(found, port):
            gid = port.address.partition("/")[0]
            return flow.line(Word.WARN, f"not measured: {port.node} {port.hca} has no RoCE v2 GID of {gid}: run up")
    return None


def _indexes(found: Survey, port: Port) -> list[int]:
    hca = dict(found.seen.observed[port.node]["hcas"][port.hca])
    return gid_indexes({"address": port.address, "netdev": port.netdev}, hca)


def _round(found: Survey, links: Sequence[Link], together: Sequence[Flow], port: int) -> dict[str, Answer]:
    """The answers of both ends of some flows, by node."""
    desired: dict[str, Json] = {}
    for flow in together:
        for end in (flow.source, flow.target):
            desired[end.node] = {
                "hca": end.hca,
                "gid_index": _indexes(found, end)[0],
                "port": port,
                "seconds": WRITE_S,
                **({"host": flow.target.management} if end is flow.source else {}),
            }
    owner = found.plan.stack.reader(found.plan.settings.fleet.id)
    asked = [link for link in links if link.name in desired]
    requests = {
        name: {"owner": owner, "node": name, "desired": one, "holder": holder()} for name, one in desired.items()
    }
    return {answer.node: answer for answer in on_all("bandwidth", found.plan.stack.stack, asked, requests)}


def _judged(flow: Flow, answers: Mapping[str, Answer], out: Mapping[str, str], least: float) -> Line:
    for name in sorted(flow.nodes & out.keys()):
        return flow.line(Word.WARN, f"not measured: {out[name]}")
    ends = [answers[flow.source.node], answers[flow.target.node]]
    for answer in ends:
        if answer.status:
            return flow.line(Word.WARN, f"not measured: {' '.join(answer.text.split())}")
    results = [answer.result or {} for answer in ends]
    gbits, wish = results[0].get("gbits"), f"at least {least:g} Gb/s"
    if gbits is not None:
        seen = f"{gbits:.1f} Gb/s"
        return flow.line(Word.PASS, seen) if gbits >= least else flow.line(Word.FAIL, seen, wish, SLOW)
    problem, unmeasured = (next(filter(None, (one.get(key) for one in results)), "") for key in WHY)
    if problem:
        return flow.line(Word.FAIL, f"carries nothing: {problem}", wish, SLOW)
    return flow.line(Word.WARN, f"not measured: {unmeasured or 'no figure came'}")
