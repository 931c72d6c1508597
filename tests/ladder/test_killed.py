"""Runs that are killed half-way: the damage is there, and the next command repairs it without any edit of the state.

Every test stops a run where an event says so, kills it there, shows that the fleet is half-done, and goes on in one of
four ways: the same settings, the settings put back, other settings, destroy.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from lab import api, library
from lab.snapshot import Snapshot

from .conftest import NewRig
from .killing import Running, What, kill_program, program_points
from .rig import Rig, Run
from .witness import Witness, watching

Way = Literal["same", "back", "other", "destroy"]
UP = ("up", "--yes", "--skip-preview")
DESTROY = ("destroy", "--yes", "--skip-preview")
MTUS = (9000, 4200, 1500)


@dataclass
class Fleet:
    """One stack that the tests of this file take turns with."""

    rig: Rig
    witness: Witness
    clean: dict[str, Snapshot]
    settled: dict[str, Any] | None = None  # the settings of the last complete `up`; None: nothing is there
    began: int = 0  # when the present test did

    @property
    def lab(self) -> api.Handle:
        return self.rig.lab

    @property
    def library(self) -> str:
        """Where the NCCL library that was sent is on a node, for a shell."""
        return f"/var/lib/spark-fabric/{self.rig.stack}/nccl/*/libnccl.so.2"

    def be(self, there: bool) -> None:
        """Have the stack up or gone before a test begins."""
        if there and not self.settled:
            self.go_on("same")
        elif not there and self.settled:
            self.go_on("destroy")
        self.began = time.time_ns()

    def change(self) -> None:
        """Change the settings so that every port of every node has to change."""
        at = self.rig.config["fabric"].get("mtu", MTUS[0])
        self.rig.set("fabric.mtu", MTUS[(MTUS.index(at) + 1) % len(MTUS)])

    def put_back(self) -> None:
        """The settings of the last complete `up` again."""
        assert self.settled, "there is nothing to go back to"
        self.rig.config = copy.deepcopy(self.settled)

    def go_on(self, way: Way) -> Run:
        """One command; then the fleet serves as a whole, or is gone without a trace."""
        if way == "destroy":
            self.settled = None
            run = self.rig.destroy()
            self.rig.assert_empty()
            self.rig.assert_as(self.clean)
            return run
        if way == "back":
            self.put_back()
        elif way == "other":
            self.change()
        run = self.rig.up()
        self.assert_whole()
        return run

    def assert_whole(self) -> None:
        """One group serves, and there is nothing left to do."""
        self.rig.assert_one_group()
        self.rig.assert_served()
        self.rig.unchanged()
        assert not self.pending()
        self.settled = copy.deepcopy(self.rig.config)

    def recover(self, way: Way) -> Run:
        """Go on after a kill, without any change under a running engine since the test began."""
        run = self.go_on(way)
        self.assert_still()
        return run

    def assert_still(self) -> None:
        """Since the test began, no engine has seen its fabric change."""
        disturbed = self.witness.record(self.began).disturbed()
        assert not disturbed, "\n".join(disturbed)

    def kill_half_way(self, node: str, point: str, what: What, words: tuple[str, ...] = UP) -> Running:
        """Kill a run where the node's program comes to a point, and then that program."""
        with self.lab.stopped_at(node, point) as reached:
            run = Running(self.rig, *words)
            run.until(reached)
            run.kill(what)
            kill_program(reached)
        return run

    # the damage

    def stages(self, node: str) -> dict[str, str]:
        """Status of each stage in a node's journal."""
        text = self.lab.run(node, f"cat /var/lib/spark-fabric/{self.rig.stack}/journal.json").stdout
        return {name: entry["status"] for name, entry in json.loads(text)["stages"].items()}

    def mtus(self, node: str) -> set[int]:
        """MTUs of a node's fabric ports."""
        shown = self.lab.run(node, "cat /sys/class/net/en*p*s0f*/mtu").stdout
        return {int(word) for word in shown.split()}

    def containers(self) -> dict[str, str]:
        """Node -> state of its container of the stack."""
        command = "docker ps -a --filter label=spark-fabric.stack --format '{{.State}}'"
        return {node: text.strip() for node, text in self.lab.everywhere(command).items() if text.strip()}

    def known(self) -> set[str]:
        """What the state takes for existing; what was deleted to be replaced is not."""
        found = [each for each in self.rig.state()["resources"] if not each.get("pendingReplacement")]
        return {each["urn"].rsplit("::", 1)[-1] for each in found}

    def pending(self) -> set[str]:
        """What the state holds as begun and not ended."""
        operations = self.rig.state().get("pending_operations") or []
        return {f"{each['type']} {each['resource']['urn'].rsplit('::', 1)[-1]}" for each in operations}


@pytest.fixture(scope="module")
def fleet(ring_lab: api.Handle, new_rig: NewRig) -> Iterator[Fleet]:
    with program_points(ring_lab), watching(ring_lab) as witness:
        yield Fleet(new_rig(ring_lab, "killed"), witness, ring_lab.snapshots())


@pytest.mark.parametrize(("way", "what"), [("destroy", "everything"), ("other", "cli")])
def test_killed_in_the_very_first_change_of_a_node(fleet: Fleet, way: Way, what: What) -> None:
    fleet.be(there=False)
    run = fleet.kill_half_way("spark2", "journal-apply", what)
    assert fleet.stages("spark2") == {"node": "applying"}
    assert "spark2-node" not in fleet.known()
    assert "creating spark2-node" in fleet.pending()
    recovered = fleet.recover(way)
    assert "cleared a dead lock" in recovered.out
    assert "creating spark2-node" in recovered.out
    assert not run.left()


