"""The library on the node: put there once, removed again, and a file of the operator's that is only looked at."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from lab import library
from node import elf, nccl, sent, stages
from node.journal import HOME, Journal
from node.request import BAD_REQUEST, ENGINE_ALIVE, FAILED, Failure
from node.run import TIMED_OUT, Result
from node.system import System
from node.transaction import refuse_unknown
from tests.node.helpers import OWNER, ask, killed, refused, take
from tests.node.machine import Machine

PATCHED = library.content(library.KINDS["patched"], "x86_64")
OTHER = library.content(library.KINDS["patched"], "x86_64", edition=2)
THEIRS = "/opt/nccl/libnccl.so.2.30.7"
OFF = {"state": "off"}
STORE = f"{HOME}/lab/nccl"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def wanted(data: bytes = PATCHED) -> dict[str, Any]:
    """A library that is sent."""
    path = sent.place("lab", "nccl", sha256(data), nccl.NAME)
    return {"state": "on", "sha256": sha256(data), "size": len(data), "source": "sent", "path": path}


def theirs(data: bytes = PATCHED) -> dict[str, Any]:
    """A library of the operator's on the node."""
    return {"state": "on", "sha256": sha256(data), "source": "node", "path": THEIRS}


def install(machine: Machine, data: bytes = PATCHED, content: bytes | None = None) -> dict[str, Any]:
    """Send what the node wants, as the operator's side does."""
    desired = wanted(data)
    if not sent.wants(machine, desired)["wants"]:
        return ask(machine, "apply", "nccl", desired)
    return ask(machine, "install", "nccl", desired, content=io.BytesIO(data if content is None else content))


def put(machine: Machine, path: str, data: bytes, mode: int = 0o644) -> None:
    machine._fill(path, data, mode)


def codes(machine: Machine, desired: dict[str, Any]) -> list[str]:
    return [one["code"] for one in ask(machine, "check", "nccl", desired)["deviations"]["nccl"]]


@pytest.fixture
def ours(machine: Machine) -> Machine:
    """A machine that belongs to the stack."""
    take(machine)
    return machine


# What is sent


def test_a_library_comes_once_lies_below_its_digest_and_leaves_no_trace(machine: Machine) -> None:
    before = machine.snapshot()
    take(machine)
    assert sent.wants(machine, wanted()) == {"wants": [wanted()["path"]]}
    assert install(machine)["changed"] == [f"{wanted()['path']}: put there, {len(PATCHED)} bytes"]
    file = machine.files[f"{STORE}/{sha256(PATCHED)}/libnccl.so.2"]
    assert (file.data, file.mode) == (PATCHED, 0o644)
    assert sent.wants(machine, wanted()) == {"wants": []}
    steps = len(machine.steps)
    assert install(machine)["changed"] == []
    assert len(machine.steps) == steps
    ask(machine, "revert", "undo")
    assert machine.snapshot() == before


def test_another_library_takes_the_place_of_the_first(ours: Machine) -> None:
    install(ours)
    install(ours, OTHER)
    assert ours.names(STORE) == [sha256(OTHER)]


def test_off_removes_the_library(ours: Machine) -> None:
    before = ours.snapshot()
    install(ours)
    ask(ours, "apply", "nccl", OFF)
    assert not ours.exists(STORE)
    assert ask(ours, "apply", "nccl", OFF)["changed"] == []
    assert {path for path in ours.snapshot() if path.startswith(STORE)} == set()
    assert {path for path in before if path not in ours.snapshot()} == set()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (PATCHED[:500], f"500 of {len(PATCHED)} bytes came"),
        (b"", f"0 of {len(PATCHED)} bytes came"),
        (bytes(len(PATCHED)), "it has changed since the preview"),
    ],
)
def test_what_comes_cut_or_changed_is_not_put_there(content: bytes, said: str, ours: Machine) -> None:
    install(ours, OTHER)
    failure = refused(ours, "install", "nccl", wanted(), content=io.BytesIO(content))
    assert failure.code == FAILED
    assert said in str(failure)
    assert ours.names(f"{STORE}/{sha256(OTHER)}") == ["libnccl.so.2"]  # the old one is whole
    assert ours.names(f"{STORE}/{sha256(PATCHED)}") == []
    install(ours)
    assert ours.names(STORE) == [sha256(PATCHED)]


