"""What a node says of the folder of weights: real folders, and a network that does not answer."""

from __future__ import annotations

import hashlib
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from node import observe, weights
from node.run import TIMED_OUT, Result
from node.system import System
from tests.node.helpers import OWNER
from tests.node.machine import Machine

FOLDER = "/data/weights"
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = json.dumps({"metadata": {}, "weight_map": {"a": ONE, "b": TWO, "c": ONE}})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole checkpoint on a machine whose root is the test's folder."""
    made = tmp_path / FOLDER.lstrip("/")
    made.mkdir(parents=True)
    (made / "config.json").write_text("{}")
    (made / weights.INDEX).write_text(INDEX)
    (made / ONE).write_text("12345")
    (made / TWO).write_text("1234567")
    (made / "tokenizer.json").write_text("{}")
    return made


@pytest.fixture
def seen(tmp_path: Path, folder: Path) -> Any:
    """Looks, and compares the folder before and after."""

    def look() -> dict[str, Any]:
        before = {file.name: os.lstat(file) for file in folder.iterdir()}
        found = weights.observe(System(str(tmp_path)), FOLDER)
        after = {file.name: os.lstat(file) for file in folder.iterdir()}
        assert {name: (one.st_mtime_ns, one.st_ctime_ns, one.st_size) for name, one in before.items()} == {
            name: (one.st_mtime_ns, one.st_ctime_ns, one.st_size) for name, one in after.items()
        }
        return found

    return look


def sound(size: int) -> dict[str, Any]:
    return {"size": size, "readable": True, "link": None}


def test_a_whole_checkpoint_is_told_by_digests_names_and_sizes(seen: Any) -> None:
    assert seen() == {
        "path": FOLDER,
        "network": False,
        "there": True,
        "config": hashlib.sha256(b"{}").hexdigest(),
        "index": hashlib.sha256(INDEX.encode()).hexdigest(),
        "listed": [ONE, TWO],
        "files": {
            "config.json": sound(2),
            ONE: sound(5),
            TWO: sound(7),
            weights.INDEX: sound(len(INDEX)),
        },
    }


def test_no_shard_is_read_beyond_its_beginning(folder: Path, seen: Any) -> None:
    """A look takes no longer for larger weights."""
    with (folder / ONE).open("wb") as file:
        file.truncate(1 << 43)  # all holes: to read it would take hours
    assert seen()["files"][ONE] == sound(1 << 43)


def test_a_missing_folder_and_a_file_in_its_place_are_no_folder(folder: Path, tmp_path: Path) -> None:
    other = weights.observe(System(str(tmp_path)), "/data/none")
    assert (other["there"], other["files"], other["network"]) == (False, {}, False)
    assert not weights.observe(System(str(tmp_path)), f"{FOLDER}/{ONE}")["there"]
    assert folder.is_dir()


def test_an_empty_shard_has_no_size_and_a_missing_one_is_listed_only(folder: Path, seen: Any) -> None:
    (folder / ONE).write_text("")
    (folder / TWO).unlink()
    found = seen()
    assert found["files"][ONE] == sound(0)
    assert TWO in found["listed"]
    assert TWO not in found["files"]


def test_a_shard_that_no_index_lists_is_told_too(folder: Path, seen: Any) -> None:
    (folder / "model-00003-of-00003.safetensors").write_text("x")
    found = seen()
    assert found["files"]["model-00003-of-00003.safetensors"] == sound(1)
    assert found["listed"] == [ONE, TWO]


def test_what_is_no_file_cannot_be_read(folder: Path, seen: Any) -> None:
    (folder / ONE).unlink()
    (folder / TWO).unlink()
    (folder / ONE).mkdir()
    os.mkfifo(folder / TWO)  # opening it would wait for a writer
    found = seen()["files"]
    assert not found[ONE]["readable"]
    assert not found[TWO]["readable"]


def test_a_disk_that_fails_at_reading_is_told(seen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(System, "open_to_read", lambda *_: Broken())
    found = seen()
    assert found["files"][ONE] == {"size": 5, "readable": False, "link": None}
    assert (found["config"], found["index"], found["listed"]) == (None, None, None)


class Broken(io.BytesIO):
    """A file on a disk that fails."""

    def read(self, size: int | None = -1) -> bytes:  # noqa: ARG002
        raise OSError(5, "Input/output error")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"weight_map": []}',
        '{"weight_map": {}}',
        '{"weight_map": {"a": 1}}',
        '{"weight_map": {"a": ["x"]}}',
        '{"weight_map": {"a": "../x.safetensors"}}',
        '{"weight_map": {"a": ""}}',
        "[" * 100_000,
    ],
    ids=lambda text: text[:40],
)
def test_an_index_that_names_no_shards_lists_none(text: str, folder: Path, seen: Any) -> None:
    (folder / weights.INDEX).write_text(text)
    found = seen()
    assert found["listed"] is None
    assert found["index"] == hashlib.sha256(text.encode()).hexdigest()
    assert {ONE, TWO} <= found["files"].keys()


