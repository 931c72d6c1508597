"""What the nodes heard of each other, as wires: which QSFP ports are on one cable, or on one switch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fleet.node_settings import Node
from fleet.picture import columns
from fleet.settings import Settings
from fleet.topology import PCI_DOMAIN, PLANES, Socket


@dataclass(frozen=True, order=True)
class Port:
    """A QSFP port of a node. Its functions in both planes (twins) share its wire."""

    node: str
    socket: Socket

    def __str__(self) -> str:
        return f"{self.node} {self.socket}"


@dataclass(frozen=True)
class Function:
    """One network device of a port, as its node saw it while listening."""

    netdev: str
    up: bool
    carrier: bool
    error: str = ""


Wire = tuple[Port, ...]
"""Ports that hear each other, in order: two on a cable, any number on a switch."""


@dataclass(frozen=True)
class Wires:
    """What one round of listening told. `ports` and `wires` are of the nodes that reported."""

    ports: Mapping[Port, tuple[Function, ...]]
    wires: tuple[Wire, ...]
    silent: Mapping[str, str]  # node name -> why it told nothing

    @cached_property
    def nodes(self) -> frozenset[str]:
        """The nodes that reported a port."""
        return frozenset(port.node for port in self.ports)

    @cached_property
    def _of_port(self) -> Mapping[Port, Wire]:
        return {port: wire for wire in self.wires for port in wire}

    def wire(self, port: Port) -> Wire | None:
        """The wire that a port is on; None where it heard nobody and nobody heard it."""
        return self._of_port.get(port)

    def others(self, port: Port) -> tuple[Port, ...]:
        """Every other port on the same wire."""
        return tuple(other for other in self.wire(port) or () if other != port)

    def netdevs(self, port: Port) -> str:
        """The network devices of a port, for messages."""
        return ", ".join(function.netdev for function in self.ports.get(port, ())) or "no device"

    def is_down(self, port: Port) -> bool:
        """Whether no device of the port is up."""
        return not any(function.up for function in self.ports.get(port, ()))

    def has_carrier(self, port: Port) -> bool:
        """Whether any device of the port has carrier."""
        return any(function.carrier for function in self.ports.get(port, ()))

    def errors(self, port: Port) -> str:
        """Why devices of a port could not take part, "" where all could."""
        return "; ".join(
            f"{function.netdev}: {function.error}" for function in self.ports.get(port, ()) if function.error
        )

    @cached_property
    def unheard(self) -> tuple[Port, ...]:
        """Ports that have carrier and are on no wire."""
        return tuple(port for port in sorted(self.ports) if self.has_carrier(port) and self.wire(port) is None)

    def listing(self) -> list[str]:
        """Every wire and every port without one, a line each."""
        rows: list[Sequence[str]] = []
        for wire in self.wires:
            word = "cable" if len(wire) == 2 else "switch"
            if len(wire) == 2:
                rows.append((word, *(cell for port in wire for cell in (str(port), self.netdevs(port)))))
                continue
            rows += [(word if port == wire[0] else "", str(port), self.netdevs(port), "", "") for port in wire]
        for port in sorted(self.ports):
            if self.wire(port) is None:
                why = "down" if self.is_down(port) else "nobody heard" if self.has_carrier(port) else "no carrier"
                rows.append(("-", str(port), self.netdevs(port), why, ""))
        return columns(rows) if rows else []


def read(settings: Settings, reports: Mapping[str, Mapping[str, Any]], silent: Mapping[str, str]) -> Wires:
    """The wires, from the answers of the node program's `cabling` by node name; `silent` nodes gave none.

    A device belongs to the port that the operator named it for, else to that of its PCI function. One direction of
    hearing is enough: a node that began early has not heard the others' last words.
    """
    nodes = {node.name: node for node in settings.nodes}
    functions: dict[Port, list[Function]] = {}
    pairs: list[tuple[Port, Port]] = []
    for name, report in reports.items():
        for seen in report.get("ports") or ():
            port = _port(nodes.get(name), seen)
            if port is None:
                continue
            functions.setdefault(port, []).append(
                Function(seen["netdev"], bool(seen["up"]), bool(seen["carrier"]), seen.get("error") or "")
            )
            heard = (_port(nodes.get(who["node"]), who) for who in seen["heard"])
            pairs += [(port, other) for other in heard if other and other != port]
    return Wires(
        ports={port: tuple(sorted(found, key=_by_plane)) for port, found in sorted(functions.items())},
        wires=tuple(_joined(pairs)),
        silent=dict(silent),
    )


def _by_plane(function: Function) -> tuple[int, str]:
    """Devices of PCI domain 0 have the shorter names."""
    return len(function.netdev), function.netdev


def _port(node: Node | None, seen: Mapping[str, Any]) -> Port | None:
    if node is None:
        return None
    for plane in PLANES:
        for socket in Socket:
            named = node.ports.names(plane, socket)
            if (
                (named.netdev or named.hca)
                and named.netdev in (None, seen["netdev"])
                and named.hca in (None, seen["hca"])
            ):
                return Port(node.name, socket)
    if seen["domain"] not in PCI_DOMAIN.values():
        return None
    return next((Port(node.name, socket) for socket in Socket if socket.function == seen["function"]), None)


def _joined(pairs: Sequence[tuple[Port, Port]]) -> Iterator[Wire]:
    """The sets of ports that are connected by pairs, smallest port first."""
    wires: dict[Port, set[Port]] = {}
    for one, other in pairs:
        both = wires.get(one, {one}) | wires.get(other, {other})
        for port in both:
            wires[port] = both
    for port in sorted(wires):
        if port == min(wires[port]):
            yield tuple(sorted(wires[port]))
