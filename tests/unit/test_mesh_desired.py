"""Desired states of the mesh: the published table value by value, and rules of geometry in every order."""

from typing import Any

import pytest
from hypothesis import given

from fleet.mesh import desired
from fleet.mesh.marker import Marker
from fleet.mesh.paths import Ring
from fleet.mesh.sizes import cap
from fleet.topology import Topology, ring
from tests.unit.mesh_fleets import addressed, example, topologies

RING = Ring.of(ring(4))
BINARY = Marker("/opt/marker", "2" * 64)

# FujitsuPolycom/sparkring, the plan of fabric.example.json: source, destination, via, netdev, marker's device, source
# address, gateway, destination address, ingress, egress, preference, source MAC, destination MAC, new destination MAC.
TABLE = """
0 2 1 enp1s0f0np0   rocep1s0f0   198.18.1.1   198.18.1.2   198.18.2.2   enp1s0f1np1   enp1s0f0np0   49152 02:00:00:00:00:01 02:01:01:00:00:01 02:02:01:00:00:01
0 2 3 enP2p1s0f1np1 roceP2p1s0f1 198.18.104.2 198.18.104.1 198.18.103.1 enP2p1s0f0np0 enP2p1s0f1np1 49155 02:00:01:01:00:01 02:03:00:01:00:01 02:02:00:01:00:01
1 3 2 enp1s0f0np0   rocep1s0f0   198.18.2.1   198.18.2.2   198.18.3.2   enp1s0f1np1   enp1s0f0np0   49156 02:01:00:00:00:01 02:02:01:00:00:01 02:03:01:00:00:01
1 3 0 enP2p1s0f1np1 roceP2p1s0f1 198.18.101.2 198.18.101.1 198.18.104.1 enP2p1s0f0np0 enP2p1s0f1np1 49159 02:01:01:01:00:01 02:00:00:01:00:01 02:03:00:01:00:01
2 0 3 enP2p1s0f0np0 roceP2p1s0f0 198.18.103.1 198.18.103.2 198.18.104.2 enP2p1s0f1np1 enP2p1s0f0np0 49161 02:02:00:01:00:01 02:03:01:01:00:01 02:00:01:01:00:01
2 0 1 enp1s0f1np1   rocep1s0f1   198.18.2.2   198.18.2.1   198.18.1.1   enp1s0f0np0   enp1s0f1np1   49162 02:02:01:00:00:01 02:01:00:00:00:01 02:00:00:00:00:01
3 1 0 enP2p1s0f0np0 roceP2p1s0f0 198.18.104.1 198.18.104.2 198.18.101.2 enP2p1s0f1np1 enP2p1s0f0np0 49165 02:03:00:01:00:01 02:00:01:01:00:01 02:01:01:01:00:01
3 1 2 enp1s0f1np1   rocep1s0f1   198.18.3.2   198.18.3.1   198.18.2.1   enp1s0f0np0   enp1s0f1np1   49166 02:03:01:00:00:01 02:02:00:00:00:01 02:01:00:00:00:01
"""  # noqa: E501
ROWS = [line.split() for line in TABLE.strip().splitlines()]


def named(entries: list[dict[str, Any]], part: str) -> dict[str, Any]:
    (found,) = [entry for entry in entries if part in entry["name"]]
    return found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[10])
def test_a_row_of_the_published_table(row: list[str]) -> None:
    source, destination, via, netdev, hca, src, gateway, dst, ingress, egress, number, *macs = row
    route = named(desired.forwarding(RING, example(), int(source))["routes"], f"via-rank{via}-")
    assert route == {
        "name": route["name"],
        "to": f"{dst}/32",
        "via": gateway,
        "netdev": netdev,
        "src": src,
    }
    rule = named(desired.forwarding(RING, example(), int(via))["rules"], f"rank{source}-to-rank{destination}-")
    assert rule == {
        "name": f"restore-{route['name']}",
        "netdev": ingress,
        "pref": int(number),
        "handle": int(number),
        "src_mac": macs[0],
        "dst_mac": macs[1],
        "new_dst_mac": macs[2],
        "egress": egress,
    }
    marked = desired.markers(RING, example(), int(source), BINARY)["markers"]
    assert {"hca": hca, "source_port": 65535, "ethertype": 34997} in marked


