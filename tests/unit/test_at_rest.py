"""A run that changes something starts from nodes at rest, and says for whom it waits."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fleet.loading import load
from fleet.probe import Probe, at_rest
from fleet.stack import StackName
from tests.unit.looks import at_first
from tests.unit.stacks import ring

STACK = StackName("spark-fabric", "test")
LOCK = {"holder": "ann@desk (pid 7)", "pid": 812, "since": 0}


def seen(busy: bool) -> Probe:
    """What a look at two nodes finds."""
    return Probe({"spark1": {"lock": None}, "spark2": {"lock": LOCK if busy else None}}, {})


class Looking:
    """What each look finds, on a clock that only waiting moves."""

    def __init__(self, *found: Probe) -> None:
        self.clock = 0.0
        self.times: list[float] = []
        self.found, self.last = iter(found), found[-1]

    def look(self) -> Probe:
        self.times.append(self.clock)
        return next(self.found, self.last)

    def sleep(self, seconds: float) -> None:
        self.clock += seconds


Looks = Callable[..., Looking]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """Makes looks that find what they are told, and puts the clock in place."""

    def prepare(*found: Probe) -> Looking:
        looking = Looking(*found)
        monkeypatch.setattr("fleet.probe.time.sleep", looking.sleep)
        monkeypatch.setattr("fleet.probe.time.monotonic", lambda: looking.clock)
        return looking

    return prepare


def test_nodes_at_rest_are_looked_at_once(looks: Looks) -> None:
    looking = looks(seen(busy=False))
    assert at_rest(looking.look) == seen(busy=False)
    assert looking.times == [0.0]


def test_a_node_without_an_answer_is_asked_once_more(looks: Looks) -> None:
    silent = Probe({"spark1": {"lock": None}}, {"spark2": "no answer within 11 s"})
    looking = looks(silent, seen(busy=False))
    assert at_rest(looking.look) == seen(busy=False)
    looking = looks(silent)
    assert at_rest(looking.look) == silent
    assert len(looking.times) == 2


def test_a_change_under_way_is_waited_for_and_its_maker_named_once(
    looks: Looks, capsys: pytest.CaptureFixture[str]
) -> None:
    looking = looks(seen(busy=True), seen(busy=True), seen(busy=False))
    assert at_rest(looking.look) == seen(busy=False)
    assert len(looking.times) == 3
    assert capsys.readouterr().out.count("spark2: waiting for ann@desk (pid 7)") == 1


def test_a_change_that_does_not_end_is_reported_after_a_while(looks: Looks) -> None:
    looking = looks(seen(busy=True))
    assert at_rest(looking.look, patience=10) == seen(busy=True)
    assert looking.times[-1] == pytest.approx(11, abs=1)


def test_a_busy_node_stops_a_run_that_changes_something_and_no_other() -> None:
    settings, found = load(ring(4)), seen(busy=True)
    problems = at_first(settings, STACK, found, changing=True).problems
    assert [(one.code, one.path) for one in problems] == [("busy", "spark2")]
    assert "ann@desk (pid 7) (process 812 there)" in problems[0].text()
    judged = at_first(settings, STACK, found)
    assert judged.problems == ()
    assert [one.code for one in judged.warnings] == ["at-work"]
