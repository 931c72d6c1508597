"""A packet followed through what the plan wants of the nodes; it knows cards, cables and tags, and nothing of paths."""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given

from fleet.mesh import desired
from fleet.mesh.desired import Port, Ports
from fleet.mesh.marker import Marker
from fleet.mesh.paths import Ring
from fleet.mesh.peers import index, peer_maps
from fleet.topology import End, Topology, ring
from tests.unit.mesh_fleets import addressed, topologies

PLAIN, SPORT = 0x0800, 65535
State = dict[str, Any]


@dataclass(frozen=True)
class Card:
    """A function as the wire knows it."""

    plane: int
    end: End
    port: Port


class Fleet:
    """Four nodes that hold what is wanted of them."""

    def __init__(self, topology: Topology, ports: Ports, states: Mapping[int, State]) -> None:
        self.states = states
        self.cards = [Card(plane, end, port) for (plane, end), port in ports.items()]
        self.wires = {
            member.end: other.end
            for segment in topology.segments
            for member in segment.members
            for other in segment.others(member.end)
        }

    def card(self, rank: int, netdev: str) -> Card:
        return next(card for card in self.cards if card.end.rank == rank and card.port.netdev == netdev)

    def send(self, rank: int, hca: str, to: str) -> str:
        """Where a packet of a queue pair with the flow label of the mesh ends: `rank N`, or why it is lost."""
        state = self.states[rank]
        routes = [route for route in state["forwarding"]["routes"] if route["to"] == f"{to}/32"]
        own = next(card for card in self.cards if card.end.rank == rank and card.port.hca == hca)
        routes = [route for route in routes if route["src"] == str(own.port.interface.ip)]
        if len(routes) != 1 or routes[0]["netdev"] != own.port.netdev:
            return "no route"
        gateway = [card for card in self.cards if str(card.port.interface.ip) == routes[0]["via"]]
        if len(gateway) != 1 or gateway[0].port.interface.network != own.port.interface.network:
            return "no gateway on this wire"
        marks = [m for m in state["markers"]["markers"] if m["hca"] == hca and m["source_port"] == SPORT]
        tag = marks[0]["ethertype"] if marks else PLAIN
        return self._cross(own, str(own.port.mac), str(gateway[0].port.mac), tag, to)

    def _cross(self, out: Card, src: str, dst: str, tag: int, to: str, hops: int = 0) -> str:
        far = self.wires[out.end]
        taken = [card for card in self.cards if card.end == far and card.port.mac == dst]
        if not taken or hops > 4:
            return "nobody on the wire takes it"
        (here,) = taken
        if tag == PLAIN:
            return f"rank {far.rank}" if str(here.port.interface.ip) == to else f"kernel of rank {far.rank}"
        forwarding = self.states[far.rank]["forwarding"]
        if here.port.netdev not in forwarding["qdiscs"]:
            return "no qdisc"
        rules = sorted(forwarding["rules"], key=lambda rule: rule["pref"])
        for rule in rules:
            if rule["netdev"] == here.port.netdev and (rule["src_mac"], rule["dst_mac"]) == (src, dst):
                onward = self.card(far.rank, rule["egress"])
                if onward.plane != here.plane:
                    return "out of another card"
                return self._cross(onward, src, rule["new_dst_mac"], PLAIN, to, hops + 1)
        return "no rule"


def states_of(topology: Topology, ports: Ports) -> dict[int, State]:
    found = Ring.of(topology)
    return {
        rank: {
            "forwarding": desired.forwarding(found, ports, rank),
            "markers": desired.markers(found, ports, rank, Marker("/opt/marker", "0" * 64)),
        }
        for rank in range(4)
    }


