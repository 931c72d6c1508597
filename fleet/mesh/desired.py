"""What the mesh wants of each node: driver values, routes and rules, markers; as the node program takes them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Interface
from typing import Any

from fleet.mesh.marker import Marker
from fleet.mesh.paths import Ring
from fleet.mesh.sizes import QUEUES
from fleet.topology import End

"""The mesh's stages in the order in which they are applied."""

GID_INDEX = 3
"""RoCEnante and the paths were qualified with this one, and neither is told another."""

FLOW_LABEL = 16383
SOURCE_PORT = 49152 | (FLOW_LABEL & 0x3FFF)
"""UDP source port of a queue pair with that flow label: 65535. The marker takes all packets that have it."""

MARKED = 0x88B5
"""EtherType of a packet between marker and rule (IEEE local experimental)."""


@dataclass(frozen=True)
class Port:
    """A port in a plane, with all that the mesh says about it. `mac` and `pci` are None where nobody looked."""

    netdev: str
    hca: str
    pci: str | None
    mac: str | None
    interface: IPv4Interface


Ports = Mapping[tuple[int, End], Port]
"""All ports of the fleet, by plane and end."""


OFF: Mapping[str, Any] = {"state": "off"}


def nic(ports: Ports, rank: int, *, queue: int, mtu: int) -> dict[str, Any]:
    """The driver values of a rank's four functions. `queue` is the hairpin queue's size in packets."""
    functions = [
        {
            "netdev": port.netdev,
            "hca": port.hca,
            "pci": port.pci,
            "hairpin_num_queues": QUEUES,
            "hairpin_queue_size": queue,
            "address": str(port.interface),
            "mtu": mtu,
            "gid_index": GID_INDEX,
        }
        for (_, end), port in ports.items()
        if end.rank == rank
    ]
    return {"state": "on", "functions": sorted(functions, key=lambda function: str(function["pci"]))}


def forwarding(ring: Ring, ports: Ports, rank: int) -> dict[str, Any]:
    """The rules for what a rank passes on, and the routes to its opposite rank."""
    rules = list(_rules(ring, ports, rank))
    return {
        "state": "on",
        "qdiscs": sorted({rule["netdev"] for rule in rules}),
        "rules": rules,
        "routes": list(_routes(ring, ports, rank)),
    }


def markers(ring: Ring, ports: Ports, rank: int, binary: Marker) -> dict[str, Any]:
    """The markers on the ports by which a rank's packets to the opposite rank leave."""
    hcas = sorted({ports[path.plane, path.origin].hca for path in ring.taken() if path.source == rank})
    return {
        "state": "on",
        "binary": binary.to_json(),
        "markers": [{"hca": hca, "source_port": SOURCE_PORT, "ethertype": MARKED} for hca in hcas],
    }


def _rules(ring: Ring, ports: Ports, rank: int) -> Iterator[dict[str, Any]]:
    for path in ring.taken():
        if path.via == rank:
            yield {
                "name": f"restore-{path.name}",
                "netdev": ports[path.plane, path.ingress].netdev,
                "pref": path.number,
                "handle": path.number,
                "src_mac": ports[path.plane, path.origin].mac,
                "dst_mac": ports[path.plane, path.ingress].mac,
                "new_dst_mac": ports[path.plane, path.arrival].mac,
                "egress": ports[path.plane, path.egress].netdev,
            }


def _routes(ring: Ring, ports: Ports, rank: int) -> Iterator[dict[str, Any]]:
    for path in ring.taken():
        if path.source == rank:
            origin = ports[path.plane, path.origin]
            yield {
                "name": path.name,
                "to": f"{ports[path.plane, path.arrival].interface.ip}/32",
                "via": str(ports[path.plane, path.ingress].interface.ip),
                "netdev": origin.netdev,
                "src": str(origin.interface.ip),
            }
