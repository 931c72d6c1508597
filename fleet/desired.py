"""What the nodes' ports shall be: the desired states of planes and relay, and what is checked of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fleet import netplan
from fleet.addressing import PlaneAddresses, PortAddress
from fleet.node_settings import Node
from fleet.ports import Device
from fleet.settings import Settings
from fleet.stack import StackName
from fleet.topology import End, Kind, Socket, Topology
from node.files import MARK


@dataclass(frozen=True)
class Fabric:
    """Topology and addresses, and each node's devices by plane and socket, as far as they were found."""

    settings: Settings
    stack: StackName
    topology: Topology
    planes: Mapping[int, PlaneAddresses]
    devices: Mapping[str, Mapping[tuple[int, Socket], Device]]

    @cached_property
    def rank(self) -> Mapping[str, int]:
        """The ranks of the active nodes."""
        return {node.name: rank for rank, node in enumerate(self.settings.ranks)}

    def ends(self, name: str) -> Iterator[tuple[int, End]]:
        """The planned ends of an active node in all planes that are on, plane 0 first."""
        for plane in self.planes:
            for end in self.topology.ends(self.rank[name]):
                yield plane, end

    def device(self, plane: int, end: End) -> tuple[str, Device]:
        """The node of an end, and its device there."""
        name = self.settings.ranks[end.rank].name
        return name, self.devices[name][plane, end.socket]

    def here(self, name: str) -> dict[str, PortAddress]:
        """What the plan puts on each of a node's network devices, as far as these were found."""
        here = {}
        for plane, end in self.ends(name):
            device = self.devices[name].get((plane, end.socket))
            if device:
                here[device.netdev] = self.planes[plane].ports[end]
        return here

    def plane(self, node: Node, plane: int) -> dict[str, Any]:
        """The desired state of a plane that is on, on an active node."""
        planned, notes = [], {}
        for end in self.topology.ends(self.rank[node.name]):
            _, device = self.device(plane, end)
            port = self.planes[plane].ports[end]
            planned.append(
                {
                    "socket": end.socket.value,
                    "netdev": device.netdev,
                    "hca": device.hca,
                    "address": str(port.interface),
                    "mtu": self.settings.fabric.mtu,
                    "routes": [{"to": str(route.to), "via": str(route.via)} for route in port.routes],
                }
            )
            notes[device.netdev] = self._wire(plane, end)
        planned.sort(key=lambda port: str(port["netdev"]))
        header = (
            f"{MARK}: plane {plane} of {node.name}, stack {self.stack.label(self.settings.fleet.id)}.",
            "A hand edit shows as drift in the preview; `pulumi destroy` takes this file away.",
        )
        desired: dict[str, Any] = {
            "state": "on",
            "plane": plane,
            "file": netplan.path(plane),
            "text": netplan.render(header, planned, notes),
            "ports": planned,
        }
        if self.settings.fabric.set_aside:
            desired["setAside"] = sorted(self.settings.fabric.set_aside)
        return desired

    def _wire(self, plane: int, end: End) -> str:
        segment = self.topology.segment(end)
        if self.topology.kind is Kind.SWITCHED:
            return f"{end.socket}, to the switch"
        (other,) = segment.others(end)
        name, device = self.device(plane, other.end)
        return f"{end.socket}, cable {segment.index} to {name} {device.netdev}"

    def off(self, node: Node, plane: int) -> dict[str, Any]:
        """The desired state of a plane that is off, or of a node that leaves."""
        return {
            "state": "off",
            "plane": plane,
            "file": netplan.path(plane),
            "ports": sorted(
                (
                    {"socket": socket.value, "netdev": device.netdev, "hca": device.hca}
                    for (of, socket), device in self.devices[node.name].items()
                    if of == plane
                ),
                key=lambda port: port["netdev"],
            ),
        }

    def relay(self, node: Node) -> dict[str, Any]:
        """The desired state of the relay."""
        if node.name not in self.rank or not self.settings.fabric.ip_relay or self.topology.kind is Kind.SWITCHED:
            return {"state": "off"}
        ends = self.topology.ends(self.rank[node.name])
        return {"state": "on", "pairs": [[self.device(plane, end)[1].netdev for end in ends] for plane in self.planes]}

    def verify(self, node: Node, gid_index: int | None) -> dict[str, Any]:
        """What is checked of an active node once all planes are applied; no index where none is to be asked for."""
        checked = []
        for plane, end in self.ends(node.name):
            _, device = self.device(plane, end)
            addresses, segment = self.planes[plane], self.topology.segment(end)
            peers = []
            for other in segment.others(end):
                name, far = self.device(plane, other.end)
                peers.append(
                    {"node": name, "netdev": far.netdev, "address": str(addresses.at(other.end)), "mac": far.mac}
                )
            checked.append(
                {
                    "netdev": device.netdev,
                    "hca": device.hca,
                    "plane": plane,
                    "cable": segment.index if self.topology.kind is Kind.RING else None,
                    "address": str(addresses.ports[end].interface),
                    "mtu": self.settings.fabric.mtu,
                    "peers": peers,
                }
            )
        return {"ports": checked, "far": list(self._far(node)), "gid": True, "gid_index": gid_index}

    def _far(self, node: Node) -> Iterator[dict[str, str]]:
        """Addresses that answer only if another node forwards: those on far subnets that the next hop does not own."""
        if not self.settings.fabric.ip_relay:
            return
        for addresses in self.planes.values():
            for index, hop in sorted(self.topology.hops[self.rank[node.name]].items()):
                for member in self.topology.segments[index].members:
                    if member.end.rank != hop.via.rank:
                        far = self.settings.ranks[member.end.rank].name
                        yield {"address": str(addresses.at(member.end)), "node": far}
