"""A fleet that serves on half of its links fails its proof by the cause; a whole one passes, and too little is unknown.

One stack on one ring, in the order of this file: each test changes what the one before has left.
"""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from lab import api, library
from lab.engine.settings import PIP_LIBRARY
from lab.shell import wait_for

from .conftest import NewRig
from .rig import LIMIT_S, OTHER_RING, Rig, Run

SECOND_PLANE = ("enP2p1s0f0np0", "enP2p1s0f1np1")
FLAGS = ("NCCL_IB_EXTENDED_IPV4_GIDS", "NCCL_IB_PRESERVE_PCI_DOMAIN")
IDLE = "plane 1 carries 0."  # percent, of what the sums' acknowledgements and ARP make


@pytest.fixture(scope="module")
def rig(ring_lab: api.Handle, new_rig: NewRig) -> Iterator[Rig]:
    """Four nodes in a ring; not up yet."""
    rig = new_rig(ring_lab, "proof", "ring")
    rig.config["proof"] = {"minimum": "1m", "logs": True}
    with rig.leaving_no_trace():
        yield rig


def output(rig: Rig) -> str:
    """What the stack says of its proof."""
    return rig.pulumi("stack", "output", "proof").out


def fails(rig: Rig, run: Run, *texts: str) -> str:
    """The run failed by its proof, said so and kept it; the engine runs on. Returns the report."""
    assert run.code, run
    report = output(rig)
    assert report.startswith("proof failed\n  cause: "), report
    missing = [text for text in texts if text not in report]
    assert not missing, f"{missing} not in {report}"
    run.says("proof failed", *texts)
    rig.assert_one_group()
    rig.assert_served()
    return report


def finished(rig: Rig, process: subprocess.Popen[str]) -> Run:
    out, _ = process.communicate(timeout=LIMIT_S)
    return Run(("up",), process.returncode, out, 0)


def test_a_whole_fabric_passes_with_its_library_and_lines(rig: Rig) -> None:
    rig.up().says("proof passed")
    report = output(rig)
    assert report.startswith("proof passed\ntraffic passed: ")
    for text in (
        "library passed: one in each rank, ",
        ", as planned",
        "lines passed: ",
        "cable 3 (spark4 f0 - spark1 f1)",
    ):
        assert text in report
    rig.unchanged()


def test_too_little_traffic_is_unknown_and_disturbs_nobody(rig: Rig) -> None:
    engines = rig.engines()
    with rig.changed("proof", {"minimum": "1t", "requests": 6, "logs": True}):
        assert {(step.op, name) for name, step in rig.preview().items()} == {("update", "proof"), ("update", "proven")}
        rig.up()
        assert output(rig).startswith("proof unknown\ntraffic unknown: completions answered: 6, ")
        rig.unchanged()
    assert rig.engines() == engines


def test_a_proof_that_failed_is_made_again_by_the_next_run(rig: Rig) -> None:
    with rig.changed("proof.edgeShare", 100):  # nothing is that even
        fails(rig, rig.up(ok=False), "of the mean in plane ", "at least 100 % is wanted")
        again = rig.preview()
        assert {(step.op, name) for name, step in again.items()} == {("update", "proof"), ("update", "proven")}
        assert "update" in again["proof"].diff
    rig.up().says("proof passed")
    rig.unchanged()


def test_gids_that_went_before_the_engine_looked_leave_the_plane_idle(rig: Rig) -> None:
    """Nothing deviates when the run begins; then the addresses of plane 1 go, as by a profile of somebody else's."""
    rig.config["proof"] = {"minimum": "1m"}  # without the lines: another group of engines
    with rig.lab.stopped_at("spark1", "docker-start") as head:
        up = rig.start("up", "--yes", "--skip-preview")
        head.wait(LIMIT_S)
        rig.lab.everywhere("; ".join(f"ip -4 address flush dev {netdev}" for netdev in SECOND_PLANE))
    report = fails(rig, finished(rig, up), IDLE, "has no RoCE v2 GID of 10.20.", "lines unknown: proof.logs is off")
    assert report.count("(plane 1) has no RoCE v2 GID of ") == 8
    for other in ("flags left out", "two-listener cap", "wrong cable"):
        assert other not in report


