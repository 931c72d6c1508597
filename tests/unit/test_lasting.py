"""From the node to the preview: what does not stay as it was repaired is tried once, and not again before a word."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any

import pytest

from fleet import preflight
from fleet.drift import of_fleet
from fleet.loading import load
from fleet.look import Planned
from fleet.verdicts import judge
from node import guard, observe
from node.run import Result
from tests.node.helpers import OWNER, ask, refused, take
from tests.node.machine import Machine
from tests.unit import observed
from tests.unit.looks import planned
from tests.unit.stacks import changed, ring

NODE = {"nodes[0].address": "198.18.0.11"}
MTU = "enp1s0f0np0: MTU is 1500, plan wants 9000"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A node on which somebody sets an MTU back as soon as it is changed."""
    monkeypatch.setattr(guard, "armed", lambda *_: nullcontext())  # a process of its own
    machine = Machine()

    def back(argv: list[str]) -> Result | None:
        if argv[:1] == ["ip"]:
            machine.links["enp1s0f0np0"]["mtu"] = 1500
        return None

    machine.hooks["ip"] = back
    take(machine)
    return machine


def look(machine: Machine, **changes: Any) -> Planned:
    """A look at a ring of which this machine is spark1."""
    raw = observed.fleet(4)
    raw["spark1"] |= json.loads(json.dumps(observe.observe(machine, OWNER)))
    raw["spark1"]["docker"] = raw["spark2"]["docker"]
    return planned(load(changed(ring(), {**NODE, **changes})), raw)


def desired(seen: Planned) -> dict[str, Any]:
    assert seen.plan
    return dict(seen.plan.nodes[0].stages["plane0"])


def told(seen: Planned) -> list[str]:
    return [one.text() for one in preflight.lasting(seen)]


def test_a_repair_that_does_not_stay_is_refused_with_its_history_until_another_try_is_granted(machine: Machine) -> None:
    assert told(look(machine)) == []
    refused(machine, "apply", "plane0", desired(look(machine)))
    for _ in range(3):  # further runs: nothing is tried, nothing is stopped
        (text,) = told(look(machine))
        assert text.startswith(f"spark1 plane0: was repaired once, and still: {MTU}")
    ask(machine, "retry", "node")
    assert told(look(machine)) == []
    refused(machine, "apply", "plane0", desired(look(machine)))
    refused(machine, "apply", "plane0", desired(look(machine)))
    assert "was repaired 2 times" in told(look(machine))[0]


def test_it_is_a_problem_in_every_case_and_the_drift_is_told_with_it(machine: Machine) -> None:
    refused(machine, "apply", "plane0", desired(look(machine)))
    seen = look(machine)
    for running in (True, False):
        judged = judge(preflight.lasting(seen), dict.fromkeys(seen.running, running))
        assert [one.code for one in judged.problems] == ["repair-failed"]
    assert seen.plan
    drift = of_fleet(seen.plan, seen.seen.observed).lines()
    assert any(line.startswith("spark1 plane0: an earlier change was not finished (applying)") for line in drift)


def test_once_the_cause_is_gone_the_next_run_finishes_it(machine: Machine) -> None:
    refused(machine, "apply", "plane0", desired(look(machine)))
    del machine.hooks["ip"]
    machine.links["enp1s0f0np0"]["mtu"] = 9000  # put right by hand
    seen = look(machine)
    assert told(seen) == []
    ask(machine, "apply", "plane0", desired(seen))
    assert seen.plan
    left = of_fleet(seen.plan, look(machine).seen.observed)
    assert ("spark1", "plane0") not in left.stages


def test_another_setting_may_be_tried_at_once(machine: Machine) -> None:
    refused(machine, "apply", "plane0", desired(look(machine)))
    assert told(look(machine)) != []
    assert told(look(machine, **{"fabric.mtu": 4200})) == []
