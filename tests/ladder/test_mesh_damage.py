"""Damage of a mesh behind the program's back, while the engine runs: named exactly, repaired or refused, then gone.

The tables are in `mesh_damages.py`, the rounds as in `test_damage.py`. The tests of this file have one stack, in their
order.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleet.verdicts import DEVIATIONS, Verdict
from lab import api

from . import mesh_damages
from .conftest import NewRig
from .damages import F1, Damage
from .mesh_damages import DISRUPTIVE, IN_PLACE, KILLED, REFUSED, STACK
from .test_damage import GROUP, Fleet, Refusal, Round, reason_of
from .test_mesh import STAGES, quick_card, with_mesh
from .test_mesh import Fleet as Mesh
from .witness import watching


@pytest.fixture(scope="module")
def fleet(ring_lab: api.Handle, new_rig: NewRig) -> Iterator[Fleet]:
    """Four nodes in a ring with a mesh, up; in the end nothing is left of it."""
    rig = with_mesh(new_rig(ring_lab, STACK, "ring"))
    rig.config["preflight"] = {"ignore": ["mesh-research", "mesh-marker-unknown"]}  # are said of any mesh of the lab
    with quick_card(ring_lab), rig.leaving_no_trace(), watching(ring_lab) as witness:
        rig.up()
        yield Fleet(rig, witness, ring_lab.snapshots())


@pytest.fixture(scope="module")
def mesh(fleet: Fleet) -> Mesh:
    """The same, as something with paths."""
    return Mesh(fleet.rig, fleet.witness)


def every(fleet: Fleet, *stages: str) -> set[tuple[str, str]]:
    """Updates of stages on all nodes."""
    return {("update", f"{node}-{stage}") for node in fleet.rig.lab.names for stage in stages}


@pytest.fixture(scope="module")
def in_place(fleet: Fleet) -> Round:
    """What is repaired under the engine, and what needs no repair."""
    active = f"systemctl is-active {mesh_damages.marker('rocep1s0f1')}"

    def settled() -> bool:
        return fleet.rig.lab.run("spark4", active, check=False).stdout == "active\n"

    found = fleet.round([KILLED, *IN_PLACE], settled)
    fleet.undo([KILLED])
    return found


@pytest.mark.parametrize("damage", IN_PLACE, ids=str)
def test_what_no_engine_feels_is_named_at_the_resource_that_repairs_it(in_place: Round, damage: Damage) -> None:
    in_place.look.found(damage)
    rows = {row.idle for told in damage.told for row in DEVIATIONS if row.code == told.code}
    assert Verdict.IN_PLACE in rows
    assert f"{damage.told[0].subject}: {damage.told[0].seen}" in reason_of(damage, in_place.reasons)


def test_a_marker_that_was_killed_is_told_and_nothing_follows(in_place: Round) -> None:
    in_place.look.found(KILLED)
    assert ("update", "spark4-markers") not in in_place.planned


def test_what_no_engine_feels_is_repaired_under_it_and_nothing_else_is_touched(in_place: Round) -> None:
    in_place.look.nothing_but([KILLED, *IN_PLACE])
    assert in_place.planned == in_place.done == {("update", f"{damage.node}-markers") for damage in IN_PLACE}
    assert in_place.record.ended(in_place.since) == set()
    assert [call for call in in_place.record.calls if call.tool != "systemctl"] == []
    assert in_place.record.changes == []
    assert in_place.empty == ""
    assert in_place.left == []


@pytest.fixture(scope="module")
def refused(fleet: Fleet, in_place: Round) -> Refusal:
    """What is in the way, and is taken away again."""
    fleet.harm(REFUSED)
    try:
        return fleet.refusal()
    finally:
        fleet.undo(REFUSED)


@pytest.mark.parametrize("damage", REFUSED, ids=str)
def test_what_is_in_the_way_is_named_and_refused(refused: Refusal, damage: Damage) -> None:
    refused.look.found(damage)
    refused.run.says(*(told.seen for _, told in damage.lines))


def test_what_is_in_the_way_is_all_that_is_told(refused: Refusal) -> None:
    refused.look.nothing_but(REFUSED)
    lines = sum(len(damage.lines) for damage in REFUSED)
    refused.run.says(f"{lines} problem(s); nothing was changed")


@pytest.fixture(scope="module")
def disruptive(fleet: Fleet, refused: Refusal) -> Round:
    """What is repaired while no engine runs."""
    mesh_damages.put_again(fleet.rig.lab, "spark3", F1)
    return fleet.round(DISRUPTIVE, fleet.settled)


@pytest.mark.parametrize("damage", DISRUPTIVE, ids=str)
def test_what_an_engine_would_feel_is_named_at_the_resource_that_repairs_it(disruptive: Round, damage: Damage) -> None:
    disruptive.look.found(damage)
    for told in damage.told:
        assert f"{told.subject}: {told.seen}" in reason_of(damage, disruptive.reasons)


def test_what_an_engine_would_feel_is_repaired_without_one_and_nothing_else_is_touched(
    fleet: Fleet, mesh: Mesh, disruptive: Round
) -> None:
    disruptive.look.nothing_but(DISRUPTIVE)
    assert disruptive.look.engine == []
    engines = {("replace", f"{node}-engine") for node in fleet.rig.lab.names}
    stages = every(fleet, *STAGES) | {("update", "mesh-verified"), ("replace", "standstill")}
    assert disruptive.planned == disruptive.done == stages | GROUP | engines
    disruptive.record.assert_disruption_without_engine()
    assert disruptive.empty == ""
    assert disruptive.left == []
    mesh.assert_all_paths()
    fleet.rig.assert_one_group()
    fleet.rig.assert_served()


def test_a_cap_above_what_the_queues_take_fails_the_proof_with_function_cap_and_queue_size(
    fleet: Fleet, disruptive: Round
) -> None:
    rig = fleet.rig
    rig.set("mesh.maxSize", 1 << 20)
    rig.set("mesh.allowLargeCap", True)
    rig.set("proof", {"minimum": "1m"})
    run = rig.up(ok=False)
    report = rig.pulumi("stack", "output", "proof").out
    assert report.startswith("proof failed\n"), run
    queues = "hairpin queues of 8192 packets (mesh.hairpinQueueSize) take messages of up to 262144 bytes"
    cap = "the cap is 1048576 (mesh.maxSize, mesh.gatherSize)"
    for seen in ("spark2 enp1s0f1np1: rx_out_of_buffer grew by ", "spark3 rocep1s0f1: out_of_sequence grew by "):
        (line,) = (line for line in report.splitlines() if line.strip().startswith(seen))
        assert line.endswith(f"{queues}, {cap}")
    run.says("proof failed", "mesh failed: ")
    assert "traffic passed: " in report
    rig.assert_served()
