"""The engine that served last: kept beside the one that runs, started again, removed with the rest of the stack."""

import pytest

from node import observe, status
from tests.node.helpers import OWNER, ask, refused, take
from tests.node.machine import Machine

pytestmark = pytest.mark.usefixtures("no_guard")

KEEP = {"action": "keep", "start": "100", "ground": "g"}
BACK = {**KEEP, "action": "back", "cause": "rank 2 on spark3: exited"}
LABELS = {"spark-fabric.stack": OWNER.label(), "spark-fabric.start": "100", "spark-fabric.rank": "0"}
TOLD = {
    "Image": "sha256:7",
    "Config": {"Env": ["API_KEY=hunter2", "A=1"], "Image": "engine:1", "Hostname": "spark1"},
    "HostConfig": {"NetworkMode": "host", "ShmSize": 1 << 20},
}


@pytest.fixture
def served(machine: Machine) -> Machine:
    """A node whose rank serves."""
    take(machine)
    machine.containers = [{"id": "1", "name": "engine", "labels": LABELS, "state": "running", "told": TOLD}]
    return machine


def kept(machine: Machine) -> object:
    return status.status(machine, OWNER, {})["kept"]


def replace_engine(machine: Machine, start: str = "200") -> None:
    """What `up` makes of it."""
    ask(machine, "engines", "engines", {"action": "remove", "name": "engine"})
    labels = {**LABELS, "spark-fabric.start": start}
    machine.containers.append({"id": start, "name": "engine", "labels": labels, "state": "running", "told": TOLD})


def test_what_is_kept_is_no_engine_and_does_not_run(served: Machine) -> None:
    assert kept(served) is None
    ask(served, "engines", "engines", KEEP)
    assert kept(served) == {"start": "100", "ground": "g"}
    engine, copy = served.containers
    assert (copy["name"], copy["state"], "spark-fabric.stack" in copy["labels"]) == ("engine-kept", "created", False)
    assert [one["name"] for one in status.status(served, OWNER, {})["containers"]] == ["engine"]
    calls = len(served.calls)
    ask(served, "engines", "engines", KEEP)
    assert served.containers == [engine, copy]
    assert not [call for call in served.calls[calls:] if call[1:2] == ["POST"]]


def test_the_next_that_serves_takes_its_place(served: Machine) -> None:
    ask(served, "engines", "engines", KEEP)
    replace_engine(served)
    assert kept(served) == {"start": "100", "ground": "g"}
    ask(served, "engines", "engines", {**KEEP, "start": "200"})
    assert kept(served) == {"start": "200", "ground": "g"}
    assert [one["name"] for one in served.containers] == ["engine", "engine-kept"]


def test_it_comes_back_as_it_was_and_the_node_tells_why(served: Machine) -> None:
    ask(served, "engines", "engines", KEEP)
    replace_engine(served)
    ask(served, "engines", "engines", {"action": "remove", "name": "engine"})
    ask(served, "engines", "engines", BACK)
    engine = next(one for one in served.containers if one["name"] == "engine")
    assert (engine["state"], engine["labels"]) == ("running", LABELS)
    assert engine["told"]["HostConfig"] == TOLD["HostConfig"]
    assert engine["told"]["Config"] == {"Env": ["API_KEY=hunter2", "A=1"], "Image": "sha256:7"}
    assert observe.observe(served, OWNER)["started"] == {"start": "100", "back": "rank 2 on spark3: exited"}
    assert kept(served) == {"start": "100", "ground": "g"}


@pytest.mark.parametrize("other", [{"start": "90"}, {"ground": "h"}])
def test_nothing_else_is_started_than_what_was_asked_for(served: Machine, other: dict[str, str]) -> None:
    ask(served, "engines", "engines", KEEP)
    ask(served, "engines", "engines", {"action": "remove", "name": "engine"})
    assert "nothing is kept here" in str(refused(served, "engines", "engines", {**BACK, **other}))
    assert [one["state"] for one in served.containers] == ["created"]


@pytest.mark.parametrize("state", ["running", "exited"])
def test_only_the_start_that_runs_is_kept(served: Machine, state: str) -> None:
    served.containers[0]["state"] = state
    start = "100" if state == "exited" else "90"
    assert "no container of start" in str(refused(served, "engines", "engines", {**KEEP, "start": start}))
    assert len(served.containers) == 1


def test_a_name_that_is_taken_fails_with_what_docker_says(served: Machine) -> None:
    served.containers.append({"id": "x", "name": "engine-kept", "labels": {}, "state": "exited"})
    assert "docker cannot make engine-kept" in str(refused(served, "engines", "engines", KEEP))


def test_it_can_be_forgotten_beside_an_engine_that_goes_on(served: Machine) -> None:
    ask(served, "engines", "engines", {"action": "mark", "start": "100"})
    ask(served, "engines", "engines", KEEP)
    ask(served, "engines", "engines", {"action": "forget"})
    assert kept(served) is None
    assert [(one["name"], one["state"]) for one in served.containers] == [("engine", "running")]
    assert observe.observe(served, OWNER)["started"] == {"start": "100", "container": "1"}
    ask(served, "engines", "engines", {"action": "forget"})  # nothing is left to forget


def test_the_revert_of_the_node_removes_it_and_nothing_of_others(served: Machine) -> None:
    ask(served, "engines", "engines", KEEP)
    ask(served, "engines", "engines", {"action": "remove", "name": "engine"})
    other = {"id": "x", "name": "x", "labels": {"spark-fabric.kept": "spark-fabric/other/default"}, "state": "created"}
    served.containers.append(other)
    ask(served, "revert", "undo")
    assert served.containers == [other]


def test_nothing_that_an_engine_was_told_is_in_a_file(served: Machine) -> None:
    ask(served, "engines", "engines", KEEP)
    replace_engine(served)
    ask(served, "engines", "engines", {"action": "remove", "name": "engine"})
    ask(served, "engines", "engines", BACK)
    assert "hunter2" not in str(served.snapshot())
