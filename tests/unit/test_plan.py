"""The plan as a whole: desired states, checks, containers, digests, warnings."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.facts import Facts, parse
from fleet.loading import load
from fleet.nccl_settings import PIP_LIBRARY
from fleet.plan import Plan
from fleet.planner import agreed_image, make
from fleet.stack import StackName
from node.digest import digest
from tests.unit import observed
from tests.unit.stacks import DELETE, LIBRARY, NO_PROFILE, changed, mesh, ring, switched

STACK = StackName("spark-fabric", "test")


def facts_of(raw: dict[str, dict[str, Any]]) -> dict[str, Facts]:
    return {name: parse(answer) for name, answer in raw.items()}


def planned(config: dict[str, Any], *, image_id: str | None = None) -> Plan:
    """Planned for fresh nodes."""
    settings = load(config)
    raw = {
        node.name: observed.fresh(number, str(node.address))
        for number, node in enumerate(sorted(settings.nodes, key=lambda node: node.name), start=1)
    }
    return make(settings, facts_of(raw), STACK, image_id=image_id)


def test_a_plane_is_described_port_by_port() -> None:
    desired = dict(planned(ring()).nodes[1].stages["plane1"])
    assert desired.pop("text").startswith("# Written by spark-fabric: plane 1 of spark2")
    assert desired == {
        "state": "on",
        "plane": 1,
        "file": "/etc/netplan/41-spark-fabric-plane1.yaml",
        "ports": [
            {
                "socket": "f0",
                "netdev": "enP2p1s0f0np0",
                "hca": "roceP2p1s0f0",
                "address": "10.20.1.10/24",
                "mtu": 9000,
                "routes": [{"to": "10.20.2.0/24", "via": "10.20.1.11"}],
            },
            {
                "socket": "f1",
                "netdev": "enP2p1s0f1np1",
                "hca": "roceP2p1s0f1",
                "address": "10.20.0.11/24",
                "mtu": 9000,
                "routes": [{"to": "10.20.3.0/24", "via": "10.20.0.10"}],
            },
        ],
    }


def test_a_plane_that_is_off_names_its_ports_and_nothing_else() -> None:
    plan = planned(changed(ring(), {"fabric.plane1.enabled": "off"}))
    assert plan.nodes[0].stages["plane1"] == {
        "state": "off",
        "plane": 1,
        "file": "/etc/netplan/41-spark-fabric-plane1.yaml",
        "ports": [
            {"socket": "f0", "netdev": "enP2p1s0f0np0", "hca": "roceP2p1s0f0"},
            {"socket": "f1", "netdev": "enP2p1s0f1np1", "hca": "roceP2p1s0f1"},
        ],
    }
    assert plan.nodes[0].stages["relay"] == {"state": "on", "pairs": [["enp1s0f0np0", "enp1s0f1np1"]]}
    container = plan.nodes[0].container
    assert container
    assert container.env["NCCL_IB_HCA"].value == "rocep1s0f0,rocep1s0f1"


def test_node_stages_know_rank_and_members() -> None:
    plan = planned(changed(ring(), {**NO_PROFILE, "nodes[1].state": "leaving"}))
    members = ["spark1", "spark3", "spark4"]
    assert [node.stages["node"] for node in plan.nodes] == [
        {"name": "spark1", "rank": 0, "members": members},
        {"name": "spark2", "rank": None, "members": members},
        {"name": "spark3", "rank": 1, "members": members},
        {"name": "spark4", "rank": 2, "members": members},
    ]


def test_a_leaving_node_is_off_everywhere() -> None:
    node = planned(changed(ring(), {**NO_PROFILE, "nodes[1].state": "leaving"})).nodes[1]
    assert (node.active, node.verify, node.container) == (False, None, None)
    assert [node.stages[stage]["state"] for stage in ("plane0", "plane1", "relay")] == ["off"] * 3


def test_a_leaving_node_may_be_dead() -> None:
    settings = load(changed(ring(), {**NO_PROFILE, "nodes[1].state": "leaving"}))
    raw = observed.fleet(4)
    del raw["spark2"]
    assert make(settings, facts_of(raw), STACK).nodes[1].stages["plane0"]["ports"][0]["netdev"] == "enp1s0f0np0"


def test_each_neighbour_is_checked_by_address_and_mac() -> None:
    verify = planned(ring()).verify["spark1"]
    assert verify["ports"][0] == {
        "netdev": "enp1s0f0np0",
        "hca": "rocep1s0f0",
        "plane": 0,
        "cable": 0,
        "address": "10.10.0.10/24",
        "mtu": 9000,
        "peers": [{"node": "spark2", "netdev": "enp1s0f1np1", "address": "10.10.0.11", "mac": "02:00:00:00:02:12"}],
    }
    assert len(verify["ports"]) == 4
    assert (verify["gid"], verify["gid_index"]) == (True, 3)


def test_far_checks_need_a_node_that_forwards() -> None:
    assert planned(ring()).verify["spark1"]["far"] == [
        {"address": "10.10.1.11", "node": "spark3"},
        {"address": "10.10.2.10", "node": "spark3"},
        {"address": "10.20.1.11", "node": "spark3"},
        {"address": "10.20.2.10", "node": "spark3"},
    ]
    assert planned(ring(3)).verify["spark1"]["far"] == [
        {"address": "10.10.1.11", "node": "spark3"},
        {"address": "10.20.1.11", "node": "spark3"},
    ]


def test_relay_off_plans_neither_routes_nor_forwarding() -> None:
    plan = planned(changed(ring(), {"fabric.ipRelay": "off"}))
    for node in plan.nodes:
        assert node.stages["relay"] == {"state": "off"}
        assert plan.verify[node.name]["far"] == []
        assert not any(port["routes"] for plane in (0, 1) for port in node.stages[f"plane{plane}"]["ports"])


def test_a_switched_fabric_checks_every_other_node() -> None:
    plan = planned(switched())
    verify = plan.verify["spark3"]
    assert [peer["node"] for peer in verify["ports"][0]["peers"]] == ["spark1", "spark2", "spark4"]
    assert [port["cable"] for port in verify["ports"]] == [None, None]
    assert plan.nodes[0].stages["relay"] == {"state": "off"}


def test_both_planes_of_a_node_are_staged_together() -> None:
    plan = planned(ring())
    assert plan.staged["spark1"] == {stage: plan.nodes[0].stages[stage] for stage in ("plane0", "plane1")}


def test_a_container_needs_no_privilege() -> None:
    container = planned(ring(), image_id="sha256:1").containers[2]
    arguments = container.arguments()
    assert arguments.pop("env") == container.envs
    assert arguments == {
        "node": "spark3",
        "rank": 2,
        "name": "spark-fabric-test",
        "image": "sha256:1",
        "devices": ["/dev/infiniband"],
        "capabilities": ["CAP_IPC_LOCK"],
        "ulimits": {"memlock": -1, "stack": 67108864},
        "shm_size": 32 << 30,
        "privileged": False,
        "gpus": "request",
        "volumes": [{"source": LIBRARY, "target": PIP_LIBRARY, "read_only": True}],
        "labels": {"spark-fabric.stack": "spark-fabric/test/default", "spark-fabric.rank": "2"},
        "network_mode": "host",
        "ipc_mode": "host",
        "stop_timeout": 30,
        "log": ["json-file", {"max-file": "5", "max-size": "102400k"}],
        "healthcheck": None,
        "restart": "no",
    }


def test_outputs_name_the_head() -> None:
    plan = planned(changed(ring(), {"engine.port": 9999, "engine.name": "dsv41", "fleet.id": "desk"}))
    assert plan.api_url == "http://192.168.1.11:9999"
    assert plan.container_name == "dsv41"
    assert plan.label == "spark-fabric/test/desk"
    assert plan.image == {"ref": "engine:1", "id": None, "archive": None, "target": PIP_LIBRARY}
    assert planned(switched()).image == {"ref": "engine:1", "id": None, "archive": None}


def test_the_image_id_is_the_one_that_the_nodes_agree_on() -> None:
    settings, raw = load(ring()), observed.fleet(4)
    for name in ("spark1", "spark3"):
        raw[name]["docker"]["images"] = {"engine:1": "sha256:1"}
    assert agreed_image(settings, facts_of(raw)) == "sha256:1"
    assert make(settings, facts_of(raw), STACK).image["id"] == "sha256:1"
    raw["spark2"]["docker"]["images"] = {"engine:1": "sha256:2"}
    assert agreed_image(settings, facts_of(raw)) is None


def test_a_plan_without_nodes_takes_the_usual_names() -> None:
    plan = make(load(ring()), None, STACK)
    seen = planned(ring()).nodes[0].stages
    assert {**plan.nodes[0].stages, "nccl": {}} == {**seen, "nccl": {}}
    assert plan.nodes[0].stages["nccl"] == {**seen["nccl"], "sha256": None}  # nobody has seen it
    assert plan.verify["spark1"]["ports"][0]["peers"][0]["mac"] is None


DISRUPTIVE = [
    {"fabric.mtu": 4200},
    {"fabric.plane0.pool": "10.30.0.0/16"},
    {"fabric.plane1.enabled": "off"},
    {"fabric.ipRelay": "off"},
    {"fabric.cabling": "reversed"},
    {**NO_PROFILE, "nodes[3].state": "leaving"},
    {**NO_PROFILE, "nodes[4]": {"name": "spark5", "address": "192.168.1.15"}},
]
ENGINE_ONLY = [
    {"engine.env.A": "1"},
    {"engine.headEnv.A": "1"},
    {"engine.image": "engine:2"},
    {"engine.port": 9999},
    {"engine.gpus": "cdi"},
    {"engine.shmSize": "1g"},
    {"engine.privileged": "on"},
    {"engine.volumes": ["/a:/b"]},
    {"engine.name": "other"},
    {"engine.stopGrace": 60},
    {"engine.log.maxFiles": 2},
]
NEITHER = [
    {"engine.smoke.thinking": "on"},
    {"engine.readyTimeout": 60},
    {"ssh.identity": "other"},
    {"ssh.port": 2222},
    {"nodes[0].ssh.user": "other"},
]


@pytest.mark.parametrize("change", DISRUPTIVE, ids=str)
def test_a_disruptive_change_moves_the_standstill(change: dict[str, Any]) -> None:
    assert planned(changed(ring(), change)).standstill != planned(ring()).standstill


@pytest.mark.parametrize("change", ENGINE_ONLY, ids=str)
def test_an_engine_setting_moves_the_group_only(change: dict[str, Any]) -> None:
    before, after = planned(ring()), planned(changed(ring(), change))
    assert after.group != before.group
    assert after.standstill == before.standstill


@pytest.mark.parametrize("change", NEITHER, ids=str)
def test_how_nodes_are_reached_moves_neither(change: dict[str, Any]) -> None:
    before, after = planned(ring()), planned(changed(ring(), change))
    assert (after.group, after.standstill) == (before.group, before.standstill)


def test_another_tag_for_the_same_image_moves_nothing_that_runs() -> None:
    one, other = (planned(changed(mesh(), {"engine.image.ref": ref}), image_id="sha256:1") for ref in ("a:1", "b:2"))
    assert (one.group, one.standstill, one.mesh_checks) == (other.group, other.standstill, other.mesh_checks)
    assert (one.image["ref"], other.image["ref"]) == ("a:1", "b:2")


def test_the_image_id_moves_the_group() -> None:
    assert planned(ring(), image_id="sha256:1").group != planned(ring(), image_id="sha256:2").group


def test_another_rank_order_moves_both() -> None:
    config = ring()
    config["nodes"][1:3] = config["nodes"][2:0:-1]
    before, after = planned(ring()), planned(config)
    assert after.group != before.group
    assert after.standstill != before.standstill


def test_another_machine_moves_both() -> None:
    settings, raw = load(ring()), observed.fleet(4)
    before = make(settings, facts_of(raw), STACK)
    raw["spark2"]["machine_id"] = "f" * 32
    after = make(settings, facts_of(raw), STACK)
    assert after.group != before.group
    assert after.standstill != before.standstill


def test_a_replaced_card_moves_only_the_check() -> None:
    settings, raw = load(ring()), observed.fleet(4)
    before = make(settings, facts_of(raw), STACK)
    raw["spark2"]["links"]["enp1s0f1np1"]["mac"] = "02:00:00:00:ff:ff"
    after = make(settings, facts_of(raw), STACK)
    assert (after.standstill, after.group) == (before.standstill, before.group)
    assert after.verify["spark1"] != before.verify["spark1"]


def test_the_second_step_of_leaving_moves_neither() -> None:
    leaving = planned(changed(ring(), {**NO_PROFILE, "nodes[3].state": "leaving"}))
    gone = planned(changed(ring(), {**NO_PROFILE, "nodes[3]": DELETE}))
    assert (leaving.standstill, leaving.group) == (gone.standstill, gone.group)


def test_rendered_text_is_in_no_digest() -> None:
    one = make(load(ring()), None, STACK)
    other = make(load(ring()), None, StackName("spark-fabric", "renamed"))
    assert one.nodes[0].stages["plane0"]["text"] != other.nodes[0].stages["plane0"]["text"]
    assert digest(one.nodes[0].stages["plane0"]) == digest(other.nodes[0].stages["plane0"])
    assert one.standstill == other.standstill


def test_an_applied_fleet_plans_the_same_again() -> None:
    before = planned(ring())
    for journaled in (True, False):
        raw = observed.fleet_applied(before, journaled=journaled)
        after = make(load(ring()), facts_of(raw), STACK)
        assert (after.standstill, after.group) == (before.standstill, before.group)


def test_warnings_are_no_problems() -> None:
    plan = planned(changed(ring(), {"fabric.plane0.pool": "198.18.0.0/16", "nodes[0].state": "leaving", "nodes[4]": {
        "name": "spark5", "address": "192.168.1.15"}}))  # fmt: skip
    assert [(one.code, one.path) for one in plan.warnings] == [
        ("benchmark-pool", "spark-fabric:fabric.plane0.pool"),
        ("head-leaves", "spark-fabric:nodes[0].state"),
    ]
    assert plan.head.name == "spark2"


@given(st.integers(3, 12), st.booleans())
def test_what_one_end_checks_the_other_end_has(size: int, is_ring: bool) -> None:
    plan = make(load(ring(size) if is_ring else switched(size)), None, STACK)
    has = {
        port["address"].split("/")[0]: (name, port["netdev"])
        for name, verify in plan.verify.items()
        for port in verify["ports"]
    }
    for name, verify in plan.verify.items():
        for port in verify["ports"]:
            for peer in port["peers"]:
                assert has[peer["address"]] == (peer["node"], peer["netdev"])
                assert peer["node"] != name
        for far in verify["far"]:
            assert has[far["address"]][0] == far["node"]
