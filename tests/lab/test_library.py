"""The simulated libnccl: the same bytes from the same arguments, and a file that loaders and readers take."""

from __future__ import annotations

import ctypes
import hashlib
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lab import library
from lab.model import PACKAGE

OTHER = next(name for name in library.MACHINES if name != platform.machine())


def test_the_same_arguments_give_the_same_bytes_and_others_do_not(tmp_path: Path) -> None:
    one, two = tmp_path / "deep/one", tmp_path / "two"
    markers = library.KINDS["patched"]
    digest = library.build(one, markers=markers)
    assert digest == library.build(two, markers=markers) == hashlib.sha256(one.read_bytes()).hexdigest()
    others = [library.content(markers, edition=2), library.content(markers, OTHER), library.content(())]
    assert len({one.read_bytes(), *others}) == 4


@pytest.mark.parametrize("kind", library.KINDS)
def test_the_strings_are_the_label_and_the_markers(kind: str) -> None:
    strings = library.content(library.KINDS[kind]).split(b"\0")
    assert library.LABEL.encode() in strings
    assert {text for text in strings if text.startswith(b"NCCL_")} == {m.encode() for m in library.KINDS[kind]}


@pytest.mark.parametrize(("machine", "number"), library.MACHINES.items())
def test_the_header_names_class_and_machine(machine: str, number: int) -> None:
    data = library.content((), machine)
    assert data[:6] == b"\x7fELF\2\1"
    assert int.from_bytes(data[18:20], "little") == number


def test_a_machine_that_is_not_known_is_refused() -> None:
    with pytest.raises(ValueError, match="riscv64"):
        library.content((), "riscv64")


def test_the_loader_takes_it_and_refuses_another_machines(tmp_path: Path) -> None:
    own, foreign = tmp_path / "own.so", tmp_path / "foreign.so"
    library.build(own, markers=())
    library.build(foreign, markers=(), machine=OTHER)
    ctypes.CDLL(str(own))
    assert str(own) in Path("/proc/self/maps").read_text()
    with pytest.raises(OSError, match=r"foreign\.so"):
        ctypes.CDLL(str(foreign))


@pytest.mark.skipif(not shutil.which("readelf"), reason="no readelf")
def test_readelf_finds_name_and_build_id(tmp_path: Path) -> None:
    told = []
    for edition in (1, 2):
        library.build(tmp_path / "it", markers=("NCCL_X",), edition=edition)
        done = subprocess.run(["readelf", "-ndW", str(tmp_path / "it")], check=True, capture_output=True, text=True)
        assert not done.stderr
        assert f"[{library.SONAME}]" in done.stdout
        told.append(done.stdout.partition("Build ID: ")[2].split()[0])
    assert [len(identity) for identity in told] == [40, 40]
    assert told[0] != told[1]


def test_the_command_writes_the_kind_that_was_asked_for(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lab", "image", "library", "--out", str(tmp_path / "it"), "--kind", "skip-tree"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=PACKAGE.parent)
    written = (tmp_path / "it").read_bytes()
    assert done.stdout.strip() == hashlib.sha256(written).hexdigest()
    assert written == library.content(library.KINDS["skip-tree"])
