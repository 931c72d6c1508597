"""A run that is killed in the midst of the mesh: the damage is there, and the next command repairs it.

The tests of this file have one stack, in their order.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from lab import api

from .conftest import NewRig
from .killing import Running, kill_program, program_points
from .test_killed import UP
from .test_mesh import PATHS, Fleet, with_mesh
from .witness import watching

NODE = "spark2"
STACK = "meshkill"


@pytest.fixture(scope="module")
def fleet(ring_lab: api.Handle, new_rig: NewRig) -> Iterator[Fleet]:
    """A stack of which nothing is there yet; in the end nothing is left of it."""
    rig = with_mesh(new_rig(ring_lab, STACK, "ring"))
    with program_points(ring_lab), watching(ring_lab) as witness, rig.leaving_no_trace():
        yield Fleet(rig, witness)


def kill_at(fleet: Fleet, point: str) -> None:
    """Kill a run, and the program on the node, where that one comes to a point of the mesh."""
    with fleet.rig.lab.stopped_at(NODE, point) as reached:
        run = Running(fleet.rig, *UP)
        run.until(reached, timeout=240)
        run.kill("everything")
        kill_program(reached)


def status(fleet: Fleet, stage: str) -> str | None:
    """What the journal of the node says of a stage."""
    text = fleet.rig.lab.run(NODE, f"cat /var/lib/spark-fabric/{STACK}/journal.json").stdout
    found: dict[str, dict[str, str]] = json.loads(text)["stages"]
    return found[stage]["status"] if stage in found else None


def assert_whole(fleet: Fleet, since: int) -> None:
    """All paths, one group, nothing left to do, and no engine that saw any of it."""
    fleet.assert_all_paths()
    fleet.rig.assert_one_group()
    fleet.rig.assert_served()
    fleet.rig.unchanged()
    assert not fleet.witness.record(since).disturbed()


def assert_damaged(fleet: Fleet, stage: str) -> None:
    """The stage is half-done, fewer paths than wanted are there, and no engine runs."""
    assert status(fleet, stage) == "applying"
    assert len(fleet.paths().paths) < PATHS
    assert fleet.rig.engines() == {}


def test_an_up_that_was_killed_in_a_re_initialisation_is_finished_by_the_next(fleet: Fleet) -> None:
    since = time.time_ns()
    fleet.rig.set("mesh.hairpinQueueSize", 4096)
    kill_at(fleet, "devlink-dev-reload")
    assert_damaged(fleet, "nic")
    fleet.rig.up()
    assert_whole(fleet, since)
