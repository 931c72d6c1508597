"""Which lab has what of the machine, who is dead, and that nobody takes what a living lab has."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import cgroups, lifecycle, network, registry
from lab import node as nodes
from lab.model import Lab, Node
from lab.registry import Claim
from lab.shell import LabError

HOLD = """
import fcntl, sys, time
file = open(sys.argv[1], "a")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(registry, "ROOT", tmp_path / "registry")
    monkeypatch.setattr(network, "slots_in_use", set)
    monkeypatch.setattr(network, "exists", lambda _thing: False)
    return tmp_path / "registry"


@pytest.fixture
def removed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the labs that were cleaned up, instead of touching the machine."""
    names: list[str] = []
    monkeypatch.setattr(nodes, "power_off", lambda _lab, node: names.append(node.unique))
    monkeypatch.setattr(network, "delete", lambda _thing: None)
    monkeypatch.setattr(network, "delete_mount", lambda: None)
    monkeypatch.setattr(cgroups, "remove_parents", lambda _lab, _last: None)
    return names


@pytest.fixture
def held(root: Path) -> Iterator[None]:
    """A daemon of the lab `other` that lives."""
    path = root / "other" / "spark1.pid"
    path.parent.mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", HOLD, path], stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout
        assert daemon.stdout.readline() == "held\n"
        yield
        daemon.kill()


def claim(name: str, slot: int, directory: str = "/elsewhere") -> None:
    registry.folder(name).mkdir(parents=True, exist_ok=True)
    registry.write(Claim(name, directory, slot, 1))


def take(directory: Path, name: str = "mine") -> int:
    """What `up` does first, of a lab with three nodes."""
    lab = Lab(name, directory)
    with lifecycle.working(lab):
        return lifecycle.take(lab, 3, None)


def test_the_demo_gets_the_first_network_and_no_other_lab_does() -> None:
    assert registry.choose_slot("demo", None, set()) == 0
    assert registry.choose_slot("other", None, set()) == 1


def test_a_network_of_another_lab_or_of_the_machine_is_not_taken() -> None:
    claim("one", 1)
    assert registry.choose_slot("other", None, {2, 3}) == 4
    assert registry.choose_slot("other", 1, set()) == 2
    assert registry.choose_slot("one", 1, set()) == 1
    with pytest.raises(LabError, match=r"198\.18\.0\.0/24 is in use"):
        registry.choose_slot("demo", None, {0})


def test_a_dead_lab_of_another_checkout_is_cleaned_up_by_the_next_up(tmp_path: Path, removed: list[str]) -> None:
    claim("dead", 1)
    assert take(tmp_path) == 1
    assert removed == ["dead-spark1"]
    assert [c.name for c in registry.claims()] == ["mine"]


def test_a_dead_lab_of_the_same_name_is_cleaned_up(tmp_path: Path, removed: list[str]) -> None:
    claim("mine", 5)
    assert take(tmp_path) == 1
    assert removed == ["mine-spark1"]


def test_a_living_lab_is_left_alone(tmp_path: Path, held: None, removed: list[str]) -> None:
    claim("other", 1)
    assert take(tmp_path) == 2
    assert not removed


def test_a_living_lab_of_the_same_name_is_refused_by_name_and_folder(tmp_path: Path, held: None) -> None:
    claim("other", 1, "/some/checkout/.lab/other")
    with pytest.raises(LabError, match=r"'other' is alive: that of /some/checkout/\.lab/other"):
        take(tmp_path, "other")


def test_a_lab_that_a_command_works_on_is_not_cleaned_up(root: Path, tmp_path: Path, removed: list[str]) -> None:
    claim("busy", 1)
    with registry.exclusive("busy"):
        take(tmp_path)
    assert not removed


def test_a_second_command_on_the_same_lab_is_refused(tmp_path: Path) -> None:
    lab = Lab("mine", tmp_path)
    claim("mine", 1, str(tmp_path))
    with lifecycle.working(lab), pytest.raises(LabError, match="another command"), lifecycle.working(lab):
        pass


def test_the_registry_goes_with_the_last_lab(root: Path, tmp_path: Path, removed: list[str]) -> None:
    for name, slot in (("one", 1), ("two", 2)):
        claim(name, slot)
    for name, others in (("one", True), ("two", False)):
        with lifecycle.working(Lab(name, tmp_path)), registry.locked():
            lifecycle.remove(Claim(name, "/elsewhere", 1, 1))
        assert root.exists() == others
    assert removed == ["one-spark1", "two-spark1"]


def test_looking_at_a_lab_that_is_not_there_leaves_nothing(root: Path, tmp_path: Path) -> None:
    with lifecycle.working(Lab("mine", tmp_path)):
        pass
    assert not (root / "mine").exists()


def test_something_of_the_same_name_that_is_no_labs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "exists", lambda thing: thing == f"netns {Node('mine', 1, 2).unique}")
    with pytest.raises(LabError, match="netns mine-spark2"):
        take(tmp_path)
    assert not registry.claims()


def test_a_network_counts_as_in_use_when_a_route_touches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    routes = ["default", "198.18.0.0/24", "198.18.3.7", "10.0.0.0/8", "198.19.254.0/23"]
    monkeypatch.setattr(network, "run", lambda *_: json.dumps([{"dst": dst} for dst in routes]))
    monkeypatch.setattr(network, "_link", lambda _name: Path("/nonexistent"))
    assert network.slots_in_use() == {0, 3, 510, 511}
