"""What explains that an engine does not use all of its fabric: what its ports, ranks and nodes show. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv6Address

from fleet.proof import Json
from fleet.traffic import Port

ACTIVE = "4:"
ROCE_V2 = "RoCE v2"
ADVERT = re.compile(r"advertised=(\d+) observed=(\d+)")
LISTENER = "listener"
"""Name of the line about what a listener publishes, in the answers of the nodes: a witness, not an expected line."""


def causes(
    desired: Mapping[str, Json],
    ports: Sequence[Port],
    now: Mapping[str, Json],
    loaded: Mapping[str, Json],
    complaints: Mapping[str, Sequence[str]],
    mesh: Sequence[str] = (),
) -> tuple[str, ...]:
    """What explains that the traffic is not as it should be, the surest first.

    `now` are the latest readings by node and HCA; `complaints` what `verify` says of each node; `mesh` what is wrong
    with the ways between opposite ranks.
    """
    found = [*_bad_ports(desired, ports, now), *_cables(ports, now, complaints), *_flags(desired)]
    found += [*_cap(desired, loaded), *_channels(desired), *mesh]
    if not found:
        found = [line for said in complaints.values() for line in said] or [
            "none that is known: look at what the ranks print with proof.logs"
        ]
    return tuple(dict.fromkeys(found))


def _bad_ports(desired: Mapping[str, Json], ports: Sequence[Port], now: Mapping[str, Json]) -> Iterator[str]:
    for port in ports:
        seen, index = now[port.node][port.hca], desired[port.node]["gid_index"]
        if seen["state"].startswith(ACTIVE) and not usable(seen, port.address):
            shown = f"{seen['gid'] or 'nothing'}{', ' + seen['gid_type'] if seen['gid_type'] else ''}"
            yield (
                f"{port.node} {port.hca} (plane {port.plane}) has no RoCE v2 GID of {port.address} at index {index}: "
                f"there is {shown}; a device without it carries nothing"
            )


def usable(seen: Json, address: str) -> bool:
    """Whether a reading shows the RoCE v2 GID of an IPv4 address."""
    try:
        gid = IPv6Address(seen["gid"])
    except ValueError:
        return False
    return seen["gid_type"] == ROCE_V2 and str(gid.ipv4_mapped) == address


def _cables(ports: Sequence[Port], now: Mapping[str, Json], complaints: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """A link that is down at both ends is unplugged. One that is up, between ports that are right and do not reach each
    other in any plane, leads elsewhere: the functions of a port share its wire."""
    said = [line for lines_ in complaints.values() for line in lines_]
    for edge in dict.fromkeys(port.edge for port in ports):
        ends = [port for port in ports if port.edge == edge]
        down = [port for port in ends if not now[port.node][port.hca]["state"].startswith(ACTIVE)]
        silent = [port for port in ends if any(line.startswith(f"{port.node} {port.netdev} ") for line in said)]
        if down:
            where = ", ".join(f"{port.node} {port.netdev}" for port in down)
            some = "" if len(down) == len(ends) else "; the other end has one, so it leads elsewhere"
            yield f"{edge}: no link at {where}{some}"
        elif len(silent) == len(ends) and all(usable(now[port.node][port.hca], port.address) for port in ends):
            yield f"wrong cable: {edge} has a link at each end, and its ends do not reach each other"


def _flags(desired: Mapping[str, Json]) -> Iterator[str]:
    missing = dict.fromkeys(name for one in desired.values() for name in one["left_out"])
    if missing:
        yield (
            f"flags left out: {', '.join(missing)} not 1 in the ranks' environment, so that NCCL publishes two devices "
            "of a rank and sends the channels of the others by them"
        )


def _cap(desired: Mapping[str, Json], loaded: Mapping[str, Json]) -> Iterator[str]:
    """What the listeners publish: as the ranks have printed it, or as the strings of their library let expect."""
    for node, answer in loaded.items():
        one, hcas = desired[node], len(desired[node]["ports"])
        where = f"rank {one['rank']} on {node}"
        told = ADVERT.search(answer["lines"].get(LISTENER) or "")
        advertised, observed = (int(told[1]), int(told[2])) if told else (hcas, hcas)
        if observed < hcas:
            yield f"{where} found a GID on {observed} of {hcas} devices when it started"
        unknown = [text for found in answer["libraries"] for text in one["strings"] if text not in found["strings"]]
        if unknown:
            yield (
                f"two-listener cap: the libnccl of {where} does not know {', '.join(unknown)}, which is set: it "
                "publishes two devices of a rank, and the others carry nothing"
            )
        elif advertised < observed and not one["left_out"]:
            yield f"two-listener cap: {where} publishes {advertised} of {observed} devices, the others carry nothing"


def _channels(desired: Mapping[str, Json]) -> Iterator[str]:
    for node, one in desired.items():
        if one["channels"] is not None and one["channels"] < len(one["ports"]):
            yield (
                f"rank {one['rank']} on {node} has {one['channels']} channels for {len(one['ports'])} devices "
                "(NCCL_MAX_NCHANNELS): a device without a channel carries nothing"
            )
