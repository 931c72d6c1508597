"""Who may change a node, and when: owner, lock, engines and RDMA users, journals of other programs."""

import json
from typing import Any

import pytest

from node import observe, owner
from node.docker import PACKS
from node.request import Owner
from tests.node.helpers import OWNER, ask, plane, plane_off, refused, relay, take
from tests.node.machine import Machine

pytestmark = pytest.mark.usefixtures("no_guard")

OTHER_STATE = Owner("spark-fabric", "lab", "fleet-1", "state-2")
OTHER_STACK = Owner("spark-fabric", "ring", "fleet-2", "state-3")
JOURNAL = "/var/lib/spark-fabric/lab/journal.json"


def _container(label: str = OWNER.label(), state: str = "running", name: str = "spark-fabric-lab") -> dict[str, object]:
    labels = {"spark-fabric.stack": label} if label else {}
    return {"id": f"{name}-id", "name": name, "labels": labels, "state": state}


def test_a_stage_before_the_node_stage_is_refused(machine: Machine) -> None:
    assert refused(machine, "apply", "plane0", plane()).code == 10


def test_another_stack_is_refused_by_name(machine: Machine) -> None:
    take(machine)
    failure = refused(machine, "apply", "node", {"rank": 0}, OTHER_STACK)
    assert failure.code == 10
    assert "stack lab of project spark-fabric" in str(failure)


def test_another_checkout_of_the_same_stack_is_refused_until_it_adopts(machine: Machine) -> None:
    take(machine)
    ask(machine, "apply", "plane0", plane())
    failure = refused(machine, "apply", "node", {"name": "spark1", "rank": 0}, OTHER_STATE)
    assert failure.code == 10
    assert "fleet adopt" in str(failure)
    ask(machine, "adopt", owner=OTHER_STATE)
    assert refused(machine, "apply", "plane0", plane(), OTHER_STATE).code == 10
    ask(machine, "apply", "node", {"name": "spark1", "rank": 0}, OTHER_STATE)
    assert ask(machine, "apply", "plane0", plane(), OTHER_STATE)["changed"] == []
    assert refused(machine, "apply", "plane0", plane()).code == 10


def test_adopting_another_stacks_node_needs_force(machine: Machine) -> None:
    take(machine)
    assert refused(machine, "adopt", owner=OTHER_STACK).code == 10


def test_the_owner_goes_on_while_his_node_is_adoptable(machine: Machine) -> None:
    take(machine)
    ask(machine, "adopt")
    take(machine)
    assert observe.observe(machine, OWNER, ("owner",))["owner"]["adoptable"] is False
    ask(machine, "apply", "plane0", plane())


@pytest.mark.parametrize("owner", [OTHER_STATE, OTHER_STACK])
def test_a_revert_by_somebody_else_ends_well_and_does_nothing(machine: Machine, owner: Owner) -> None:
    take(machine)
    ask(machine, "apply", "plane0", plane())
    before = machine.snapshot()
    for stage in ("plane0", "node", "undo"):
        answer = ask(machine, "revert", stage, owner=owner)
        assert "not ours" in answer["notes"][0]
    assert machine.snapshot() == before


def test_a_revert_of_a_machine_that_was_installed_anew_ends_well(machine: Machine) -> None:
    before = machine.snapshot()
    for stage in ("relay", "plane1", "plane0", "node"):
        assert "nothing to revert" in ask(machine, "revert", stage)["notes"][0]
    assert "installed anew" in ask(machine, "revert", "undo")["notes"][0]
    assert machine.snapshot() == before


@pytest.mark.parametrize("verb", [("apply", "plane0", plane()), ("revert", "undo")])
def test_a_journal_of_a_newer_program_is_refused(machine: Machine, verb: tuple[str, ...]) -> None:
    take(machine)
    journal = json.loads(machine.text(JOURNAL) or "")
    machine.put(JOURNAL, json.dumps({**journal, "schema": 2}))
    before = machine.snapshot()
    failure = refused(machine, *verb)
    assert failure.code == 13
    assert "newer checkout" in str(failure)
    assert machine.snapshot() == before
    assert any("schema 2" in error for error in observe.observe(machine, OWNER)["errors"])


