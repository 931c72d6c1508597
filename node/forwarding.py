"""Forwarding in hardware for the opposite nodes: qdiscs and rules for what passes through, routes for what leaves.

A rule takes marked frames (EtherType 0x88b5) between two given MACs at a port's ingress, gives them IPv4's EtherType
and the MAC of the far port, and sends them out of the other port, in the card alone (`skip_sw`, and `in_hw` is
demanded). A `/32` route makes what is for the opposite node go to the neighbour's MAC.

Objects are compared as a whole. One that was there before us with the same meaning is adopted, and stays when the stage
is reverted; one that differs and that the journal knows neither by its meaning nor by its handle is refused by name.
Nothing is ever flushed or replaced.
"""

from typing import Any

from . import mesh, meshunits, tc
from .deviation import Deviation, of_journal
from .digest import digest
from .flow import (
    at_slot,
    bare,
    canonical,
    held,
    is_held,
    meaning,
    meaning_words,
    of_filter,
    same_route,
    slot,
    spelled,
    way,
    words,
)
from .flowsteps import STAGE, Qdisc, Route, Rule
from .steps import Step
from .system import System

G2_PREFS = range(11, 19)
G2_PROTOCOL = "82"  # of the routes of the universal relay table

Json = dict[str, Any]


def deviations(desired: Json, observed: Json) -> list[Deviation]:
    """Everything in which a node's forwarding in hardware differs from the plan; empty where there is nothing to do."""
    entry = ((observed.get("journal") or {}).get("stages") or {}).get(STAGE)
    if desired["state"] == "off":
        return [Deviation("forwarding.on", STAGE, "is on", "it off", disruptive=True)] if entry else []
    found = of_journal(STAGE, digest(desired), observed, disruptive=True)
    if observed.get("mesh") is None:
        return [*found, mesh.unseen(STAGE)]
    ours = held(observed)
    found += _relay_table(desired, observed)
    for netdev in desired["qdiscs"]:
        found += _qdisc(netdev, observed["mesh"]["qdiscs"])
    for rule in desired["rules"]:
        found += _rule(rule, ours, observed)
    found += _others(desired, ours, observed)
    for route in desired["routes"]:
        found += _route(route, ours, observed)
    return found


def _qdisc(netdev: str, rows: list[Json]) -> list[Deviation]:
    there = tc.at_ingress(rows, netdev)
    if not there:
        return [Deviation("forwarding.qdisc", netdev, "has no qdisc clsact", "one", disruptive=False)]
    return [
        Deviation(
            "forwarding.foreign-qdisc",
            netdev,
            f"has a qdisc {row['kind']} at its ingress",
            f"clsact, or none: remove it (tc qdisc del dev {netdev} {row['kind']})",
            disruptive=True,
            foreign=True,
        )
        for row in there
        if row["kind"] != "clsact"
    ]


def _rule(rule: Json, ours: set[str], observed: Json) -> list[Deviation]:
    rows = at_slot(rule, observed["mesh"]["filters"])
    link = (observed.get("links") or {}).get(rule["netdev"])
    if link is not None and link["mac"].lower() != rule["dst_mac"].lower():
        want = f"{rule['dst_mac']} for {rule['name']}: the card is another one than at planning; run up again"
        return [Deviation("forwarding.mac", rule["netdev"], f"MAC is {link['mac']}", want, True, foreign=True)]
    if not rows:
        return [Deviation("forwarding.rule-missing", slot(rule), "rule is missing", rule["name"], disruptive=False)]
    same = [row for row in rows if of_filter(row) == meaning(rule)]
    others = [row for row in rows if row not in same]
    if others:
        return [_other(rule, row, is_held(row, ours)) for row in others]
    if not same[0]["in_hw"]:
        seen = "rule is not in hardware"
        return [Deviation("forwarding.software", slot(rule), seen, f"{rule['name']} in_hw", disruptive=True)]
    return []


def _other(rule: Json, row: Json, ours: bool) -> Deviation:
    """Another filter where a rule belongs."""
    seen = f"there is {words(row)}"
    if ours:
        return Deviation("forwarding.rule", slot(rule), seen, meaning_words(rule), disruptive=True)
    want = f"{rule['name']}, or nothing: it is not ours; remove it or leave the mesh off"
    return Deviation("forwarding.foreign-rule", slot(rule), seen, want, disruptive=True, foreign=True)


