"""A rule and a route of the mesh: how they are compared, shown in messages, and spelled for `tc` and `ip`."""

import json
from collections.abc import Iterable
from typing import Any

from . import tc
from .request import FAILED, Failure
from .system import System

Json = dict[str, Any]


def slot(rule: Json) -> str:
    """The place of a rule, as messages and the journal have it."""
    return f"{rule['netdev']} pref {rule['pref']}"


def meaning(rule: Json) -> Json:
    """A rule of the plan in the form of an observed filter, without what only the observed one has."""
    mac = dict(enumerate(rule["new_dst_mac"].lower().split(":")))
    return {
        "netdev": rule["netdev"],
        "kind": "flower",
        "chain": 0,
        "protocol": tc.MARKED,
        "eth_type": tc.MARKED,
        "pref": rule["pref"],
        "handle": rule["handle"],
        "keys": {"src_mac": rule["src_mac"].lower(), "dst_mac": rule["dst_mac"].lower()},
        "skip_sw": True,
        "actions": [
            {"kind": "pedit", "control": "pipe", "writes": {"eth+12": "08", "eth+13": "00"}},
            {"kind": "pedit", "control": "pipe", "writes": {f"eth+{place}": mac[place] for place in mac}},
            {
                "kind": "mirred",
                "control": "stolen",
                "mirred_action": "redirect",
                "direction": "egress",
                "to_dev": rule["egress"],
            },
        ],
    }


def of_filter(row: Json) -> Json:
    """An observed filter without counters and without whether the card took it; what may be left out is filled in."""
    usual = {"pedit": "pipe", "mirred": "stolen"}
    actions = [{**action, "control": action["control"] or usual.get(action["kind"])} for action in row["actions"]]
    counts = ("in_hw", "packets", "sw_packets", "drops")
    return {**{key: value for key, value in row.items() if key not in counts}, "actions": actions}


def canonical(value: Json) -> str:
    """The meaning of a rule or route as one text, as the journal has it."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def place(rule: Json) -> str:
    """The place of a rule with its handle, which is ours alone: tc gives handles from 1 on to whoever names none."""
    return f"{slot(rule)} handle {rule['handle']}"


def held(observed: Json) -> set[str]:
    """What may be ours by the journal, as `known` has it, rules and routes of an unfinished change included."""
    entry = ((observed.get("journal") or {}).get("stages") or {}).get("forwarding") or {}
    desired = entry.get("desired") or {}
    rules = {canonical(meaning(rule)) for rule in desired.get("rules") or []}
    routes = {canonical(bare(route)) for route in desired.get("routes") or []}
    return known(rules | routes | set(entry.get("flows") or []))


def known(texts: Iterable[str]) -> set[str]:
    """Meanings, and of rules the places too. A preference says nothing about whose a filter is: anybody may take it."""
    flows = {text: json.loads(text) for text in texts}
    return set(flows) | {place(flow) for flow in flows.values() if "handle" in flow}


def names(row: Json) -> set[str]:
    """By what an observed filter is known: as somebody wrote it, and where it was changed since by its place."""
    return {canonical(of_filter(row))} | ({place(row)} if row["kind"] == "flower" else set())


def is_held(row: Json, ours: set[str]) -> bool:
    """Whether an observed filter is one of those that `held` has found."""
    return not ours.isdisjoint(names(row))


def bare(route: Json) -> Json:
    """What makes up a route, planned or observed; its name and protocol do not matter."""
    return {key: route.get(key) for key in ("to", "via", "netdev", "src")}


def words(row: Json) -> str:
    """An observed filter in a few words."""
    keys = " ".join(f"{key} {value}" for key, value in sorted(row["keys"].items()))
    targets = [f"to {action['to_dev']}" for action in row["actions"] if action["kind"] == "mirred"]
    kind = "any protocol" if row["protocol"] in (None, tc.ALL) else f"{row['protocol']:#06x}"
    handle = "" if row["handle"] is None else f"handle {row['handle']}"
    return " ".join(part for part in (row["kind"], kind, handle, keys, *targets) if part)


def meaning_words(rule: Json) -> str:
    """A rule of the plan in the words that `words` has for an observed one."""
    return f"{words(meaning(rule))} ({rule['name']})"


def at_slot(rule: Json, rows: list[Json]) -> list[Json]:
    """The observed filters that stand where a rule belongs: with its preference, or with its handle."""
    return [
        row
        for row in rows
        if row["netdev"] == rule["netdev"]
        and (row["pref"] == rule["pref"] or (row["kind"] == "flower" and row["handle"] == rule["handle"]))
    ]


def way(route: Json) -> str:
    """A route in a few words."""
    via = f"via {route['via']} " if route.get("via") else ""
    return f"{via}dev {route['netdev'] or 'none'} src {route.get('src') or 'any'}"


def same_route(route: Json, row: Json) -> bool:
    """Whether an observed route is the planned one; its protocol does not matter."""
    return bare(row) == bare(route)


def add_command(rule: Json) -> list[str]:
    """The command that adds a rule: two `pedit`, the type first."""
    return [
        *f"tc filter add dev {rule['netdev']} ingress protocol {tc.MARKED:#06x}".split(),
        *f"pref {rule['pref']} handle {rule['handle']} flower skip_sw".split(),
        *f"src_mac {rule['src_mac']} dst_mac {rule['dst_mac']}".split(),
        *f"action pedit ex munge eth type set {tc.IPV4:#06x} pipe".split(),
        *f"action pedit ex munge eth dst set {rule['new_dst_mac']} pipe".split(),
        *f"action mirred egress redirect dev {rule['egress']}".split(),
    ]


def delete_command(row: Json) -> list[str]:
    """The command that removes one filter at an ingress and no other."""
    protocol = "all" if row["protocol"] in (None, tc.ALL) else f"{row['protocol']:#06x}"
    words = f"tc filter delete dev {row['netdev']} ingress protocol {protocol} pref {row['pref']}".split()
    handle = [] if row["handle"] is None else ["handle", str(row["handle"])]
    return [*words, *handle, row["kind"]]


def spelled(route: Json) -> list[str]:
    """A route as `ip route` takes it."""
    gateway = ["via", route["via"]] if route.get("via") else []
    source = ["src", route["src"]] if route.get("src") else []
    return [route["to"], *gateway, "dev", route["netdev"], *source]


def routes_to(system: System, to: str) -> list[Json]:
    """The routes to exactly this destination. Raises `Failure`."""
    shown = system.run(["ip", "-j", "-4", "route", "show", "exact", to])
    if not shown.ok:
        raise Failure(FAILED, f"ip route show exact {to}: {shown.reason()}")
    return [
        {"to": to, "via": row.get("gateway"), "netdev": row.get("dev", ""), "src": row.get("prefsrc")}
        for row in json.loads(shown.out or "[]")
    ]
