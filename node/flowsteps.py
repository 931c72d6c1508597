"""Putting qdiscs, rules and routes of the mesh in place, and taking away those of ours."""

from dataclasses import dataclass
from typing import Any

from . import tc
from .flow import (
    add_command,
    at_slot,
    bare,
    canonical,
    delete_command,
    is_held,
    known,
    meaning,
    names,
    of_filter,
    routes_to,
    same_route,
    slot,
    spelled,
    way,
    words,
)
from .journal import Undo
from .ports import link
from .request import FAILED, READ_BACK, Failure
from .steps import Work
from .system import System

STAGE = "forwarding"
Json = dict[str, Any]

IN_HARDWARE = 2.0  # seconds for the card to take a rule
SOURCE = 15.0  # seconds for a port to have its address
_STEP = 0.05


@dataclass(frozen=True)
class Qdisc:
    """A port's `clsact`."""

    netdev: str
    needed: bool = True

    @property
    def key(self) -> str:
        return f"qdisc:{self.netdev}"

    def before(self, work: Work) -> Any:
        return bool(tc.at_ingress(tc.qdiscs(work.system), self.netdev))

    def ours(self, work: Work) -> list[str]:  # noqa: ARG002
        return ["clsact"]

    def do(self, work: Work) -> None:
        result = work.system.change(["tc", "qdisc", "add", "dev", self.netdev, "clsact"])
        if result.ok:
            work.report.did(f"{self.netdev}: qdisc clsact")
        elif not tc.at_ingress(tc.qdiscs(work.system), self.netdev):  # else a run that was killed had come this far
            raise Failure(FAILED, f"{self.netdev}: tc qdisc add clsact: {result.reason()}")

    def describe(self) -> dict[str, Any]:
        return {"qdisc": self.netdev}


@dataclass(frozen=True)
class Rule:
    """A rule, in hardware."""

    rule: Json
    needed: bool = True

    @property
    def key(self) -> str:
        return f"flower:{self.rule['netdev']}:{self.rule['pref']}"

    def before(self, work: Work) -> Any:
        """Whether the same rule was there before us."""
        rows = at_slot(self.rule, tc.filters(work.system, self.rule["netdev"]))
        return any(of_filter(row) == meaning(self.rule) for row in rows)

    def ours(self, work: Work) -> list[str]:  # noqa: ARG002
        return [canonical(meaning(self.rule))]

    def do(self, work: Work) -> None:
        system, rule = work.system, self.rule
        for row in at_slot(rule, tc.filters(system, rule["netdev"])):
            if of_filter(row) == meaning(rule) and row["in_hw"]:
                return
            _refuse_theirs(work, self.key, slot(row), words(row), names(row))
            _must(system, slot(rule), delete_command(row))
            work.report.did(f"{slot(rule)}: removed {words(row)}{'' if row['in_hw'] else ', not in hardware'}")
        _must(system, slot(rule), add_command(rule))
        end = system.clock() + IN_HARDWARE
        while not self._in_hardware(system):
            if system.clock() > end:
                _must(system, slot(rule), delete_command(meaning(rule)))
                raise Failure(
                    READ_BACK,
                    f"{slot(rule)}: rule is accepted, but not in hardware, plan wants {rule['name']} in_hw"
                    "; removed again",
                    f"look at hw-tc-offload of {rule['netdev']} and {rule['egress']}, flow_steering_mode and dmesg",
                )
            system.sleep(_STEP)
        work.report.did(f"{slot(rule)}: {rule['name']}, in hardware")

    def _in_hardware(self, system: System) -> bool:
        rows = tc.filters(system, self.rule["netdev"])
        return any(of_filter(row) == meaning(self.rule) and row["in_hw"] for row in rows)

    def describe(self) -> dict[str, Any]:
        return {"rule": " ".join(add_command(self.rule)[3:])}


