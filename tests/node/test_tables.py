"""The engine's speculation tables on a node: told, replaced at once, taken away, and what is refused by name."""

import base64
from pathlib import Path
from typing import Any

import pytest

from node.digest import sha256
from node.journal import HOME, Journal
from node.request import BAD_REQUEST, ENGINE_ALIVE, FAILED, OTHER_OWNER, Request
from node.steps import Report
from node.system import System
from node.tables import LARGEST, tables
from node.transaction import Run
from tests.node.helpers import OWNER, ask, killed, refused, take
from tests.node.machine import Machine

FOLDER = "/data/state"
SPS, STS = (f"{FOLDER}/dspark_{name}.json" for name in ("sps", "sts"))
JOURNAL = f"{HOME}/lab/journal.json"
NEW = b'{"a": 1}'

pytestmark = pytest.mark.usefixtures("no_guard")


@pytest.fixture
def machine() -> Machine:
    """A node of ours with a folder of state."""
    machine = Machine()
    take(machine)
    machine.put(f"{FOLDER}/launch.json", "{}")
    return machine


def asked(action: str = "look", folder: str = FOLDER, **tables: bytes | None) -> dict[str, Any]:
    contents = {f"dspark_{name}.json": data and base64.b64encode(data).decode() for name, data in tables.items()}
    return {"action": action, "folder": folder, "tables": contents}


def test_tables_are_told_with_their_content_only_where_it_is_asked_for(machine: Machine) -> None:
    machine.put(SPS, NEW.decode())
    told = {"sha256": sha256(NEW), "size": len(NEW)}
    assert ask(machine, "tables", "", asked())["tables"] == {"dspark_sps.json": told, "dspark_sts.json": None}
    found = ask(machine, "tables", "", asked("read"))["tables"]["dspark_sps.json"]
    assert found == {**told, "content": base64.b64encode(NEW).decode()}


def test_a_table_is_replaced_at_once_readable_for_all_and_one_that_is_not_wanted_goes(machine: Machine) -> None:
    machine.put(SPS, "old", 0o600)
    machine.put(STS, "stale")
    answer = ask(machine, "tables", "", asked("write", sps=NEW, sts=None))
    assert answer["changed"] == [f"{SPS}: written, {len(NEW)} bytes", f"{STS}: removed"]
    assert (machine.read(SPS), machine.files[SPS].mode, machine.exists(STS)) == (NEW, 0o644, False)
    assert [name for name in machine.names(FOLDER) if name.startswith(".")] == []


def test_what_is_equal_and_what_nobody_names_is_left_untouched(machine: Machine) -> None:
    machine.put(SPS, NEW.decode(), 0o600)
    machine.put(STS, "other")
    before = dict(machine.files)
    machine.steps.clear()
    assert ask(machine, "tables", "", asked("write", sps=NEW))["changed"] == []
    assert machine.steps == []
    assert machine.files == before


