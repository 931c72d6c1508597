"""The NCCL library on booted nodes: sent once, replaced with all engines stopped, repaired, and gone afterwards.

The tests of this file have one stack, in their order; the last one about the library leaves engines that do not serve,
and then the cables are measured. How a library reaches the engines of a switch: test_traffic.py. What a killed run
leaves of one: test_killed.py.
"""

from __future__ import annotations

import base64
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fleet.nccl_settings import PIP_LIBRARY
from lab import api, library
from lab.shell import wait_for

from .conftest import NewRig
from .rig import Rig, Step
from .witness import Witness, watching

STACK = "nccl"
F0 = "enp1s0f0np0"
STORE = f"/var/lib/spark-fabric/{STACK}/nccl"
SENT = f"{STORE}/*/libnccl.so.2"
ON_NODE = "/opt/nccl-of-the-operator"
THEIRS, OTHER = f"{ON_NODE}/libnccl.so.2.30.7", f"{ON_NODE}/another.so"
THEIR_LIBRARY = library.content(library.KINDS["patched"], edition=3)
GIDS = "/sys/class/infiniband/roceP2p1s0f1/ports/1/gids/[23]"  # RoCE v1 and v2 of the planned address
NO_GID = ":".join(["0000"] * 8)
GROUP = {"stop", "standstill", "gate", "halt", "health"}


@dataclass
class Fleet:
    """A stack that is up, its local library, and the nodes' own record."""

    rig: Rig
    witness: Witness

    @property
    def file(self) -> Path:
        """The operator's file."""
        return Path(self.rig.config["nccl"]["library"])

    def build(self, kind: str = "patched", edition: int = 1) -> str:
        """Make the operator's file another one; its sha256."""
        return library.build(self.file, markers=library.KINDS[kind], edition=edition)

    def digests(self) -> set[str]:
        """Of all libraries that were sent, on all nodes."""
        shown = self.rig.lab.everywhere(f"sha256sum {SENT}")
        return {line.split()[0] for text in shown.values() for line in text.splitlines()}

    def used(self) -> set[str]:
        """What the engines have at the place of the image's own."""
        name = f"spark-fabric-{STACK}"
        shown = self.rig.lab.everywhere(f"docker exec {name} sha256sum {PIP_LIBRARY}")
        return {text.split()[0] for text in shown.values()}

    def up(self) -> None:
        """An `up` in which every engine is replaced and none saw a change of its fabric."""
        since = time.time_ns()
        self.rig.up()
        self.witness.record(since).assert_all_replaced(since, self.rig.lab.names)
        self.rig.assert_one_group()
        self.rig.assert_served()
        self.rig.unchanged()


