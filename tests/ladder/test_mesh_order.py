"""With the mesh, too, no engine runs while anything of a node's fabric changes, whatever the change is.

The order is judged by what the nodes wrote down, the paths by frame walks. The tests of this file have one stack, in
their order.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import api
from lab.snapshot import Snapshot
from node import meshunits

from .conftest import NewRig
from .test_mesh import PROGRAM, STAGES, Fleet, given, quick_card, with_mesh
from .witness import Record, watching

ADOPTED, REFUSED = "spark2", "spark3"  # nodes with an installation by hand: the same as ours, another
REPLACED = "spark4"  # whose card is replaced
OTHER_UNIT = f"""[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={meshunits.HOME}/mesh-up.sh
[Install]
WantedBy=multi-user.target
"""


@pytest.fixture(scope="module")
def before(ring_lab: api.Handle) -> Iterator[dict[str, Snapshot]]:
    """How the nodes are with installations by hand; they are gone in the end."""
    for path, (text, mode) in meshunits.files({"markers": [{"source_port": 65535, "ethertype": 0x88B5}]}).items():
        by_hand = "\n".join(line for line in text.splitlines() if line.startswith("#!") or not line.startswith("#"))
        put(ring_lab, ADOPTED, path, f"{by_hand}\n", mode)
    ring_lab.run(ADOPTED, f"systemctl daemon-reload && systemctl enable {meshunits.SERVICE}")
    yield ring_lab.snapshots()
    ring_lab.run(ADOPTED, f"systemctl disable --now {meshunits.SERVICE}")
    ring_lab.run(ADOPTED, f"rm -r {meshunits.HOME} {meshunits.UNITS}/dsv41-mesh*; systemctl daemon-reload")


def put(lab: api.Handle, node: str, path: str, text: str, mode: int) -> None:
    """Write a file on a node, as somebody with an editor does."""
    lab.run(node, f"mkdir -p $(dirname {path}) && cat >{path} && chmod {mode:o} {path}", stdin=text)


@pytest.fixture(scope="module")
def fleet(ring_lab: api.Handle, new_rig: NewRig, before: dict[str, Snapshot]) -> Iterator[Fleet]:
    """A stack of which nothing is there yet; in the end nothing is left of it."""
    rig = with_mesh(new_rig(ring_lab, "meshorder", "ring"))
    with quick_card(ring_lab), rig.leaving_no_trace(before), watching(ring_lab) as witness:
        yield Fleet(rig, witness)


def assert_untouched(fleet: Fleet, since: int) -> None:
    """Nothing was called on the nodes that changes anything, and no engine ended."""
    record = fleet.witness.record(since)
    assert record.disturbances == []
    assert not record.ended(since)


def test_another_installation_by_hand_and_three_nodes_are_refused(fleet: Fleet) -> None:
    lab, since = fleet.rig.lab, time.time_ns()
    unit, script = f"{meshunits.UNITS}/{meshunits.SERVICE}", f"{meshunits.HOME}/mesh-up.sh"
    put(lab, REFUSED, unit, OTHER_UNIT, 0o644)
    put(lab, REFUSED, script, "#!/bin/sh\n", 0o755)
    run = fleet.rig.up(ok=False)
    run.says(f"{REFUSED} {unit}: is of an installation by hand (beside it {script})")
    run.says(f"systemctl disable --now {meshunits.SERVICE}", "mesh-down.sh")
    lab.run(REFUSED, f"rm -r {unit} {meshunits.HOME}")
    with fleet.rig.changed("nodes", fleet.rig.config["nodes"][:3]):
        fleet.rig.up(ok=False).says("nodes: has 3 active with the mesh on", "4 active nodes")
    assert_untouched(fleet, since)


def test_the_fourth_node_joins_and_the_same_installation_by_hand_is_adopted(fleet: Fleet) -> None:
    fleet.up()
    fleet.assert_all_paths()
    fleet.rig.unchanged()


def test_a_larger_cap_is_wanted_twice_and_leaves_the_fabric_alone(fleet: Fleet) -> None:
    fleet.rig.set("mesh.maxSize", 524288)
    fleet.rig.pulumi("preview", ok=False).says("mesh.maxSize", "at most 262144", "mesh.allowLargeCap: on")
    fleet.rig.set("mesh.allowLargeCap", True)
    since = time.time_ns()
    steps = fleet.rig.preview()
    assert fleet.mesh_resources(steps) == set()
    assert "standstill" not in steps
    fleet.rig.up()
    record = fleet.witness.record(since)
    assert record.disturbances == []
    record.assert_all_replaced(since, fleet.rig.lab.names)
    assert fleet.outputs()["maxSize"] == 524288
    fleet.assert_all_paths()
    fleet.rig.unchanged()


def test_a_targeted_stage_and_a_node_that_leaves_are_refused_under_the_engine(fleet: Fleet) -> None:
    since = time.time_ns()
    with fleet.rig.changed("mesh.hairpinQueueSize", 4096), fleet.rig.changed("mesh.maxSize", 81920):
        run = fleet.rig.up("--target", "**spark2-nic", ok=False)
    run.says("spark2: engine container spark-fabric-meshorder", "stop the engine on all nodes first (pulumi up does")
    with fleet.rig.changed("nodes.3.state", "leaving"):
        fleet.rig.up(ok=False).says("nodes: has 3 active with the mesh on", "Set mesh.enabled: off.")
    assert_untouched(fleet, since)
    fleet.rig.assert_served()
    fleet.rig.unchanged()


def test_another_marker_program(fleet: Fleet, tmp_path: Path) -> None:
    program = tmp_path / "built-anew"
    program.write_bytes(PROGRAM.read_bytes() + b"# built anew\n")
    fleet.rig.set("mesh.marker", given(program))
    steps = fleet.rig.preview()
    assert fleet.mesh_resources(steps) == {*fleet.every("markers"), "mesh-verified"}
    fleet.up(steps)
    fleet.assert_all_paths()
    fleet.rig.unchanged()


def test_ranks_against_the_cables(fleet: Fleet) -> None:
    first, *others = fleet.rig.config["nodes"]
    fleet.rig.set("nodes", [first, *reversed(others)])
    steps = fleet.rig.preview()
    fleet.up(steps)
    fleet.assert_all_paths()
    fleet.rig.unchanged()


def test_addresses_of_another_pool_with_another_mtu(fleet: Fleet) -> None:
    fleet.rig.set("fabric.plane1.pool", "10.30.0.0/16")
    fleet.rig.set("fabric.mtu", 4200)
    steps = fleet.rig.preview()
    assert fleet.every("plane0", "plane1", *STAGES) <= steps.keys()
    fleet.up(steps)
    fleet.assert_all_paths()
    fleet.rig.unchanged()


def test_a_card_that_was_replaced_has_the_rules_of_its_neighbours_made_anew(fleet: Fleet) -> None:
    lab = fleet.rig.lab
    lab.kill(REPLACED)
    lab.replace_card(REPLACED)
    boot(lab)
    why = lab.run(REPLACED, f"journalctl -q -b -u {meshunits.SERVICE} -o cat").stdout
    assert "the card is another one than at planning; run up again" in why
    steps = fleet.rig.preview()
    assert {f"{REPLACED}-plane0", f"{REPLACED}-plane1"}.isdisjoint(steps)
    with watching(lab) as witness:  # nothing has watched this node since it booted
        Fleet(fleet.rig, witness).up(steps)
    fleet.assert_all_paths()
    fleet.rig.unchanged()


def boot(lab: api.Handle) -> None:
    """Boot the node, and wait until it has started everything."""
    lab.boot(REPLACED)
    lab.run(REPLACED, "systemctl is-system-running --wait || :", timeout=200)


def test_destroyed_with_a_node_off_which_is_put_back_when_it_is_on_again(
    fleet: Fleet, before: dict[str, Snapshot]
) -> None:
    lab, rig = fleet.rig.lab, fleet.rig
    with watching(lab) as witness:
        lab.kill(REPLACED)
        lab.replace_card(REPLACED, 0)  # so that the node can be as it was before
        since = time.time_ns()
        rig.destroy(ok=False).says(f"{REPLACED} (spark@", f"python -m fleet forget {REPLACED}")
        rig.fleet("forget", REPLACED)
        rig.destroy()
        rig.assert_empty()
        boot(lab)
        record = witness.record(since)
    # Nobody wrote down the end of the lost engine, and it is the cut that takes addresses from the neighbours' ports.
    others = [life for life in record.lives if life.node != REPLACED]
    Record(record.calls, [], others).assert_disruption_without_engine()
    rig.fleet("remember", REPLACED)
    rig.fleet("revert", REPLACED)
    rig.assert_as(before)
