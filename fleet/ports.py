"""Which devices of a node are which port: by PCI domain and function, by the operator's word, or by the usual names."""

from collections.abc import Iterator
from dataclasses import dataclass

from fleet.facts import Facts, Hca
from fleet.node_settings import Node, PortNames
from fleet.problems import Problem, config_path
from fleet.topology import PCI_DOMAIN, Socket

USUAL = {
    (0, Socket.F0): ("enp1s0f0np0", "rocep1s0f0"),
    (0, Socket.F1): ("enp1s0f1np1", "rocep1s0f1"),
    (1, Socket.F0): ("enP2p1s0f0np0", "roceP2p1s0f0"),
    (1, Socket.F1): ("enP2p1s0f1np1", "roceP2p1s0f1"),
}
"""Names on a DGX Spark with DGX OS; only a preview without nodes takes them for true."""

USUAL_PCI = "{domain:04x}:01:00.{function}"

USUAL_MANAGEMENT = "enP7s7"


@dataclass(frozen=True)
class Device:
    """The devices of a port in a plane. `mac` and `pci` are None when nobody looked."""

    netdev: str
    hca: str
    mac: str | None = None
    pci: str | None = None


def usual(node: Node, plane: int, socket: Socket) -> Device:
    """The operator's names, else the usual ones."""
    said = node.ports.names(plane, socket)
    netdev, hca = USUAL[plane, socket]
    pci = USUAL_PCI.format(domain=PCI_DOMAIN[plane], function=socket.function)
    return Device(said.netdev or netdev, said.hca or hca, pci=pci)


def find(node: Node, index: int, facts: Facts, plane: int, socket: Socket) -> Device | Problem:
    """The devices of a port from the node's facts; `index` is the node's place in the config.

    What the operator says must be what is found: where several or no devices have the right place, it decides.
    """
    said = node.ports.names(plane, socket)
    loc = config_path(("nodes", index, "ports", f"plane{plane}", socket.value))
    place = f"PCI domain {PCI_DOMAIN[plane]:04x}, function {socket.function}"
    placed = facts.at(plane, socket)
    fitting = [hca for hca in placed or facts.hcas.values() if hca.netdev and _fits(said, hca)]
    spoken = said.netdev is not None or said.hca is not None
    if len(fitting) == 1 and (placed or spoken):
        (hca,) = fitting
        netdev = str(hca.netdev)
        link = facts.links.get(netdev)
        return Device(netdev, hca.name, link.mac if link else None, hca.pci)
    if spoken:
        names = " and ".join(name for name in (said.netdev, said.hca) if name)
        return Problem(
            "port-mismatch",
            loc,
            f"names {names}; {node.name} has {facts.mapping()}",
            f"the devices at {place}",
            "Correct the names, or remove them to take what is found.",
        )
    if len(placed) > 1:
        return Problem(
            "port-ambiguous",
            f"{node.name} plane {plane} {socket}",
            f"has {len(placed)} RDMA devices at {place}: {facts.mapping()}",
            "one",
            f"Name the right one in {loc}.",
        )
    return Problem(
        "port-missing",
        f"{node.name} plane {plane} {socket}",
        f"has no RDMA device with a netdev at {place}; found {facts.mapping()}",
        "one",
        f"Is a cable in the port? A Spark may remove the devices of an empty one. Else name them in {loc}.",
    )


def _fits(said: PortNames, hca: Hca) -> bool:
    return said.netdev in (None, hca.netdev) and said.hca in (None, hca.name)


def clashes(node: Node, devices: Iterator[tuple[str, Device]]) -> Iterator[Problem]:
    """Two planned ports that came out as the same device."""
    seen: dict[str, str] = {}
    for port, device in devices:
        if device.netdev in seen:
            yield Problem(
                "device-twice",
                f"{node.name} {device.netdev}",
                f"is both {seen[device.netdev]} and {port}",
                "a device of its own for each port",
                "Correct nodes[].ports.",
            )
        seen.setdefault(device.netdev, port)