def test_flags_that_are_left_out_are_the_cause(rig: Rig) -> None:
    env = rig.config["engine"]["env"]
    ring = {name: value for name, value in OTHER_RING["env"].items() if name not in FLAGS}
    with rig.changed("engine.profile", "none"):
        rig.set("engine.env", {**env, **ring})
        report = fails(rig, rig.up(ok=False), IDLE, f"flags left out: {', '.join(FLAGS)} not 1")
    assert report.count("  cause: ") == 1


def test_a_library_that_caps_listeners_is_the_cause(rig: Rig, tmp_path: Path) -> None:
    """It takes the place of the planned one when that has been checked, and before a container starts with it."""
    file = tmp_path / "libnccl.so.2"
    sha256 = library.build(file, markers=library.KINDS["no-extended"])
    content = base64.b64encode(file.read_bytes()).decode()
    rig.config["proof"] = {"minimum": "1m", "logs": True}
    with ExitStack() as stopped:
        workers = [stopped.enter_context(rig.lab.stopped_at(node, "docker-start")) for node in rig.lab.names[1:]]
        up = rig.start("up", "--yes", "--skip-preview")
        for worker in workers:
            worker.wait(LIMIT_S)
        rig.lab.everywhere(
            f"echo {content} | base64 -d | tee /var/lib/spark-fabric/{rig.stack}/nccl/*/libnccl.so.2 | wc"
        )
    report = fails(
        rig,
        finished(rig, up),
        *(IDLE, "two-listener cap: the libnccl of rank 2 on spark3 does not know EXTENDED_IPV4_GIDS", "lines failed"),
        "has not printed: NET/IB ListenerRouting format=ipv4-v1 advertised=4 observed=4 (NCCL_DEBUG=INFO, ",
        "library failed: ",
        f"rank 0 on spark1 has {PIP_LIBRARY} loaded with sha256 {sha256}, ",
    )
    assert "flags left out" not in report


def test_two_cables_that_were_swapped_at_a_node_are_the_cause(rig: Rig) -> None:
    """While the weights are loaded: the rings were connected, and the API is not asked for anything yet."""
    quiet = {"SKIP_SMOKE": 1, "WARMUP": 0}
    slow = {**rig.config["engine"]["env"], "ENGINE_LOAD_S": 12, "ENGINE_WATCHDOG_S": 5}
    with rig.changed("engine.headEnv", quiet), rig.changed("engine.smoke", {"enabled": False}):
        rig.config["proof"] = {"minimum": "1m"}
        rig.set("engine.env", slow)
        up = rig.start("up", "--yes", "--skip-preview")
        loading = f"docker logs spark-fabric-{rig.stack} 2>&1 | grep -q 'Load weight begin' && echo yes"
        new = f"docker inspect --format '{{{{.Config.Env}}}}' spark-fabric-{rig.stack} | grep -q ENGINE_WATCHDOG_S"
        asked = f"{new} && {loading} || :"
        assert wait_for(lambda: set(rig.lab.everywhere(asked).values()) == {"yes\n"}, LIMIT_S, every=0.3)
        rig.lab.plug("spark2:f0", "spark3:f0")
        rig.lab.plug("spark3:f1", "spark4:f1")
        try:
            fails(
                rig,
                finished(rig, up),
                "wrong cable: cable 1 (spark2 f0 - spark3 f1) has a link at each end",
                "wrong cable: cable 2 (spark3 f0 - spark4 f1) has a link at each end",
                "the next completion failed: status 500",
            )
        finally:
            rig.lab.plug("spark2:f0", "spark3:f1")
            rig.lab.plug("spark3:f0", "spark4:f1")
