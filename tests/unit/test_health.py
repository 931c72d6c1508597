"""Waiting for the engine: ready, ended, too late, out of reach, each told with the last lines of every rank."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import pytest

from fleet import health, on_node
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
) -> tuple[int, float]:
    """The exit status and the seconds until then, where the nodes say this round by round, the last one for ever.

    `acts` gets what is done to containers; the action `fails` does so on all nodes.
    """
    clock, left = Clock(), list(rounds)

    def on_all(verb: str, stack: str, links: list[Link], requests: dict[str, Any]) -> list[Answer]:
        if verb == "engines":
            desired = requests[links[0].name]["desired"]
            assert {requests[one.name]["stage"] for one in links} == {"engines"}
            if acts is not None:
                acts.append((desired["action"], [one.name for one in links], desired["start"]))
            failed = desired["action"] == fails
            return [Answer(one.name, int(failed), None if failed else {}, "no room" * failed) for one in links]
        assert verb == "status"
        assert all(requests[one.name]["desired"]["lines"] == 20 for one in links)
        return left.pop(0) if len(left) > 1 else left[0]

    patch.setattr(on_node, "on_all", on_all)
    patch.setattr(on_node, "lost_nodes", lambda _: set())
    patch.setattr(health, "time", clock)
    desired = {
        f"spark{number + 1}": {
            "rank": number,
            "port": 1,
            "api": number == 0,
            "lines": 20,
            "ready_s": ready_s,
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
    assert told.rstrip().endswith(reason)
    assert "--- rank 0 on spark1 ---\nline of 0\n" in told
    if (ended.result or {})["containers"]:
        assert "--- rank 1 on spark2 ---\nline of 1\n" in told


def test_the_cause_that_a_rank_tells_comes_last(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = rank(1, "exited", exit_code=1, log=["AssertionError: Duplicate NCCL runtime found: /a and /b"])
    assert waited(monkeypatch, [rank(0, api=LOADING), ended])[0] == 1
    *_, problem, cause = capsys.readouterr().err.splitlines()
    assert problem == "rank 1 on spark2: exited, exit code 1"
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
    assert capsys.readouterr().err.rstrip().endswith(told)


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
    *_, hint, _, reason = capsys.readouterr().err.splitlines()
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
    *_, outcome, reason = capsys.readouterr().err.splitlines()
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
    assert told.rstrip().endswith("rank 1 on spark2: exited, exit code 1")


def test_the_engine_before_may_fail_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    again = [kept(rank(0, "exited", exit_code=9)), kept(rank(1))]
    assert waited(monkeypatch, CRASHED, again, rollback=True)[0] == 1
    told = capsys.readouterr().err
    assert "could not be brought back:\nrank 0 on spark1: exited, exit code 9\nrank 1 on spark2: exited" in told


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
