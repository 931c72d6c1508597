"""What the proof asks of each rank, how library and lines are judged, and which cause is named for which damage."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from fleet import proof
from fleet.causes import LISTENER, causes
from fleet.expected import asked
from fleet.facts import parse
from fleet.loading import load
from fleet.plan import Plan
from fleet.planner import make
from fleet.proof import Part, Proof, Verdict
from fleet.stack import StackName
from fleet.traffic import ports_of
from tests.unit import observed
from tests.unit.stacks import changed, mesh, ring, switched

STACK = StackName("spark-fabric", "test")
SHA, OTHER = "a" * 64, "b" * 64
LOGS = {"proof.logs": "on"}
PIP = "/opt/libnccl.so.2"
EXTENDED, PRESERVE = "NCCL_IB_EXTENDED_IPV4_GIDS", "NCCL_IB_PRESERVE_PCI_DOMAIN"
WITHOUT_FLAGS = {
    "engine.profile": "none",
    "engine.env": {"NCCL_SWITCHLESS_RING_ONLY": 1, "NCCL_ALGO": "Ring", "NCCL_NET": "IB"},
}

Json = dict[str, Any]


def planned(config: Json) -> Plan:
    """The plan for nodes that hold it already."""
    before = make(load(config), None, STACK)
    raw = observed.fleet_applied(before, journaled=True)
    return make(load(config), {name: parse(answer) for name, answer in raw.items()}, STACK)


def wanted(config: Json) -> dict[str, Json]:
    return asked(planned(config), "100")


def healthy(desired: dict[str, Json]) -> dict[str, Json]:
    """What the nodes say of an engine that is as planned."""
    answers = {}
    for node, one in desired.items():
        lines = {line["name"]: None if line["never"] else line["text"] for line in one["lines"] or ()}
        found = {"path": PIP, "sha256": one["library"] or SHA, "strings": list(one["strings"]), "processes": 2}
        answers[node] = {
            "container": "engine",
            "libraries": [found],
            "lines": {**lines, LISTENER: None},
            "first_error": None,
            "docker_error": None,
        }
    return answers


def seen(desired: dict[str, Json]) -> dict[str, dict[str, Json]]:
    """Counters, states and GIDs of ports that are as planned."""
    return {
        node: {
            port["hca"]: {
                "sent": 0,
                "received": 0,
                "state": "4: ACTIVE",
                "gid": "::ffff:" + port["address"],
                "gid_type": "RoCE v2",
            }
            for port in one["ports"]
        }
        for node, one in desired.items()
    }


class Damage:
    """A fleet whose traffic is not as it should be, and what is found out about it."""

    def __init__(self, config: Json) -> None:
        self.desired = wanted(config)
        self.now, self.loaded = seen(self.desired), healthy(self.desired)
        self.complaints: dict[str, list[str]] = {node: [] for node in self.desired}

    def causes(self) -> tuple[str, ...]:
        return causes(self.desired, ports_of(self.desired), self.now, self.loaded, self.complaints)


# what is asked


def test_each_rank_is_asked_about_its_planned_ports() -> None:
    desired = wanted(ring())
    ports = desired["spark2"]["ports"]
    assert [(port["plane"], port["hca"], port["address"], port["edge"]) for port in ports] == [
        (0, "rocep1s0f0", "10.10.1.10", "cable 1 (spark2 f0 - spark3 f1)"),
        (0, "rocep1s0f1", "10.10.0.11", "cable 0 (spark1 f0 - spark2 f1)"),
        (1, "roceP2p1s0f0", "10.20.1.10", "cable 1 (spark2 f0 - spark3 f1)"),
        (1, "roceP2p1s0f1", "10.20.0.11", "cable 0 (spark1 f0 - spark2 f1)"),
    ]
    assert {port["segment"] for port in ports} == {"cable 0", "cable 1"}
    edges = [port["edge"] for port in wanted(switched(2))["spark2"]["ports"]]
    assert edges == ["spark2 f0 to the switch"] * 2


def test_only_the_head_is_asked_for_completions() -> None:
    desired = wanted(changed(ring(), {"engine.port": 9999, "proof.timeout": 60}))
    assert [node for node, one in desired.items() if one["load"]] == ["spark1"]
    load_ = desired["spark1"]["load"]
    assert (load_["address"], load_["port"], load_["timeout"]) == ("127.0.0.1", 9999, 60)
    listening = wanted(changed(ring(), {"engine.listen": "192.168.1.11"}))
    assert listening["spark1"]["load"]["address"] == "192.168.1.11"


def test_nothing_of_the_operators_environment_is_in_what_is_asked() -> None:
    assert "hunter2" not in str(wanted(changed(ring(), {"engine.headEnv.API_KEY": "hunter2", **LOGS})))


def test_the_planned_library_is_asked_for_where_one_is_planned() -> None:
    plan = planned(ring())
    planned_there = {node.name: node.stages["nccl"]["sha256"] for node in plan.ranks}
    assert {node: one["library"] for node, one in asked(plan, "100").items()} == planned_there
    assert all(planned_there.values())
    assert {one["library"] for one in wanted(switched()).values()} == {None}  # that of the image


def test_limits_are_the_settings() -> None:
    section = {"minimum": "2m", "planeShare": 10, "edgeShare": 11, "arrival": 12, "requests": 13}
    limits = wanted(ring(proof=section))["spark4"]["limits"]
    assert limits == {"minimum": 2 << 20, "plane_share": 10, "edge_share": 11, "arrival": 12, "requests": 13}


def texts(config: Json, node: str = "spark1") -> set[str]:
    return {line["text"] for line in wanted(config)[node]["lines"]}


def test_a_ring_of_both_planes_is_asked_for_the_lines_of_its_flags() -> None:
    both = texts(changed(ring(), LOGS))
    assert {
        "NCCL_SWITCHLESS_RING_ONLY set by environment to 1.",
        "Tree transport setup disabled by NCCL_SWITCHLESS_RING_ONLY",
        "NET/IB ListenerRouting format=ipv4-v1 advertised=4 observed=4",
        "DSV41: synchronous weight copies enabled",
    } <= both
    one = texts(changed(ring(), {**LOGS, "fabric.plane1.enabled": "off"}))
    assert not any("ListenerRouting" in text or "overriding" in text for text in one)
    assert texts(changed(switched(), LOGS)) == {"Connected all rings"}


def test_without_the_setting_no_line_is_asked_for() -> None:
    desired = wanted(ring())
    assert all(one["lines"] is None for one in desired.values())
    assert proof.lines(desired, healthy(desired)).verdict is Verdict.UNKNOWN


def test_lines_of_the_mesh_are_asked_for_with_its_flags_and_the_plans_values() -> None:
    assert not any("RoCEnante" in text for text in texts(changed(switched(), LOGS)))
    env = {
        "SGLANG_ROCE_ALLREDUCE": 1,
        "SGLANG_ROCE_MAX_SIZE": 262144,
        "B12X_ROCE_HCA": "rocep1s0f0,roceP2p1s0f0",
        "DSV41_ROCE_GATHER": 2097152,
    }
    found = texts(changed(switched(), {**LOGS, "engine.env": env}))
    ready = "RoCEnante ready: world=4 hcas=rocep1s0f0,roceP2p1s0f0 gid_index=3 max_size=262144"
    assert {ready, "DSV41_ROCE_GATHER ready: max 2097152 bytes per rank"} <= found
    assert not any("DSV41_L2_PREFETCH" in text for text in found)
    assert any("ROCE_TP8_ROUTE" in text for text in found)
    assert not any(
        "ROCE_TP8_ROUTE" in text for text in texts(changed(switched(), {**LOGS, "engine.env": env}), "spark2")
    )


def test_a_mesh_is_proven_with_its_own_lines_and_what_arrives_by_plane() -> None:
    """A middle node's card passes bytes on without its functions counting them: they arrive one cable further."""
    config = changed(mesh(), LOGS)
    one = asked(make(load(config), None, STACK), "100")["spark3"]
    assert {port["segment"] for port in one["ports"]} == {"the ring"}
    assert {port["edge"].split(" (")[0] for port in one["ports"]} == {"cable 1", "cable 2"}
    shown = {line["text"] for line in one["lines"]}
    hcas = "rocep1s0f0,rocep1s0f1,roceP2p1s0f0,roceP2p1s0f1"
    assert any(text.startswith(f"RoCEnante ready: world=4 hcas={hcas} gid_index=3 max_size=") for text in shown)
    assert any(text.startswith("DSV41_ROCE_GATHER ready: max ") for text in shown)


