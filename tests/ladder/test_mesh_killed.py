"""Runs that are killed in the midst of the mesh: the damage is there, and the next command repairs it.

The tests of this file have one stack, in their order: each begins with what the one before has left. Between them they
go on in all ways: the same settings, other settings, destroy.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from lab import api
from lab.snapshot import Snapshot

from .conftest import NewRig
from .killing import Running, kill_program, program_points
from .test_killed import DESTROY, UP
from .test_mesh import PATHS, Fleet, quick_card, with_mesh
from .witness import watching

NODE = "spark2"
STACK = "meshkill"
FIRST_RULE = 49152  # preferences of the mesh's rules begin here


@pytest.fixture(scope="module")
def clean(ring_lab: api.Handle) -> Iterator[dict[str, Snapshot]]:
    """How the nodes are without the stack, with programs that can be stopped."""
    with program_points(ring_lab), quick_card(ring_lab):
        yield ring_lab.snapshots()


@pytest.fixture(scope="module")
def fleet(ring_lab: api.Handle, new_rig: NewRig, clean: dict[str, Snapshot]) -> Iterator[Fleet]:
    """A stack of which nothing is there yet; in the end nothing is left of it."""
    rig = with_mesh(new_rig(ring_lab, STACK, "ring"))
    with rig.leaving_no_trace(clean), watching(ring_lab) as witness:
        yield Fleet(rig, witness)


def kill_at(fleet: Fleet, point: str, *nodes: str, when: api.When = "before", words: tuple[str, ...] = UP) -> None:
    """Kill a run, and the programs on the nodes, where these come to a point of the mesh."""
    with ExitStack() as stack:
        points = [stack.enter_context(fleet.rig.lab.stopped_at(node, point, when)) for node in nodes]
        run = Running(fleet.rig, *words)
        run.until(*points, timeout=240)
        run.kill("everything")
        for reached in points:
            kill_program(reached)


def status(fleet: Fleet, stage: str) -> str | None:
    """What the journal of the node says of a stage."""
    text = fleet.rig.lab.run(NODE, f"cat /var/lib/spark-fabric/{STACK}/journal.json").stdout
    found: dict[str, dict[str, str]] = json.loads(text)["stages"]
    return found[stage]["status"] if stage in found else None


def rules(fleet: Fleet) -> int:
    """How many rules of the mesh the node has."""
    command = "for port in /sys/class/net/*s0f*; do tc -j filter show dev ${port##*/} ingress; echo; done"
    shown = fleet.rig.lab.run(NODE, command).stdout
    rows = [row for text in shown.splitlines() for row in json.loads(text or "[]")]
    return len([row for row in rows if "options" in row and row["pref"] >= FIRST_RULE])


def markers(fleet: Fleet) -> list[str]:
    """The markers that run, on all nodes."""
    command = "systemctl list-units --plain --no-legend --state=active 'dsv41-mesh-marker@*'"
    shown = fleet.rig.lab.everywhere(command)
    return [f"{node} {line.split()[0]}" for node, text in shown.items() for line in text.splitlines()]


def queues(fleet: Fleet) -> set[int]:
    """The sizes of hairpin queues that the node's driver shows."""
    shown = json.loads(fleet.rig.lab.run(NODE, "devlink -j dev param show").stdout)["param"]
    return {
        row["values"][0]["value"]
        for parameters in shown.values()
        for row in parameters
        if row["name"] == "hairpin_queue_size"
    }


def assert_whole(fleet: Fleet, since: int) -> None:
    """All paths, one group, nothing left to do, and no engine that saw any of it."""
    fleet.assert_all_paths()
    assert_serves(fleet, since)


def assert_serves(fleet: Fleet, since: int) -> None:
    """One group, nothing left to do, and no engine that saw anything change."""
    fleet.rig.assert_one_group()
    fleet.rig.assert_served()
    fleet.rig.unchanged()
    assert not fleet.witness.record(since).disturbed()


def assert_damaged(fleet: Fleet, stage: str, as_: str = "applying") -> None:
    """The stage is half-done, fewer paths than wanted are there, and no engine runs."""
    assert status(fleet, stage) == as_
    assert len(fleet.paths().paths) < PATHS
    assert fleet.rig.engines() == {}


def test_an_up_that_was_killed_in_a_re_initialisation_is_finished_by_the_next(fleet: Fleet) -> None:
    since = time.time_ns()
    fleet.rig.set("mesh.hairpinQueueSize", 4096)
    kill_at(fleet, "devlink-dev-reload", NODE)
    assert_damaged(fleet, "nic")
    fleet.rig.up()
    assert_whole(fleet, since)


def test_one_that_was_killed_between_journal_and_driver_goes_on_without_the_mesh(fleet: Fleet) -> None:
    since = time.time_ns()
    fleet.rig.set("mesh.hairpinQueueSize", 8192)
    kill_at(fleet, "journal-apply", NODE)
    assert status(fleet, "nic") == "applying"
    assert queues(fleet) == {4096}
    assert fleet.rig.engines() == {}
    fleet.rig.set("mesh.enabled", False)
    fleet.rig.up()
    assert fleet.paths().paths == []
    assert (rules(fleet), queues(fleet), markers(fleet)) == (0, {1024}, [])
    assert_serves(fleet, since)


def test_one_that_was_killed_between_the_last_rule_and_the_first_marker_is_destroyed(
    fleet: Fleet, clean: dict[str, Snapshot]
) -> None:
    since = time.time_ns()
    fleet.rig.set("mesh.enabled", True)
    kill_at(fleet, "systemctl-start", *fleet.rig.lab.names)
    assert_damaged(fleet, "markers")
    assert status(fleet, "forwarding") == "applied"
    assert rules(fleet) == PATHS // len(fleet.rig.lab.names)
    assert markers(fleet) == []
    fleet.rig.destroy()
    fleet.rig.assert_empty()
    fleet.rig.assert_as(clean)
    assert not fleet.witness.record(since).disturbed()


def test_one_that_was_killed_just_after_a_rule_goes_on_with_other_ranks(fleet: Fleet) -> None:
    since = time.time_ns()
    kill_at(fleet, "tc-filter-add", NODE, when="after")
    assert_damaged(fleet, "forwarding")
    assert rules(fleet) == 1
    assert queues(fleet) == {8192}
    assert markers(fleet) == []
    first, *others = fleet.rig.config["nodes"]
    fleet.rig.set("nodes", [first, *reversed(others)])
    fleet.rig.up()
    assert_whole(fleet, since)


def test_a_destroy_that_was_killed_when_a_rule_was_gone_is_made_good_by_an_up(fleet: Fleet) -> None:
    since = time.time_ns()
    kill_at(fleet, "tc-filter-del", NODE, when="after", words=DESTROY)
    assert_damaged(fleet, "forwarding", "reverting")
    assert status(fleet, "markers") is None
    assert rules(fleet) == 1
    fleet.rig.up()
    assert_whole(fleet, since)
