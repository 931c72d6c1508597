"""Waiting for the engine: ready, ended, too late, out of reach, each told with the last lines of every rank."""

from __future__ import annotations

import io
import json
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


def waited(patch: pytest.MonkeyPatch, *rounds: list[Answer], ready_s: float = 60) -> tuple[int, float]:
    """The exit status and the seconds until then, where the nodes say this round by round, the last one for ever."""
    clock, left = Clock(), list(rounds)

    def on_all(verb: str, stack: str, links: list[Link], requests: dict[str, Any]) -> list[Answer]:
        assert verb == "status"
        assert all(requests[one.name]["desired"]["lines"] == 20 for one in links)
        return left.pop(0) if len(left) > 1 else left[0]

    patch.setattr(on_node, "on_all", on_all)
    patch.setattr(on_node, "lost_nodes", lambda _: set())
    patch.setattr(health, "time", clock)
    desired = {
        f"spark{number + 1}": {"rank": number, "port": 1, "api": number == 0, "lines": 20, "ready_s": ready_s}
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
