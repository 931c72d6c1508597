"""Waiting for the engine: ready, ended, too late, out of reach, each told with the last lines of every rank."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import pytest

from fleet import health, lastwords, on_node
from fleet.on_node import Answer, Link
from tests.unit.fakes import link

READY = {"health": 200, "models": ["a-model"]}
LOADING = {"health": 0, "models": []}

Round = dict[str, Answer]


def rank(number: int, state: str = "running", api: dict[str, Any] | None = None, **values: Any) -> Answer:
    """What one node says; rank `number` runs on spark`number + 1`."""
    container = {"name": "engine", "state": state, "exit_code": 0, "oom_killed": False, "log": [f"line of {number}"]}
    result = {"containers": [{**container, **values}], "api": api, "docker_error": None}
    return Answer(f"spark{number + 1}", 0, result, "")


def silent(number: int) -> Answer:
    return Answer(f"spark{number + 1}", on_node.UNREACHABLE, None, f"spark{number + 1}: no route to host")


def without(number: int, error: str | None = None) -> Answer:
    return Answer(f"spark{number + 1}", 0, {"containers": [], "api": None, "docker_error": error}, "")


class Clock:
    """A time that only passes while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def monotonic(self) -> float:
        return self.now


Acts = list[tuple[str, list[str], str]]  # action, nodes, start


def waited(
    patch: pytest.MonkeyPatch,
    *rounds: list[Answer],
    ready_s: float = 60,
    rollback: bool = False,
    acts: Acts | None = None,
    fails: str = "",
    smoke: dict[str, Any] | None = None,
    cut_off: float = 0,
) -> tuple[int, float]:
    """The exit status and the seconds until then, where the nodes say this round by round, the last one for ever.

    `acts` gets what is done to containers; the action `fails` does so on all nodes. `smoke` is what the head says to
    the smoke test, which is asked for with it; until `cut_off` it is out of reach for that.
    """
    clock, left, seen = Clock(), list(rounds), list[Answer]()

    def on_all(verb: str, stack: str, links: list[Link], requests: dict[str, Any]) -> list[Answer]:
        if verb == "engines":
            desired = requests[links[0].name]["desired"]
            assert {requests[one.name]["stage"] for one in links} == {"engines"}
            if acts is not None:
                acts.append((desired["action"], [one.name for one in links], desired["start"]))
            failed = desired["action"] == fails
            return [Answer(one.name, int(failed), None if failed else {}, "no room" * failed) for one in links]
        if verb == "smoke":
            assert [one.name for one in links] == ["spark1"]
            assert requests["spark1"]["desired"]["checks"] == {"arithmetic": True}
            if clock.now < cut_off:
                return [silent(0)]
            return [Answer("spark1", 0, smoke, "") if smoke else Answer("spark1", 1, None, "no program")]
        assert verb == "status"
        (lines,) = {requests[one.name]["desired"]["lines"] for one in links}
        if lines == 20:
            seen[:] = left.pop(0) if len(left) > 1 else left[0]
        return seen

    patch.setattr(on_node, "on_all", on_all)
    patch.setattr(on_node, "lost_nodes", lambda _: set())
    patch.setattr(health, "time", clock)
    patch.setattr("fleet.smoke.time", clock)
    desired = {
        f"spark{number + 1}": {
            "rank": number,
            "port": 1,
            "api": number == 0,
            "lines": 20,
            "ready_s": ready_s,
            "smoke": None if smoke is None or number else {"checks": {"arithmetic": True}},
            "start": "200",
            "ground": "g",
            "rollback": rollback,
        }
        for number in range(2)
    }
    patch.setattr("sys.stdin", io.StringIO(json.dumps(desired)))
    patch.setenv("FLEET_LINKS", on_node.as_json([link(1), link(2)]))
    patch.setenv("FLEET_OWNER", '{"stack": "no-such-stack"}')
    return health.main(), clock.now