def test_a_stage_that_only_a_newer_program_knows_is_not_thrown_away(machine: Machine) -> None:
    take(machine)
    journal = json.loads(machine.text(JOURNAL) or "")
    journal["stages"]["teleport"] = {**journal["stages"]["node"], "undo": []}
    machine.put(JOURNAL, json.dumps(journal))
    assert refused(machine, "revert", "undo").code == 13


def test_a_lock_that_stays_names_its_holder(machine: Machine) -> None:
    machine.lock_holder = "ann@desk (pid 4711)"
    start = machine.time
    failure = refused(machine, "apply", "node", {"rank": 0})
    assert failure.code == 11
    assert "ann@desk (pid 4711)" in str(failure)
    assert 59 < machine.time - start < 62
    seen = observe.observe(machine, OWNER)
    assert seen["lock"] == {"holder": "ann@desk (pid 4711)", "pid": 7, "since": 1.0}


@pytest.mark.parametrize("state", ["running", "paused", "restarting"])
@pytest.mark.parametrize(
    ("stage", "desired"), [("plane0", plane(mtu=8000)), ("plane0", plane_off()), ("relay", {"state": "off"})]
)
def test_nothing_disruptive_happens_under_an_engine(
    machine: Machine, state: str, stage: str, desired: dict[str, object]
) -> None:
    """F029"""
    take(machine)
    ask(machine, "apply", "plane0", plane())
    ask(machine, "apply", "relay", relay())
    machine.containers = [_container(state=state)]
    before = machine.snapshot()
    for request in (("apply", stage, desired), ("revert", stage), ("revert", "undo")):
        failure = refused(machine, *request)
        assert failure.code == 9
        assert "spark-fabric-lab" in str(failure)
    assert machine.snapshot() == before
    assert ask(machine, "apply", "plane0", plane())["changed"] == []
    machine.containers = [_container(state="exited")]
    ask(machine, "apply", stage, desired)


def test_drift_that_disturbs_nobody_is_repaired_under_an_engine(machine: Machine) -> None:
    take(machine)
    ask(machine, "apply", "plane0", plane())
    ask(machine, "apply", "relay", relay())
    machine.containers = [_container()]
    machine.routes = [route for route in machine.routes if route["protocol"] != "static"]
    machine.chains["FORWARD"].clear()
    assert ask(machine, "apply", "plane0", plane())["changed"]
    assert ask(machine, "apply", "relay", relay())["changed"]
    assert len(machine.chains["FORWARD"]) == 4
    machine.links["enp1s0f0np0"]["mtu"] = 1500
    assert refused(machine, "apply", "plane0", plane()).code == 9


def test_a_process_that_uses_rdma_is_named(machine: Machine) -> None:
    take(machine)
    machine.put("/proc/4242/cmdline", "ib_write_bw\0-d\0rocep1s0f0\0")
    machine.symlinks["/proc/4242/fd/7"] = "/dev/infiniband/uverbs0"
    failure = refused(machine, "apply", "plane0", plane())
    assert failure.code == 9
    assert "process 4242 uses RDMA: ib_write_bw -d rocep1s0f0" in str(failure)


def test_a_docker_that_does_not_answer_is_no_proof_of_silence(machine: Machine) -> None:
    take(machine)

    def dead(method: str, path: str, timeout: float, body: bytes = b"") -> tuple[int, bytes]:
        raise OSError("no answer")

    machine.docker_call = dead  # type: ignore[method-assign]
    machine.put("/proc/77/cgroup", "0::/system.slice/docker-abc.scope")
    machine.put("/proc/77/comm", "python3")
    assert "77 python3" in str(refused(machine, "apply", "plane0", plane()))
    machine.drop("/proc/77/cgroup")
    ask(machine, "apply", "plane0", plane())