def test_an_apply_without_content_says_what_to_do(ours: Machine) -> None:
    failure = refused(ours, "apply", "nccl", wanted())
    assert "nothing was sent: run up again" in str(failure)


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        f"{HOME}/other/nccl/{'0' * 64}/libnccl.so.2",
        f"{HOME}/lab/journal.json",
        f"{HOME}/lab/nccl/{'0' * 64}/../x",
        f"{HOME}/lab/blobs/{'0' * 64}",
    ],
)
def test_nothing_is_put_outside_of_the_stacks_own_folder(path: str, ours: Machine) -> None:
    before = ours.snapshot()
    failure = refused(ours, "install", "nccl", {**wanted(), "path": path}, content=io.BytesIO(PATCHED))
    assert failure.code == BAD_REQUEST
    assert ours.snapshot() == before


def test_a_running_engine_is_not_disturbed(ours: Machine) -> None:
    install(ours)
    label = {"spark-fabric.stack": OWNER.label()}
    ours.containers = [{"id": "c1", "name": "engine", "labels": label, "state": "running"}]
    for desired in (wanted(OTHER), OFF):
        assert refused(ours, "apply", "nccl", desired).code == ENGINE_ALIVE
    assert refused(ours, "revert", "nccl").code == ENGINE_ALIVE
    assert ours.names(STORE) == [sha256(PATCHED)]


def test_files_whose_journal_was_lost_are_removed_too(machine: Machine) -> None:
    before = machine.snapshot()
    take(machine)
    install(machine)
    machine.drop(f"{HOME}/lab/journal.json")
    ask(machine, "revert", "undo")
    assert machine.snapshot() == before


def test_a_folder_among_files_whose_journal_was_lost_stays(tmp_path: Path) -> None:
    own = tmp_path / f"{HOME}/lab/nccl/{'a' * 64}".lstrip("/")
    (own / "theirs").mkdir(parents=True)
    (own / nccl.NAME).write_bytes(PATCHED)
    sent.clear(System(str(tmp_path)), f"{HOME}/lab")
    assert [path.name for path in own.iterdir()] == ["theirs"]


def test_a_library_that_is_there_already_is_taken_over(ours: Machine) -> None:
    install(ours)
    ours.drop(f"{HOME}/lab/journal.json")
    assert codes(ours, wanted()) == ["journal.absent"]
    ask(ours, "apply", "nccl", wanted())
    assert codes(ours, wanted()) == []
    ask(ours, "apply", "nccl", OFF)
    assert not ours.exists(STORE)


# Drift


def _byte(machine: Machine) -> None:
    put(machine, wanted()["path"], PATCHED[:-1] + b"x")


def _gone(machine: Machine) -> None:
    machine.drop(wanted()["path"])


def _mode(machine: Machine) -> None:
    put(machine, wanted()["path"], PATCHED, 0o755)


@pytest.mark.parametrize(("harm", "code"), [(_byte, "file.content"), (_gone, "file.missing"), (_mode, "file.mode")])
def test_a_library_that_somebody_touched_is_drift_and_comes_again(harm: Any, code: str, ours: Machine) -> None:
    install(ours)
    harm(ours)
    answer = ask(ours, "check", "nccl", wanted())["deviations"]["nccl"]
    assert [(one["code"], one["disruptive"]) for one in answer] == [(code, True)]
    install(ours)
    assert codes(ours, wanted()) == []
    assert ours.files[wanted()["path"]].mode == 0o644


# A file of the operator's


def test_a_file_of_the_operators_is_neither_written_nor_removed(ours: Machine) -> None:
    put(ours, THEIRS, PATCHED, 0o555)
    before = ours.files[THEIRS]
    assert sent.wants(ours, theirs()) == {"wants": []}
    ask(ours, "apply", "nccl", theirs())
    assert codes(ours, theirs()) == []
    ask(ours, "revert", "undo")
    assert ours.files[THEIRS] == before


@pytest.mark.parametrize(("data", "seen"), [(None, "is missing"), (OTHER, f"is {sha256(OTHER)[:12]}")])
def test_another_file_of_the_operators_is_refused(data: bytes | None, seen: str, ours: Machine) -> None:
    if data:
        put(ours, THEIRS, data)
    failure = refused(ours, "apply", "nccl", theirs())
    assert str(failure) == f"spark1: {THEIRS}: {seen}, plan wants the library {sha256(PATCHED)[:12]}"


