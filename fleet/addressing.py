"""Subnets, addresses and routes of a plane, from a topology and a pool. Pure arithmetic."""

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv4Network

from fleet.topology import End, Topology

SUBNET_PREFIX = 24
"""One /24 for each segment: NCCL matches neighbours by NCCL_IB_SUBNET_PREFIX_LEN=24."""

LAST_HOST = 254
BENCHMARK_NETWORK = IPv4Network("198.18.0.0/15")
"""RFC 2544 range; local proxies hand out fake DNS answers from it."""


class PoolTooSmallError(ValueError):
    """The pool has fewer subnets, or a subnet fewer hosts, than the topology needs."""


@dataclass(frozen=True)
class Route:
    """A static route to a far subnet; `rank` owns the address `via`."""

    to: IPv4Network
    via: IPv4Address
    rank: int


@dataclass(frozen=True)
class PortAddress:
    """What a port gets in a plane."""

    plane: int
    end: End
    segment: int
    interface: IPv4Interface
    routes: tuple[Route, ...]


@dataclass(frozen=True)
class PlaneAddresses:
    """A plane with everybody's addresses. `subnets[k]` belongs to segment k."""

    plane: int
    pool: IPv4Network
    subnets: tuple[IPv4Network, ...]
    ports: Mapping[End, PortAddress]

    def at(self, end: End) -> IPv4Address:
        """The address of an end in this plane."""
        return self.ports[end].interface.ip


def subnets_in(pool: IPv4Network) -> int:
    """How many /24 subnets a pool has; 0 when it is smaller than one."""
    return 2 ** (SUBNET_PREFIX - pool.prefixlen) if pool.prefixlen <= SUBNET_PREFIX else 0


def assign(topology: Topology, plane: int, pool: IPv4Network, *, far_routes: bool) -> PlaneAddresses:
    """Give each segment the pool's next /24 and each end its address there.

    `far_routes` adds to each port the routes to the subnets that its node does not sit on and that leave by this
    port. Raises PoolTooSmallError.
    """
    if subnets_in(pool) < len(topology.segments):
        raise PoolTooSmallError(f"{pool} has {subnets_in(pool)} subnets, {len(topology.segments)} are needed")
    first = int(pool.network_address)
    subnets = tuple(
        IPv4Network((first + (index << (32 - SUBNET_PREFIX)), SUBNET_PREFIX)) for index in range(len(topology.segments))
    )
    addresses: dict[End, IPv4Address] = {}
    for segment, subnet in zip(topology.segments, subnets, strict=True):
        for member in segment.members:
            if member.host > LAST_HOST:
                raise PoolTooSmallError(f"{subnet} has no host {member.host}")
            addresses[member.end] = subnet.network_address + member.host
    ports = {}
    for end, address in addresses.items():
        hops = topology.hops[end.rank] if far_routes else {}
        ports[end] = PortAddress(
            plane=plane,
            end=end,
            segment=topology.segment(end).index,
            interface=IPv4Interface((address, SUBNET_PREFIX)),
            routes=tuple(
                Route(subnets[far], addresses[hop.via], hop.via.rank)
                for far, hop in sorted(hops.items())
                if hop.out == end
            ),
        )
    return PlaneAddresses(plane, pool, subnets, ports)
