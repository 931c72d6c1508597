"""The mesh against what nodes really hold: what stops the engines, what is refused, what is only said."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from fleet.drift import BELOW, Drift, StageDrift, of_fleet
from fleet.facts import parse
from fleet.loading import load
from fleet.look import Look, with_plan
from fleet.plan import Plan
from fleet.planner import make
from fleet.preflight import check
from fleet.probe import Probe
from fleet.problems import Problem
from fleet.stack import StackName
from fleet.verdicts import Judged, judge
from node import flow, meshunits
from node.digest import digest
from node.files import MARK
from tests.unit import observed
from tests.unit.stacks import mesh, ring

STACK = StackName("spark-fabric", "test")
IMAGE = "sha256:" + "1" * 64
UNIT = "dsv41-mesh-marker@roceP2p1s0f1.service"  # sorted, the first of rank 0

Raw = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def plan() -> Plan:
    """A ring of four with the mesh."""
    raw = {f"spark{number}": observed.fresh(number, f"192.168.1.{10 + number}") for number in range(1, 5)}
    return make(load(mesh()), {name: parse(one) for name, one in raw.items()}, STACK, image_id=IMAGE)


def held(stages: dict[str, Any]) -> dict[str, Any]:
    """A node's mesh as these stages want it."""
    functions = {
        one["pci"]: {
            "netdev": one["netdev"],
            "hca": one["hca"],
            "hairpin_num_queues": one["hairpin_num_queues"],
            "hairpin_queue_size": one["hairpin_queue_size"],
            "flow_steering_mode": "hmfs",
            "reinits": 1,
            "reload_failed": False,
            "offload": "on",
        }
        for one in stages["nic"]["functions"]
    }
    marks = [
        {
            "hca": one["hca"],
            "unit": meshunits.instance(one["hca"]),
            "active": True,
            "state": "active (running)",
            "busy": True,
            "replaced": None,
            "restarts": 0,
            "line": {
                "device": one["hca"],
                "attached": True,
                "managed": True,
                "source_port": one["source_port"],
                "lifetime_seconds": None,
                "action": "ethertype_rewrite",
            },
        }
        for one in stages["markers"]["markers"]
    ]
    files = {
        path: {"text": text, "mode": f"{mode:04o}", "uid": 0, "gid": 0}
        for path, (text, mode) in meshunits.files(stages["markers"]).items()
    }
    return {
        "functions": functions,
        "qdiscs": [],
        "filters": [],
        "routes": [],
        "files": files,
        "binary": {"sha256": stages["markers"]["binary"]["sha256"], "mode": "0755"},
        "service": {"enabled": True, "active": True, "state": "active (exited)", "why": ""},
        "markers": marks,
        "strangers": [],
        "queue_pairs": None,
    }


@pytest.fixture
def raw(plan: Plan) -> Raw:
    """Nodes whose journals hold the plan, with markers and driver as planned; rules and routes are missing."""
    found = {}
    for node in plan.ranks:
        one = observed.fresh(int(node.name.removeprefix("spark")), node.address)
        stages = {
            name: {"status": "applied", "digest": digest(state), "desired": state, "written": {}}
            for name, state in copy.deepcopy(dict(node.stages)).items()
        }
        one["journal"] = {"schema": 1, "generation": 2, "stages": stages}
        one["mesh"] = held(dict(node.stages))
        found[node.name] = one
    return found


def found(plan: Plan, raw: Raw, stage: str) -> dict[str, StageDrift]:
    """The drift of one stage, by node."""
    return {one.node: one for one in of_fleet(plan, raw).stages.values() if one.stage == stage}


def judged(plan: Plan, raw: Raw) -> Judged:
    """What the plan meets on these nodes, as far as it is of the mesh."""
    look = with_plan(Look(plan.settings, STACK, Probe(raw, {})), plan)
    return judge([one for one in check(look) if one.code.startswith("marker")], look.running)


def paths(found: tuple[Problem, ...]) -> list[tuple[str, str]]:
    return [(one.code, one.path) for one in found]


def test_driver_and_markers_as_planned_are_no_drift(plan: Plan, raw: Raw) -> None:
    assert found(plan, raw, "nic") == found(plan, raw, "markers") == {}


def test_lost_rules_stop_the_engines_because_packets_were_lost(plan: Plan, raw: Raw) -> None:
    drift = found(plan, raw, "forwarding")
    assert sorted(drift) == [node.name for node in plan.ranks]
    assert all(one.disruptive for one in drift.values())
    assert "rule is missing" in drift["spark1"].text()
    assert "forwarding" in (of_fleet(plan, raw).mesh() or "")


def test_a_marker_that_is_down_stops_the_engines_and_one_that_is_only_not_enabled_does_not(
    plan: Plan, raw: Raw
) -> None:
    raw["spark1"]["mesh"]["markers"][0] |= {"active": False, "state": "failed (failed)", "restarts": 5}
    raw["spark2"]["mesh"]["service"]["enabled"] = False
    drift = found(plan, raw, "markers")
    assert {name: one.disruptive for name, one in drift.items()} == {"spark1": True, "spark2": False}
    assert drift["spark1"].text() == f"{UNIT}: is failed (failed), started again 5 times, plan wants active"