def test_going_over_to_a_file_of_the_operators_removes_ours(ours: Machine) -> None:
    put(ours, THEIRS, PATCHED)
    install(ours)
    ask(ours, "apply", "nccl", theirs())
    assert not ours.exists(STORE)
    assert codes(ours, theirs()) == []


# Looking


def test_a_folder_and_a_rival_beside_the_file_are_looked_at(ours: Machine) -> None:
    put(ours, THEIRS, PATCHED)
    put(ours, "/opt/nccl/libnccl.so.2", OTHER)
    for named in ("/opt/nccl", "/opt/nccl/", THEIRS):
        files = nccl.observe(ours, "lab", [named])["files"]
        assert {path: one["sha256"] for path, one in files.items()} == {
            THEIRS: sha256(PATCHED),
            "/opt/nccl/libnccl.so.2": sha256(OTHER),
        }
    assert nccl.observe(ours, "lab", ["/opt/other"]) == {"files": {}, "silent": []}


def test_a_library_on_a_network_that_does_not_answer_is_not_touched(
    ours: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = "/opt/link/libnccl.so.2"  # leads there, which only a look would tell
    ours.put(THEIRS, "x")
    ours.put("/proc/self/mounts", "head:/x /models nfs4 rw 0 0\n")
    dead = ("/models", "/opt/link")
    ours.hooks["head"] = lambda argv: Result(TIMED_OUT if argv[-1].startswith(dead) else 1)
    opened = ours.open_to_read

    def open_to_read(path: str) -> BinaryIO | None:
        assert not path.startswith(dead), f"{path} would hang"
        return opened(path)

    monkeypatch.setattr(ours, "open_to_read", open_to_read)
    seen = nccl.observe(ours, "lab", [THEIRS, link, "/models/nccl"])
    assert THEIRS in seen["files"]
    assert {link, "/models/nccl", "/models/nccl/libnccl.so.2"} <= set(seen["silent"])
    desired = {"state": "on", "source": "node", "sha256": "0" * 64, "path": link}
    observed = {"nccl": seen}
    assert "does not answer" in nccl.deviations(desired, observed)[-1].text()


def test_what_is_seen_of_a_file_is_what_it_says_of_itself(ours: Machine) -> None:
    put(ours, THEIRS, library.content(library.KINDS["no-extended"], "aarch64"), 0o640)
    seen = nccl.observe(ours, None, [THEIRS])["files"][THEIRS]
    assert (seen["elf_class"], seen["elf_machine"], seen["mode"]) == (64, elf.MACHINES["aarch64"], "0640")
    assert seen["markers"] == [elf.RING]


# A kill at any point


APPLY = ("install", "nccl", wanted())
RUNS = {"first": ("nothing", APPLY), "another": ("other", APPLY), "off": ("patched", ("apply", "nccl", OFF)),
        "undo": ("patched", ("revert", "undo"))}  # fmt: skip


@pytest.mark.parametrize("run", RUNS)
def test_a_killed_run_is_completed_or_undone_by_whatever_comes_next(run: str) -> None:
    before, request = RUNS[run]
    machine = Machine()
    clean = machine.snapshot()
    take(machine)
    if before != "nothing":
        install(machine, {"other": OTHER, "patched": PATCHED}[before])
    at = 0
    content = {"content": io.BytesIO(PATCHED)} if request[0] == "install" else {}
    while killed(hurt := machine.copy(), at, *request, **content):
        where = f"after a kill at {at}: {hurt.steps[-1]}"
        for way in (PATCHED, None):
            healed = hurt.copy()
            if not healed.exists(f"{HOME}/owner.json"):
                take(healed)
            if way:
                install(healed, way)
                assert healed.names(STORE) == [sha256(PATCHED)], where
                assert healed.names(f"{STORE}/{sha256(PATCHED)}") == ["libnccl.so.2"], where
                assert codes(healed, wanted()) == [], where
            ask(healed, "revert", "undo")
            assert healed.snapshot() == clean, where
        at += 1
        if content:
            content["content"].seek(0)
    assert at > 8


def test_an_older_program_does_not_touch_a_journal_with_files_that_were_sent(
    ours: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(ours)
    monkeypatch.delitem(stages.UNDO, sent.KIND)
    with pytest.raises(Failure, match="placed, unknown here"):
        refuse_unknown(Journal.load(ours, OWNER))
