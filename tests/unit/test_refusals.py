"""What stands in the way on the nodes: all of it at once, adoption and our own leftovers excepted."""

from collections.abc import Callable
from typing import Any

import pytest

from fleet.facts import parse
from fleet.loading import load
from fleet.plan import PlanError
from fleet.planner import make
from fleet.problems import Problem
from fleet.stack import StackName
from tests.unit import observed
from tests.unit.stacks import changed, ring, switched

STACK = StackName("spark-fabric", "test")
Raw = dict[str, dict[str, Any]]


def problems(config: dict[str, Any], raw: Raw) -> list[Problem]:
    try:
        make(load(config), {name: parse(answer) for name, answer in raw.items()}, STACK)
    except PlanError as error:
        return list(error.problems)
    return []


def route(to: str, netdev: str, via: str | None = None) -> dict[str, Any]:
    return {"to": to, "netdev": netdev, "via": via, "src": None, "protocol": "static"}


def address(node: str, netdev: str, text: str) -> Callable[[Raw], None]:
    return lambda raw: raw[node]["links"][netdev]["addresses"].append(text)


def routed(node: str, *routes: dict[str, Any]) -> Callable[[Raw], None]:
    return lambda raw: raw[node]["routes"].extend(routes)


def hca(node: str, name: str, **values: Any) -> Callable[[Raw], None]:
    return lambda raw: raw[node]["hcas"][name].update(values)


def drop(node: str, part: str, name: str) -> Callable[[Raw], None]:
    return lambda raw: raw[node][part].pop(name)


def ssh_over(node: str, netdev: str) -> Callable[[Raw], None]:
    return lambda raw: raw[node]["ssh"].update(netdev=netdev)


def forget(node: str) -> Callable[[Raw], None]:
    return lambda raw: raw.__delitem__(node)


def same_machine(one: str, other: str) -> Callable[[Raw], None]:
    return lambda raw: raw[other].update(machine_id=raw[one]["machine_id"])


REFUSED: list[tuple[str, dict[str, Any], list[Callable[[Raw], None]], list[tuple[str, str, str]]]] = [
    (
        "docker network in a pool",
        {"fabric.plane1.pool": "172.17.0.0/16"},
        [],
        [("address-overlap", f"spark{k} docker0", "no other docker network") for k in (1, 2, 3, 4)],
    ),
    (
        "another address in a planned subnet on the planned port",
        {},
        [address("spark2", "enp1s0f0np0", "10.10.1.77/24")],
        [("address-overlap", "spark2 enp1s0f0np0", "only 10.10.1.10/24 there")],
    ),
    (
        "planned address with another prefix length",
        {},
        [address("spark2", "enp1s0f0np0", "10.10.1.10/16")],
        [("address-overlap", "spark2 enp1s0f0np0", "10.10.1.10/16, which overlaps")],
    ),
    (
        "planned address on the wrong port",
        {},
        [address("spark1", "enp1s0f1np1", "10.10.0.10/24")],
        [("address-overlap", "spark1 enp1s0f1np1", "10.10.0.10/24, which overlaps 10.10.0.0/24 of plane 0")],
    ),
    (
        "a subnet of another node's cable",
        {},
        [address("spark1", "enP7s7", "10.10.2.5/24")],
        [("address-overlap", "spark1 enP7s7", "10.10.2.0/24 of plane 0")],
    ),
    (
        "a route of a VPN over the pool",
        {},
        [routed("spark3", route("10.0.0.0/8", "tun0", "10.255.0.1"))],
        [("route-overlap", "spark3 tun0", "10.0.0.0/8")],
    ),
    (
        "a far route by another way",
        {},
        [routed("spark1", route("10.10.1.0/24", "enp1s0f1np1", "10.10.3.10"))],
        [("route-overlap", "spark1 enp1s0f1np1", "10.10.1.0/24")],
    ),
    (
        "two fabric ports on the switch's subnet",
        {"fabric.topology": "switched"},
        [address("spark4", "enp1s0f1np1", "10.10.0.99/24")],
        [("address-overlap", "spark4 enp1s0f1np1", "10.10.0.0/24 of plane 0")],
    ),
    (
        "fabric on the port of the default route",
        {},
        [routed("spark1", route("default", "enp1s0f0np0", "10.99.0.1"))],
        [("management-port", "spark1 enp1s0f0np0", "carries the default route")],
    ),
    (
        "fabric on the port that SSH comes in by",
        {},
        [ssh_over("spark2", "enP2p1s0f1np1")],
        [("management-port", "spark2 enP2p1s0f1np1", "carries the SSH connection")],
    ),
    (
        "fabric on the management port",
        {},
        [hca("spark1", "rocep1s0f0", netdev="enP7s7")],
        [("management-port", "spark1 enP7s7", "the SSH connection and the default route and the management address")],
    ),
    (
        "a port missing",
        {},
        [drop("spark3", "hcas", "roceP2p1s0f1")],
        [("port-missing", "spark3 plane 1 f1", "enp1s0f0np0/rocep1s0f0 at 0000:01:00.0")],
    ),
    (
        "an RDMA device without network device",
        {},
        [hca("spark3", "rocep1s0f1", netdev=None)],
        [("port-missing", "spark3 plane 0 f1", "PCI domain 0000, function 1")],
    ),
    (
        "two cards in one domain",
        {},
        [hca("spark1", "roceP2p1s0f0", domain=0)],
        [
            ("port-ambiguous", "spark1 plane 0 f0", "has 2 RDMA devices"),
            ("port-missing", "spark1 plane 1 f0", "function 0"),
        ],
    ),
    (
        "a name that the node does not have",
        {"nodes[1].ports.plane0.f0.netdev": "eth9"},
        [],
        [("port-mismatch", "spark-fabric:nodes[1].ports.plane0.f0", "enp1s0f1np1/rocep1s0f1 at 0000:01:00.1")],
    ),
    (
        "a name that belongs to another port",
        {"nodes[1].ports.plane0.f0.hca": "rocep1s0f1"},
        [],
        [("port-mismatch", "spark-fabric:nodes[1].ports.plane0.f0", "names rocep1s0f1")],
    ),
    (
        "names of two different devices",
        {"nodes[1].ports.plane0.f0": {"netdev": "enp1s0f0np0", "hca": "rocep1s0f1"}},
        [],
        [("port-mismatch", "spark-fabric:nodes[1].ports.plane0.f0", "enp1s0f0np0 and rocep1s0f1")],
    ),
    (
        "one machine twice",
        {},
        [same_machine("spark1", "spark4")],
        [("machine-twice", "spark4", "machine id of spark1")],
    ),
    ("a node that nobody looked at", {}, [forget("spark2")], [("not-probed", "spark2", "looked at")]),
    (
        "several nodes at once",
        {},
        [
            address("spark1", "enP7s7", "10.10.2.5/24"),
            drop("spark3", "hcas", "rocep1s0f0"),
            same_machine("spark1", "spark4"),
        ],
        [
            ("port-missing", "spark3 plane 0 f0", "one"),
            ("machine-twice", "spark4", "spark1"),
            ("address-overlap", "spark1 enP7s7", "10.10.2.5/24"),
        ],
    ),
]


