"""The marker against what was recorded of it."""

from __future__ import annotations

import json
import signal

import pytest

from lab.standins.main import MARKER
from tests.lab.standins_bench import Bench

FULL = "--device rocep1s0f0 --source-port 65535 --replacement-ethertype 0x88b5"


def test_the_line_after_attaching(spark: Bench) -> None:
    _, line = spark.mark("rocep1s0f0")
    assert line == (
        '{"device":"rocep1s0f0","rdma_tx_matcher":true,"action":"ethertype_rewrite",'
        '"source_port":65535,"replacement_port":0,"attached":true,"requested_run_seconds":0,'
        '"max_run_seconds":7200,"sigint_sigterm_cleanup":true,"managed":true,'
        '"lifetime_seconds":null}\n'
    )


def test_a_probe_attaches_nothing(spark: Bench) -> None:
    line = json.loads(spark.ok(f"{MARKER} {FULL}"))
    assert line["attached"] is False
    assert "managed" not in line
    assert spark.view()["markers"] == {}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (f"{FULL} --attach --managed --run-seconds 3", "--managed and --run-seconds are mutually exclusive"),
        (f"{FULL} --managed", "--managed is valid only with --attach"),
        (f"{FULL} --attach", "--attach requires --run-seconds or --managed"),
        (f"{FULL} --run-seconds 3", "--run-seconds is valid only with --attach"),
        (f"{FULL} --attach --run-seconds 7201", "--run-seconds must be from 1 to 7200"),
        (FULL.replace("rocep1s0f0", "nope"), "cannot open RDMA device nope: "),
        (FULL.replace("65535", "65536"), "--source-port must be from 1 to 65535"),
        (f"{FULL} --replacement-port 9", "usage: "),
        ("--source-port 1 --replacement-port 9", "usage: "),
        (f"{FULL} --bogus", f"{MARKER}: unrecognized option"),
    ],
)
def test_refusals(spark: Bench, words: str, said: str) -> None:
    done = spark.run(f"{MARKER} {words}")
    assert done.returncode == 1
    assert done.stderr.startswith(said)
    assert not done.stdout


def test_the_fault_of_not_attaching(spark: Bench) -> None:
    spark.set_fault("marker-refused.rocep1s0f0")
    done = spark.run(f"{MARKER} {FULL} --attach --managed")
    assert (done.returncode, done.stderr) == (1, "RDMA-TX matcher creation failed: Operation not permitted\n")


def test_help_is_no_error(spark: Bench) -> None:
    done = spark.run(f"{MARKER} --help")
    assert done.returncode == 0
    assert "usage" in done.stderr


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGKILL, -9)])
def test_its_end_unregisters_it(spark: Bench, number: signal.Signals, status: int) -> None:
    process, _ = spark.mark("rocep1s0f0")
    assert spark.view()["markers"]["rocep1s0f0"]["pid"] == process.pid
    process.send_signal(number)
    assert process.wait(60) == status
    assert spark.view()["markers"] == {}


def test_one_per_device(spark: Bench) -> None:
    spark.mark("rocep1s0f0")
    done = spark.run(f"{MARKER} {FULL} --attach --managed")
    assert done.returncode == 1
    assert "attachment failed: File exists" in done.stderr


def test_run_seconds_and_the_fault_of_dying(spark: Bench) -> None:
    assert spark.mark("rocep1s0f0", "--run-seconds", "1")[0].wait(60) == 0
    spark.set_fault("marker-dies.rocep1s0f1", "0.2")
    process, _ = spark.mark("rocep1s0f1")
    assert process.wait(60) == 1
    assert "flow wait failed: " in process.communicate()[1]
