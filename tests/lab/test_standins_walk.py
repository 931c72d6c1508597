"""All paths of the reference instance deliver; any single thing that is wrong loses exactly the paths over it.

The names of the mutants are the tests' parameters: each is killed by a walk that loses the path it belongs to, and no
other.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lab.cabling import FUNCTIONS as LAB_FUNCTIONS
from lab.standins.access import RecordedNode
from lab.standins.framewalk import Walk
from lab.standins.model import FUNCTIONS
from lab.standins.opposite import judge, pairs
from lab.standins.wires import Wires
from tests.lab.mesh_reference import ADDRESSES, MACS, MARKERS, PATHS, PREFS, ROUTES, TC, MeshPath, commands
from tests.lab.standins_bench import Bench

NAMES = ["r0", "r1", "r2", "r3"]
Fleet = list[dict[str, Any]]  # per rank: view, routes, neighbours
BY_PREF = pytest.mark.parametrize("path", PATHS, ids=[str(pref) for pref in PREFS])
EVERY_PORT = pytest.mark.parametrize(("rank", "netdev"), [(rank, netdev) for rank in range(4) for netdev in MACS[0]])


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """The typed commands, run once through the stand-ins."""
    root = tmp_path_factory.mktemp("fleet")
    benches = [Bench(root / name, ADDRESSES[rank], MACS[rank]) for rank, name in enumerate(NAMES)]
    for rank, bench in enumerate(benches):
        for line in commands(TC[rank]) + commands(ROUTES[rank]):
            bench.type(line)
        for device in MARKERS[rank]:
            bench.mark(device)
    gateways = [
        [
            {"dst": address, "dev": netdev, "lladdr": MACS[far][port]}
            for netdev in MACS[0]
            for far, ports in enumerate(ADDRESSES)
            for port, address in ports.items()
            if far != rank and address.rpartition(".")[0] == ADDRESSES[rank][netdev].rpartition(".")[0]
        ]
        for rank in range(4)
    ]
    yield [
        {"view": bench.view(), "routes": bench.routes, "neighbours": gateways[rank]}
        for rank, bench in enumerate(benches)
    ]
    for bench in benches:
        bench.close()


@pytest.fixture
def fleet(built: Fleet) -> Fleet:
    """A copy to spoil."""
    return copy.deepcopy(built)


def walk_of(fleet: Fleet, wires: Wires | None = None) -> Walk:
    nodes = [RecordedNode(name, **row) for name, row in zip(NAMES, fleet, strict=True)]
    return Walk(nodes, wires or Wires.ring(NAMES))


def lost(fleet: Fleet, wires: Wires | None = None) -> set[int]:
    """Preferences (names of the paths) that do not arrive at the port of the table."""
    walk, gone = walk_of(fleet, wires), set()
    for path in PATHS:
        result = walk.follow(NAMES[path.source], path.device, path.dst, 65535)
        if result.receiver == (NAMES[path.destination], path.arrival):
            assert result.rules == [(NAMES[path.middle], path.ingress, path.pref, path.pref)]
        else:
            assert result.reason
            gone.add(path.pref)
    return gone


def rule_of(fleet: Fleet, path: MeshPath) -> dict[str, Any]:
    (rule,) = (row for row in table_of(fleet, path) if row["pref"] == path.pref)
    found: dict[str, Any] = rule
    return found


def table_of(fleet: Fleet, path: MeshPath) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = fleet[path.middle]["view"]["functions"][path.ingress]["rules"]
    return found


def test_all_paths_deliver(fleet: Fleet) -> None:
    assert lost(fleet) == set()


def _set(way: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(rule: dict[str, Any]) -> None:
        *names, last = [int(word) if word.isdigit() else word for word in way.split("/")]
        target: Any = rule
        for name in names:
            target = target[name]
        assert target[last] != value
        target[last] = value

    return change


MUTANTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "protocol": _set("protocol", 0x88B6),
    "eth_type": _set("keys/eth_type", "88b6"),
    "src_mac": _set("keys/src_mac", "02:0f:00:00:00:01"),
    "dst_mac": _set("keys/dst_mac", "02:0f:00:00:00:01"),
    "not in hardware": _set("in_hw", False),
    "other chain": _set("chain", 1),
    "type not restored": _set("actions/0/keys/0/val", 0x88B50000),
    "type at another offset": _set("actions/0/keys/0/offset", 8),
    "type's mask keeps the mark": _set("actions/0/keys/0/mask", 0xFFFFFFFF),
    "first half of the MAC": _set("actions/1/keys/0/val", 0x020F0100),
    "first half's mask": _set("actions/1/keys/0/mask", 0xFFFF0000),
    "second half of the MAC": _set("actions/1/keys/1/val", 0x00020000),
    "second half's mask": _set("actions/1/keys/1/mask", 0xFFFFFFFF),
    "halves of the MAC swapped": _set("actions/1/keys/1/offset", 0),
    "out of the management port": _set("actions/2/to_dev", "enP7s7"),
    "mirror for redirect": _set("actions/2/mirred_action", "mirror"),
    "to an ingress": _set("actions/2/direction", "ingress"),
    "no type action": lambda rule: rule["actions"].pop(0),
    "no MAC action": lambda rule: rule["actions"].pop(1),
    "no redirect": lambda rule: rule["actions"].pop(2),
    "source address rewritten": lambda rule: rule["actions"].insert(
        0,
        {"kind": "pedit", "control": "pipe", "keys": [{"htype": "ipv4", "offset": 12, "val": 1, "mask": 0}]},
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
@BY_PREF
def test_one_wrong_field_of_a_rule_loses_its_path(fleet: Fleet, path: MeshPath, mutant: str) -> None:
    MUTANTS[mutant](rule_of(fleet, path))
    assert lost(fleet) == {path.pref}


@BY_PREF
@pytest.mark.parametrize("netdev", MACS[0])
def test_a_rule_that_leads_out_of_another_port_loses_its_path(fleet: Fleet, path: MeshPath, netdev: str) -> None:
    if netdev != path.egress:
        rule_of(fleet, path)["actions"][2]["to_dev"] = netdev
        assert lost(fleet) == {path.pref}


@BY_PREF
def test_a_missing_rule_loses_its_path(fleet: Fleet, path: MeshPath) -> None:
    table_of(fleet, path).remove(rule_of(fleet, path))
    walk = walk_of(fleet)
    result = walk.follow(NAMES[path.source], path.device, path.dst, 65535)
    assert (result.kernel, result.forwarded) == ("", False)  # marked: no kernel takes it
    assert lost(fleet) == {path.pref}


@BY_PREF
def test_a_rule_at_another_port_of_the_middle_loses_its_path(fleet: Fleet, path: MeshPath) -> None:
    rule = rule_of(fleet, path)
    table_of(fleet, path).remove(rule)
    table_of(fleet, path._replace(ingress=path.egress)).append(rule)
    assert lost(fleet) == {path.pref}


@BY_PREF
def test_a_broader_rule_before_it_takes_the_frames_of_a_rule(fleet: Fleet, path: MeshPath) -> None:
    broad = copy.deepcopy(rule_of(fleet, path)) | {"pref": 1}
    broad["keys"] = {"eth_type": "88b5"}
    broad["actions"] = [{"kind": "gact", "control": "drop"}]
    table_of(fleet, path).insert(0, broad)
    assert lost(fleet) == {path.pref}


@BY_PREF
def test_a_missing_route_loses_its_path(fleet: Fleet, path: MeshPath) -> None:
    row = fleet[path.source]
    row["routes"] = [route for route in row["routes"] if route["dst"] != f"{path.dst}/32"]
    assert lost(fleet) == {path.pref}


@BY_PREF
@pytest.mark.parametrize("change", ["another gateway", "out of the other port"])
def test_a_wrong_route_loses_its_path(fleet: Fleet, path: MeshPath, change: str) -> None:
    (route,) = (row for row in fleet[path.source]["routes"] if row["dst"] == f"{path.dst}/32")
    if change == "another gateway":
        route["gateway"] = "198.18.250.1"
    else:
        (route["dev"],) = (
            f.netdev for f in FUNCTIONS if _same_domain(f.netdev, path.netdev) and f.netdev != path.netdev
        )
    assert lost(fleet) == {path.pref}


def _same_domain(one: str, other: str) -> bool:
    domains = {function.netdev: function.domain for function in FUNCTIONS}
    return domains[one] == domains[other]


@BY_PREF
@pytest.mark.parametrize("change", ["none", "another port", "another EtherType", "another action", "after a re-init"])
def test_a_wrong_marker_loses_its_path(fleet: Fleet, path: MeshPath, change: str) -> None:
    markers = fleet[path.source]["view"]["markers"]
    wrong = {
        "another port": {"source_port": 65534},
        "another EtherType": {"ethertype": 0x88B6},
        "another action": {"action": "udp_destination_rewrite"},
        "after a re-init": {"in_effect": False},
    }
    if change == "none":
        del markers[path.device]
    else:
        markers[path.device] |= wrong[change]
    assert lost(fleet) == {path.pref}


@BY_PREF
def test_a_marker_on_another_device_loses_its_path(fleet: Fleet, path: MeshPath) -> None:
    markers = fleet[path.source]["view"]["markers"]
    (spare,) = ({f.rdma for f in FUNCTIONS if _same_domain(f.netdev, path.netdev)} - {path.device}) - set(markers)
    markers[spare] = markers.pop(path.device)
    assert lost(fleet) == {path.pref}


@EVERY_PORT
def test_another_mac_loses_the_paths_that_name_it(fleet: Fleet, rank: int, netdev: str) -> None:
    fleet[rank]["view"]["functions"][netdev]["mac"] = "02:77:00:00:00:01"
    ends = {
        path.pref: ((path.source, path.netdev), (path.middle, path.ingress), (path.destination, path.arrival))
        for path in PATHS
    }
    assert lost(fleet) == {pref for pref, ports in ends.items() if (rank, netdev) in ports}


@EVERY_PORT
def test_a_port_without_link_loses_the_paths_over_it(fleet: Fleet, rank: int, netdev: str) -> None:
    fleet[rank]["view"]["functions"][netdev]["up"] = False
    assert lost(fleet) == {path.pref for path in PATHS if (rank, netdev) in _ports(path)}


def _ports(path: MeshPath) -> list[tuple[int, str]]:
    middle = [(path.middle, path.ingress), (path.middle, path.egress)]
    return [(path.source, path.netdev), *middle, (path.destination, path.arrival)]


@BY_PREF
def test_the_twins_mac_for_the_gateway_loses_its_path(fleet: Fleet, path: MeshPath) -> None:
    (twin,) = (f.netdev for f in FUNCTIONS if f.netdev[-2:] == path.ingress[-2:] and f.netdev != path.ingress)
    (gateway,) = (row["gateway"] for row in fleet[path.source]["routes"] if row["dst"] == f"{path.dst}/32")
    for row in fleet[path.source]["neighbours"]:
        if row["dst"] == gateway:
            row["lladdr"] = MACS[path.middle][twin]
    assert lost(fleet) == {path.pref}


def test_an_unmarked_frame_goes_to_the_kernel_of_the_middle(fleet: Fleet) -> None:
    for forwards in (True, False):
        fleet[1]["view"]["ip_forward"] = forwards
        result = walk_of(fleet).follow("r0", "rocep1s0f0", "198.18.2.2", 50000)
        assert (result.receiver, result.kernel, result.forwarded) == (None, "r1", forwards)
    assert walk_of(fleet).follow("r0", "rocep1s0f0", "198.18.1.2", 50000).receiver  # a direct neighbour


def test_every_function_of_both_ends_hears_the_wire(fleet: Fleet) -> None:
    others = [("r0", "enP2p1s0f0np0"), ("r1", "enP2p1s0f1np1"), ("r1", "enp1s0f1np1")]
    assert Wires.ring(NAMES).hearers(("r0", "enp1s0f0np0")) == others
    assert lost(fleet, Wires.ring(NAMES[::-1])) == set(PREFS)


def test_a_small_mtu_in_the_middle_loses_frames(fleet: Fleet) -> None:
    fleet[1]["view"]["functions"]["enp1s0f0np0"]["mtu"] = 1500
    assert lost(fleet) == {49152, 49162}  # where it is an end, both ends agree on less


def test_a_gid_at_4_is_no_source(fleet: Fleet) -> None:
    gids = fleet[0]["view"]["functions"]["enp1s0f0np0"]["gids"]
    gids["4"] = gids.pop("3")
    assert lost(fleet) == {49152}


def test_the_judge_finds_the_paths_without_being_told(fleet: Fleet) -> None:
    walk = walk_of(fleet)
    assert set(pairs(walk)) == {("r0", "r2"), ("r2", "r0"), ("r1", "r3"), ("r3", "r1")}
    found = judge(walk)
    assert found.problems == []
    arrivals = {(NAMES[p.source], p.device, NAMES[p.destination], p.arrival) for p in PATHS}
    netdevs = {function.rdma: function.netdev for function in FUNCTIONS}
    assert {(p.source, p.source_device, p.destination, netdevs[p.destination_device]) for p in found.paths} == arrivals
    assert sorted(pref for path in found.paths for _, _, pref, _ in path.rules) == sorted(PREFS)


@BY_PREF
def test_the_judge_misses_both_ways_of_a_path_without_its_rule(fleet: Fleet, path: MeshPath) -> None:
    table_of(fleet, path).remove(rule_of(fleet, path))
    found = judge(walk_of(fleet))
    assert len(found.paths) == len(PATHS) - 2  # the answers of the other direction are lost with it
    assert len(found.problems) == 2
    assert all(f"r{path.source}" in text and f"r{path.destination}" in text for text in found.problems)


def test_the_card_has_the_functions_of_the_lab() -> None:
    ours = [(f.netdev, f.port, f.domain * 2) for f in FUNCTIONS]
    assert ours == [(f.netdev, f.socket, f.domain) for f in LAB_FUNCTIONS]


# what traffic leaves in the counters


class Counting(RecordedNode):
    """A node that keeps what it is told to count or to send."""

    def __init__(self, name: str, row: dict[str, Any]) -> None:
        super().__init__(name, **row)
        self.told: list[tuple[str, dict[str, Any]]] = []

    def call(self, op: str, **words: Any) -> Any:
        if op in ("count-rule", "count-port", "emit"):
            self.told.append((op, words))
            return None
        return super().call(op, **words)

    def grown(self) -> dict[tuple[str, str], int]:
        """Device and counter -> by how much, of what only losses raise."""
        found: dict[tuple[str, str], int] = {}
        for op, words in self.told:
            for name, count in words.get("deltas", {}).items() if op == "count-port" else ():
                if not name.startswith("counters/port_"):
                    found[words["rdma"], name] = found.get((words["rdma"], name), 0) + count
        return found


def counting(fleet: Fleet) -> tuple[Walk, dict[str, Counting]]:
    nodes = {name: Counting(name, row) for name, row in zip(NAMES, fleet, strict=True)}
    return Walk(nodes.values(), Wires.ring(NAMES)), nodes


def queues(fleet: Fleet, rank: int, **sizes: int) -> None:
    for function in fleet[rank]["view"]["functions"].values():
        for kind, size in sizes.items():
            function["parameters"][kind]["hairpin_queue_size"] = size


@pytest.mark.parametrize(("size", "burst", "lost"), [(1024, 20, 0), (1024, 25, 1), (8192, 120, 0), (8192, 240, 48)])
def test_a_burst_overruns_the_queue_that_is_in_effect(fleet: Fleet, size: int, burst: int, lost: int) -> None:
    """Measured: 80 KB pass a queue of 1024 and 100 KB do not; 480 KB pass one of 8192 and 960 KB do not."""
    queues(fleet, 1, shown=64, effective=size)
    walk, nodes = counting(fleet)
    there = walk.follow("r0", "rocep1s0f0", "198.18.2.2", 65535)
    walk.count(there, 3 * burst, burst=burst)
    counters = {
        "r0": ("rocep1s0f0", "hw_counters/packet_seq_err"),
        "r1": ("rocep1s0f1", "rx_out_of_buffer"),
        "r2": ("rocep1s0f1", "hw_counters/out_of_sequence"),
    }
    for name, node in nodes.items():
        assert node.grown() == ({counters[name]: 3 * lost} if lost and name in counters else {})
    (rule,) = (words for op, words in nodes["r1"].told if op == "count-rule")
    assert (rule["pref"], rule["packets"]) == (49152, 3 * burst)


def test_a_neighbour_has_no_queue_between(fleet: Fleet) -> None:
    walk, nodes = counting(fleet)
    walk.count(walk.follow("r0", "rocep1s0f0", "198.18.1.2", 50000), 1000, burst=1000)
    assert not any(node.grown() for node in nodes.values())


def test_frames_that_a_kernel_would_get_are_sent_to_it_and_no_others(fleet: Fleet) -> None:
    walk, nodes = counting(fleet)
    walk.spill(walk.follow("r0", "rocep1s0f0", "198.18.2.2", 50000), "198.18.2.2", 50000)
    ((op, words),) = nodes["r0"].told
    assert (op, words["src"], words["dst"], words["dev"]) == ("emit", "198.18.1.1", "198.18.2.2", "enp1s0f0np0")
    table_of(fleet, PATHS[0]).remove(rule_of(fleet, PATHS[0]))
    walk, nodes = counting(fleet)
    walk.spill(walk.follow("r0", "rocep1s0f0", "198.18.2.2", 65535), "198.18.2.2", 65535)  # lost in the card
    assert nodes["r0"].told == []
