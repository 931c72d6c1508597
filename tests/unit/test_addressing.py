"""Subnets, addresses and routes, for every size and direction."""

from ipaddress import IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.addressing import PoolTooSmallError, assign
from fleet.topology import Cabling, End, Socket, Topology, ring, switched

POOLS = {0: IPv4Network("10.10.0.0/16"), 1: IPv4Network("10.20.0.0/16")}
rings = st.builds(ring, st.integers(3, 12), st.sampled_from(Cabling))
rails = st.builds(switched, st.integers(2, 16), st.sampled_from(Socket))


@given(rings | rails)
def test_subnets_are_disjoint_and_each_address_is_given_once(topology: Topology) -> None:
    planes = [assign(topology, plane, pool, far_routes=True) for plane, pool in POOLS.items()]
    subnets = [subnet for plane in planes for subnet in plane.subnets]
    assert all(not one.overlaps(other) for index, one in enumerate(subnets) for other in subnets[:index])
    addresses = [port.interface.ip for plane in planes for port in plane.ports.values()]
    assert len(addresses) == len(set(addresses))
    for plane in planes:
        for port in plane.ports.values():
            assert port.interface.network == plane.subnets[port.segment]
            assert port.interface.network.subnet_of(plane.pool)


@given(rings | rails)
def test_no_two_ports_of_a_node_share_a_subnet(topology: Topology) -> None:
    planes = [assign(topology, plane, pool, far_routes=True) for plane, pool in POOLS.items()]
    for rank in range(topology.size):
        own = [plane.ports[end].interface.network for plane in planes for end in topology.ends(rank)]
        assert len(own) == len(set(own))


@given(rings)
def test_every_pair_is_reached_by_walking_the_routes(topology: Topology) -> None:
    plane = assign(topology, 0, POOLS[0], far_routes=True)
    owner = {port.interface.ip: port.end.rank for port in plane.ports.values()}
    for start in range(topology.size):
        for target in owner:
            rank, steps = start, 0
            while not any(target in plane.ports[end].interface.network for end in topology.ends(rank)):
                routes = [
                    (plane.ports[end], route)
                    for end in topology.ends(rank)
                    for route in plane.ports[end].routes
                    if target in route.to
                ]
                assert len(routes) == 1, "one route to each far subnet"
                port, route = routes[0]
                assert route.via in port.interface.network, "the next hop is on the link"
                assert owner[route.via] == route.rank
                rank, steps = route.rank, steps + 1
                assert steps <= topology.size // 2


@given(rings)
def test_without_relay_there_are_no_routes(topology: Topology) -> None:
    plane = assign(topology, 0, POOLS[0], far_routes=False)
    assert not any(port.routes for port in plane.ports.values())


def test_the_seeds_ring_of_four() -> None:
    plane = assign(ring(4), 0, POOLS[0], far_routes=True)
    table = {f"{end.rank} {end.socket}": str(port.interface) for end, port in plane.ports.items()}
    assert table == {
        "0 f0": "10.10.0.10/24",
        "1 f1": "10.10.0.11/24",
        "1 f0": "10.10.1.10/24",
        "2 f1": "10.10.1.11/24",
        "2 f0": "10.10.2.10/24",
        "3 f1": "10.10.2.11/24",
        "3 f0": "10.10.3.10/24",
        "0 f1": "10.10.3.11/24",
    }
    assert [(str(r.to), str(r.via)) for r in plane.ports[End(0, Socket.F0)].routes] == [("10.10.1.0/24", "10.10.0.11")]
    assert [(str(r.to), str(r.via)) for r in plane.ports[End(0, Socket.F1)].routes] == [("10.10.2.0/24", "10.10.3.10")]


def test_a_rail_counts_hosts_from_ten() -> None:
    plane = assign(switched(3), 1, POOLS[1], far_routes=True)
    assert [str(plane.at(End(rank, Socket.F0))) for rank in range(3)] == ["10.20.0.10", "10.20.0.11", "10.20.0.12"]


@pytest.mark.parametrize(("size", "pool"), [(4, "10.0.0.0/23"), (3, "10.0.0.0/25"), (300, "10.0.0.0/16")])
def test_a_small_pool_is_refused(size: int, pool: str) -> None:
    with pytest.raises(PoolTooSmallError):
        assign(ring(size), 0, IPv4Network(pool), far_routes=True)


def test_a_rail_of_too_many_is_refused() -> None:
    with pytest.raises(PoolTooSmallError):
        assign(switched(246), 0, IPv4Network("10.0.0.0/24"), far_routes=True)


def test_a_pool_may_start_anywhere() -> None:
    plane = assign(ring(3), 0, IPv4Network("172.20.8.0/22"), far_routes=True)
    assert [str(subnet) for subnet in plane.subnets] == ["172.20.8.0/24", "172.20.9.0/24", "172.20.10.0/24"]