def test_an_engine_that_serves_is_ready(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    status, seconds = waited(monkeypatch, [rank(0, api=LOADING), rank(1)], [rank(0, api=READY), rank(1)])
    assert (status, seconds) == (0, health.FIRST_PAUSE_S)
    assert "spark1: serves a-model after 0.5 s; 2 ranks run" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("ended", "reason"),
    [
        (rank(1, "exited", exit_code=1), "rank 1 on spark2: exited, exit code 1"),
        (rank(1, "exited", exit_code=137, oom_killed=True), "rank 1 on spark2: exited, out of memory"),
        (
            rank(1, "exited", exit_code=137),
            f"rank 1 on spark2: exited, exit code 137 ({lastwords.BY_KERNEL})",
        ),
        (rank(1, "exited", exit_code=139), "rank 1 on spark2: exited, exit code 139 (SIGSEGV)"),
        (rank(1, "dead", exit_code=3), "rank 1 on spark2: dead, exit code 3"),
        (without(1), "rank 1 on spark2: there is no container"),
    ],
)
def test_a_rank_that_ended_is_told_at_once_with_the_lines_of_all(
    ended: Answer, reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, seconds = waited(monkeypatch, [rank(0, api=READY), ended])
    assert (status, seconds) == (1, 0)
    told = capsys.readouterr().err
    assert told.startswith(f"{reason}\n")
    assert "--- rank 0 on spark1 ---\nline of 0\n" in told
    if (ended.result or {})["containers"]:
        assert "--- rank 1 on spark2 ---\nline of 1\n" in told


def test_the_first_error_and_the_cause_follow_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = rank(1, "exited", exit_code=1, log=["AssertionError: Duplicate NCCL runtime found: /a and /b"])
    assert waited(monkeypatch, [rank(0, api=LOADING), ended])[0] == 1
    problem, error, cause, *_ = capsys.readouterr().err.splitlines()
    assert problem == "rank 1 on spark2: exited, exit code 1"
    assert error == "first error of rank 1: AssertionError: Duplicate NCCL runtime found: /a and /b"
    assert cause.startswith("cause: a second NCCL is in the process")


def test_an_engine_that_never_serves_is_told_when_the_time_is_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, seconds = waited(monkeypatch, [rank(0, api={"health": 503, "models": []}), rank(1)], ready_s=20)
    assert status == 1
    assert 20 < seconds < 20 + health.LONGEST_PAUSE_S
    told = capsys.readouterr().err
    assert "spark1: the API is not ready after 20 s (health: 503)" in told
    assert "line of 1" in told


def test_of_several_ranks_the_one_that_ended_first_is_told_first_with_its_first_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the others say is mostly that one is gone."""
    lost = rank(0, "exited", exit_code=1, log=["RuntimeError: rank 1 is gone"], finished_at="2026-01-01T00:00:02Z")
    log = ["loading", "CUDA error: out of memory", "RuntimeError: and so on"]
    first = rank(1, "exited", exit_code=1, log=log, finished_at="2026-01-01T00:00:01Z")
    assert waited(monkeypatch, [lost, first])[0] == 1
    assert capsys.readouterr().err.splitlines()[:3] == [
        "rank 1 on spark2: exited, exit code 1",
        "rank 0 on spark1: exited, exit code 1",
        "first error of rank 1: CUDA error: out of memory",
    ]


def test_the_newest_line_of_the_head_is_told_while_it_loads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rounds = [[rank(0, api=LOADING, log=["begin", text]), rank(1)] for text in ("shard 1 of 48", "shard 2 of 48")]
    assert waited(monkeypatch, *rounds, [rank(0, api=READY), rank(1)])[0] == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "spark1: 0 s, health not answering yet: shard 1 of 48"
    assert told[1].endswith("shard 2 of 48")


ANSWERED = {"passed": ["arithmetic"], "failed": [], "refused": False, "seconds": 0.5}
WRONG = {**ANSWERED, "passed": [], "failed": [["arithmetic", "19 + 23 is answered with '43', wanted 42"]]}


def test_an_engine_that_answers_rightly_is_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    acts: Acts = []
    assert waited(monkeypatch, [rank(0, api=READY), rank(1)], acts=acts, smoke=ANSWERED)[0] == 0
    assert [action for action, *_ in acts] == ["keep"]
    assert "spark1: smoke test passed in 0.5 s: arithmetic" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("smoke", "reason"),
    [
        (WRONG, "smoke test arithmetic: 19 + 23 is answered with '43', wanted 42"),
        ({}, "the smoke test could not be made"),
    ],
)
def test_an_engine_that_answers_wrongly_is_none_that_serves(
    smoke: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    acts: Acts = []
    serving = [kept(rank(0, api=READY)), kept(rank(1))]
    assert waited(monkeypatch, serving, rollback=True, acts=acts, smoke=smoke)[0] == 1
    assert [action for action, *_ in acts] == ["remove", "back", "back"]
    told = capsys.readouterr().err
    assert told.startswith(f"spark1: {reason}")
    assert "serves again" in told


def test_a_rank_that_ends_over_the_smoke_test_is_told_before_what_it_answered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = [rank(0, api=READY), rank(1, "exited", exit_code=1)]
    assert waited(monkeypatch, [rank(0, api=READY), rank(1)], ended, smoke=WRONG)[0] == 1
    first, second, *_ = capsys.readouterr().err.splitlines()
    assert first == "rank 1 on spark2: exited, exit code 1"
    assert second.startswith("spark1: smoke test arithmetic")


def test_an_api_with_a_key_that_nobody_told_is_asked_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = {**ANSWERED, "passed": [], "refused": True}
    assert waited(monkeypatch, [rank(0, api=READY), rank(1)], smoke=refused)[0] == 0
    assert "no smoke test, since the API wants a key" in capsys.readouterr().out


def test_a_head_that_is_out_of_reach_for_a_moment_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that serves is not removed for a connection that was lost."""
    acts: Acts = []
    serving = [kept(rank(0, api=READY)), kept(rank(1))]
    cut_off = health.PATIENCE_S - 5
    assert waited(monkeypatch, serving, rollback=True, acts=acts, smoke=ANSWERED, cut_off=cut_off)[0] == 0
    assert [action for action, *_ in acts] == ["keep"]


def test_a_head_that_stays_out_of_reach_has_not_answered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, seconds = waited(monkeypatch, [rank(0, api=READY), rank(1)], smoke=ANSWERED, cut_off=1000)
    assert (status, seconds) == (1, health.PATIENCE_S)
    assert "the smoke test could not be made: spark1: no route to host" in capsys.readouterr().err


@pytest.mark.parametrize("quiet", [silent(1), without(1, "Connection refused")], ids=["node", "docker"])
def test_a_short_silence_does_no_harm(quiet: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    loading, ready = rank(0, api=LOADING), rank(0, api=READY)
    assert waited(monkeypatch, [loading, quiet], [ready, quiet], [ready, rank(1)])[0] == 0


@pytest.mark.parametrize(
    ("quiet", "told"),
    [
        (silent(1), "spark2: no route to host"),
        (without(1, "Connection refused"), "spark2: docker does not answer: Connection refused"),
    ],
)
def test_a_long_silence_is_told(
    quiet: Answer, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, seconds = waited(monkeypatch, [rank(0, api=READY), quiet], ready_s=600)
    assert status == 1
    assert health.PATIENCE_S < seconds < health.PATIENCE_S + health.LONGEST_PAUSE_S
    assert capsys.readouterr().err.startswith(f"{told}\n")


def test_a_silent_rank_does_not_hide_one_that_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    assert waited(monkeypatch, [silent(0), rank(1, "exited", exit_code=1)]) == (1, 0)


def kept(answer: Answer, start: str = "100", ground: str = "g") -> Answer:
    """The same node, with an engine that is kept."""
    return replace(answer, result={**(answer.result or {}), "kept": {"start": start, "ground": ground}})


CRASHED = [kept(rank(0, api=LOADING)), kept(rank(1, "exited", exit_code=1))]


def test_an_engine_that_serves_is_kept(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    acts: Acts = []
    assert waited(monkeypatch, [rank(0, api=READY), rank(1)], acts=acts)[0] == 0
    assert acts == [("keep", ["spark1", "spark2"], "200")]
    assert waited(monkeypatch, [rank(0, api=READY), rank(1)], fails="keep")[0] == 0
    assert "It cannot be kept to go back to: spark1: no room" in capsys.readouterr().out


def test_a_failed_start_says_how_to_go_back_and_leaves_the_engine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    acts: Acts = []
    assert waited(monkeypatch, CRASHED, acts=acts)[0] == 1
    assert not acts
    reason, *_, hint, _ = capsys.readouterr().err.splitlines()
    assert "kept on the nodes (start 100)" in hint
    assert "`python -m fleet rollback -s no-such-stack`" in hint
    assert reason == "rank 1 on spark2: exited, exit code 1"


def test_with_rollback_the_engine_before_is_started_as_a_group_and_the_first_cause_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    acts: Acts = []
    again = [kept(rank(0, api=READY)), kept(rank(1))]
    assert waited(monkeypatch, CRASHED, again, rollback=True, acts=acts)[0] == 1
    assert acts == [
        ("remove", ["spark1", "spark2"], "200"),
        ("back", ["spark2"], "100"),
        ("back", ["spark1"], "100"),
    ]
    reason, *_, outcome = capsys.readouterr().err.splitlines()
    assert "serves again (start 100)" in outcome
    assert reason == "rank 1 on spark2: exited, exit code 1"


@pytest.mark.parametrize("fails", ["remove", "back"])
def test_a_way_back_that_fails_is_told_and_goes_no_further(
    fails: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    acts: Acts = []
    assert waited(monkeypatch, CRASHED, rollback=True, acts=acts, fails=fails)[0] == 1
    assert acts[-1][0] == fails
    assert len(acts) == (1 if fails == "remove" else 2)
    told = capsys.readouterr().err
    assert f"could not be brought back:\n{acts[-1][1][0]}: no room\n" in told
    assert told.startswith("rank 1 on spark2: exited, exit code 1\n")


def test_the_engine_before_may_fail_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    again = [kept(rank(0, "exited", exit_code=9)), kept(rank(1))]
    assert waited(monkeypatch, CRASHED, again, rollback=True)[0] == 1
    told = capsys.readouterr().err
    assert told.endswith("could not be brought back:\nrank 0 on spark1: exited, exit code 9\n")


@pytest.mark.parametrize(
    ("last", "why"),
    [
        ([kept(rank(0)), rank(1, "exited")], "There is no way back: nothing is kept on spark2."),
        ([kept(rank(0)), kept(rank(1, "exited"), start="90")], "the nodes have kept different starts, 100, 90"),
        ([kept(rank(0)), kept(rank(1, "exited"), ground="h")], "the fabric, a library or the ranks have changed since"),
    ],
)
def test_what_is_no_generation_is_not_gone_back_to(
    last: list[Answer], why: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    acts: Acts = []
    assert waited(monkeypatch, last, rollback=True, acts=acts)[0] == 1
    assert not acts
    assert why in capsys.readouterr().err