def test_a_value_of_the_driver_that_is_not_in_effect_is_drift(plan: Plan, raw: Raw) -> None:
    raw["spark3"]["mesh"]["functions"]["0000:01:00.0"]["hairpin_queue_size"] = 1024
    drift = found(plan, raw, "nic")
    assert [(name, one.disruptive) for name, one in drift.items()] == [("spark3", True)]


def test_what_somebody_else_runs_is_a_problem_that_names_it(plan: Plan, raw: Raw) -> None:
    raw["spark4"]["mesh"]["strangers"] = [{"pid": 77, "command": "mlx5-rdma-tx-marker"}]
    assert paths(judged(plan, raw).problems) == [("markers.stranger", "spark4 process 77")]
    assert found(plan, raw, "markers") == {}


def test_markers_that_die_and_others_on_their_devices_are_warnings(plan: Plan, raw: Raw) -> None:
    raw["spark1"]["mesh"]["markers"][0]["restarts"] = 3
    raw["spark2"]["mesh"]["queue_pairs"] = [{"hca": "rocep1s0f0", "pid": 9, "command": "ib_write_bw"}]
    warnings = judged(plan, raw).warnings
    assert paths(warnings) == [("marker-flaps", "spark1"), ("marker-shared", "spark2")]
    assert "ib_write_bw" in warnings[1].seen
    raw["spark2"]["docker"]["containers"] = [
        {"name": "engine", "state": "running", "labels": {"spark-fabric.stack": plan.label}}
    ]
    assert paths(judged(plan, raw).warnings) == [("marker-flaps", "spark1")]


def test_what_is_repaired_below_is_carried_to_what_rests_on_it() -> None:
    plane = StageDrift("spark2", "plane0", ("MTU is 1500",), disruptive=True)
    drift = Drift({("spark2", "plane0"): plane}, {"spark1": 3, "spark2": 4})
    for stage in ("nic", "forwarding", "markers"):
        assert drift.repair("spark1", stage, BELOW[stage]) == "after spark2 plane0: MTU is 1500 (generation 7)"
        assert drift.repair("spark1", stage) is None
    rule = StageDrift("spark1", "forwarding", ("rule is missing",), disruptive=True)
    drift = Drift({**drift.stages, ("spark1", "forwarding"): rule}, drift.generations)
    assert drift.repair("spark1", "forwarding", BELOW["forwarding"]) == (
        "rule is missing; after spark2 plane0: MTU is 1500 (generation 7)"
    )
    assert drift.repair("spark3", "markers", BELOW["markers"]) == "after spark2 plane0: MTU is 1500 (generation 7)"


# A mesh whose journal was lost


@pytest.fixture
def orphaned(plan: Plan, raw: Raw) -> Raw:
    """spark2 has the mesh with one rule, and no journal; no other node has one."""
    raw["spark2"]["journal"] = None
    rule = flow.meaning(plan.nodes[1].stages["forwarding"]["rules"][0])
    raw["spark2"]["mesh"]["filters"] = [{**rule, "in_hw": True, "packets": 0, "sw_packets": 0, "drops": 0}]
    for name in ("spark1", "spark3", "spark4"):
        raw[name] |= {"journal": None, "mesh": None}
    return raw


def left(raw: Raw) -> tuple[Plan, Judged]:
    plan = make(load(ring()), {name: parse(one) for name, one in raw.items()}, STACK, image_id=IMAGE)
    look = with_plan(Look(plan.settings, STACK, Probe(raw, {})), plan)
    return plan, judge([one for one in check(look) if one.code == "mesh-left"], look.running)


def test_files_of_a_mesh_that_no_journal_knows_are_drift_and_its_rules_a_warning(orphaned: Raw) -> None:
    plan, judged = left(orphaned)
    drift = found(plan, orphaned, "markers")
    assert drift.keys() == {"spark2"}
    assert drift["spark2"].reasons == tuple(
        f"{path}: is there, plan wants no such file" for path in orphaned["spark2"]["mesh"]["files"]
    )
    assert drift["spark2"].disruptive
    (warning,) = judged.warnings
    assert (warning.code, warning.path) == ("mesh-left", "spark2 enp1s0f1np1 pref 49152")
    assert "After `up`: sudo tc filter delete dev enp1s0f1np1 ingress protocol 0x88b5 pref 49152 " in warning.hint


def test_a_mesh_of_others_without_a_journal_is_left_alone(orphaned: Raw) -> None:
    for file in orphaned["spark2"]["mesh"]["files"].values():
        file["text"] = file["text"].replace(MARK, "by hand")
    plan, judged = left(orphaned)
    assert "markers" not in plan.nodes[1].stages
    assert judged == Judged()


def test_a_mesh_that_is_planned_or_that_the_journal_has_is_not_left_over(plan: Plan, orphaned: Raw) -> None:
    look = with_plan(Look(plan.settings, STACK, Probe(orphaned, {})), plan)
    assert "mesh-left" not in {one.code for one in check(look)}
    stage = {"status": "applied", "digest": "", "desired": plan.nodes[1].stages["forwarding"]}
    orphaned["spark2"]["journal"] = {"schema": 1, "generation": 2, "stages": {"forwarding": stage}}
    assert left(orphaned)[1] == Judged()
