"""What is read of a checkpoint, what is not read again, and what goes with the stack."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from node import observe, receipts
from node.journal import RECEIPTS, folder
from node.request import Failure
from node.system import System
from tests.node.helpers import OWNER, ask, refused, take
from tests.node.machine import Machine

PLACE = "/data/weights"
NAMES = [f"model-{number:05d}-of-00006.safetensors" for number in range(1, 7)]


class Counting(System):
    """A machine whose root is a folder, and that counts what is read of a checkpoint."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root))
        self.opened: list[str] = []
        self.hours = 0.0
        self.asked_for: int | None = None  # how often somebody is there who asked; None: always

    def open_to_read(self, path: str) -> Any:
        self.opened.append(Path(path).name)
        return super().open_to_read(path)

    def clock(self) -> float:
        return self.hours * 3600

    def caller_gone(self) -> bool:
        if self.asked_for is None:
            return False
        self.asked_for -= 1
        return self.asked_for < 0


@pytest.fixture
def system(tmp_path: Path) -> Counting:
    """A node that is ours, with six shards."""
    made = tmp_path / PLACE.lstrip("/")
    made.mkdir(parents=True)
    for name in NAMES:
        (made / name).write_text(name)
    (tmp_path / folder("lab").lstrip("/")).mkdir(parents=True)
    return Counting(tmp_path)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def weigh(system: System, names: list[str] | None = None) -> dict[str, Any]:
    return receipts.weigh(system, "lab", {"path": PLACE, "files": names or NAMES})


def test_every_file_is_read_once_and_not_again(system: Counting) -> None:
    wanted = {name: sha256(name) for name in NAMES}
    assert weigh(system) == {"read": wanted, "missing": [], "left": 0}
    assert sorted(system.opened) == NAMES
    assert weigh(system)["read"] == wanted
    assert len(system.opened) == len(NAMES)
    assert receipts.valid(system, "lab", PLACE) == wanted


def touched(file: Path) -> None:
    os.utime(file, ns=(1, 1))


def replaced(file: Path) -> None:
    """The same in everything but the inode."""
    old = file.stat()
    other = file.with_name("other")
    other.write_text(file.read_text())
    os.utime(other, ns=(old.st_mtime_ns, old.st_mtime_ns))
    other.rename(file)


def copied_over(file: Path) -> None:
    """With `cp -p`: other bytes in the same file, and the time of the one that was copied."""
    old = file.stat()
    other = file.with_name("other")
    other.write_text(file.read_text()[::-1])
    os.utime(other, ns=(old.st_mtime_ns, old.st_mtime_ns))
    time.sleep(0.02)  # longer than a tick of the clock that files get their times from
    subprocess.run(["cp", "-p", other, file], check=True)
    new = file.stat()
    assert (new.st_size, new.st_mtime_ns, new.st_ino) == (old.st_size, old.st_mtime_ns, old.st_ino)


def longer(file: Path) -> None:
    old = file.stat()
    with file.open("a") as end:
        end.write("x")
    os.utime(file, ns=(old.st_mtime_ns, old.st_mtime_ns))


@pytest.mark.parametrize("change", [touched, replaced, copied_over, longer])
def test_a_file_that_may_be_another_is_read_again_and_no_other(change: Any, system: Counting, tmp_path: Path) -> None:
    weigh(system)
    file = tmp_path / PLACE.lstrip("/") / NAMES[2]
    change(file)
    assert NAMES[2] not in receipts.valid(system, "lab", PLACE)
    system.opened.clear()
    assert weigh(system)["read"][NAMES[2]] == sha256(file.read_text())
    assert system.opened == [NAMES[2]]


def test_a_call_ends_after_its_time_and_the_next_one_goes_on(system: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    """So its caller can tell how far it is, and a killed one has lost little."""
    opened = Counting.open_to_read

    def slow(self: Counting, path: str) -> Any:
        self.hours += 1
        return opened(self, path)

    monkeypatch.setattr(Counting, "open_to_read", slow)
    first = weigh(system)
    assert (len(first["read"]), first["left"]) == (4, 2)
    assert weigh(system)["left"] == 0


def test_of_a_killed_run_no_file_is_read_to_its_end(system: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds the lock, and a shard takes many seconds."""
    monkeypatch.setattr(receipts, "PIECE", 4)
    system.asked_for = 2
    with pytest.raises(Failure, match=f"whoever asked is gone: .*/{NAMES[0]} was not read to its end"):
        weigh(system, NAMES[:1])
    assert system.asked_for == -1  # the third of its eight pieces was the last
    assert receipts.valid(system, "lab", PLACE) == {}


def test_nothing_of_what_is_read_stays_in_memory(system: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece is dropped before the next one is read: an engine needs the room."""
    dropped = []

    def drop(handle: int, start: int, length: int, advice: int) -> None:
        assert (start, advice) == (0, os.POSIX_FADV_DONTNEED)
        dropped.append(length)

    monkeypatch.setattr(receipts, "PIECE", 8)
    monkeypatch.setattr(os, "posix_fadvise", drop)
    weigh(system, NAMES[:1])
    assert dropped == [8, 16, 24, 32]
    assert len(NAMES[0]) == 32


def test_what_cannot_be_read_is_told_and_the_rest_is_read(system: Counting, tmp_path: Path) -> None:
    (tmp_path / PLACE.lstrip("/") / NAMES[0]).unlink()
    found = weigh(system)
    assert (found["missing"], found["left"], len(found["read"])) == ([NAMES[0]], 0, 5)


def test_a_file_that_changes_while_it_is_read_gets_no_receipt(
    system: Counting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / PLACE.lstrip("/") / NAMES[0]
    opened = Counting.open_to_read

    def copying(self: Counting, path: str) -> Any:
        touched(file)
        return opened(self, path)

    monkeypatch.setattr(Counting, "open_to_read", copying)
    with pytest.raises(Failure, match=f"{NAMES[0]} changed while it was read"):
        weigh(system, NAMES[:1])
    assert receipts.valid(system, "lab", PLACE) == {}


def test_receipts_are_of_one_folder_and_broken_ones_are_none(system: Counting, tmp_path: Path) -> None:
    weigh(system)
    kept = tmp_path / f"{folder('lab')}/{RECEIPTS}".lstrip("/")
    (tmp_path / "data/other").mkdir()
    (tmp_path / "data/other" / NAMES[0]).write_text("y")
    receipts.weigh(system, "lab", {"path": "/data/other", "files": NAMES[:1]})
    assert json.loads(kept.read_text()).keys() == {"/data/other"}
    kept.write_text("{")
    assert receipts.valid(system, "lab", PLACE) == {}
    assert weigh(system)["left"] == 0


def test_a_look_tells_what_was_read_and_reads_nothing(system: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    weigh(system)
    monkeypatch.setattr(receipts, "_read", None)
    found = observe.observe(system, OWNER, ("weights",), weights=PLACE)["weights"]
    assert found["read"] == {name: sha256(name) for name in NAMES}


def test_nothing_is_kept_on_a_node_that_is_not_ours_and_all_of_it_goes_with_us(machine: Machine) -> None:
    desired = {"path": PLACE, "files": []}
    assert refused(machine, "weigh", "weights", desired).code == 10
    take(machine)
    assert ask(machine, "weigh", "weights", desired) == {"read": {}, "missing": [], "left": 0}
    machine.put(f"{folder('lab')}/{RECEIPTS}", "{}")
    ask(machine, "revert", "undo")
    assert not machine.exists(folder("lab"))