def test_the_setting_has_every_rank_tell_and_is_another_group() -> None:
    quiet, loud = planned(ring()), planned(changed(ring(), LOGS))
    for container in loud.containers:
        assert {"NCCL_DEBUG=INFO", "NCCL_DEBUG_SUBSYS=INIT,ENV,NET"} <= set(container.envs)
    assert loud.group != quiet.group
    assert loud.standstill == quiet.standstill


# library


def library(desired: dict[str, Json], answers: dict[str, Json]) -> Part:
    return proof.library(desired, answers)


@pytest.fixture
def desired() -> dict[str, Json]:
    return wanted(changed(ring(), LOGS))


@pytest.fixture
def answers(desired: dict[str, Json]) -> dict[str, Json]:
    return healthy(desired)


def test_one_library_in_each_rank_passes(desired: dict[str, Json], answers: dict[str, Json]) -> None:
    sha256 = desired["spark1"]["library"]
    assert library(desired, answers) == Part(
        "library", Verdict.PASSED, f"one in each rank, sha256 {sha256}, as planned"
    )
    unplanned = wanted(switched())
    assert library(unplanned, healthy(unplanned)).why == f"one in each rank, sha256 {SHA}"


def test_a_second_library_and_none_are_named_with_rank_and_path(
    desired: dict[str, Json], answers: dict[str, Json]
) -> None:
    answers["spark2"]["libraries"].append({**answers["spark2"]["libraries"][0], "path": "/nccl/libnccl.so.2"})
    answers["spark3"]["libraries"] = []
    found = library(desired, answers)
    assert found.verdict is Verdict.FAILED
    assert found.faults == (
        f"rank 1 on spark2 has 2 libnccl loaded, exactly one is wanted: {PIP}, /nccl/libnccl.so.2",
        "rank 2 on spark3 has 0 libnccl loaded, exactly one is wanted: none",
    )