def test_engines_of_this_stack_are_stopped_and_removed_and_no_others(machine: Machine) -> None:
    take(machine)
    other = _container("spark-fabric/ring/fleet-2", name="other")
    machine.containers = [_container(), other]
    ask(machine, "engines", "engines", {"action": "stop", "grace": 1})
    assert machine.containers[0]["state"] == "exited"
    ask(machine, "engines", "engines", {"action": "remove", "grace": 1, "name": "spark-fabric-lab"})
    assert machine.containers == [other]
    assert ask(machine, "engines", "engines", {"action": "remove", "name": "spark-fabric-lab"})["changed"] == []


@pytest.mark.parametrize(
    ("verb", "stage", "desired"),
    [
        ("engines", "engines", {"action": "stop"}),
        ("engines", "engines", {"action": "remove", "name": "spark-fabric-lab"}),
        ("revert", "undo", {}),
    ],
)
def test_what_a_killed_packing_left_goes_with_the_engines_and_that_of_others_stays(
    verb: str, stage: str, desired: dict[str, Any], machine: Machine
) -> None:
    take(machine)
    packing = {"id": "1", "name": "spark-fabric-lab-pack", "labels": {PACKS: OWNER.label()}, "state": "running"}
    other = {"id": "2", "name": "other-pack", "labels": {PACKS: "spark-fabric/ring/fleet-2"}, "state": "running"}
    machine.containers = [packing, other]
    answer = ask(machine, verb, stage, desired)
    assert machine.containers == [other]
    assert "container spark-fabric-lab-pack: removed, left by a packing that was ended" in answer["notes"]


def test_who_asks_whose_the_engines_are_changes_nothing_and_is_refused_on_the_node_of_another_state(
    machine: Machine,
) -> None:
    before = machine.snapshot()
    assert ask(machine, "engines", "engines", {"action": "ours"})["changed"] == []
    assert machine.snapshot() == before
    take(machine)
    machine.put(owner.PATH, json.dumps({**OWNER.to_json(), "state_id": "another"}))
    machine.containers = [_container()]
    for action in ("ours", "stop"):
        assert refused(machine, "engines", "engines", {"action": action, "grace": 1}).code == 10
    assert machine.containers[0]["state"] == "running"


def test_a_container_in_our_place_without_our_label_is_refused_by_name(machine: Machine) -> None:
    take(machine)
    machine.containers = [_container("")]
    failure = refused(machine, "engines", "engines", {"action": "remove", "name": "spark-fabric-lab"})
    assert failure.code == 10
    assert "docker rm -f spark-fabric-lab" in str(failure)
    assert len(machine.containers) == 1


@pytest.mark.parametrize("state", ["running", "exited"])
def test_a_start_is_complete_once_its_container_is_there_even_if_it_has_ended(machine: Machine, state: str) -> None:
    take(machine)
    container = _container(state=state)
    container["labels"] = {"spark-fabric.stack": OWNER.label(), "spark-fabric.start": "100"}
    machine.containers = [container]
    ask(machine, "engines", "engines", {"action": "mark", "start": "100"})
    assert observe.observe(machine, OWNER)["started"] == {"start": "100", "container": "spark-fabric-lab-id"}
    assert "spark-fabric-lab of start 100" in str(
        refused(machine, "engines", "engines", {"action": "mark", "start": "2"})
    )
    machine.containers = []
    assert "there is none" in str(refused(machine, "engines", "engines", {"action": "mark", "start": "100"}))


def test_force_reverts_under_an_engine(machine: Machine) -> None:
    take(machine)
    before = Machine().snapshot()
    ask(machine, "apply", "plane0", plane())
    machine.containers = [_container()]
    ask(machine, "revert", "undo", force=True)
    assert machine.snapshot()["links"] == before["links"]
