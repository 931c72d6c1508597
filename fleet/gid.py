"""The GID index of a rank: NCCL takes one for all devices that it lists, so all its ports have to share one.

A port's table has a RoCE v1 and a v2 entry for each of its addresses. With exactly one IPv6 link-local address, which
comes first, the v2 entry of the only IPv4 address is number 3; but an entry keeps its place, and a place that a process
holds stays taken (sparkring #186, #290). So the index is looked up where the address is there, and where it is not yet
there, it is expected and checked once it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv6Address

from fleet.facts import Facts, FoundGid
from fleet.flags import Flag, Source
from fleet.ports import Device
from fleet.problems import Problem, config_path
from node.plane import eui64

USUAL = 3
ROCE_V2 = "RoCE v2"
ACTIVE = "4"  # the number before the colon in a port's state


@dataclass(frozen=True)
class Port:
    """A planned port of a rank."""

    plane: int
    device: Device
    interface: IPv4Interface

    @property
    def gid(self) -> IPv6Address:
        """Its planned address as a GID."""
        return IPv6Address(f"::ffff:{self.interface.ip}")


def index_for(node: str, facts: Facts | None, ports: Sequence[Port], given: int | None) -> Flag | tuple[Problem, ...]:
    """The index that the rank will be told, or what stands in the way of every index.

    `given` is the operator's, who may be wrong. Ports that their stage has yet to put right do not count: where there
    are such, the index is what the others have, or the usual one, and it has to be checked when they are ready.
    """
    ready = [port for port in ports if facts and is_ready(facts, port)]
    found: int | tuple[Problem, ...] = USUAL
    if facts and ready:
        found = gid_index(node, facts, ready, given)
        if not isinstance(found, int):
            return found
    if given is not None:
        return Flag(str(given), Source.SETTING, "engine.gidIndex")
    return Flag(str(found), Source.FOUND if ready == list(ports) else Source.EXPECTED)


def pinned(node: str, facts: Facts | None, ports: Sequence[Port], index: int) -> Flag | tuple[Problem, ...]:
    """`index`, for a rank whose GIDs a later stage puts there; or what stands in the way of every index.

    That GIDs have moved does not: they come back when their addresses are put on anew.
    """
    found = index_for(node, facts, ports, None)
    if isinstance(found, Flag):
        return found if found.value == str(index) else Flag(str(index), Source.EXPECTED)
    return tuple(one for one in found if one.code != "gid-not-common") or Flag(str(index), Source.EXPECTED)


def is_ready(facts: Facts, port: Port) -> bool:
    """Whether the stage of a port has nothing left to do that could move its GIDs."""
    stage, link = facts.stages.get(f"plane{port.plane}"), facts.links.get(port.device.netdev)
    if stage is None or stage.status != "applied" or link is None or not link.up or link.mac is None:
        return False
    return port.interface in link.addresses and [str(address) for address in link.local] == [eui64(link.mac)]


def gid_index(node: str, facts: Facts, ports: Sequence[Port], given: int | None = None) -> int | tuple[Problem, ...]:
    """The lowest index at which every port has a RoCE v2 GID of its planned address; `given`, if that is one.

    Otherwise what is wrong, port by port.
    """
    indexes: dict[str, set[int]] = {}
    problems: list[Problem] = []
    for port in ports:
        found = _indexes(node, facts, port)
        if isinstance(found, Problem):
            problems.append(found)
        else:
            indexes[port.device.hca] = found
    if problems:
        return tuple(problems)
    common = set.intersection(*indexes.values())
    if not common:
        return (_nothing_common(node, ports, indexes),)
    if given is not None and given not in common:
        return (_not_given(node, facts, ports, given, min(common)),)
    return min(common) if given is None else given


def _indexes(node: str, facts: Facts, port: Port) -> set[int] | Problem:
    """Where a port has what is wanted; never empty."""
    device, address = port.device, port.interface.ip
    hca = facts.hcas.get(device.hca)
    state, gids = (hca.state, hca.gids) if hca else ("not there", ())
    mapped = [gid for gid in gids if gid.gid == port.gid]
    second = [gid for gid in mapped if gid.kind == ROCE_V2]
    here = {gid.index for gid in second if gid.netdev == device.netdev}
    if state.startswith(ACTIVE) and here:
        return here
    path, wanted = f"{node} {device.hca}", f"a {ROCE_V2} GID of {address} on {device.netdev}"
    if not state.startswith(ACTIVE):
        return Problem("gid-port", path, f"is {state}", "ACTIVE", "Is the cable in, the far end on?")
    if second:
        seen = f"has the GID of {address} for {second[0].netdev or 'no port'} (index {second[0].index})"
        return Problem("gid-netdev", path, seen, wanted, "Does another port have the address too?")
    if mapped:
        seen = f"has {address} as {mapped[0].kind or 'no type'} only (index {mapped[0].index})"
        return Problem("gid-type", path, seen, wanted, "Is RoCE v2 on in the firmware, and the driver the node's own?")
    return Problem(
        "gid-missing",
        path,
        f"has no GID of {address}, which {device.netdev} has",
        wanted,
        f"Put the address on anew: {_anew(node, [port])}",
    )


def _nothing_common(node: str, ports: Sequence[Port], indexes: dict[str, set[int]]) -> Problem:
    listed = [index for found in indexes.values() for index in found]
    usual = max(sorted(set(listed)), key=listed.count)
    moved = [port for port in ports if usual not in indexes[port.device.hca]]
    seen = ", ".join(f"{hca} has {' and '.join(map(str, sorted(found)))}" for hca, found in indexes.items())
    return Problem(
        "gid-not-common",
        node,
        f"has no GID index that all its ports share: {seen}",
        "one index for all devices",
        f"Put the address of what has moved on anew: {_anew(node, moved)}",
    )


def _anew(node: str, ports: Sequence[Port]) -> str:
    """How an address gets the first free place: whoever uses RDMA has to be gone, which `up` sees to."""
    commands = "; ".join(f"ip address del {port.interface} dev {port.device.netdev}" for port in ports)
    return f"`{commands}` as root on {node}, then run up."


def _not_given(node: str, facts: Facts, ports: Sequence[Port], given: int, common: int) -> Problem:
    there: list[str] = []
    for port in ports:
        gids = [gid for gid in facts.hcas[port.device.hca].gids if gid.index == given]
        if not any(_fits(gid, port) for gid in gids):
            seen = f"{gids[0].gid} ({gids[0].kind or 'no type'})" if gids else "nothing"
            there.append(f"{port.device.hca} has {seen} there")
    return Problem(
        "gid-given",
        config_path(("engine", "gidIndex")),
        f"is {given}; on {node} {', '.join(there)}",
        f"{common}, which all ports of {node} have",
        "Leave it out: each rank then gets the index that its node has.",
    )


def _fits(gid: FoundGid, port: Port) -> bool:
    return gid.gid == port.gid and gid.kind == ROCE_V2 and gid.netdev == port.device.netdev
