"""The program is ended at every point where it changes something; each way on from there must lead home.

The points are found by counting, so that a new step is tested from the day it is written.
"""

from collections.abc import Callable
from typing import Any

import pytest

from tests.node.helpers import ask, killed, plane, plane_off, relay, take
from tests.node.machine import Machine

pytestmark = pytest.mark.usefixtures("no_guard")

Snapshot = dict[str, Any]
RIVAL = "/etc/NetworkManager/system-connections/lan.nmconnection"
STANZA = "/etc/netplan/90-NM-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee.yaml"


def _machine() -> Machine:
    """A machine with things of its own in our way."""
    machine = Machine()
    text = "[connection]\nid=lan\nuuid=11111111-2222-3333-4444-555555555555\ninterface-name=enp1s0f0np0\n"
    machine.put(RIVAL, text, 0o600)
    stanza = "network:\n  ethernets:\n    NM-x:\n      renderer: NetworkManager\n      match: {name: enp1s0f1np1}\n"
    machine.put(STANZA, stanza, 0o600)
    machine._generate([])
    machine._reload()
    return machine


def _nothing(_: Machine) -> None:
    pass


def _on(machine: Machine) -> None:
    ask(machine, "apply", "plane0", plane())


def _forwarding(machine: Machine) -> None:
    ask(machine, "apply", "relay", relay())


APPLY = ("apply", "plane0", plane())
AGAIN = ("apply", "plane0", plane(mtu=8000, pool=30))
RELAY = ("apply", "relay", relay())
REVERT = ("revert", "plane0")
UNDO = ("revert", "undo")
OFF = ("apply", "plane0", plane_off())

RUNS: dict[str, tuple[Callable[[Machine], None], tuple[Any, ...]]] = {
    "first apply": (_nothing, APPLY),
    "another apply": (_on, AGAIN),
    "off": (_on, OFF),
    "revert": (_on, REVERT),
    "undo": (_on, UNDO),
    "first relay": (_nothing, RELAY),
    "undo of the relay": (_forwarding, UNDO),
}
WAYS: dict[str, tuple[Any, ...]] = {"apply": APPLY, "another apply": AGAIN, "revert": REVERT}


def _without_state(snapshot: Snapshot) -> Snapshot:
    """A snapshot without our journal, whose generation counts tries, and without times."""
    return {
        name: value[:2] if isinstance(value, tuple) and name.startswith("/etc") else value
        for name, value in snapshot.items()
        if not name.startswith("/var/lib/spark-fabric")
    }


@pytest.mark.parametrize("run", RUNS)
def test_a_killed_run_is_completed_or_undone_by_whatever_comes_next(run: str) -> None:
    prepare, request = RUNS[run]
    machine = _machine()
    before = machine.snapshot()
    take(machine)
    prepare(machine)
    wanted = {way: _reference(following) for way, following in WAYS.items()}
    at = 0
    while killed(hurt := machine.copy(), at, *request):
        where = f"after a kill at {at}: {hurt.steps[-1]}"
        for way, following in WAYS.items():
            healed = hurt.copy()
            if following[0] == "apply" and not healed.exists("/var/lib/spark-fabric/owner.json"):
                take(healed)  # the undo was nearly through: an up starts with the stage node
            ask(healed, *following)
            if "relay" not in run:
                assert _without_state(healed.snapshot()) == wanted[way], f"{way} {where}"
            ask(healed, "revert", "undo")
            assert healed.snapshot() == before, f"{way} and undo {where}"
        at += 1
    assert at > 8


def _reference(request: tuple[Any, ...]) -> Snapshot:
    """What a machine looks like when nobody was killed."""
    machine = _machine()
    take(machine)
    ask(machine, *request)
    return _without_state(machine.snapshot())


def test_a_kill_in_the_very_first_apply_leaves_a_node_that_can_be_undone() -> None:
    machine = Machine()
    before = machine.snapshot()
    at = 0
    while killed(hurt := machine.copy(), at, "apply", "node", {"name": "spark1", "rank": 0}):
        ask(hurt, "revert", "undo")
        assert hurt.snapshot() == before, at
        at += 1
    assert at > 4


def test_damage_is_really_done_at_some_of_the_points() -> None:
    """Else the tests above would prove nothing."""
    machine = _machine()
    take(machine)
    files, up = set(), set()
    at = 0
    while killed(hurt := machine.copy(), at, *APPLY):
        files.add(hurt.exists(plane()["file"]))
        up.add(hurt.links["enp1s0f0np0"]["addresses"] == ["10.10.0.10/24"])
        at += 1
    assert files == {True, False}
    assert up == {True, False}
