"""A run that changes something starts from nodes at rest, and says for whom it waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fleet import probe as looking
from fleet.loading import load
from fleet.plan import StackName
from fleet.probe import Probe, probe_at_rest
from tests.unit.looks import at_first
from tests.unit.stacks import ring

STACK = StackName("spark-fabric", "test")
LOCK = {"holder": "ann@desk (pid 7)", "pid": 812, "since": 0}

Looks = Callable[..., list[float]]


def seen(busy: bool) -> Probe:
    """What a look at two nodes finds."""
    return Probe({"spark1": {"lock": None}, "spark2": {"lock": LOCK if busy else None}}, {})


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """Sets what each look finds; returns the times of the looks, on a clock that only waiting moves."""

    def prepare(*found: Probe) -> list[float]:
        clock, times = [0.0], []
        answers: Iterator[Probe] = iter(found)

        def look(*_: Any, **__: Any) -> Probe:
            times.append(clock[0])
            return next(answers, found[-1])

        def sleep(seconds: float) -> None:
            clock[0] += seconds

        monkeypatch.setattr(looking, "probe", look)
        monkeypatch.setattr("fleet.probe.time.sleep", sleep)
        monkeypatch.setattr("fleet.probe.time.monotonic", lambda: clock[0])
        return times

    return prepare


def test_nodes_at_rest_are_looked_at_once(looks: Looks) -> None:
    times = looks(seen(busy=False))
    assert probe_at_rest(STACK, "default", []) == seen(busy=False)
    assert times == [0.0]


def test_a_change_under_way_is_waited_for_and_its_maker_named_once(
    looks: Looks, capsys: pytest.CaptureFixture[str]
) -> None:
    times = looks(seen(busy=True), seen(busy=True), seen(busy=False))
    assert probe_at_rest(STACK, "default", []) == seen(busy=False)
    assert len(times) == 3
    assert capsys.readouterr().out.count("spark2: waiting for ann@desk (pid 7)") == 1


def test_a_change_that_does_not_end_is_reported_after_a_while(looks: Looks) -> None:
    times = looks(seen(busy=True))
    assert probe_at_rest(STACK, "default", [], patience=10) == seen(busy=True)
    assert times[-1] == pytest.approx(11, abs=1)


def test_a_busy_node_stops_a_run_that_changes_something_and_no_other() -> None:
    settings, found = load(ring(4)), seen(busy=True)
    problems = at_first(settings, STACK, found, changing=True).problems
    assert [(one.code, one.path) for one in problems] == [("busy", "spark2")]
    assert "ann@desk (pid 7) (process 812 there)" in problems[0].text()
    judged = at_first(settings, STACK, found)
    assert judged.problems == ()
    assert [one.code for one in judged.warnings] == ["at-work"]
