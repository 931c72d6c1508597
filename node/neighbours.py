"""Neighbour entries of the fabric's ports: RoCE takes its destination MAC from this table, and sends where it says."""

import json
from collections.abc import Iterable
from typing import Any

from .deviation import Deviation
from .system import System

Json = dict[str, Any]


def observe(system: System) -> list[Json]:
    """Every IPv4 entry with a MAC as {"address", "netdev", "mac"}; none where the table cannot be read."""
    shown = system.run(["ip", "-j", "-4", "neigh", "show"])
    rows = json.loads(shown.out or "[]") if shown.ok else []
    return [
        {"address": row["dst"], "netdev": row["dev"], "mac": row["lladdr"].lower()} for row in rows if row.get("lladdr")
    ]


def wrong(ports: Iterable[Json], table: Iterable[Json]) -> list[tuple[Json, Json, str]]:
    """Port, peer and MAC of each peer of these ports that is entered with another MAC than its own. Pure."""
    macs = {(row["address"], row["netdev"]): row["mac"] for row in table}
    found = []
    for port in ports:
        for peer in port["peers"]:
            seen = macs.get((peer["address"].split("/")[0], port["netdev"]), "")
            if seen and peer.get("mac") and seen != peer["mac"].lower():
                found.append((port, peer, seen))
    return found


def deviations(ports: Iterable[Json], table: Iterable[Json]) -> list[Deviation]:
    """The same for people. An engine that is connected goes on with the MAC that it has found before. Pure."""
    return [
        Deviation(
            "link.neighbour",
            port["netdev"],
            f"{peer['address'].split('/')[0]} is at {seen}",
            f"{peer['mac']} of {peer['node']} {peer['netdev']}",
            disruptive=False,
        )
        for port, peer, seen in wrong(ports, table)
    ]


def forget(system: System, entries: Iterable[tuple[Json, Json, str]]) -> None:
    """Remove such entries, permanent ones too: the next packet asks for the MAC anew."""
    for port, peer, _ in entries:
        system.change(["ip", "neigh", "del", peer["address"].split("/")[0], "dev", port["netdev"]])
