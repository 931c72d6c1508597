"""What the nodes are against what this run wants: stages to repair, and a group of engines that is whole or broken."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fleet import drift
from fleet.drift import Drift, StageDrift, of_fleet, of_group, of_stage
from fleet.facts import parse
from fleet.loading import load
from fleet.plan import Plan
from fleet.planner import make
from fleet.stack import StackName
from node.deviation import Deviation
from node.digest import digest
from tests.unit import observed
from tests.unit.stacks import changed, ring, switched

STACK = StackName("spark-fabric", "test")
IMAGE = "sha256:" + "1" * 64

Raw = dict[str, dict[str, Any]]


def planned(config: dict[str, Any]) -> Plan:
    facts = {name: parse(answer) for name, answer in observed.fleet(4).items()}
    return make(load(config), facts, STACK, image_id=IMAGE)


@pytest.fixture
def plan() -> Plan:
    """Four nodes on a switch; no relay."""
    return planned(switched())


@pytest.fixture
def deviating(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Deviation]]:
    """What looking at a stage finds, by stage; nothing until a test says so."""
    found: dict[str, list[Deviation]] = {}
    looks = {stage: lambda _desired, _seen, stage=stage: found.get(stage, []) for stage in drift.DEVIATIONS}
    monkeypatch.setattr(drift, "DEVIATIONS", looks)
    return found


def journaled(plan: Plan, **changes: dict[str, Any]) -> Raw:
    """Nodes whose journals hold the plan; `changes` by stage count for spark2."""
    raw = observed.fleet(4)
    for node in plan.nodes:
        stages = {
            stage: {"status": "applied", "digest": digest(desired), "desired": desired}
            for stage, desired in node.stages.items()
            if desired.get("state") != "off"
        }
        raw[node.name]["journal"] = {"schema": 1, "generation": 3, "stages": stages}
        raw[node.name]["docker"]["images"] = {plan.settings.engine.image.ref: IMAGE}
    for stage, change in changes.items():
        stages = raw["spark2"]["journal"]["stages"]
        if change:
            stages[stage] = {**stages.get(stage, {}), **change}
        else:
            del stages[stage]
    return raw


def mtu() -> Deviation:
    return Deviation("link.mtu", "enp1s0f0np0", "MTU is 1500", "9000", disruptive=True)


# Stages


def test_nothing_deviates_where_all_is_as_planned(plan: Plan, deviating: dict[str, list[Deviation]]) -> None:
    found = of_fleet(plan, journaled(plan))
    assert found.lines() == []
    assert found.repair("spark2", "plane0") is None
    assert found.fabric() is None
    assert found.disruptive() is None


@pytest.mark.parametrize(
    ("change", "reason", "disruptive"),
    [
        ({}, "not applied on this node", False),
        ({"status": "applying"}, "an earlier change was not finished (applying)", True),
        ({"status": "reverting"}, "an earlier change was not finished (reverting)", True),
        ({"digest": "0" * 64}, "the node's journal holds another desired state", False),
    ],
)
def test_the_journal_alone_can_deviate(
    change: dict[str, Any], reason: str, disruptive: bool, plan: Plan, deviating: dict[str, list[Deviation]]
) -> None:
    found = of_fleet(plan, journaled(plan, plane0=change))
    assert found.lines() == [f"spark2 plane0: {reason}"]
    assert found.stages["spark2", "plane0"].disruptive == disruptive


def test_a_deviation_is_told_with_the_stage_that_repairs_it(plan: Plan, deviating: dict[str, list[Deviation]]) -> None:
    deviating["plane0"] = [mtu()]
    found = of_fleet(plan, journaled(plan))
    assert found.repair("spark2", "plane0") == "enp1s0f0np0: MTU is 1500, plan wants 9000 (generation 3)"
    assert found.repair("spark2", "plane1") is None
    assert (found.disruptive() or "").startswith("spark1 plane0: enp1s0f0np0: MTU is 1500")
    assert (found.fabric() or "").endswith("(generation 12)")


def test_what_an_engine_does_not_feel_stops_none(plan: Plan, deviating: dict[str, list[Deviation]]) -> None:
    deviating["plane1"] = [Deviation("link.arp", "enp1s0f0np0", "arp_ignore is 0", "1", disruptive=False)]
    found = of_fleet(plan, journaled(plan))
    assert found.disruptive() is None
    assert found.fabric() is not None


def test_the_same_drift_after_a_repair_reads_differently(plan: Plan, deviating: dict[str, list[Deviation]]) -> None:
    deviating["plane0"] = [mtu()]
    first, second = journaled(plan), journaled(plan)
    second["spark2"]["journal"]["generation"] = 4
    assert of_fleet(plan, first).repair("spark2", "plane0") != of_fleet(plan, second).repair("spark2", "plane0")
    assert of_fleet(plan, first).disruptive() != of_fleet(plan, second).disruptive()


def test_a_journal_that_is_gone_again_reads_differently(plan: Plan, deviating: dict[str, list[Deviation]]) -> None:
    """Its count of changes went with it: a second revert by hand would otherwise look as the first `up` did."""
    first, second = journaled(plan), journaled(plan)
    for raw, time in ((first, 1000.0), (second, 2000.0)):
        raw["spark2"] |= {"journal": None, "time": time}
    for stage in ("node", "plane0"):
        assert of_fleet(plan, first).repair("spark2", stage) != of_fleet(plan, second).repair("spark2", stage)


def test_what_belongs_to_somebody_else_is_no_drift(plan: Plan, deviating: dict[str, list[Deviation]]) -> None:
    foreign = Deviation("netplan.foreign", "/etc/netplan/50-x.yaml", "is not ours", "it away", False, foreign=True)
    deviating["plane0"] = [foreign]
    assert of_fleet(plan, journaled(plan)).lines() == []


def test_a_stage_that_is_off_and_never_was_on_is_as_desired(deviating: dict[str, list[Deviation]]) -> None:
    plan = planned(changed(switched(), {"fabric.plane1.enabled": False}))
    assert of_fleet(plan, journaled(plan)).lines() == []


def test_a_node_that_was_not_looked_at_has_no_drift(plan: Plan, deviating: dict[str, list[Deviation]]) -> None:
    raw = journaled(plan)
    del raw["spark2"]["journal"], raw["spark3"]
    raw["spark2"]["journal"] = None
    assert {name for name, _ in of_fleet(plan, raw).stages} == {"spark2"}


def test_a_node_that_anybody_may_adopt_is_taken(plan: Plan, deviating: dict[str, list[Deviation]]) -> None:
    raw = journaled(plan)
    for name in raw:
        raw[name]["owner"] = {"adoptable": name == "spark2"}
        raw[name]["time"] = 1000.0
    found = of_fleet(plan, raw)
    assert found.lines() == ["spark2 node: is up for adoption (seen at 1000)"]
    assert found.disruptive() is None


def test_a_long_list_of_reasons_is_counted() -> None:
    text = StageDrift("spark1", "plane0", tuple(f"reason {number}" for number in range(7)), True).text()
    assert text == "reason 0; reason 1; reason 2; reason 3; and 3 more"


def test_a_ring_watches_its_relay(deviating: dict[str, list[Deviation]]) -> None:
    plan = planned(ring())
    deviating["relay"] = [Deviation("relay.forward", "net.ipv4.ip_forward", "is 0", "1", disruptive=False)]
    found = of_stage(plan.nodes[1], "relay", journaled(plan)["spark2"])
    assert found is not None
    assert found.text() == "net.ipv4.ip_forward: is 0, plan wants 1"


# The group of engines


def container(plan: Plan, rank: int, **values: Any) -> dict[str, Any]:
    labels = {
        "spark-fabric.stack": plan.label,
        "spark-fabric.rank": str(rank),
        "spark-fabric.group": plan.group,
        "spark-fabric.start": "100",
    }
    labels |= {f"spark-fabric.{key}": value for key, value in values.items() if key in ("group", "start")}
    told: dict[str, Any] = {key: values[key] for key in ("name", "state", "exit_code", "oom_killed") if key in values}
    return {"name": "spark-fabric-test", "state": "running", "labels": labels, **told}


def running(plan: Plan) -> Raw:
    """Nodes on which the whole group runs."""
    raw = observed.fleet(4)
    for node in plan.ranks:
        assert node.rank is not None
        raw[node.name]["docker"]["containers"] = [container(plan, node.rank)]
        raw[node.name]["started"] = {"start": "100"}
    return raw


def test_a_group_that_is_whole_keeps_its_start(plan: Plan) -> None:
    group = of_group(plan, running(plan), "200")
    assert (group.broken, group.start, group.reasons) == (None, "100", ())


def test_a_whole_group_of_another_plan_is_not_broken_and_gets_a_new_start(plan: Plan) -> None:
    raw = running(planned(changed(switched(), {"engine.env": {"A": "1"}})))
    assert (of_group(plan, raw, "200").broken, of_group(plan, raw, "200").start) == (None, "200")


def broken_with(plan: Plan, *containers: dict[str, Any], started: str | None = "100") -> tuple[str, ...]:
    raw = running(plan)
    raw["spark2"]["docker"]["containers"] = list(containers)
    raw["spark2"]["started"] = {"start": started} if started else None
    group = of_group(plan, raw, "200")
    assert group.start == ("200" if group.reasons else "100")
    assert group.broken is None or re.fullmatch(r".+ \(start 200\)", group.broken)
    return group.reasons


def test_every_way_in_which_a_group_is_broken_is_told(plan: Plan) -> None:
    whole = container(plan, 1)
    assert broken_with(plan) == ("rank 1 (spark2): no container",)
    ended = container(plan, 1, state="exited", exit_code=1)
    assert broken_with(plan, ended) == ("rank 1 (spark2): spark-fabric-test exited, exit code 1",)
    killed = container(plan, 1, state="exited", exit_code=137, oom_killed=True)
    assert broken_with(plan, killed) == ("rank 1 (spark2): spark-fabric-test exited, out of memory",)
    assert broken_with(plan, container(plan, 1, state="paused")) == ("rank 1 (spark2): spark-fabric-test paused",)
    assert broken_with(plan, whole, container(plan, 1, name="left", state="exited")) == (
        "rank 1 (spark2): spark-fabric-test running, left exited, exit code 0",
    )
    assert broken_with(plan, container(plan, 1, start="50")) == (
        "rank 1 (spark2): its start was never completed",
        "the ranks are of different starts",
    )
    assert broken_with(plan, container(plan, 1, group="x")) == ("the ranks are of different groups",)
    assert broken_with(plan, container(plan, 3)) == ("spark2: runs rank 3, not 1",)
    assert broken_with(plan, whole, started=None) == ("rank 1 (spark2): its start was never completed",)


def test_a_container_that_somebody_made_anew_with_our_labels_breaks_the_group(plan: Plan) -> None:
    raw = running(plan)
    raw["spark2"]["docker"]["containers"][0] |= {"id": "new", "image_id": "sha256:" + "2" * 64}
    assert of_group(plan, raw, "200").broken is None  # of a version that did not write down which one it was
    raw["spark2"]["started"]["container"] = "new"
    assert of_group(plan, raw, "200").broken is None
    raw["spark2"]["started"]["container"] = "old"
    made = "rank 1 (spark2): spark-fabric-test was made anew by somebody else"
    assert of_group(plan, raw, "200").reasons == (f"{made} of image {'2' * 12}, not {'1' * 12}",)
    raw["spark2"]["docker"]["containers"][0]["image_id"] = IMAGE
    assert of_group(plan, raw, "200").reasons == (made,)


def test_a_neighbour_that_is_entered_wrongly_is_put_right_by_the_check_of_the_fabric(
    plan: Plan,
    deviating: dict[str, list[Deviation]],
) -> None:
    assert not deviating
    raw = journaled(plan)
    node = plan.ranks[1]
    assert node.verify
    port = node.verify["ports"][0]
    peer = port["peers"][0]
    entry = {"address": peer["address"].split("/")[0], "netdev": port["netdev"], "mac": peer["mac"]}
    raw["spark2"]["neighbours"] = [entry]
    assert of_fleet(plan, raw).stages == {}
    entry["mac"] = "02:00:00:00:00:01"
    found = of_fleet(plan, raw)
    assert list(found.stages) == [("spark2", drift.NEIGHBOURS)]
    assert found.fabric() is None
    assert found.disruptive() is None
    assert f"spark2 neighbours: {port['netdev']}: {entry['address']} is at 02:00:00:00:00:01" in (
        found.fabric(drift.NEIGHBOURS) or ""
    )
    refusing = planned(changed(switched(), {"preflight.refuse": ["link.neighbour"]}))
    assert of_fleet(refusing, raw).stages.keys() - {("spark2", "image")} == set()


def test_an_engine_that_was_put_back_is_told_once_with_why_and_is_started_anew(plan: Plan) -> None:
    raw = running(plan)
    for node in raw.values():
        node["started"] = {"start": "100", "back": "rank 2 on spark3: exited, exit code 1"}
    group = of_group(plan, raw, "200")
    [reason] = group.reasons
    assert reason.endswith("served last was put back: rank 2 on spark3: exited, exit code 1")
    assert (group.broken, group.start) == (f"{reason} (start 200)", "200")


def test_containers_of_others_do_not_count(plan: Plan) -> None:
    stranger = {"name": "x", "state": "running", "labels": {"spark-fabric.stack": "spark-fabric/other/default"}}
    assert broken_with(plan, container(plan, 1), stranger, {**stranger, "labels": {}}) == ()


def test_a_leaving_node_must_run_nothing() -> None:
    before = planned(switched())
    plan = planned(changed(switched(), {"nodes[3].state": "leaving"}))
    group = of_group(plan, running(before), "200")
    assert "spark4: has no rank, yet spark-fabric-test is running" in group.reasons


def test_a_rank_that_nobody_could_look_at_breaks_no_group(plan: Plan) -> None:
    raw = running(plan)
    del raw["spark4"]
    assert of_group(plan, raw, "200").broken is None


def test_no_drift_has_nothing_to_say() -> None:
    assert Drift().repair("spark1", "plane0") is None
