"""The whole life of a stack: up, nothing to do, one change, destroy, as if nothing had been."""

from __future__ import annotations

import pytest

from lab import api

from .conftest import NewRig


@pytest.mark.parametrize("topology", ["ring", "switched"])
def test_a_stack_comes_up_stays_and_leaves_no_trace(
    topology: str, new_rig: NewRig, request: pytest.FixtureRequest
) -> None:
    lab: api.Handle = request.getfixturevalue(f"{topology}_lab")
    rig = new_rig(lab, f"life-{topology}", topology)
    before = lab.snapshots()

    rig.up()
    rig.assert_one_group()
    rig.assert_served()
    rig.unchanged()

    rig.set("engine.headEnv", {"ENGINE_POLL_S": "0.4"})
    steps = rig.preview()
    assert {name for name, step in steps.items() if "replace" in step.op} == {
        "gate",
        "halt",
        "health",
        *(f"{name}-engine" for name in lab.names),
    }
    rig.up()
    rig.assert_one_group()
    rig.unchanged()

    rig.destroy()
    rig.assert_empty()
    rig.assert_as(before)