def test_a_table_belongs_to_the_owner_of_its_folder(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    owners = []
    monkeypatch.setattr(machine, "folder", lambda _: {"owner": "1000:1001", "mode": "0700", "writable": True})
    monkeypatch.setattr(machine, "write", lambda path, _, meta: owners.append((path, meta.uid, meta.gid, meta.mode)))
    ask(machine, "tables", "", asked("write", sps=NEW))
    assert owners == [(SPS, 1000, 1001, 0o644)]


def test_a_link_in_the_place_of_a_table_is_neither_followed_nor_replaced(machine: Machine) -> None:
    machine.symlinks[SPS] = "/etc/shadow"
    machine.put(STS, "x" * (LARGEST + 1))
    for action in ("look", "read", "write"):
        failure = refused(machine, "tables", "", asked(action, sps=NEW, sts=NEW))
        assert (failure.code, len(failure.lines)) == (FAILED, 2)
        assert f"spark1 {SPS}: is a symbolic link, wanted the table itself" in failure.lines[0]
        assert f"spark1 {STS}: has more than {LARGEST} bytes" in failure.lines[1]
    assert machine.symlinks[SPS] == "/etc/shadow"


def test_nothing_is_told_or_changed_while_a_rank_of_the_stack_runs(machine: Machine) -> None:
    labels = {"spark-fabric.stack": OWNER.label()}
    engine = {"id": "1", "name": "spark-fabric-lab", "labels": labels, "state": "running"}
    machine.containers = [engine]
    failure = refused(machine, "tables", "", asked("write", sps=NEW))
    assert failure.code == ENGINE_ALIVE
    assert "spark1: engine container spark-fabric-lab is running, wanted no engine" in str(failure)
    assert "stop it first, on all nodes" in str(failure)
    machine.containers = [{**engine, "state": "exited"}, {**engine, "id": "2", "name": "other", "labels": {}}]
    assert ask(machine, "tables", "", asked("write", sps=NEW))["changed"]


def test_a_docker_that_does_not_answer_leaves_everything_as_it_is(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: Any) -> Any:
        message = "timed out"
        raise OSError(message)

    monkeypatch.setattr(machine, "docker_call", silent)
    assert "docker does not answer: timed out" in str(refused(machine, "tables", "", asked("write", sps=NEW)))
    machine.drop("/run/docker.sock")  # without docker there is no engine
    assert ask(machine, "tables", "", asked("write", sps=NEW))["changed"]


def test_a_folder_that_is_not_there_or_on_the_network_or_read_only_is_refused(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "spark1 /none: is no folder" in str(refused(machine, "tables", "", asked(folder="/none")))
    assert refused(machine, "tables", "", asked(folder="state")).code == BAD_REQUEST
    assert refused(machine, "tables", "", asked("remove")).code == BAD_REQUEST
    monkeypatch.setattr(machine, "folder", lambda _: {"owner": "0:0", "mode": "0755", "writable": False})
    assert "mounted read-only" in str(refused(machine, "tables", "", asked()))
    assert ask(machine, "tables", "", asked("read"))["changed"] == []  # of the head nothing is written
    machine.put("/proc/self/mounts", "head:/x /data nfs4 rw 0 0\n")
    assert "is on a file system of the network" in str(refused(machine, "tables", "", asked()))


def test_a_disk_that_is_full_is_told_with_the_table(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(machine, "write", full)
    failure = refused(machine, "tables", "", asked("write", sps=NEW))
    assert f"spark1 {SPS}: cannot be changed: No space left on device" in str(failure)


def test_only_a_node_of_ours_is_touched() -> None:
    assert refused(Machine(), "tables", "", asked()).code == OTHER_OWNER


def test_a_run_that_is_killed_leaves_the_old_table_or_the_new_one_and_the_next_completes_it(machine: Machine) -> None:
    machine.put(SPS, "old")
    at = 0
    while killed(twin := machine.copy(), at, "tables", "", asked("write", sps=NEW)):
        assert twin.read(SPS) in (b"old", NEW)
        ask(twin, "tables", "", asked("write", sps=NEW))
        assert twin.read(SPS) == NEW
        assert twin.names(FOLDER) == ["dspark_sps.json", "launch.json"]
        at += 1
    assert at > 2


def test_the_journal_knows_nothing_of_the_operators_folder(machine: Machine) -> None:
    before = machine.read(JOURNAL)
    ask(machine, "tables", "", asked("write", sps=NEW))
    assert machine.read(JOURNAL) == before


def test_on_a_real_disk_the_table_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "dspark_sps.json").write_text("old")
    (state / "dspark_sts.json").write_text("stale")

    class Real(System):
        """The real disk of a node of ours, without docker."""

        docker_socket = str(tmp_path / "none")

    system, desired = Real(), asked("write", str(state), sps=NEW, sts=None)
    request = Request(OWNER, "spark1", "", desired)
    tables(Run(system, request, Journal.load(system, OWNER), Report()))
    assert [one.name for one in state.iterdir()] == ["dspark_sps.json"]
    assert (state / "dspark_sps.json").read_bytes() == NEW
    assert (state / "dspark_sps.json").stat().st_mode & 0o777 == 0o644