def test_a_folder_without_config_and_index_says_so(folder: Path, seen: Any) -> None:
    (folder / "config.json").unlink()
    (folder / weights.INDEX).unlink()
    found = seen()
    assert (found["config"], found["index"], found["listed"]) == (None, None, None)
    assert found["files"].keys() == {ONE, TWO}


def test_a_large_file_in_the_place_of_an_index_is_not_taken_into_memory(folder: Path, seen: Any) -> None:
    with (folder / weights.INDEX).open("wb") as file:
        file.truncate(weights.LARGEST + 1)
    assert seen()["index"] is None


# Links


def test_links_out_of_the_folder_are_not_followed(folder: Path, seen: Any) -> None:
    """The container gets the folder alone, so they lead nowhere there."""
    blobs = folder.parent / "blobs"
    blobs.mkdir()
    for name in (ONE, "config.json"):
        (folder / name).rename(blobs / name)
        (folder / name).symlink_to(f"../blobs/{name}")
    found = seen()
    assert found["files"][ONE] == {"size": None, "readable": False, "link": f"../blobs/{ONE}"}
    assert found["config"] is None


def test_an_absolute_link_into_the_folder_leads_elsewhere_in_the_container(folder: Path, seen: Any) -> None:
    (folder / TWO).unlink()
    (folder / TWO).symlink_to(f"{FOLDER}/{ONE}")
    assert seen()["files"][TWO]["link"] == f"{FOLDER}/{ONE}"


def test_links_within_the_folder_are_files(folder: Path, seen: Any) -> None:
    (folder / "blobs").mkdir()
    (folder / ONE).rename(folder / "blobs" / "x")
    (folder / "y").symlink_to("blobs/x")
    (folder / ONE).symlink_to("y")
    assert seen()["files"][ONE] == sound(5)


@pytest.mark.parametrize("target", ["nowhere", ONE])
def test_a_link_that_leads_nowhere_or_to_itself_cannot_be_read(target: str, folder: Path, seen: Any) -> None:
    (folder / ONE).unlink()
    (folder / ONE).symlink_to(target)
    found = seen()["files"][ONE]
    assert (found["size"], found["readable"]) == (None, False)


def test_a_folder_that_is_a_link_itself_is_that_folder(folder: Path, tmp_path: Path) -> None:
    (folder.parent / "current").symlink_to("weights")
    found = weights.observe(System(str(tmp_path)), "/data/current")
    assert (found["there"], found["files"][ONE]) == (True, sound(5))


# A network


MOUNTS = "head:/x /models nfs4 rw 0 0\nproc /proc proc rw 0 0\n"


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/models/DeepSeek", None),
        ("/models", None),
        ("/data/link", Result(0, "/models/DeepSeek\n")),
        ("/data/link", Result(TIMED_OUT)),
    ],
    ids=["below", "itself", "leads there", "does not answer"],
)
def test_a_folder_on_the_network_is_not_touched(
    path: str, answer: Result | None, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.put("/proc/self/mounts", MOUNTS)

    def asked(_: list[str]) -> Result:
        assert answer, "nobody needs to be asked"
        return answer

    def hang(path: str) -> bool:
        raise AssertionError(f"{path} would hang")

    machine.hooks["readlink"] = asked
    for name in ("is_folder", "names", "size", "open_to_read", "target"):
        monkeypatch.setattr(machine, name, hang)
    found = weights.observe(machine, path)
    assert (found["network"], found["there"], found["files"]) == (True, False, {})


def test_a_folder_beside_a_network_is_looked_into(machine: Machine) -> None:
    machine.put("/proc/self/mounts", MOUNTS)
    machine.put(f"{FOLDER}/{ONE}", "1")
    machine.hooks["readlink"] = lambda argv: Result(0, f"{argv[-1]}\n")
    found = weights.observe(machine, FOLDER)
    assert (found["network"], found["files"][ONE]["size"]) == (False, 1)


# The whole look


def test_only_who_names_a_folder_is_told_of_weights(machine: Machine) -> None:
    machine.put(f"{FOLDER}/{ONE}", "1")
    assert "weights" not in observe.observe(machine, OWNER)
    assert observe.observe(machine, OWNER, weights=FOLDER)["weights"]["files"][ONE]["size"] == 1


def test_a_folder_that_fails_is_an_error_and_no_answer(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> bool:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(machine, "is_folder", fail)
    found = observe.observe(machine, OWNER, weights=FOLDER)
    assert found["weights"] is None
    assert any("weights: " in line and "Stale" in line for line in found["errors"])