def flows(topology: Topology, ports: Ports) -> Iterator[tuple[int, str, str, int]]:
    """Source, its device, address and rank of the far end: what RoCEnante makes of the peer maps for opposite ranks."""
    at = {(end.rank, index(plane, end)): port for (plane, end), port in ports.items()}
    maps = []
    for text in peer_maps(Ring.of(topology)).split(";"):
        entries = (entry.split("=") for entry in text.split(","))
        maps.append({int(peer): [int(place) for place in places.split("/")] for peer, places in entries})
    for rank in range(4):
        near = {other.rank for _, other in topology.neighbours(rank)}
        (opposite,) = set(range(4)) - near - {rank}
        for mine, theirs in zip(maps[rank][opposite], maps[opposite][rank], strict=True):
            yield rank, at[rank, mine].hca, str(at[opposite, theirs].interface.ip), opposite


@given(topologies)
def test_every_flow_between_opposite_ranks_arrives(topology: Topology) -> None:
    ports = addressed(topology)
    fleet = Fleet(topology, ports, states_of(topology, ports))
    found = list(flows(topology, ports))
    assert len({(rank, hca) for rank, hca, _, _ in found}) == 8
    for rank, hca, to, opposite in found:
        assert fleet.send(rank, hca, to) == f"rank {opposite}"


@given(topologies)
def test_the_way_back_ends_where_the_way_there_began(topology: Topology) -> None:
    """A queue pair's answers leave by the port that its packets came in by, to the port that sent them."""
    ports = addressed(topology)
    fleet = Fleet(topology, ports, states_of(topology, ports))
    by_address = {str(port.interface.ip): (end.rank, port) for (_, end), port in ports.items()}
    for rank, hca, to, opposite in flows(topology, ports):
        _, arrival = by_address[to]
        (own,) = [str(port.interface.ip) for (_, end), port in ports.items() if end.rank == rank and port.hca == hca]
        assert fleet.send(opposite, arrival.hca, own) == f"rank {rank}"


RING = ring(4)
PORTS = addressed(RING)
PARTS = [
    (rank, stage, kind, place)
    for rank in range(4)
    for kind in ("rules", "routes", "qdiscs", "markers")
    for stage in ["markers" if kind == "markers" else "forwarding"]
    for place in range(2)
]


def lost(states: Mapping[int, State]) -> list[str]:
    """How the flows end that do not arrive."""
    fleet = Fleet(RING, PORTS, states)
    ends = [(fleet.send(rank, hca, to), f"rank {opposite}") for rank, hca, to, opposite in flows(RING, PORTS)]
    return [end for end, wanted in ends if end != wanted]


@pytest.mark.parametrize(("rank", "stage", "kind", "place"), PARTS)
def test_without_one_part_exactly_one_flow_is_lost(rank: int, stage: str, kind: str, place: int) -> None:
    states = deepcopy(states_of(RING, PORTS))
    del states[rank][stage][kind][place]
    wanted = {
        "rules": ["no rule"],
        "routes": ["no route"],
        "qdiscs": ["no qdisc"],
        "markers": [f"kernel of rank {via}" for via in [_via(rank, place)]],
    }[kind]
    assert lost(states) == wanted


def _via(rank: int, place: int) -> int:
    """The node that gets what the marker of this place no longer tags: by the device that sends it."""
    hca = states_of(RING, PORTS)[rank]["markers"]["markers"][place]["hca"]
    ((plane, end),) = [at for at, port in PORTS.items() if at[1].rank == rank and port.hca == hca]
    (other,) = RING.segment(end).others(end)
    assert plane in (0, 1)
    return other.end.rank


@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize("field", ["src_mac", "dst_mac", "new_dst_mac"])
@pytest.mark.parametrize("place", range(2))
def test_with_one_wrong_mac_exactly_one_flow_is_lost(rank: int, place: int, field: str) -> None:
    states = deepcopy(states_of(RING, PORTS))
    states[rank]["forwarding"]["rules"][place][field] = "02:00:00:00:ff:ff"
    assert lost(states) == ["nobody on the wire takes it" if field == "new_dst_mac" else "no rule"]


@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize("field", ["to", "via", "netdev", "src"])
def test_with_one_wrong_route_exactly_one_flow_is_lost(rank: int, field: str) -> None:
    states = deepcopy(states_of(RING, PORTS))
    first, second = states[rank]["forwarding"]["routes"]
    first[field] = second[field]
    assert len(lost(states)) == 1