def test_another_library_than_planned_is_a_failure(desired: dict[str, Json], answers: dict[str, Json]) -> None:
    answers["spark4"]["libraries"][0]["sha256"] = OTHER
    (fault,) = library(desired, answers).faults
    assert fault == f"rank 3 on spark4 has {PIP} loaded with sha256 {OTHER}, {desired['spark4']['library']} is planned"


def test_different_libraries_are_a_failure_without_a_plan_too() -> None:
    desired = wanted(switched())
    answers = healthy(desired)
    answers["spark4"]["libraries"][0]["sha256"] = OTHER
    (fault,) = library(desired, answers).faults
    assert fault.startswith("the ranks have different libraries loaded: aaaaaaaaaaaa on spark1")


def test_a_library_that_was_replaced_while_it_is_in_use_is_told(
    desired: dict[str, Json], answers: dict[str, Json]
) -> None:
    answers["spark1"]["libraries"][0]["sha256"] = None
    assert "replaced meanwhile" in library(desired, answers).faults[0]


def test_a_docker_that_does_not_answer_is_unknown(desired: dict[str, Json], answers: dict[str, Json]) -> None:
    answers["spark1"]["docker_error"] = "Connection refused"
    assert library(desired, answers).verdict is Verdict.UNKNOWN


# lines


def test_all_lines_of_the_flags_in_force_pass(desired: dict[str, Json], answers: dict[str, Json]) -> None:
    found = proof.lines(desired, answers)
    assert found.verdict is Verdict.PASSED
    assert found.why.startswith(f"{sum(len(one['lines']) for one in desired.values())} looked for")


def test_a_missing_line_is_told_with_level_and_first_error(desired: dict[str, Json], answers: dict[str, Json]) -> None:
    answers["spark3"]["lines"]["no trees"] = None
    answers["spark3"]["first_error"] = "NCCL WARN something"
    (fault,) = proof.lines(desired, answers).faults
    assert fault == (
        "rank 2 on spark3 has not printed: Tree transport setup disabled by NCCL_SWITCHLESS_RING_ONLY "
        "(NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=INIT,ENV,NET; its first error: NCCL WARN something)"
    )


def test_a_collapse_across_pci_roots_is_a_failure(desired: dict[str, Json], answers: dict[str, Json]) -> None:
    collapsed = "NET/IB: Subnet-aware routing: overriding dev 2 with dev 0"
    answers["spark1"]["lines"]["planes kept apart"] = collapsed
    assert proof.lines(desired, answers).faults == (
        f"rank 0 on spark1 has printed what speaks against its flags: {collapsed}",
    )


