"""Check: do both ends of each cable run at full rate?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fleet.look import Planned
from fleet.problems import Problem
from fleet.topology import End, Kind

FULL = 200.0  # Gb/s, of each port of a Spark


def rates(look: Planned) -> Iterator[Problem]:
    """Ports below the full rate, and cables with another rate at each end. Ports that are down have none."""
    assert look.plan
    topology, ring = look.plan.topology, look.plan.topology.kind is Kind.RING
    for plane in look.plan.planes:
        for segment in topology.segments:
            cable = f" (cable {segment.index}, plane {plane})" if ring else f" (plane {plane})"
            found = dict(_found(look, plane, [member.end for member in segment.members]))
            for where, rate in found.items():
                if rate < FULL:
                    hint = "Reseat both ends; is it a cable for 200 Gb/s?"
                    yield Problem("rate-low", where, f"runs at {rate:g} Gb/s{cable}", f"{FULL:g} Gb/s", hint)
            if ring and len(set(found.values())) > 1:
                seen = " and ".join(f"{rate:g} Gb/s at {where}" for where, rate in found.items())
                path = f"cable {segment.index} plane {plane}"
                yield Problem("rate-differs", path, f"runs at {seen}", "one rate", "Reseat both ends, or change it.")


def _found(look: Planned, plane: int, ends: list[End]) -> Iterator[tuple[str, float]]:
    """The rates of a segment's ends in one plane in Gb/s, of those that are up, by node and port."""
    assert look.plan
    for end in ends:
        node = look.plan.ranks[end.rank]
        device = node.devices[plane, end.socket]
        hca = ((look.seen.observed.get(node.name) or {}).get("hcas") or {}).get(device.hca) or {}
        rate = re.match(r"(\d+(?:\.\d+)?) Gb/sec", hca.get("rate") or "")
        if rate and str(hca.get("state")).startswith("4"):
            yield f"{node.name} {device.netdev}", float(rate.group(1))