@pytest.fixture(scope="module")
def fleet(ring_lab: api.Handle, new_rig: NewRig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Four nodes in a ring with a local library of the test's own, and a folder of the operator's on each node."""
    rig = new_rig(ring_lab, STACK, "ring")
    rig.config["nccl"]["library"] = str(tmp_path_factory.mktemp("library") / "libnccl.so.2.30.7")
    found = Fleet(rig, Witness(ring_lab))
    found.build()
    theirs = base64.b64encode(THEIR_LIBRARY).decode()
    ring_lab.everywhere(f"mkdir {ON_NODE} && echo {theirs} | base64 -d >{THEIRS}")
    try:
        with rig.leaving_no_trace(), watching(ring_lab) as found.witness:
            rig.up()
            yield found
    finally:
        ring_lab.everywhere(f"rm -r {ON_NODE}")


def changed(steps: dict[str, Step], nodes: list[str]) -> set[str]:
    """What a preview would do besides replacing the group."""
    return steps.keys() - GROUP - {f"{node}-engine" for node in nodes}


def test_every_engine_has_the_operators_library_over_that_of_its_image(fleet: Fleet) -> None:
    sha256 = fleet.build()
    assert fleet.digests() == fleet.used() == {sha256}
    moved = fleet.file.rename(fleet.file.with_name("renamed.so"))
    with fleet.rig.changed("nccl.library", str(moved)):
        fleet.rig.unchanged()
    moved.rename(fleet.file)


def test_no_cable_is_measured_under_the_engines_and_all_of_them_are_named(fleet: Fleet) -> None:
    since = time.time_ns()
    run = fleet.rig.fleet("doctor", "--bandwidth", ok=False)
    assert run.code == 1
    run.says(*(f"spark{rank + 1}: rank {rank} runs, in container spark-fabric-{STACK}" for rank in range(4)), "4 FAIL")
    assert fleet.witness.record(since).calls == []


def test_a_new_library_stops_the_engines_and_is_replaced_everywhere(fleet: Fleet) -> None:
    sha256 = fleet.build(edition=2)
    steps = fleet.rig.preview()
    assert changed(steps, fleet.rig.lab.names) == {f"{node}-nccl" for node in fleet.rig.lab.names}
    assert steps.keys() >= GROUP
    fleet.up()
    assert fleet.digests() == fleet.used() == {sha256}


def test_a_library_that_somebody_touched_is_drift_of_that_node(fleet: Fleet) -> None:
    lab = fleet.rig.lab
    lab.run("spark2", f"printf x | dd of=$(echo {SENT}) bs=1 conv=notrunc status=none")
    lab.run("spark3", f"chmod 0755 {SENT}")
    lab.run("spark4", f"rm {SENT}")
    assert changed(fleet.rig.preview(), lab.names) == {"spark2-nccl", "spark3-nccl", "spark4-nccl"}
    fleet.rig.pulumi("preview", "--diff").says(
        "plan wants the library", "mode and owner are 0755 0:0, plan wants 0644 0:0", "is missing, plan wants"
    )
    fleet.up()
    assert fleet.digests() == fleet.used() == {fleet.build(edition=2)}


def test_what_only_the_nodes_show_is_refused_at_once_and_the_engines_stay(fleet: Fleet) -> None:
    lab, before = fleet.rig.lab, fleet.rig.engines()
    lab.run("spark3", f"cp {THEIRS} {OTHER} && printf x >>{OTHER}")
    (kept,) = set(lab.run("spark2", f"cat {GIDS}").stdout.split())
    lab.run("spark2", f"echo {NO_GID} | tee {GIDS}")
    try:
        with fleet.rig.changed("nccl.library", {"onNode": THEIRS}):
            fleet.rig.set("nodes.2.nccl.onNode", OTHER)
            fleet.rig.set("engine.image", "spark-engine:bare")
            fleet.rig.up(ok=False).says(
                "3 problem(s); nothing was changed",
                "is not the same file everywhere", "on spark3", "copy one file to every node",
                f"is {PIP_LIBRARY}", "holds no such file",
                "spark2 roceP2p1s0f1: ", "has no GID of 10.20.0.11, which enP2p1s0f1np1 has", "Put the address on anew",
            )  # fmt: skip
    finally:
        lab.run("spark2", f"echo {kept} | tee {GIDS}")
        lab.run("spark3", f"rm {OTHER}")
    assert fleet.rig.engines() == before
    fleet.rig.unchanged()


def test_a_file_on_the_nodes_is_used_and_left_alone(fleet: Fleet) -> None:
    fleet.rig.set("nccl.library", {"onNode": ON_NODE})
    fleet.up()
    assert fleet.used() == {hashlib.sha256(THEIR_LIBRARY).hexdigest()}
    fleet.rig.lab.everywhere(f"test ! -e {STORE}")


def test_without_its_flags_the_library_connects_trees_and_health_says_so(fleet: Fleet) -> None:
    fleet.rig.set("engine.profile", "none")
    fleet.rig.set("engine.env", {"NCCL_NET": "IB", "NCCL_IB_SUBNET_AWARE_ROUTING": 1, "ENGINE_CONNECT_S": 5})
    fleet.rig.up(ok=False).says(
        "NCCL_SWITCHLESS_RING_ONLY: is not set, and engine.profile is none",
        "exited, exit code 1",
        "cause: NCCL connects trees, and opposite ranks of a ring share no cable",
        "leave engine.profile at auto",
    )


BANDWIDTH = ("doctor", "--bandwidth")


def measuring(lab: api.Handle) -> list[str]:
    """The nodes on which perftest runs."""
    return [node for node, pids in lab.everywhere("pgrep -f '[i]b_write_bw' || true").items() if pids]


def test_each_cable_is_measured_each_way_in_each_plane_once_the_engines_have_ended(fleet: Fleet) -> None:
    lab, rig = fleet.rig.lab, fleet.rig
    assert wait_for(lambda: not rig.engines())
    before, since = lab.snapshots(), time.time_ns()
    lab.set_fault("spark2", f"slow.{F0}", "26")
    try:
        run = rig.fleet(*BANDWIDTH, ok=False)
    finally:
        lab.clear_fault("spark2")
    *lines, _, summary = run.out.splitlines()
    assert (run.code, summary) == (3, "15 PASS, 1 FAIL")
    assert len({line.partition(":")[0] for line in lines}) == 16
    (slow,) = (line for line in lines if line.startswith("FAIL"))
    assert f"cable 1, plane 0, spark2 {F0} to spark3 enp1s0f1np1: 26.0 Gb/s, wanted at least 95 Gb/s" in slow
    assert fleet.witness.record(since).calls == []
    rig.assert_as(before)


def test_a_measurement_that_is_killed_leaves_no_process_on_any_node(fleet: Fleet) -> None:
    lab, rig = fleet.rig.lab, fleet.rig
    for node in lab.names:
        lab.adjust(node, "perftest_seconds", "30")
    words = [sys.executable, "-m", "fleet", *BANDWIDTH, "-s", rig.stack]
    rig.write()
    try:
        with subprocess.Popen(
            words, cwd=rig.checkout, env=rig.environment, stdout=subprocess.DEVNULL, start_new_session=True
        ) as process:
            try:
                assert wait_for(lambda: len(measuring(lab)) == len(lab.names))
            finally:
                os.killpg(process.pid, signal.SIGKILL)
        assert wait_for(lambda: measuring(lab) == [], 10)
    finally:
        for node in lab.names:
            lab.adjust(node, "perftest_seconds")
