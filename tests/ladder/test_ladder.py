"""The whole life of a stack: up, nothing to do, one change, destroy, as if nothing had been."""

from __future__ import annotations

import time

import pytest

from lab import api

from .conftest import NewRig
from .operations import Key, Operations, logged_up, planned
from .witness import watching


@pytest.mark.parametrize("topology", ["ring", "switched"])
def test_a_stack_comes_up_changes_in_order_and_leaves_no_trace(
    topology: str, new_rig: NewRig, request: pytest.FixtureRequest
) -> None:
    lab: api.Handle = request.getfixturevalue(f"{topology}_lab")
    rig = new_rig(lab, f"life-{topology}", topology)
    rig.config["proof"] = {"minimum": "1m"}
    with rig.leaving_no_trace(), watching(lab) as witness:
        since = time.time_ns()
        rig.up()
        rig.assert_one_group()
        rig.assert_served()
        rig.unchanged()
        witness.record(since).assert_disruption_without_engine()

        rig.set("fabric.mtu", 4200)
        preview = rig.preview()
        since = time.time_ns()
        _, done = logged_up(rig)
        assert planned(preview) == done.kinds
        assert_order_of_a_disruptive_change(done, lab.names)
        rig.assert_one_group()
        rig.unchanged()
        record = witness.record(since)
        record.assert_disruption_without_engine()
        record.assert_all_replaced(since, lab.names)

        since = time.time_ns()
        rig.destroy()
        record = witness.record(since)
        record.assert_disruption_without_engine()
        assert record.ended(since) == set(lab.names)


def assert_order_of_a_disruptive_change(done: Operations, nodes: list[str]) -> None:
    """All ranks stop, then go, then the standstill; stages change in place; the group starts anew, its head last."""
    head, *workers = (f"{node}-engine" for node in nodes)
    gone: list[Key] = [
        ("delete-replaced", name) for name in ("proven", "proof", "health", "halt", head, *workers, "gate")
    ]
    planes = {node: [("update", f"{node}-{plane}") for plane in ("plane0", "plane1")] for node in nodes}
    done.assert_exactly(
        [("delete-replaced", "stop")],
        [("create-replacement", "stop")],
        gone,
        [("delete-replaced", "standstill")],
        [("create-replacement", "standstill")],
        [("update", "fabric-staged")],
        [key for chain in planes.values() for key in chain],
        [("update", "fabric-verified")],
        [("create-replacement", "gate")],
        [("create-replacement", name) for name in workers],
        [("create-replacement", head)],
        [("create-replacement", "halt")],
        [("create-replacement", "health")],
        [("create-replacement", "proof")],
        [("create-replacement", "proven")],
    )
    for chain in planes.values():
        done.assert_chain(*chain)
