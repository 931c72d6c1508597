"""A large file is read once, and again as soon as anything about it has changed."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from fleet import described, on_node
from fleet.library import read
from lab.library import KINDS, build
from node import elf


@pytest.fixture
def reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of files as they are read; files of any size and age are kept, in a folder of the test's own."""
    found: list[str] = []
    plain = elf.describe

    def read_whole(file: BinaryIO) -> dict[str, Any]:
        found.append(Path(file.name).name)
        return plain(file)

    monkeypatch.setattr(elf, "describe", read_whole)
    monkeypatch.setattr(on_node, "ROOT", tmp_path)
    monkeypatch.setattr(described, "LEAST", 0)
    monkeypatch.setattr(described, "SETTLED_NS", -1)
    return found


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A library."""
    path = tmp_path / "libnccl.so.2"
    build(path, markers=KINDS["patched"])
    return path


def _longer(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


def _in_place_with_its_old_time(path: Path) -> None:
    seen = path.stat()
    with path.open("r+b") as file:
        file.seek(seen.st_size - 1)
        file.write(b"x")
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    while path.stat().st_ctime_ns == seen.st_ctime_ns:  # within one tick of the file system's clock
        os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))


def _another_of_the_same_size_and_time(path: Path) -> None:
    seen, data = path.stat(), path.read_bytes()
    fresh = path.with_name("fresh")
    fresh.write_bytes(data[:-1] + b"x")
    os.utime(fresh, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    fresh.rename(path)


def test_a_file_that_is_the_same_is_read_once(reads: list[str], library: Path) -> None:
    first = read(library)
    assert first is not None
    assert first == read(library) == read(library.parent)
    assert reads == ["libnccl.so.2"]


@pytest.mark.parametrize("change", [_longer, _in_place_with_its_old_time, _another_of_the_same_size_and_time])
def test_a_file_that_was_changed_is_read_again(change: Any, reads: list[str], library: Path) -> None:
    read(library)
    change(library)
    found = read(library)
    assert found is not None
    assert found.library.sha256 == elf.describe(io.FileIO(library))["sha256"]
    assert reads[:2] == ["libnccl.so.2"] * 2


def test_another_reader_reads_again(
    reads: list[str], library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read(library)
    monkeypatch.setattr(elf, "__file__", str(tmp_path / "elf.py"))
    (tmp_path / "elf.py").write_text("")
    read(library)
    assert len(reads) == 2


def test_a_file_that_is_written_meanwhile_is_not_kept(
    reads: list[str], library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = elf.describe

    def written(file: BinaryIO) -> dict[str, Any]:
        said = whole(file)
        _longer(library)
        return said

    with monkeypatch.context() as patch:
        patch.setattr(elf, "describe", written)
        read(library)
    read(library)
    assert len(reads) == 2


@pytest.mark.parametrize(("name", "value"), [("SETTLED_NS", 3600 * 10**9), ("LEAST", 1 << 30)])
def test_a_file_that_was_written_just_now_or_is_small_is_not_kept(
    name: str, value: int, reads: list[str], library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(described, name, value)
    read(library)
    read(library)
    assert len(reads) == 2
    assert not (on_node.ROOT / on_node.STATE).exists()


def test_what_was_kept_is_as_good_as_none_where_it_is_not_ours(reads: list[str], library: Path) -> None:
    first = read(library)
    kept = on_node.ROOT / on_node.STATE / described.KEPT
    ours = json.loads(kept.read_text())
    for text in ("", "[]", "{}", '{"a": 1}', json.dumps({str(library): {**ours[str(library)], "said": 1}})):
        kept.write_text(text)
        assert read(library) == first
    assert len(reads) == 6
