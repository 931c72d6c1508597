"""The mesh on booted nodes: up, proven, changed, taken away, and nothing of it under a living engine.

What works is judged by frame walks over what the nodes hold, and the order by what the nodes wrote down; neither knows
a plan. The tests of this file have one stack, in their order.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lab import api
from lab.shell import wait_for
from lab.standins.opposite import Judgement, judge

from .conftest import NewRig
from .operations import logged_up, planned
from .rig import CHECKOUT, Rig, Step
from .test_reboot import cut_and_boot
from .witness import Record, Witness, watching

STACK = "mesh"
PROGRAM = CHECKOUT / "lab" / "standins" / "bin" / "mlx5-rdma-tx-rewrite-probe"
STAGES = ("nic", "forwarding", "markers")
GROUP = {"stop", "gate", "halt", "health"}
PATHS = 8


@dataclass
class Fleet:
    """A stack with the mesh, and the nodes' own record."""

    rig: Rig
    witness: Witness

    def paths(self) -> Judgement:
        """What works between opposite nodes."""
        return judge(self.rig.lab.walk())

    def assert_all_paths(self) -> None:
        """Two ways for each ordered pair, one in each domain, each by one rule of a node between."""
        found = self.paths()
        assert not found.problems, found.problems
        assert len(found.paths) == PATHS
        pairs = {(path.source, path.destination) for path in found.paths}
        assert len(pairs) == PATHS // 2
        rules = [path.rules for path in found.paths]
        assert {len(rule) for rule in rules} == {1}
        assert len(set(rules)) == PATHS

    def up(self, preview: dict[str, Step] | None = None) -> Record:
        """`up` as previewed: all engines gone before anything changes, and one whole group afterwards."""
        since = time.time_ns()
        _, done = logged_up(self.rig)
        record = self.witness.record(since)
        assert preview is None or done.kinds == planned(preview)
        record.assert_disruption_without_engine()
        self.rig.assert_one_group()
        self.rig.assert_served()
        return record

    def mesh_resources(self, steps: dict[str, Step]) -> set[str]:
        """What a preview would do besides replacing the group."""
        engines = {f"{name}-engine" for name in self.rig.lab.names}
        return steps.keys() - GROUP - {"standstill"} - engines

    def every(self, *stages: str) -> set[str]:
        """The resources of stages on all nodes."""
        return {f"{name}-{stage}" for name in self.rig.lab.names for stage in stages}

    def outputs(self) -> dict[str, Any]:
        """What the stack shows of its mesh."""
        found: dict[str, Any] = json.loads(self.rig.pulumi("stack", "output", "--json").out)["mesh"]
        return found


def times(record: Record, tool: str, *verbs: str) -> list[tuple[int, int]]:
    """Begin and end of each call that succeeded, on whatever node."""
    return [
        (call.began, call.ended or call.began)
        for call in record.calls
        if call.tool == tool and call.verb in verbs and not call.code
    ]


def assert_before(earlier: list[tuple[int, int]], later: list[tuple[int, int]]) -> None:
    """All of one kind ended before the first of the other began, and there were some of each."""
    assert earlier
    assert later
    assert max(end for _, end in earlier) < min(begin for begin, _ in later)


@contextmanager
def quick_card(lab: api.Handle) -> Iterator[None]:
    """Cards whose functions come back at once, where a test is not about how long that takes."""
    for name in lab.names:
        lab.adjust(name, "reload_seconds", "0.3")
    try:
        yield
    finally:
        for name in lab.names:
            lab.adjust(name, "reload_seconds")


def with_mesh(rig: Rig) -> Rig:
    """The rig with the mesh in its settings, and the lab's marker as the operator's."""
    rig.config["engine"]["image"] = {"ref": "spark-engine:sim", "roceRing": True}
    rig.config["mesh"] = {"enabled": True, "marker": given(PROGRAM)}
    return rig


def given(program: Path) -> dict[str, str]:
    """A marker of the operator's, as the settings name it."""
    return {"file": str(program), "sha256": hashlib.sha256(program.read_bytes()).hexdigest()}


@pytest.fixture(scope="module")
def fleet(ring_lab: api.Handle, new_rig: NewRig) -> Iterator[Fleet]:
    """Four nodes in a ring, each with the operator's marker sent to it."""
    rig = with_mesh(new_rig(ring_lab, STACK, "ring"))
    with rig.leaving_no_trace(), watching(ring_lab) as witness:
        yield Fleet(rig, witness)