@pytest.mark.parametrize(
    ("change", "faults", "wanted"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_each_obstacle_is_refused_by_node_and_object(
    change: dict[str, Any], faults: list[Callable[[Raw], None]], wanted: list[tuple[str, str, str]]
) -> None:
    raw = observed.fleet(4)
    for fault in faults:
        fault(raw)
    found = problems(changed(ring(), change), raw)
    assert [(problem.code, problem.path) for problem in found] == [(code, path) for code, path, _ in wanted]
    for problem, (_, _, part) in zip(found, wanted, strict=True):
        assert part in problem.text()


def fleet_with(config: dict[str, Any], *, journaled: bool) -> Raw:
    plan = make(load(config), {name: parse(answer) for name, answer in observed.fleet(4).items()}, STACK)
    return observed.fleet_applied(plan, journaled=journaled)


@pytest.mark.parametrize("config", [ring(), switched()], ids=["ring", "switched"])
def test_what_equals_the_plan_is_adopted(config: dict[str, Any]) -> None:
    assert problems(config, fleet_with(config, journaled=False)) == []


@pytest.mark.parametrize(
    "change",
    [{"fabric.plane0.pool": "10.10.0.0/20"}, {"fabric.cabling": "reversed"}, {"fabric.ipRelay": "off"}],
    ids=str,
)
def test_our_own_older_plan_is_never_in_the_way(change: dict[str, Any]) -> None:
    assert problems(changed(ring(), change), fleet_with(ring(), journaled=True)) == []


def test_what_a_killed_change_left_is_never_in_the_way() -> None:
    raw, reversed_ring = fleet_with(ring(), journaled=True), changed(ring(), {"fabric.cabling": "reversed"})
    wanted = make(load(reversed_ring), {name: parse(answer) for name, answer in raw.items()}, STACK)
    for node in wanted.nodes:  # the journal has the new plan already, the ports still have the old one
        for stage in ("plane0", "plane1"):
            record = raw[node.name]["journal"]["stages"][stage]
            record.update(status="applying", desired=node.stages[stage])
    assert problems(reversed_ring, raw) == []
    assert problems(ring(), raw) == []


def test_somebody_elses_other_plan_is_in_the_way() -> None:
    found = problems(changed(ring(), {"fabric.cabling": "reversed"}), fleet_with(ring(), journaled=False))
    assert {problem.code for problem in found} == {"address-overlap", "route-overlap"}


def test_ports_are_found_by_place_whatever_their_names() -> None:
    raw = observed.fleet(4)
    for answer in raw.values():
        answer["links"]["eth7"] = answer["links"].pop("enp1s0f0np0")
        answer["hcas"]["mlx5_3"] = answer["hcas"].pop("rocep1s0f0") | {"netdev": "eth7"}
    plan = make(load(ring()), {name: parse(answer) for name, answer in raw.items()}, STACK)
    ports = plan.nodes[0].stages["plane0"]["ports"]
    assert [(port["netdev"], port["hca"], port["socket"]) for port in ports] == [
        ("enp1s0f1np1", "rocep1s0f1", "f1"),
        ("eth7", "mlx5_3", "f0"),
    ]
    assert plan.containers[0].env["NCCL_IB_HCA"].value == "mlx5_3,rocep1s0f1,roceP2p1s0f0,roceP2p1s0f1"


def test_names_decide_where_the_place_does_not() -> None:
    raw = observed.fleet(4)
    raw["spark1"]["hcas"]["roceP2p1s0f0"]["domain"] = 5
    config = changed(ring(), {"nodes[0].ports.plane1.f0.netdev": "enP2p1s0f0np0"})
    assert problems(config, raw) == []


def test_a_plane_that_is_off_may_lack_its_ports() -> None:
    raw = observed.fleet(4)
    for answer in raw.values():
        del answer["hcas"]["roceP2p1s0f0"], answer["hcas"]["roceP2p1s0f1"]
    assert problems(changed(ring(), {"fabric.plane1.enabled": "off"}), raw) == []


def test_a_switched_fabric_does_not_need_the_other_socket() -> None:
    raw = observed.fleet(4)
    for answer in raw.values():
        del answer["hcas"]["rocep1s0f1"]
    assert problems(switched(), raw) == []