@pytest.mark.parametrize(
    ("said", "collapsed"),
    [
        ("NET/IB: Subnet-aware routing: overriding dev 2 with dev 0", True),
        ("NET/IB: Subnet-aware routing: overriding dev 12 with dev 10", True),
        ("NET/IB: Subnet-aware routing: overriding dev 3 with dev 2 preserving PCI root pci0002:00", False),
        ("NET/IB: Subnet-aware routing: overriding dev 13 with dev 12 preserving PCI root pci0002:00", False),
    ],
)
def test_only_what_leaves_its_pci_root_is_a_collapse(desired: dict[str, Json], said: str, collapsed: bool) -> None:
    (line,) = [line for line in desired["spark1"]["lines"] if line["name"] == "planes kept apart"]
    assert bool(re.search(line["pattern"], said)) == collapsed


def test_a_line_about_trees_that_are_planned_is_no_failure(desired: dict[str, Json]) -> None:
    planned_trees = "spark1:1:1 [0] NCCL INFO Trees [0] 2/-1/-1->0->-1"
    never = [line for one in desired.values() for line in one["lines"] if line["never"]]
    assert never
    assert not any(re.search(line["pattern"], planned_trees) for line in never)


def test_a_rank_that_was_told_to_be_quiet_makes_its_lines_unknown() -> None:
    """The operator's own variables win: what NCCL does not print at that level says nothing."""
    desired = wanted(changed(ring(), {**LOGS, "engine.headEnv.NCCL_DEBUG": "WARN"}))
    answers = healthy(desired)
    for line in desired["spark1"]["lines"]:
        if line["name"] != "serial loading":
            answers["spark1"]["lines"][line["name"]] = None
    found = proof.lines(desired, answers)
    assert found.verdict is Verdict.UNKNOWN
    assert "rank 0 on spark1 prints no such line at NCCL_DEBUG=WARN, NCCL_DEBUG_SUBSYS=INIT,ENV,NET" in found.faults[0]
    answers["spark1"]["lines"]["serial loading"] = None  # the engine's own line, printed at any level
    assert proof.lines(desired, answers).verdict is Verdict.FAILED


# causes


def test_flags_that_were_left_out_are_named() -> None:
    (cause,) = Damage(changed(ring(), WITHOUT_FLAGS)).causes()
    assert cause.startswith(f"flags left out: {EXTENDED}, {PRESERVE} not 1")


def test_a_missing_gid_is_named_by_port_plane_and_index() -> None:
    damage = Damage(ring())
    damage.now["spark2"]["roceP2p1s0f0"] |= {"gid": "0000:" * 7 + "0000", "gid_type": ""}
    (cause,) = damage.causes()
    assert cause.startswith("spark2 roceP2p1s0f0 (plane 1) has no RoCE v2 GID of 10.20.1.10 at index 3")


@pytest.mark.parametrize("change", [{"gid_type": "IB/RoCE v1"}, {"gid": "::ffff:10.20.9.9"}, {"gid": ""}])
def test_a_gid_of_another_kind_or_address_is_none(change: Json) -> None:
    damage = Damage(ring())
    damage.now["spark2"]["roceP2p1s0f0"] |= change
    assert "has no RoCE v2 GID of 10.20.1.10" in damage.causes()[0]


def test_the_cap_is_named_by_the_library_that_does_not_know_the_flag() -> None:
    damage = Damage(ring())
    damage.loaded["spark3"]["libraries"][0]["strings"] = ["PRESERVE_PCI_DOMAIN"]
    (cause,) = damage.causes()
    assert cause.startswith("two-listener cap: the libnccl of rank 2 on spark3 does not know EXTENDED_IPV4_GIDS")


def test_the_cap_is_named_by_what_the_listeners_print() -> None:
    damage = Damage(changed(ring(), LOGS))
    damage.loaded["spark3"]["lines"][LISTENER] = "NET/IB ListenerRouting format=legacy advertised=2 observed=4"
    (cause,) = damage.causes()
    assert cause == "two-listener cap: rank 2 on spark3 publishes 2 of 4 devices, the others carry nothing"


def test_gids_that_were_missing_at_the_start_are_told_though_they_are_back() -> None:
    damage = Damage(changed(ring(), LOGS))
    damage.loaded["spark3"]["lines"][LISTENER] = "NET/IB ListenerRouting format=ipv4-v1 advertised=2 observed=2"
    assert damage.causes() == ("rank 2 on spark3 found a GID on 2 of 4 devices when it started",)