def test_killed_between_journal_and_change(fleet: Fleet) -> None:
    fleet.be(there=True)
    before = fleet.mtus("spark2")
    fleet.change()
    fleet.kill_half_way("spark2", "journal-apply", "everything")
    assert fleet.stages("spark2")["plane0"] == "applying"
    assert fleet.mtus("spark2") == before
    assert not fleet.containers()
    fleet.recover("back")


def test_power_cut_between_change_and_read_back(fleet: Fleet) -> None:
    fleet.be(there=True)
    fleet.change()
    with fleet.lab.stopped_at("spark3", "nmcli-connection-up", "after") as point:
        run = Running(fleet.rig, *UP)
        run.until(point)
        fleet.lab.kill("spark3")
        run.kill("everything")
        fleet.lab.boot("spark3")
    assert fleet.stages("spark3")["plane0"] == "applying"
    fleet.recover("same")


def test_the_next_run_waits_for_what_a_killed_one_has_left_going(fleet: Fleet) -> None:
    fleet.be(there=True)
    before = fleet.mtus("spark2")
    fleet.change()
    with fleet.lab.stopped_at("spark2", "nmcli-connection-up", "after") as point:
        run = Running(fleet.rig, *UP)
        run.until(point)
        run.kill("cli")
        assert fleet.stages("spark2")["plane0"] == "applying"
        assert fleet.mtus("spark2") != before
        fleet.put_back()
        assert "spark2: is being changed by" in fleet.rig.pulumi("preview").out
        following = Running(fleet.rig, *UP)
        following.until_printed("spark2: waiting for")
        assert not run.left()
    assert following.end() == 0, following.out
    fleet.assert_whole()
    fleet.assert_still()


@pytest.mark.parametrize(("way", "what"), [("back", "cli"), ("destroy", "everything")])
def test_killed_when_the_engines_are_gone_and_nothing_is_changed_yet(fleet: Fleet, way: Way, what: What) -> None:
    fleet.be(there=True)
    before = fleet.mtus("spark1")
    fleet.change()
    fleet.kill_half_way("spark1", "program-apply", what)
    assert not fleet.containers()
    assert "standstill" in fleet.known()
    assert "spark1-engine" not in fleet.known()
    assert fleet.mtus("spark1") == before
    fleet.recover(way)


@pytest.mark.parametrize(
    ("there", "way", "what"),
    [(False, "same", "everything"), (True, "other", "everything"), (True, "destroy", "cli")],
    ids=str,
)
def test_killed_between_start_and_state(fleet: Fleet, there: bool, way: Way, what: What) -> None:
    fleet.be(there=there)
    if there:
        fleet.change()
    with fleet.lab.stopped_at("spark2", "docker-start") as point:
        run = Running(fleet.rig, *UP)
        run.until(point)
        run.kill(what)
    fleet.lab.run("spark2", "for i in $(seq 50); do docker ps -q | grep -q . && exit; sleep 0.1; done; exit 1")
    assert fleet.containers()["spark2"] == "running"
    assert "spark2-engine" not in fleet.known()
    assert "creating spark2-engine" in fleet.pending()
    fleet.recover(way)


def test_killed_just_after_a_library_was_sent(fleet: Fleet) -> None:
    fleet.be(there=False)
    with fleet.lab.stopped_at("spark2", "journal-install") as point:
        run = Running(fleet.rig, *UP)
        run.until(point)
        run.kill("cli")
    fleet.lab.run("spark2", f"for i in $(seq 50); do test -e {fleet.library} && exit; sleep 0.1; done; exit 1")
    assert "spark2-nccl" not in fleet.known()
    fleet.recover("same")


def test_killed_while_a_library_is_sent(fleet: Fleet, tmp_path: Path) -> None:
    fleet.be(there=True)
    before = fleet.lab.run("spark2", f"ls {fleet.library}").stdout
    library.build(tmp_path / "libnccl.so.2", markers=library.KINDS["patched"], edition=2)
    fleet.rig.set("nccl.library", str(tmp_path))
    fleet.kill_half_way("spark2", "journal-install", "everything")
    assert fleet.stages("spark2")["nccl"] == "applying"
    assert fleet.lab.run("spark2", f"ls {fleet.library}").stdout == before
    assert not fleet.containers()
    fleet.recover("destroy")


def test_interrupted_run_ends_in_order_and_is_finished_by_the_next(fleet: Fleet) -> None:
    fleet.be(there=False)
    with fleet.lab.stopped_at("spark4", "nmcli-connection-up") as point:
        run = Running(fleet.rig, *UP)
        run.until(point)
        run.interrupt()
        assert run.end() != 0
        assert fleet.stages("spark4")["plane0"] == "applying"
    assert not fleet.pending()
    assert not run.left()
    recovered = fleet.recover("same")
    assert "cleared" not in recovered.out


@pytest.mark.parametrize(("way", "what"), [("same", "everything"), ("destroy", "cli")])
def test_killed_in_destroy(fleet: Fleet, way: Way, what: What) -> None:
    fleet.be(there=True)
    fleet.kill_half_way("spark3", "journal-revert", what, DESTROY)
    assert "reverting" in fleet.stages("spark3").values()
    assert "gate" not in fleet.known()
    fleet.recover(way)
