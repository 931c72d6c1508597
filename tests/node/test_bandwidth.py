"""One end of a measurement: what is called, how its table is read, and when nothing is measured."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from node.bandwidth import bandwidth
from node.perftest import figure
from node.request import ENGINE_ALIVE, Failure
from node.run import ABSENT, TIMED_OUT, Result, run_while
from tests.node.machine import Machine

TABLE = """ #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 1048576    63414          0.00               106.38              0.012682
---------------------------------------------------------------------------------------
"""
SEND = {"hca": "rocep1s0f0", "gid_index": 5, "port": 18517, "seconds": 5, "host": "198.18.0.12"}
RECEIVE = {name: value for name, value in SEND.items() if name != "host"}
MISSED = "spark1 and its other end did not meet by TCP, port 18517"
WORDS = "ib_write_bw -d rocep1s0f0 -x 5 -s 1048576 -F --report_gbits -D 5 -p 18517".split()

Json = dict[str, Any]


class Tool:
    """perftest on a machine: how it was called, and what it says; the last result again and again."""

    def __init__(self, machine: Machine, *results: Result) -> None:
        self.calls: list[list[str]] = []
        self.results = list(results)
        machine.hooks["ib_write_bw"] = self

    def __call__(self, argv: list[str]) -> Result:
        if argv[1:] == ["--version"]:
            return Result(0)
        self.calls.append(argv)
        return self.results.pop(0) if len(self.results) > 1 else self.results[0]


def test_the_sender_has_the_average_of_its_table(machine: Machine) -> None:
    tool = Tool(machine, Result(0, f"WARNING: CPU is not at its rate\n{TABLE}"))
    assert bandwidth(machine, "spark1", SEND) == {"gbits": 106.38, "problem": ""}
    assert tool.calls == [[*WORDS, "198.18.0.12"]]


def test_the_receiver_has_no_figure(machine: Machine) -> None:
    tool = Tool(machine, Result(0, TABLE))
    assert bandwidth(machine, "spark1", RECEIVE) == {"gbits": None, "problem": ""}
    assert tool.calls == [WORDS]


def test_a_sender_waits_for_its_receiver_and_gives_up_in_the_end(machine: Machine) -> None:
    early = Result(1, "", "Couldn't connect to 198.18.0.12:18517")
    tool = Tool(machine, early, early, Result(0, TABLE))
    assert bandwidth(machine, "spark1", SEND)["gbits"] == 106.38
    assert len(tool.calls) == 3
    Tool(machine, early)
    began = machine.clock()
    answer = bandwidth(machine, "spark1", SEND)
    assert answer["unmeasured"] == "spark1 and 198.18.0.12 did not meet by TCP, port 18517"
    assert answer["problem"] == ""
    assert 15 <= machine.clock() - began < 20


@pytest.mark.parametrize(
    "result",
    [
        Result(1, "", " Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81"),
        Result(TIMED_OUT, "", "ib_write_bw did not end within 13 s"),
        Result(0, "no table"),
    ],
)
def test_what_does_not_complete_says_why_on_either_side(machine: Machine, result: Result) -> None:
    Tool(machine, result)
    sent = bandwidth(machine, "spark1", SEND)
    assert sent["gbits"] is None
    assert sent["problem"] == f"spark1 rocep1s0f0: ib_write_bw did not complete: {result.reason()}"
    received = bandwidth(machine, "spark1", RECEIVE)
    if result.rc == TIMED_OUT:  # for want of the other end, as far as this one knows
        assert (received["problem"], received["unmeasured"]) == ("", MISSED)
    elif not result.ok:
        assert received == sent


def test_a_node_without_perftest_says_so(machine: Machine) -> None:
    machine.hooks["ib_write_bw"] = lambda _: Result(ABSENT)
    answer = bandwidth(machine, "spark1", SEND)
    why = "spark1 has no ib_write_bw (package perftest)"
    assert answer == {"gbits": None, "problem": "", "unmeasured": why, "absent": True}


def test_nothing_is_measured_beside_an_engine_or_somebody_who_uses_rdma(machine: Machine) -> None:
    tool = Tool(machine, Result(0, TABLE))
    machine.put("/proc/4242/cmdline", "sglang\0")
    machine.put("/proc/4242/fd/.7", "")
    machine.symlinks["/proc/4242/fd/7"] = "/dev/infiniband/uverbs0"
    with pytest.raises(Failure, match="spark1: process 4242 uses RDMA: sglang") as caught:
        bandwidth(machine, "spark1", SEND)
    assert caught.value.code == ENGINE_ALIVE
    del machine.symlinks["/proc/4242/fd/7"]
    labels = {"spark-fabric.stack": "spark-fabric/ring/f"}
    machine.containers = [{"id": "c1", "name": "engine", "state": "running", "labels": labels}]
    with pytest.raises(Failure, match="engine container engine of spark-fabric/ring/f is running"):
        bandwidth(machine, "spark1", RECEIVE)
    assert tool.calls == []


def test_nothing_is_written_on_a_node(machine: Machine) -> None:
    Tool(machine, Result(0, TABLE))
    machine.steps.clear()
    before = machine.snapshot()
    bandwidth(machine, "spark1", SEND)
    assert (machine.snapshot(), machine.steps, machine.calls) == (before, [], [])


def test_nobody_measures_for_a_caller_who_is_gone(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = Tool(machine, Result(0, TABLE))
    monkeypatch.setattr(machine, "caller_gone", lambda: True)
    with pytest.raises(Failure, match="whoever asked is gone"):
        bandwidth(machine, "spark1", SEND)
    assert tool.calls == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (TABLE, 106.38),
        (TABLE.replace("106.38", "26.04"), 26.04),
        (TABLE.replace("106.38", "?"), None),
        (TABLE.replace("Gb/sec", "MB/sec"), None),
        ("", None),
    ],
)
def test_only_the_column_of_that_name_and_unit_is_read(text: str, found: float | None) -> None:
    assert figure(text, "BW average[Gb/sec]") == found


# The real system: programs that must not outlive their use


def alive(pid: Path) -> bool:
    """Whether the process lives that wrote its number there; one that has ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid.read_text().strip()}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(what: Any) -> bool:
    end = time.monotonic() + 60
    while not what() and time.monotonic() < end:
        time.sleep(0.02)
    return bool(what())


def sleeper(pid: Path) -> list[str]:
    """A program that writes its number down and then waits for five."""
    return ["sh", "-c", f"echo $$ >{pid}.new; mv {pid}.new {pid}; exec sleep 300"]


def test_a_program_ends_with_its_output_and_status(tmp_path: Path) -> None:
    words = ["sh", "-c", "sleep 0.3; echo out; echo err >&2; exit 3"]
    assert run_while(words, 5, lambda: True) == Result(3, "out\n", "err\n")
    assert run_while([str(tmp_path / "none")], 5, lambda: True).rc == ABSENT


def test_a_program_is_ended_for_its_time(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    assert run_while(sleeper(pid), 0.5, lambda: True).rc == TIMED_OUT
    assert not alive(pid)


def test_a_program_is_ended_once_nobody_wants_it(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    began = time.monotonic()
    run_while(sleeper(pid), 200, lambda: not pid.exists())
    assert time.monotonic() - began < 100
    assert not alive(pid)


def test_a_program_ends_with_us_even_when_we_are_killed(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = f"from node.run import run_while; run_while({sleeper(pid)!r}, 300, lambda: True)"
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", script], cwd=root) as process:
        assert until(pid.exists)
        assert alive(pid)
        process.kill()
    assert until(lambda: not alive(pid))
