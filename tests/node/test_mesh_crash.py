"""A stage of the mesh is ended at every point where it changes something; each way on from there must lead home.

As in `test_crash`, the points are found by counting.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.node.helpers import ask, killed, take
from tests.node.meshhelpers import OFF, STAGES, WANTED, forwarding, marks, meshed, nic, planes
from tests.node.meshmachine import BINARY, BINARY_TEXT, MeshMachine

pytestmark = pytest.mark.usefixtures("no_guard")

Snapshot = dict[str, Any]
NEW_MAC = "02:5a:ab:00:04:77"


def _with_other_binary(machine: MeshMachine) -> None:
    meshed(machine)
    machine.put(BINARY, "a newer marker", 0o755)


def _markers_off(machine: MeshMachine) -> None:
    meshed(machine)
    ask(machine, "apply", "markers", OFF)


def _only_nic(machine: MeshMachine) -> None:
    meshed(machine, ("nic",))


def _no_markers(machine: MeshMachine) -> None:
    meshed(machine, ("nic", "forwarding"))


RUNS: dict[str, tuple[Callable[[MeshMachine], None], tuple[Any, ...]]] = {
    "first nic": (planes, ("apply", "nic", nic())),
    "smaller queues": (meshed, ("apply", "nic", nic(4096))),
    "nic off": (_only_nic, ("apply", "nic", OFF)),
    "first forwarding": (_only_nic, ("apply", "forwarding", forwarding())),
    "another rule": (meshed, ("apply", "forwarding", forwarding(new_dst_mac=NEW_MAC))),
    "forwarding off": (_no_markers, ("apply", "forwarding", OFF)),
    "first markers": (_no_markers, ("apply", "markers", WANTED["markers"])),
    "another binary": (_with_other_binary, ("apply", "markers", marks("a newer marker"))),
    "markers off": (meshed, ("apply", "markers", OFF)),
    "undo": (meshed, ("revert", "undo")),
}


def _settled(machine: MeshMachine) -> Snapshot:
    """A snapshot without our journal and without times."""
    return {
        name: value[:2] if isinstance(value, tuple) and name.startswith(("/etc", "/opt")) else value
        for name, value in machine.snapshot().items()
        if not name.startswith("/var/lib/spark-fabric")
    }


def _journal(machine: MeshMachine) -> str:
    """What the journal says of the stages, without the number of tries."""
    stages = json.loads(machine.text("/var/lib/spark-fabric/lab/journal.json") or "{}").get("stages", {})
    return json.dumps(stages, sort_keys=True)


def _up(machine: MeshMachine) -> None:
    """An `up` as it comes next, with the first settings."""
    machine.put(BINARY, BINARY_TEXT, 0o755)
    if not machine.exists("/var/lib/spark-fabric/owner.json"):
        take(machine)
    planes(machine)
    for stage in STAGES:
        ask(machine, "apply", stage, WANTED[stage])


@pytest.mark.parametrize("run", RUNS)
def test_a_killed_run_is_completed_or_undone_by_whatever_comes_next(run: str) -> None:
    prepare, request = RUNS[run]
    machine = MeshMachine()
    before = machine.snapshot()
    reference = MeshMachine()
    meshed(reference)
    prepare(machine)
    at = 0
    damage, led_home = set(), set()
    while killed(hurt := machine.copy(), at, *request):
        where = f"after a kill at {at}: {hurt.steps[-1]}"
        damage.add(json.dumps(_settled(hurt), default=str, sort_keys=True))
        up = hurt.copy()
        assert isinstance(up, MeshMachine)
        _up(up)
        assert _settled(up) == _settled(reference), f"up {where}"
        assert all(row["effective"] == row["shown"] for row in up.driver.values()), where
        assert all(ask(up, "apply", stage, WANTED[stage])["changed"] == [] for stage in STAGES), where
        ways = [hurt]
        if (held := _journal(up)) not in led_home:  # the same machine with the same journal leads to the same end
            led_home.add(held)
            ways.append(up)
        for healed in ways:
            ask(healed, "revert", "undo")
            assert healed.snapshot() == before, f"undo {where}"
        at += 1
    assert at > 8
    assert len(damage) > 2  # else this would prove nothing


@pytest.mark.parametrize("run", ["first nic", "first forwarding", "first markers"])
def test_a_destroy_takes_along_a_stage_of_which_the_killed_run_told_no_state(run: str) -> None:
    """The run may have been killed when the node was done already: then the stage is whole, and known to nobody."""
    prepare, request = RUNS[run]
    machine = MeshMachine()
    before = machine.snapshot()
    prepare(machine)
    known = ("plane0", "plane1", *STAGES[: STAGES.index(request[1])])
    at, more = 0, True
    while more:
        hurt = machine.copy()
        more = killed(hurt, at, *request)
        for stage in reversed(known):
            ask(hurt, "revert", stage)
        ask(hurt, "revert", "undo")
        assert hurt.snapshot() == before, f"after a kill at {at}"
        at += 1
    assert at > 8


def test_values_that_a_killed_run_only_showed_are_not_taken_for_effective() -> None:
    """The counter of re-initialisations is above zero already, so what devlink shows looks as if it were in effect."""
    machine = MeshMachine()
    meshed(machine, ("nic",))
    at, seen = 0, False
    while killed(hurt := machine.copy(), at, "apply", "nic", nic(4096)):
        row = hurt.driver["0000:01:00.0"]
        seen = seen or (row["shown"]["hairpin_queue_size"], row["effective"]["hairpin_queue_size"]) == (4096, 8192)
        ask(hurt, "apply", "nic", nic(4096))
        assert {row["effective"]["hairpin_queue_size"] for row in hurt.driver.values()} == {4096}
        at += 1
    assert seen