def test_one_up_brings_all_paths_the_cap_and_the_engine_and_proves_that_it_uses_them(fleet: Fleet) -> None:
    since = time.time_ns()
    fleet.rig.set("proof", {"minimum": "1m"})
    fleet.rig.up()
    record = fleet.witness.record(since)
    fleet.assert_all_paths()
    fleet.rig.assert_served()
    shown = fleet.outputs()
    assert shown["cap"] == shown["maxSize"] == shown["gatherSize"] == 262144
    assert shown["status"] == "research-only"
    report = fleet.rig.pulumi("stack", "output", "proof").out
    assert report.startswith("proof passed\n"), report
    assert f"rules looked at: {PATHS}" in report
    assert report.count("IpForwDatagrams 0; rx_out_of_buffer ") == len(fleet.rig.lab.names)
    assert_before(times(record, "devlink", "dev-reload"), times(record, "tc", "filter-add"))
    assert_before(times(record, "tc", "filter-add"), times(record, "marker", "attach"))
    record.assert_disruption_without_engine()


def test_a_preview_finds_nothing_to_do_and_a_proof_that_is_off_takes_nothing_along(fleet: Fleet) -> None:
    fleet.rig.unchanged()
    fleet.rig.set("proof", {"enabled": False})
    engines = fleet.rig.engines()
    _, done = logged_up(fleet.rig)
    assert done.kinds == {("delete", name) for name in ("proof", "proven", "proofs")}
    assert fleet.rig.engines() == engines


def test_another_queue_size_is_put_in_effect_one_function_at_a_time(fleet: Fleet) -> None:
    fleet.rig.set("mesh.hairpinQueueSize", 4096)
    steps = fleet.rig.preview()
    assert fleet.mesh_resources(steps) == {*fleet.every(*STAGES), "mesh-verified"}
    record = fleet.up(steps)
    for node in fleet.rig.lab.names:
        reloads = [call for call in record.calls if call.node == node and call.verb == "dev-reload"]
        assert len(reloads) == 4
        assert len({tuple(call.argv) for call in reloads}) == 4
        for earlier, later in pairwise(reloads):
            assert (earlier.ended or later.began) < later.began
    assert_before(times(record, "devlink", "dev-reload"), times(record, "marker", "attach"))
    fleet.assert_all_paths()
    assert fleet.outputs()["cap"] == 81920
    fleet.rig.unchanged()


def test_a_node_that_boots_has_its_mesh_back_without_an_up(fleet: Fleet) -> None:
    lab = fleet.rig.lab
    cut_and_boot(lab)
    assert wait_for(lambda: len(fleet.paths().paths) == PATHS, every=2), fleet.paths().problems
    engines = {f"{name}-engine" for name in lab.names}
    assert {name: step.op for name, step in fleet.rig.preview().items()} == dict.fromkeys(GROUP | engines, "replace")
    fleet.rig.up()
    fleet.rig.assert_served()
    fleet.rig.unchanged()


def test_off_takes_markers_then_rules_then_driver_values(fleet: Fleet) -> None:
    fleet.rig.set("mesh.enabled", False)
    steps = fleet.rig.preview()
    # Without a mesh the GIDs are asked for at an index again; what proves a mesh just goes.
    assert fleet.mesh_resources(steps) == {*fleet.every(*STAGES), "fabric-verified", "mesh-verified"}
    record = fleet.up()
    assert_before(times(record, "marker", "detach"), times(record, "tc", "filter-del"))
    assert_before(times(record, "tc", "filter-del"), times(record, "devlink", "dev-reload"))
    assert fleet.paths().paths == []
    fleet.rig.unchanged()


def test_on_again_and_destroyed_in_the_other_order(fleet: Fleet) -> None:
    fleet.rig.set("mesh.enabled", True)
    record = fleet.up(fleet.rig.preview())
    assert_before(times(record, "tc", "filter-add"), times(record, "marker", "attach"))
    fleet.assert_all_paths()
    since = time.time_ns()
    fleet.rig.destroy()
    fleet.rig.assert_empty()
    record = fleet.witness.record(since)
    assert_before(times(record, "marker", "detach"), times(record, "tc", "filter-del"))
    assert_before(times(record, "tc", "filter-del"), times(record, "devlink", "dev-reload"))
    record.assert_disruption_without_engine()
