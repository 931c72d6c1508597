"""Fleets for tests of the mesh: the published example, and rings of every order and direction with swapped nodes."""

from collections.abc import Mapping
from ipaddress import IPv4Interface, IPv4Network
from itertools import permutations, product

from hypothesis import strategies as st

from fleet.addressing import assign
from fleet.mesh.desired import Port
from fleet.ports import USUAL
from fleet.topology import PLANES, End, Socket, Topology, cabled

F0, F1 = Socket
PCI = {(0, F0): "0000:01:00.0", (0, F1): "0000:01:00.1", (1, F0): "0002:01:00.0", (1, F1): "0002:01:00.1"}


def port(plane: int, socket: Socket, mac: str, interface: str) -> Port:
    """A port with its usual names."""
    netdev, hca = USUAL[plane, socket]
    return Port(netdev, hca, PCI[plane, socket], mac, IPv4Interface(interface))


def example() -> Mapping[tuple[int, End], Port]:
    """Addresses and MACs of sparkring's `fabric.example.json`: rank order is ring order, clockwise by f0."""
    found = {}
    for rank, plane in product(range(4), PLANES):
        before = (rank - 1) % 4
        found[plane, End(rank, F0)] = port(
            plane, F0, f"02:{rank:02x}:00:{plane:02x}:00:01", f"198.18.{100 * plane + rank + 1}.1/24"
        )
        found[plane, End(rank, F1)] = port(
            plane, F1, f"02:{rank:02x}:01:{plane:02x}:00:01", f"198.18.{100 * plane + before + 1}.2/24"
        )
    return found


def cabling(order: tuple[int, ...], flipped: tuple[bool, ...]) -> list[tuple[End, End]]:
    """The cables of a ring in which the ranks follow in this order, each by f0 to the next unless it is flipped."""
    out = [End(rank, F1 if flip else F0) for rank, flip in zip(order, flipped, strict=True)]
    into = [End(rank, F0 if flip else F1) for rank, flip in zip(order, flipped, strict=True)]
    return [(out[position], into[(position + 1) % 4]) for position in range(4)]


def addressed(topology: Topology) -> Mapping[tuple[int, End], Port]:
    """All ports of a topology, with the addresses that the planner gives them and a MAC of each one's own."""
    found = {}
    for plane in PLANES:
        addresses = assign(topology, plane, IPv4Network(f"10.{10 + 10 * plane}.0.0/16"), far_routes=True)
        for end, planned in addresses.ports.items():
            mac = f"02:00:00:{plane:02x}:{end.rank:02x}:{end.socket.function:02x}"
            found[plane, end] = port(plane, end.socket, mac, str(planned.interface))
    return found


EVERY_ORDER = list(permutations(range(4)))
flips = st.tuples(*[st.booleans()] * 4)
topologies = st.builds(
    lambda order, flipped, turned: cabled(4, [cable[::-1] if turned else cable for cable in cabling(order, flipped)]),
    st.sampled_from(EVERY_ORDER),
    flips,
    st.booleans(),
)
"""Rings of four: all orders of the ranks, which includes both directions, and any nodes with swapped cables."""
