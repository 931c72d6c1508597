"""Whether the cables are where the settings have them, and where they are if nobody has said: pure, from the wires.

Ranks are never put in another order: NCCL's ring goes through them as the settings list them, and which node is which
rank is the operator's choice. So cables that make a ring of the ranks in order are taken, in either direction; where
they make another ring, its order is told.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv4Network
from typing import Any

from fleet.facts import Facts
from fleet.problems import Problem, config_path
from fleet.settings import Settings
from fleet.topology import PLANES, Cabling, End, Kind, Socket, Topology, cables_of, ring, ring_of
from fleet.wires import Port, Wire, Wires

SHOWN = 8  # cables that one message lists

CABLING = config_path(("fabric", "cabling"))
KIND = config_path(("fabric", "topology"))


@dataclass(frozen=True)
class Judgement:
    """What the wires say about the settings.

    `ring` is the ring in rank order that was found; where not all of it was heard, the one that was addressed before,
    if nothing speaks against it.
    """

    ring: Topology | None = None
    problems: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()


def addressed(settings: Settings, facts: Mapping[str, Facts]) -> Topology | None:
    """The ring that the nodes' journals have addressed: ports with addresses in one network share a cable.

    None for a switched fabric, and where a journal is missing or tells of no ring of today's ranks.
    """
    if settings.fabric.topology is not Kind.RING:
        return None
    for plane in PLANES:
        networks: dict[IPv4Network, set[End]] = {}
        for rank, node in enumerate(settings.ranks):
            for port, address in _journaled(facts.get(node.name), plane):
                networks.setdefault(address.network, set()).add(End(rank, Socket(port["socket"])))
        found = ring_of(len(settings.ranks), [frozenset(ends) for ends in networks.values()])
        if found:
            return found
    return None


def _journaled(facts: Facts | None, plane: int) -> Iterator[tuple[Mapping[str, Any], IPv4Interface]]:
    """The ports of a node to which its journal says that an address was given, with the address."""
    stage = facts.stages.get(f"plane{plane}") if facts else None
    for port in (stage.desired.get("ports") or ()) if stage else ():
        if "address" in port:
            yield port, IPv4Interface(port["address"])


def judge(settings: Settings, facts: Mapping[str, Facts], wires: Wires) -> Judgement:
    """What the wires say: the ring of the ranks, or everything that is wrong with the cables, at once.

    `facts` by node name tell which ports were addressed, and for which cables; without any, nothing is taken for known.
    """
    kind = _Ring if settings.fabric.topology is Kind.RING else _Rail
    return kind(settings, facts, wires).judgement()


def around(settings: Settings, wires: Wires) -> list[str] | None:
    """The active nodes in the order of the ring that the cables make, whatever the settings' order; None without one.

    They come as one leaves the head by f0, and every other node by the port that one has not come in by.
    """
    names = [node.name for node in settings.ranks]
    order: list[str] = []
    start = port = Port(names[0], Socket.F0)
    while port.node not in order:
        order.append(port.node)
        others = wires.others(port)
        if len(others) != 1 or others[0].node not in names:
            return None
        (entered,) = others
        port = Port(entered.node, Socket.F1 if entered.socket is Socket.F0 else Socket.F0)
    return order if port == start and len(order) == len(names) else None


class _Judge(ABC):
    """What ring and rail have in common: ports that are on no wire."""

    def __init__(self, settings: Settings, facts: Mapping[str, Facts], wires: Wires) -> None:
        self.settings, self.facts, self.wires = settings, facts, wires
        self.names = [node.name for node in settings.ranks]
        self.absent = set(self.names) - wires.nodes
        self.problems = [
            Problem("cabling-unknown", name, f"cannot listen on its ports: {why}", "an answer", "")
            for name, why in wires.silent.items()
        ]
        self.warnings: list[Problem] = []

    def port(self, end: End) -> Port:
        return Port(self.names[end.rank], end.socket)

    def holds(self, port: Port) -> bool:
        """Whether the port has the address that was given to it: its cable was checked then, by that address."""
        facts = self.facts.get(port.node)
        return any(
            address in facts.links[one["netdev"]].addresses
            for plane in PLANES
            for one, address in _journaled(facts, plane)
            if facts and one["socket"] == port.socket and one["netdev"] in facts.links
        )

    def unwired(self, ports: Iterable[Port], partners: Mapping[Port, Port], *, known: bool) -> None:
        """Say of each port that is on no wire why; of two ends of one cable only that which is down.

        `known`: which cable each port is on is said or addressed, so that the plan can do without hearing it.
        """
        for port in ports:
            if port not in self.wires.ports or self.wires.wire(port):
                continue  # a port without devices is a problem of the plan
            place, partner = f"{port} ({self.wires.netdevs(port)})", partners.get(port)
            if self.wires.is_down(port):
                hint = f"On {port.node}: sudo ip link set {self.wires.ports[port][0].netdev} up."
                if not known:
                    hint += " Or name the direction in fabric.cabling: then `up` brings the port up and checks it."
                one = Problem("port-off" if known else "port-down", place, "is down, so nobody hears it", "it up", hint)
                (self.warnings if known else self.problems).append(one)
            elif not self.wires.has_carrier(port):
                if partner is None or partner not in self.wires.ports or not self.wires.is_down(partner):
                    hint = "Is the cable in, the far end on?"
                    self.problems.append(Problem("port-no-carrier", place, "has no carrier", "a cable", hint))
            elif not self.absent:
                seen = self.wires.errors(port) or "has carrier, but no other port of this fleet is heard on it"
                wanted = f"{partner} there" if partner else "the other nodes there"
                hint = "Does its cable, or its switch, lead out of this fleet?"
                held = known and self.holds(port)
                one = Problem("port-unheard" if held else "port-silent", place, seen, wanted, hint)
                (self.warnings if held else self.problems).append(one)

    def lead(self, port: Port) -> str:
        """Where a port leads, for messages; "" where nobody was heard."""
        others = self.wires.others(port)
        return f"{port} leads to {' and '.join(map(str, others))}" if others else ""

    @abstractmethod
    def check(self) -> Topology | None:
        """Fill in problems and warnings; the ring that was found."""

    def judgement(self) -> Judgement:
        found = self.check()
        return Judgement(found, tuple(self.problems), tuple(self.warnings))


class _Ring(_Judge):
    def __init__(self, settings: Settings, facts: Mapping[str, Facts], wires: Wires) -> None:
        super().__init__(settings, facts, wires)
        rank = {name: number for number, name in enumerate(self.names)}
        self.cables = {
            frozenset(End(rank[port.node], port.socket) for port in wire)
            for wire in wires.wires
            if len(wire) == 2 and all(port.node in rank for port in wire)
        }
        said, size = settings.fabric.cabling, len(self.names)
        self.said = None if said is Cabling.DISCOVER else said
        self.before = None if self.said else addressed(settings, facts)
        usual = [ring(size, one) for one in ([said] if self.said else [Cabling.RING, Cabling.REVERSED])]
        rings = [self.before, *usual] if self.before else usual
        self.wanted = max(rings, key=lambda one: len(cables_of(one) & self.cables))
        """The ring as it was said, else that of the addressed and the usual ones which is nearest to what was found."""

    def check(self) -> Topology | None:
        switches = [wire for wire in self.wires.wires if len(wire) > 2]
        if switches:
            self.problems += [self._switch(wire) for wire in switches]
            return None
        found = ring_of(len(self.names), self.cables)
        wrong = list(self._wrong())
        self.problems += wrong
        every = [Port(name, socket) for name in self.names for socket in Socket]
        partners: dict[Port, Port] = {}
        for cable in cables_of(self.wanted):
            one, other = map(self.port, cable)
            partners |= {one: other, other: one}
        new = self.cables - cables_of(self.before or self.wanted)
        before = None if new else self.before
        self.unwired(every, partners, known=bool(self.said or before))
        if wrong and all(self.wires.wire(port) for port in every):
            self.problems.append(self._order())
        if self.said and new and not wrong:
            self.problems.append(self._direction(found, new))
        if self.before and new and not wrong:
            self.warnings.append(self._moved(found, new))
        return found or before

    def _switch(self, wire: Wire) -> Problem:
        ports = ", ".join(map(str, wire[:SHOWN]))
        hint = "Set fabric.topology: switched, or cable the nodes to each other."
        return Problem("cabling-kind", KIND, f"is ring, but these ports are on one switch: {ports}", "cables", hint)

    def _wrong(self) -> Iterator[Problem]:
        """Neighbours that share no cable, where a port of theirs leads elsewhere."""
        joined = {frozenset(end.rank for end in cable) for cable in self.cables}
        for segment in self.wanted.segments:
            one, other = (member.end for member in segment.members)
            seen = [text for text in (self.lead(self.port(one)), self.lead(self.port(other))) if text]
            if seen and frozenset((one.rank, other.rank)) not in joined:
                ends = f"{self.port(one)} to {self.port(other)}"
                yield Problem("cable-wrong", f"cable {segment.index}", f"is not there: {', '.join(seen)}", ends, "")

    def _order(self) -> Problem:
        """Every port is on a cable, and they make no ring of the ranks in order: the order that they do make."""
        order = around(self.settings, self.wires)
        if order:
            said, right = " ".join(self.names), " ".join(order)
            return Problem(
                "cabling-order",
                config_path(("nodes",)),
                f"are in the order {said}, but the cables join {right}",
                "neighbours that share a cable",
                f"Put them in the order {right}, which is then the rank order, or move the cables.",
            )
        return Problem(
            "cabling-no-ring",
            "cables",
            f"join {_listed(self.wires.wires)}",
            f"one ring: {' '.join(self.names)}",
            "Move the cables that are named above.",
        )

    def _moved(self, found: Topology | None, new: Iterable[frozenset[End]]) -> Problem:
        """The ports were addressed for other cables than those that are there now."""
        cables = self._joined(new)
        plans = "This run plans them." if found else "They are planned once every port is heard."
        return Problem(
            "cables-moved",
            CABLING,
            f"finds {len(cables)} cables that were not there when the ports got their addresses: {_listed(cables)}",
            "addresses that follow the cables",
            f"{plans} If nobody moved cables on purpose, look before you run `up`.",
        )

    def _direction(self, found: Topology | None, new: Iterable[frozenset[End]]) -> Problem:
        size = len(self.names)
        usual = (one for one in (Cabling.RING, Cabling.REVERSED) if found and found == ring(size, one))
        word = next(usual, Cabling.DISCOVER)
        return Problem(
            "cabling-direction",
            CABLING,
            f"is {self.said}, but the cables join {_listed(self._joined(new))}",
            "the cables as they are",
            f"The order of nodes is right. Set it to {word}"
            + ("." if word is Cabling.DISCOVER else f", or to {Cabling.DISCOVER}."),
        )

    def _joined(self, cables: Iterable[frozenset[End]]) -> list[tuple[Port, ...]]:
        """Cables as their ports, in order."""
        return sorted(tuple(sorted(map(self.port, cable))) for cable in cables)


class _Rail(_Judge):
    def check(self) -> Topology | None:
        port = self.settings.fabric.port
        rail = [Port(name, port) for name in self.names]
        wires = sorted({wire for one in rail if (wire := self.wires.wire(one))}, key=lambda wire: -_common(wire, rail))
        cabled = [wire for wire in wires if len(wire) == 2 and _common(wire, rail) == 1]
        if cabled:
            seen = f"is switched, but cables join {_listed(cabled)}"
            hint = "Set fabric.topology: ring, or plug the ports into the switch."
            self.problems.append(Problem("cabling-kind", KIND, seen, "a switch", hint))
            return None
        other = Socket.F1 if port is Socket.F0 else Socket.F0
        there = self.wires.wire(Port(self.names[0], other))
        if not wires and there and {Port(name, other) for name in self.names} <= set(there):
            path = config_path(("fabric", "port"))
            self.problems.append(
                Problem("cabling-port", path, f"is {port}, but {other} is on the switch", str(other), "Correct it.")
            )
            return None
        for wire in wires[1:]:
            self.problems.append(
                Problem(
                    "rail-split",
                    ", ".join(str(one) for one in wire if one in rail),
                    f"is not on the switch of {wires[0][0]}, nothing passes between them",
                    "one switch, one VLAN",
                    "Check the switch.",
                )
            )
        self.unwired(rail, {}, known=True)
        return None


def _common(wire: Wire, ports: Iterable[Port]) -> int:
    return len(set(wire) & set(ports))


def _listed(wires: Sequence[Sequence[Port]]) -> str:
    shown = ", ".join(" to ".join(map(str, wire)) for wire in wires[:SHOWN])
    return shown + (f" and {len(wires) - SHOWN} more" if len(wires) > SHOWN else "")
