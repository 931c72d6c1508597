"""A node that boots while a plane is on: NetworkManager makes no profiles of its own then, and gets them back later."""

from typing import Any

import pytest

from node import autodefault
from node.run import Result
from tests.node.helpers import ask, killed, plane, relay, take
from tests.node.machine import FABRIC, NO_AUTO_DEFAULT, PROFILES, Machine

pytestmark = pytest.mark.usefixtures("no_guard")

PORT = "enp1s0f0np0"


def own(machine: Machine) -> dict[str, tuple[str, str]]:
    """Port -> name and UUID of NetworkManager's own profile; no port has two of them."""
    found = [(p["netdev"], p["name"], uuid) for uuid, p in machine.profiles.items() if p["generated"]]
    assert len({netdev for netdev, _, _ in found}) == len(found)
    assert len({name for _, name, _ in found}) == len(found)
    return {netdev: (name, uuid) for netdev, name, uuid in found}


def but_for_numbers(machine: Machine) -> dict[str, Any]:
    """A snapshot without what another number of NetworkManager's own profiles entails."""
    seen = {path: value for path, value in machine.snapshot().items() if not path.startswith(f"{PROFILES}/Wired")}
    seen["links"] = {netdev: (link["mtu"], link["addresses"]) for netdev, link in machine.links.items()}
    seen["nm"] = {netdev: machine.active.get(netdev) == uuid for netdev, (_, uuid) in own(machine).items()}
    return seen


def both_planes(machine: Machine) -> None:
    take(machine)
    for stage, desired in (("plane0", plane()), ("plane1", plane(1)), ("relay", relay())):
        ask(machine, "apply", stage, desired)


def test_a_boot_is_no_drift(machine: Machine) -> None:
    take(machine)
    ask(machine, "apply", "plane0", plane())
    machine.boot()
    assert ask(machine, "apply", "plane0", plane())["changed"] == []
    assert set(own(machine)) == {"enP2p1s0f0np0", "enP2p1s0f1np1"}


def test_everything_is_as_before_although_the_node_booted_in_between(machine: Machine) -> None:
    before = machine.snapshot()
    both_planes(machine)
    machine.boot()
    assert own(machine) == {}
    answer = ask(machine, "revert", "undo")
    assert machine.snapshot() == before
    assert answer["notes"] == []
    machine.boot()
    assert machine.snapshot() == before


def test_a_boot_does_not_change_what_is_given_back_later(machine: Machine) -> None:
    (_, uuid), local = own(machine)[PORT], machine.links[PORT]["inet6"]
    take(machine)
    ask(machine, "apply", "plane0", plane())
    machine.boot()
    ask(machine, "apply", "plane0", plane(mtu=8000, pool=30))
    machine.boot()
    ask(machine, "apply", "plane0", plane())
    ask(machine, "revert", "undo")
    assert own(machine).keys() == FABRIC.keys()
    assert own(machine)[PORT][1] == uuid
    assert machine.links[PORT]["inet6"] == local


def test_a_number_that_another_port_got_at_the_boot_is_not_given_twice(machine: Machine) -> None:
    first = own(machine)
    take(machine)
    ask(machine, "apply", "plane0", plane())
    machine.boot()
    assert {name for name, _ in own(machine).values()} == {"Wired connection 1", "Wired connection 2"}
    ask(machine, "revert", "undo")
    again = own(machine)
    assert again.keys() == FABRIC.keys()
    for netdev in ("enp1s0f0np0", "enp1s0f1np1"):
        assert again[netdev][1] == first[netdev][1]
        assert machine.active[netdev] == first[netdev][1]


def test_a_profile_that_a_user_deleted_does_not_come_back(machine: Machine) -> None:
    take(machine)
    ask(machine, "apply", "plane0", plane())
    machine.delete_profile(PORT)
    given_up = machine.text(NO_AUTO_DEFAULT)
    ask(machine, "revert", "undo")
    assert own(machine).keys() == FABRIC.keys() - {PORT}
    assert machine.text(NO_AUTO_DEFAULT) == given_up
    assert machine.links[PORT]["addresses"] == []


def test_a_profile_that_a_user_saved_is_not_doubled(machine: Machine) -> None:
    take(machine)
    kept = autodefault.find(machine, PORT)
    assert kept is not None
    ask(machine, "apply", "plane0", plane())
    saved = f"/etc/NetworkManager/system-connections/{kept['path'].rpartition('/')[2]}"
    machine.put(saved, kept["text"].partition("[.nmmeta]")[0], 0o600)
    machine.boot()
    answer = ask(machine, "revert", "undo")
    assert not machine.exists(kept["path"])
    assert machine.active[PORT] == kept["uuid"]
    assert answer["notes"] == []


def test_a_profile_that_networkmanager_does_not_take_back_is_told(machine: Machine) -> None:
    take(machine)
    ask(machine, "apply", "plane0", plane())
    machine.boot()
    machine.hooks["nmcli"] = lambda argv: Result(2, "", "Error: no") if "load" in argv else None
    answer = ask(machine, "revert", "undo")
    assert any("does not take its profile 'Wired connection" in note for note in answer["notes"])
    assert not machine.exists(plane()["file"])


def test_what_networkmanager_makes_for_addresses_of_others_is_not_its_own_profile(machine: Machine) -> None:
    kept = autodefault.find(machine, PORT)
    assert kept is not None
    machine.put(kept["path"], kept["text"] + "volatile=true\nexternal=true\n")
    assert autodefault.find(machine, PORT) is None


@pytest.mark.parametrize("request_", [("apply", "plane0", plane()), ("revert", "undo")], ids=["apply", "undo"])
def test_a_power_cut_at_any_point_can_be_undone_after_the_boot(request_: tuple[Any, ...]) -> None:
    machine = Machine()
    before = but_for_numbers(machine)
    take(machine)
    if request_[0] == "revert":
        ask(machine, "apply", "plane0", plane())
        machine.boot()
    at = 0
    while killed(hurt := machine.copy(), at, *request_):
        where = f"after a power cut at {at}: {hurt.steps[-1]}"
        for boots in (0, 1, 2):
            healed = hurt.copy()
            for _ in range(boots):
                healed.boot()
            ask(healed, "revert", "undo")
            assert own(healed).keys() == FABRIC.keys(), f"{where}, {boots} boots"
            assert but_for_numbers(healed) == before, f"{where}, {boots} boots"
        at += 1
    assert at > 8