def test_each_node_has_two_of_each() -> None:
    for rank in range(4):
        forwarding = desired.forwarding(RING, example(), rank)
        assert [len(forwarding[kind]) for kind in ("qdiscs", "rules", "routes")] == [2, 2, 2]
        assert len(desired.markers(RING, example(), rank, BINARY)["markers"]) == 2


def test_the_rules_of_a_node_are_in_one_plane() -> None:
    rules = [desired.forwarding(RING, example(), rank)["rules"] for rank in range(4)]
    assert [[rule["pref"] for rule in of_node] for of_node in rules] == [
        [49159, 49165],
        [49152, 49162],
        [49156, 49166],
        [49155, 49161],
    ]
    assert [desired.forwarding(RING, example(), rank)["qdiscs"] for rank in range(4)] == [
        ["enP2p1s0f0np0", "enP2p1s0f1np1"],
        ["enp1s0f0np0", "enp1s0f1np1"],
        ["enp1s0f0np0", "enp1s0f1np1"],
        ["enP2p1s0f0np0", "enP2p1s0f1np1"],
    ]


def test_the_markers_of_each_node() -> None:
    hcas = [[m["hca"] for m in desired.markers(RING, example(), rank, BINARY)["markers"]] for rank in range(4)]
    assert hcas == [["roceP2p1s0f1", "rocep1s0f0"]] * 2 + [["roceP2p1s0f0", "rocep1s0f1"]] * 2
    assert desired.markers(RING, example(), 0, BINARY)["binary"] == {
        "path": "/opt/marker",
        "sha256": "2" * 64,
        "source": "node",
    }


def test_the_driver_values_of_a_node_are_sorted_by_function() -> None:
    wanted = desired.nic(example(), 1, queue=8192, mtu=9000)
    assert wanted["state"] == "on"
    assert [function["pci"] for function in wanted["functions"]] == [
        "0000:01:00.0",
        "0000:01:00.1",
        "0002:01:00.0",
        "0002:01:00.1",
    ]
    assert wanted["functions"][2] == {
        "netdev": "enP2p1s0f0np0",
        "hca": "roceP2p1s0f0",
        "pci": "0002:01:00.0",
        "hairpin_num_queues": 4,
        "hairpin_queue_size": 8192,
        "address": "198.18.102.1/24",
        "mtu": 9000,
        "gid_index": 3,
    }


@pytest.mark.parametrize(("queue", "size"), [(1024, 81920), (4096, 81920), (8191, 81920), (8192, 262144)])
def test_the_cap_follows_the_queue(queue: int, size: int) -> None:
    assert cap(queue) == size


@given(topologies)
def test_routes_and_rules_are_of_one_geometry(topology: Topology) -> None:
    """A route's target is the arrival port, its gateway the ingress of the node between, its source the own port."""
    ports, found = addressed(topology), Ring.of(topology)
    at = {str(port.interface.ip): (end.rank, port) for (_, end), port in ports.items()}
    rules = {
        rule["name"]: (rank, rule) for rank in range(4) for rule in desired.forwarding(found, ports, rank)["rules"]
    }
    for rank in range(4):
        for route in desired.forwarding(found, ports, rank)["routes"]:
            via, rule = rules[f"restore-{route['name']}"]
            far, arrival = at[route["to"].removesuffix("/32")]
            near, ingress = at[route["via"]]
            own, origin = at[route["src"]]
            assert (own, origin.netdev, near) == (rank, route["netdev"], via)
            assert far not in (rank, via)
            assert ingress.interface in origin.interface.network
            assert rule["netdev"] == ingress.netdev
            assert (rule["src_mac"], rule["dst_mac"], rule["new_dst_mac"]) == (origin.mac, ingress.mac, arrival.mac)


@given(topologies)
def test_each_rule_has_one_reciprocal(topology: Topology) -> None:
    ports, found = addressed(topology), Ring.of(topology)
    mac = {(end.rank, port.netdev): port.mac for (_, end), port in ports.items()}
    for rank in range(4):
        rules = desired.forwarding(found, ports, rank)["rules"]
        for rule in rules:
            (back,) = [one for one in rules if one is not rule]
            assert (back["netdev"], back["egress"]) == (rule["egress"], rule["netdev"])
            assert (back["src_mac"], back["new_dst_mac"]) == (rule["new_dst_mac"], rule["src_mac"])
            assert back["dst_mac"] == mac[rank, rule["egress"]]
