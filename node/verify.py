"""Whether the fabric works from this node: every neighbour at full size, on the port where it should be."""

from collections.abc import Callable
from functools import partial
from typing import Any

from . import neighbours, observe, plane
from .request import READ_BACK, Failure
from .system import System

HEADERS = 28  # bytes of IPv4 and ICMP around the payload of a ping
TENTATIVE = 0x40  # IFA_F_TENTATIVE of linux/if_addr.h
PATIENCE, STEP = 15, 0.1  # seconds

Json = dict[str, Any]


def verify(system: System, node: str, desired: Json) -> Json:
    """{"problems": []} where the fabric works. Raises `Failure` with everything that does not."""
    found = problems(system, node, desired)
    if found:
        raise Failure(READ_BACK, *found)
    return {"problems": []}


def problems(system: System, node: str, desired: Json) -> list[str]:
    """Everything that does not work, each a line that names port, cable and plane; empty where all is well."""
    ports: list[Json] = desired.get("ports", [])
    observed = observe.observe(system, None, ("links", "hcas"))
    gid, index = bool(desired.get("gid", True)), desired.get("gid_index")
    found = [line for port in ports for line in _port(node, port, observed, gid=gid, index=index)]
    neighbours.forget(system, _wrong(system, ports))  # first: other nodes are reached through this one
    pairs = [(port, peer) for port in ports for peer in port["peers"]]
    checks: list[Callable[[], list[str]]] = [partial(_peer, system, node, port, peer) for port, peer in pairs]
    checks += [partial(_far, system, node, far) for far in desired.get("far", [])]
    answers = [line for lines in system.parallel(checks) for line in lines]
    fabric = {hca["netdev"] for hca in observed["hcas"].values()}
    return found + answers + _neighbours(system, node, ports) + _unsettled(system, node, ports, fabric)


def _unsettled(system: System, node: str, ports: list[Json], fabric: set[str]) -> list[str]:
    """Planned ports whose IPv6 address is not in use when it should be."""
    busy = unsettled(system, fabric)
    what = f"its IPv6 address is not in use after {PATIENCE} s: a duplicate?"
    return [f"{_where(node, port)}: {what}" for port in ports if port["netdev"] in busy]


def unsettled(system: System, netdevs: set[str]) -> set[str]:
    """Those on which the kernel still looks for a duplicate of an address, when it should be done with that.

    It is a second or two after a port came up, announces the address once more then, and an engine that runs by then
    would see its fabric change. So ports that were given back just now are waited for too.
    """
    end = system.clock() + PATIENCE
    while True:
        rows = [line.split() for line in (system.text("/proc/net/if_inet6") or "").splitlines()]
        busy = {row[5] for row in rows if len(row) == 6 and int(row[4], 16) & TENTATIVE} & netdevs
        if not busy or system.clock() > end:
            return busy
        system.sleep(STEP)


def _where(node: str, port: Json) -> str:
    return f"{node} {port['netdev']} (cable {port['cable']}, plane {port['plane']})"


def _port(node: str, port: Json, observed: Json, *, gid: bool, index: int | None) -> list[str]:
    link = observed["links"].get(port["netdev"])
    hca = observed["hcas"].get(port["hca"])
    if link is None or hca is None:
        return [
            f"{_where(node, port)}: {'port' if link is None else 'RDMA device ' + port['hca']} is missing (cable out?)"
        ]
    found = []
    if not link["carrier"]:
        found.append("no carrier: is the cable in, the far end on?")
    if port["address"] not in link["addresses"]:
        found.append(f"address is {', '.join(link['addresses']) or 'none'}, plan wants {port['address']}")
    if link["mtu"] != port["mtu"]:
        found.append(f"MTU is {link['mtu']}, plan wants {port['mtu']}")
    if not hca["state"].startswith("4"):
        found.append(f"{port['hca']} is {hca['state'] or 'in no state'}, ACTIVE is wanted")
    elif gid:
        found += _gid(port, hca, index)
    return [f"{_where(node, port)}: {text}" for text in found]


def _gid(port: Json, hca: Json, index: int | None) -> list[str]:
    """The engine was planned with one index for all ports of the node: None where the plan names none."""
    address = port["address"].split("/")[0]
    seen = plane.gid_indexes(port, hca)
    if not seen:
        return [f"{port['hca']} has no RoCE v2 GID of {address}"]
    if index is None or index in seen:
        return []
    where = f"at index {' and '.join(map(str, seen))}, plan wants {index}"
    hint = "Run up again: without engine.gidIndex it takes the one that is there"
    return [f"{port['hca']} has the RoCE v2 GID of {address} {where}. {hint}"]


def _ping(system: System, arguments: list[str]) -> bool:
    """Three tries: the first may be lost while the neighbour's MAC is asked for, the second where a node is slow."""
    return any(system.run(["ping", "-n", "-q", "-c", "1", "-W", wait, *arguments]).ok for wait in ("0.5", "1", "3"))


def _peer(system: System, node: str, port: Json, peer: Json) -> list[str]:
    address = peer["address"].split("/")[0]
    way = ["-I", port["netdev"], address]
    if _ping(system, ["-M", "do", "-s", str(port["mtu"] - HEADERS), *way]):
        return []
    small = _ping(system, ["-s", "56", *way])
    seen = f"answers, but not to {port['mtu']} bytes in one piece: is its MTU the same?" if small else "does not answer"
    return [f"{_where(node, port)}: {peer['node']} {peer['netdev']} {address} {seen}"]


def _far(system: System, node: str, far: Json) -> list[str]:
    if _ping(system, ["-s", "56", far["address"].split("/")[0]]):
        return []
    return [f"{node}: {far['node']} {far['address']} does not answer: is forwarding on in the nodes between?"]


def _neighbours(system: System, node: str, ports: list[Json]) -> list[str]:
    """Entries that are wrong although everybody was just asked: a twin may have answered first, so ask once more."""
    wrong = _wrong(system, ports)
    if wrong:
        neighbours.forget(system, wrong)
        system.parallel([partial(_peer, system, node, port, peer) for port, peer, _ in wrong])
        wrong = _wrong(system, ports)
    return [
        f"{_where(node, port)}: {peer['address'].split('/')[0]} is at {seen}, but {peer['node']} {peer['netdev']} has "
        f"{peer['mac']}: wrong cable, or its twin answers"
        for port, peer, seen in wrong
    ]


def _wrong(system: System, ports: list[Json]) -> list[tuple[Json, Json, str]]:
    return neighbours.wrong(ports, neighbours.observe(system))