def test_too_few_channels_are_a_cause() -> None:
    damage = Damage(changed(ring(), {"engine.env": {"NCCL_MIN_NCHANNELS": 2, "NCCL_MAX_NCHANNELS": 2}}))
    assert damage.causes()[0].startswith("rank 0 on spark1 has 2 channels for 4 devices")


def silent_ends(damage: Damage, *edges: str) -> None:
    """Nothing answers on these cables, in either plane."""
    for node, one in damage.desired.items():
        for port in one["ports"]:
            if port["edge"].startswith(edges):
                damage.complaints[node].append(f"{node} {port['netdev']} (…): spark9 x 10.0.0.1 does not answer")


def test_two_swapped_cables_are_both_named() -> None:
    damage = Damage(ring())
    silent_ends(damage, "cable 1", "cable 2")
    assert damage.causes() == (
        "wrong cable: cable 1 (spark2 f0 - spark3 f1) has a link at each end, and its ends do not reach each other",
        "wrong cable: cable 2 (spark3 f0 - spark4 f1) has a link at each end, and its ends do not reach each other",
    )


def test_a_cable_with_a_link_at_one_end_leads_elsewhere_and_one_with_none_is_out() -> None:
    damage = Damage(ring())
    for hca in ("rocep1s0f1", "roceP2p1s0f1"):
        damage.now["spark3"][hca]["state"] = "1: DOWN"
    (cause,) = damage.causes()
    assert cause == (
        "cable 1 (spark2 f0 - spark3 f1): no link at spark3 enp1s0f1np1, spark3 enP2p1s0f1np1; "
        "the other end has one, so it leads elsewhere"
    )
    for hca in ("rocep1s0f0", "roceP2p1s0f0"):
        damage.now["spark2"][hca]["state"] = "1: DOWN"
    (cause,) = damage.causes()
    assert cause.startswith("cable 1 (spark2 f0 - spark3 f1): no link at ")
    assert "elsewhere" not in cause


def test_a_port_without_its_address_is_no_wrong_cable() -> None:
    damage = Damage(ring())
    silent_ends(damage, "cable 1")
    damage.now["spark2"]["rocep1s0f0"] |= {"gid": "", "gid_type": ""}
    assert not any("wrong cable" in cause for cause in damage.causes())


def test_what_has_no_known_cause_is_told_with_what_the_fabric_check_says() -> None:
    damage = Damage(ring())
    assert "none that is known" in damage.causes()[0]
    said = "spark1 enp1s0f0np0 (cable 0, plane 0): MTU is 1500, plan wants 9000"
    damage.complaints["spark1"] = [said]
    assert damage.causes() == (said,)


# the whole


def parts(**verdicts: Verdict) -> tuple[Part, ...]:
    return tuple(Part(name, verdict, "why") for name, verdict in verdicts.items())


@pytest.mark.parametrize(
    ("traffic", "library_", "lines", "whole"),
    [
        (Verdict.PASSED, Verdict.PASSED, Verdict.PASSED, Verdict.PASSED),
        (Verdict.PASSED, Verdict.PASSED, Verdict.UNKNOWN, Verdict.PASSED),
        (Verdict.UNKNOWN, Verdict.PASSED, Verdict.PASSED, Verdict.UNKNOWN),
        (Verdict.PASSED, Verdict.UNKNOWN, Verdict.UNKNOWN, Verdict.UNKNOWN),
        (Verdict.UNKNOWN, Verdict.FAILED, Verdict.UNKNOWN, Verdict.FAILED),
        (Verdict.PASSED, Verdict.PASSED, Verdict.FAILED, Verdict.FAILED),
    ],
)
def test_the_worst_that_is_known_decides(traffic: Verdict, library_: Verdict, lines: Verdict, whole: Verdict) -> None:
    assert Proof(parts(traffic=traffic, library=library_, lines=lines)).verdict is whole


def test_the_report_begins_with_verdict_and_causes() -> None:
    found = Proof((Part("traffic", Verdict.FAILED, "why", ("fault",), ("figure",)),), ("cause",))
    assert found.text() == "proof failed\n  cause: cause\ntraffic failed: why\n  fault\n  figure"


def test_what_is_judged_is_not_changed(desired: dict[str, Json], answers: dict[str, Json]) -> None:
    before = copy.deepcopy((desired, answers))
    proof.lines(desired, answers)
    proof.library(desired, answers)
    assert (desired, answers) == before