@dataclass(frozen=True)
class Route:
    """A route to one port of the opposite node."""

    route: Json
    needed: bool = True

    @property
    def key(self) -> str:
        return f"route:{self.route['to']}"

    def before(self, work: Work) -> Any:
        """Whether the same route was there before us."""
        return any(same_route(self.route, row) for row in routes_to(work.system, self.route["to"]))

    def ours(self, work: Work) -> list[str]:  # noqa: ARG002
        return [canonical(bare(self.route))]

    def do(self, work: Work) -> None:
        rows = routes_to(work.system, self.route["to"])
        for row in rows:
            if not same_route(self.route, row):
                _refuse_theirs(work, self.key, row["to"], way(row), {canonical(row)})
                _must(work.system, row["to"], ["ip", "route", "del", *spelled(row)])
                work.report.did(f"route to {row['to']} {way(row)}: removed")
        if not any(same_route(self.route, row) for row in rows):
            self._await_source(work.system)
            _must(work.system, self.route["to"], ["ip", "route", "add", *spelled(self.route)])
            work.report.did(f"route to {self.route['to']} {way(self.route)}")

    def _await_source(self, system: System) -> None:
        """The address may be away for a moment: a neighbour's re-initialisation takes the carrier from its port."""
        end = system.clock() + SOURCE
        while not _holds(system, self.route["netdev"], self.route["src"]):
            if system.clock() > end:
                seen = f"{self.route['netdev']} has no address {self.route['src']}"
                raise Failure(FAILED, f"{self.route['to']}: {seen}, plan wants it for the route {way(self.route)}")
            system.sleep(_STEP)

    def describe(self) -> dict[str, Any]:
        return {"route": " ".join(spelled(self.route))}


def _holds(system: System, netdev: str, address: str) -> bool:
    port = link(system, netdev)
    return port is not None and address in [held.split("/")[0] for held in port["addresses"]]


def _must(system: System, subject: str, command: list[str]) -> None:
    result = system.change(command)
    if not result.ok:
        raise Failure(FAILED, f"{subject}: {' '.join(command)}: {result.reason()}")


def _refuse_theirs(work: Work, key: str, subject: str, seen: str, texts: set[str]) -> None:
    """Raise `Failure` where what is in our way is not ours to remove; by one of `texts` it would be known."""
    operation = work.journal.stages[STAGE].find(key)
    if operation is None or texts.isdisjoint(known(operation["ours"])):
        raise Failure(FAILED, f"{subject}: {seen} is not what we put there: remove it by hand, or leave the mesh off")
    if operation["before"]:
        raise Failure(FAILED, f"{subject}: {seen} was there before us and the plan wants another: remove it by hand")


def undo_rule(work: Work, operation: Undo) -> None:
    """Remove a rule of ours, changed or not; one that was there before us stays, and so does a filter of others."""
    _, netdev, pref = operation["key"].split(":")
    if operation["before"]:
        return
    if link(work.system, netdev) is None:
        work.report.note(f"{netdev} is not there (cable out?): its rules went with it")
        return
    for row in tc.filters(work.system, netdev):
        if row["pref"] != int(pref):
            continue
        if is_held(row, known(operation["ours"])):
            _must(work.system, slot(row), delete_command(row))
            work.report.did(f"{slot(row)}: rule removed")
        else:
            work.report.note(f"{slot(row)}: {words(row)} is not what we put there: left as it is")


def undo_route(work: Work, operation: Undo) -> None:
    """Remove a route of ours; one that was there before us stays, and so does what somebody put in its place."""
    to = operation["key"].removeprefix("route:")
    if operation["before"]:
        return
    for row in routes_to(work.system, to):
        if canonical(row) in operation["ours"]:
            _must(work.system, to, ["ip", "route", "del", *spelled(row)])
            work.report.did(f"route to {to}: removed")
        else:
            work.report.note(f"route to {to} {way(row)} is not what we put there: left as it is")


def undo_qdisc(work: Work, operation: Undo) -> None:
    """Remove a `clsact` of ours unless somebody filters with it."""
    netdev = operation["key"].removeprefix("qdisc:")
    there = tc.at_ingress(tc.qdiscs(work.system), netdev)
    if operation["before"] or not any(row["kind"] == "clsact" for row in there):
        return
    if any(tc.filters(work.system, netdev, direction) for direction in ("ingress", "egress")):
        work.report.note(f"{netdev}: its clsact stays, there are filters of others")
        return
    _must(work.system, netdev, ["tc", "qdisc", "del", "dev", netdev, "clsact"])
    work.report.did(f"{netdev}: qdisc removed")