def _others(desired: Json, ours: set[str], observed: Json) -> list[Deviation]:
    """Filters at our ingresses that would take marked frames before our rules do."""
    return [
        Deviation(
            "forwarding.foreign-rule",
            slot(row),
            f"there is {words(row)}, which takes marked frames too",
            "rules of the mesh only: remove it or leave the mesh off",
            disruptive=True,
            foreign=True,
        )
        for row in observed["mesh"]["filters"]
        if row["netdev"] in desired["qdiscs"]
        and not is_held(row, ours)
        and row["pref"] not in G2_PREFS
        and row["protocol"] in (tc.MARKED, tc.ALL, None)
        and not any(row in at_slot(rule, [row]) for rule in desired["rules"])
    ]


def _relay_table(desired: Json, observed: Json) -> list[Deviation]:
    """The universal relay table of another set-up: it and the mesh would answer for the same frames."""
    netdevs = {*desired["qdiscs"], *(route["netdev"] for route in desired["routes"])}
    seen = [
        f"filter {words(row)} on {slot(row)}"
        for row in observed["mesh"]["filters"]
        if row["pref"] in G2_PREFS and row["netdev"] in netdevs and row["kind"] == "flower" and not row["keys"]
    ]
    seen += [
        f"route to {route['to']} of protocol {G2_PROTOCOL} on {route['netdev']}"
        for route in observed["mesh"]["routes"]
        if route["protocol"] == G2_PROTOCOL and route["netdev"] in netdevs
    ]
    seen += [f"unit {name}" for name in observed["mesh"].get("others") or []]
    want = "none beside the mesh: take it down with the program that installed it"
    return [
        Deviation("forwarding.relay-table", "universal relay table", text, want, disruptive=True, foreign=True)
        for text in seen
    ]


def _route(route: Json, ours: set[str], observed: Json) -> list[Deviation]:
    rows = [row for row in observed["mesh"]["routes"] if row["to"] == route["to"]]
    if not rows:
        return [Deviation("forwarding.route-missing", route["to"], "route is missing", way(route), disruptive=False)]
    found = []
    for row in rows:
        seen = f"route is {way(row)}"
        if same_route(route, row):
            continue
        if canonical(bare(row)) in ours:
            found.append(Deviation("forwarding.route", route["to"], seen, way(route), disruptive=True))
            continue
        command = f"ip route del {' '.join(spelled(row))}"
        want = f"{way(route)}, or none: it is not ours; remove it ({command}) or leave the mesh off"
        found.append(Deviation("forwarding.foreign-route", route["to"], seen, want, disruptive=True, foreign=True))
    return found


def plan(desired: Json, observed: Json) -> list[Step]:
    """The steps that lead to the desired state "on", in order; those with nothing to do are marked so."""
    subjects = {deviation.subject for deviation in deviations(desired, observed)}
    return [
        *(Qdisc(netdev, needed=netdev in subjects) for netdev in desired["qdiscs"]),
        *(Rule(rule, needed=slot(rule) in subjects) for rule in desired["rules"]),
        *(Route(route, needed=route["to"] in subjects) for route in desired["routes"]),
    ]


def validate(system: System, desired: Json, observed: Json) -> list[str]:  # noqa: ARG001
    """What speaks against the change: every reason, each a line."""
    if desired["state"] == "off":
        return []
    found = [deviation.text() for deviation in deviations(desired, observed) if deviation.foreign]
    domains = {one["netdev"]: pci.split(":")[0] for pci, one in (observed["mesh"] or {}).get("functions", {}).items()}
    for rule in desired["rules"]:
        ends = [domains.get(rule[key]) for key in ("netdev", "egress")]
        if ends[0] != ends[1]:
            found.append(
                f"{slot(rule)}: from PCI domain {ends[0]} to {ends[1]} ({rule['egress']}), plan wants one: cards "
                "forward within one PCI domain only"
            )
    return found


def markers_running(system: System, stages: Json) -> list[str]:
    """What keeps the stage from being reverted: markers of ours that mark, or will again; each a line."""
    entry = stages.get("markers")
    hcas = [marker["hca"] for marker in (entry.desired.get("markers") or [])] if entry else []
    states = {meshunits.instance(hca): mesh.busy(system, hca) for hca in hcas}
    hint = "none is wanted before rules go: revert the stage markers first"
    return [f"{unit} is {state}, {hint}" for unit, state in states.items() if state]
