"""What speaks against a library, from what it says of itself: known without a node where the file lies here."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet import known, library, nccl, on_node, survey
from fleet.brought import local_library
from fleet.library import Choice, Library, choose, misfit, objections, parse, read, rivalry
from fleet.loading import load
from fleet.planner import make
from fleet.probe import Probe
from fleet.problems import Problem, ProblemsError
from fleet.profiles import Profile
from fleet.scalars import LibraryMode
from fleet.stack import StackName
from fleet.topology import Kind
from fleet.variables import Ground
from lab import library as simulated
from lab.library import KINDS
from node import elf
from tests.unit import fakes, heard, observed
from tests.unit.stacks import changed, ring, switched

STACK = StackName("spark-fabric", "test")
BOTH = Ground(Kind.RING, 2, Profile.AUTO, LibraryMode.OVERLAY)
ONE = Ground(Kind.RING, 1, Profile.AUTO, LibraryMode.OVERLAY)
SWITCH = Ground(Kind.SWITCHED, 2, Profile.AUTO, LibraryMode.OVERLAY)


def seen(kind: str = "patched", machine: str = "aarch64", **more: Any) -> Library:
    return parse("/opt/nccl/libnccl.so.2", {**observed.library(kind, machine), **more})


def codes(problems: Iterator[Problem]) -> list[str]:
    return [one.code for one in problems]


# What it says of itself


@pytest.mark.parametrize(
    ("kind", "both", "one"),
    [
        ("patched", [], []),
        ("no-extended", ["library-one-plane"], []),
        ("skip-tree", ["library-skip-tree"], ["library-skip-tree"]),
        ("stock", ["library-stock"], ["library-stock"]),
    ],
)
def test_a_ring_needs_the_strings_of_its_planes(kind: str, both: list[str], one: list[str]) -> None:
    assert codes(objections(seen(kind), "here", BOTH, None)) == both
    assert codes(objections(seen(kind), "here", ONE, None)) == one
    assert codes(objections(seen(kind), "here", SWITCH, None)) == []


def test_the_older_patch_is_refused_by_name() -> None:
    (problem,) = objections(seen("skip-tree"), "spark2 /opt/nccl/libnccl.so.2", BOTH, None)
    assert "NCCL_SKIP_TREE_CONNECT" in problem.text()
    assert "skip-tree-pat" in problem.text()
    assert "Build with the cumulative patch, nccl-2.30.7-dual-pci-domain." in problem.text()


def test_only_the_digest_that_the_operator_trusts_is_trusted() -> None:
    good = seen()
    assert codes(objections(good, "here", BOTH, good.sha256)) == []
    (problem,) = objections(good, "here", BOTH, "0" * 64)
    assert problem.code == "library-untrusted"
    assert good.sha256 in problem.text()
    assert "0" * 64 in problem.text()


def test_a_trusted_digest_does_not_make_a_stock_library_one_for_rings() -> None:
    stock = seen("stock")
    assert codes(objections(stock, "here", BOTH, stock.sha256)) == ["library-stock"]


@pytest.mark.parametrize(
    ("more", "code", "text"),
    [
        ({"elf_class": None, "elf_machine": None}, "library-no-elf", "is no ELF file"),
        ({"elf_class": None, "elf_machine": None, "size": 0}, "library-no-elf", "is empty"),
        ({"elf_class": 32}, "library-machine", "is ELF32 for aarch64, wanted ELF64 for aarch64"),
        ({"elf_machine": 243}, "library-machine", "is ELF64 for machine 243"),
    ],
)
def test_a_file_that_no_spark_can_load_is_refused(more: dict[str, Any], code: str, text: str) -> None:
    (problem,) = objections(seen(**more), "here", BOTH, None)
    assert problem.code == code
    assert text in problem.text()


@pytest.mark.parametrize(("machine", "arch"), list(itertools.product(elf.MACHINES, elf.MACHINES)))
def test_a_library_is_for_the_machine_that_the_node_is(machine: str, arch: str) -> None:
    found = list(misfit(seen(machine=machine), "spark1", arch))
    assert codes(iter(found)) == ([] if machine == arch else ["library-machine"])
    assert all(f"is for {machine}, and the node is {arch}" in one.text() for one in found)
    assert not list(misfit(seen(machine=machine), "spark1", None))


def test_the_strings_are_those_that_are_recorded() -> None:
    assert (known.NCCL.ring_string, known.NCCL.planes_string) == (elf.RING, elf.EXTENDED)


# What others recorded


def recorded(name: str) -> str:
    return next(one.sha256 for one in known.LIBRARIES if one.name == name and one.sha256)


def test_a_build_that_is_known_to_be_insufficient_is_named() -> None:
    """Whatever strings are in it."""
    bad = seen(sha256=recorded("skip-tree-pat v0.1.0"))
    (problem,) = objections(bad, "here", ONE, None)
    assert problem.code == "library-insufficient"
    assert "is skip-tree-pat v0.1.0, known as insufficient" in problem.text()
    assert codes(objections(bad, "here", SWITCH, None)) == []


def test_a_build_for_one_plane_is_named_on_a_ring_with_both() -> None:
    single = seen("no-extended", sha256=recorded("switchless-nccl v0.0.1"))
    assert codes(objections(single, "here", BOTH, None)) == ["library-insufficient"]
    assert codes(objections(single, "here", ONE, None)) == []


def test_a_build_that_is_known_as_good_and_one_that_is_not_known_are_no_problem() -> None:
    assert codes(objections(seen(sha256=recorded("knapcio's R5 library")), "here", BOTH, None)) == []
    assert seen().recognized is None
    assert str(seen(sha256=recorded("knapcio's R5 library")).recognized).startswith("is knapcio's R5 library")


def test_hints_are_for_people() -> None:
    assert seen("no-extended", size=63842376, build_id="05cb").hints == (
        "60.9 MiB, BuildID 05cb, strings SWITCHLESS_RING_ONLY"
    )
    assert seen("stock", build_id=None).hints.endswith("BuildID none, strings none that is looked for")


# Which file is meant


def found(*paths: str, other: str | None = None) -> dict[str, Library]:
    return {path: parse(path, observed.library(edition=2 if path == other else 1)) for path in paths}


FULL, SHORT = "/opt/nccl/libnccl.so.2.30.7", "/opt/nccl/libnccl.so.2"


@pytest.mark.parametrize(
    ("named", "there", "meant", "rival"),
    [
        ("/opt/nccl", found(FULL, SHORT), FULL, None),
        ("/opt/nccl/", found(FULL, SHORT, other=SHORT), FULL, SHORT),
        ("/opt/nccl", found(SHORT), SHORT, None),
        (SHORT, found(FULL, SHORT, other=FULL), SHORT, FULL),
        (FULL, found(FULL, SHORT, other=SHORT), FULL, SHORT),
        (FULL, found(FULL), FULL, None),
        (FULL, found(SHORT), None, None),
        ("/opt/nccl", {}, None, None),
        ("/opt/mine.so", found("/opt/mine.so", FULL, other=FULL), "/opt/mine.so", None),
    ],
)
def test_the_versioned_name_wins_in_a_folder_and_a_different_rival_is_seen(
    named: str, there: dict[str, Library], meant: str | None, rival: str | None
) -> None:
    choice = choose(named, there)
    assert (choice.library.path if choice else None) == meant
    assert (choice.rival.path if choice and choice.rival else None) == rival


def test_a_rival_is_told_with_both_digests() -> None:
    choice = choose("/opt/nccl", found(FULL, SHORT, other=SHORT))
    assert choice
    assert choice.rival
    text = rivalry(choice, "spark2 /opt/nccl").text()
    for part in ("libnccl.so.2 with", choice.rival.sha256[:12], "libnccl.so.2.30.7 with", choice.library.sha256[:12]):
        assert part in text
    assert "libnccl.so.2.30.7 is the one that counts" in text


# The file on this machine


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> fakes.FakeSsh:
    """The stand-in for ssh."""
    return fakes.install(tmp_path, monkeypatch)


def built(folder: Path, name: str = "libnccl.so.2.30.7", kind: str = "patched", **more: Any) -> Path:
    simulated.build(folder / name, markers=KINDS[kind], machine="aarch64", **more)
    return folder / name


def config(file: Path, **changes: Any) -> dict[str, Any]:
    keys = {f"nodes[{index}].hostKey": f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAA{index}" for index in range(4)}
    return changed(ring(), {**keys, "nccl": {"library": str(file)}, **changes})


def refused(file: Path, **changes: Any) -> list[Problem]:
    with pytest.raises(ProblemsError) as raised:
        survey.survey(load(config(file, **changes)), STACK)
    return list(raised.value.problems)


@pytest.mark.parametrize(
    ("kind", "changes", "code"),
    [
        ("stock", {}, "library-stock"),
        ("skip-tree", {}, "library-skip-tree"),
        ("no-extended", {}, "library-one-plane"),
        ("patched", {"nccl.sha256": "0" * 64}, "library-untrusted"),
    ],
)
def test_a_wrong_local_file_is_refused_and_no_node_is_asked(
    kind: str, changes: dict[str, Any], code: str, ssh: fakes.FakeSsh, tmp_path: Path
) -> None:
    problems = refused(built(tmp_path, kind=kind), **changes)
    assert [(one.code, one.path) for one in problems] == [(code, "spark-fabric:nccl.library")]
    assert ssh.calls() == []


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("nothing", None, "library-absent"),
        ("text", b"#!/bin/sh\n" * 20, "library-no-elf"),
        ("empty", b"", "library-no-elf"),
    ],
)
def test_what_is_no_library_is_refused_and_no_node_is_asked(
    name: str, content: bytes | None, code: str, ssh: fakes.FakeSsh, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert [one.code for one in refused(tmp_path / name)] == [code]
    assert ssh.calls() == []


def test_problems_of_the_library_come_with_those_of_host_keys(ssh: fakes.FakeSsh, tmp_path: Path) -> None:
    none: dict[str, Any] = {"nodes[2].hostKey": None, "ssh.knownHosts": "no-such-file"}
    assert {one.code for one in refused(tmp_path / "none", **none)} == {"host-key-unknown", "library-absent"}


def test_a_folder_stands_for_the_library_in_it(tmp_path: Path) -> None:
    built(tmp_path, "libnccl.so.2", edition=2)
    meant = built(tmp_path)
    choice = read(tmp_path)
    assert choice
    assert choice.library.path == str(meant)
    assert choice.rival
    assert choice.rival.path == str(tmp_path / "libnccl.so.2")
    (tmp_path / "libnccl.so.2").unlink()
    (tmp_path / "libnccl.so.2").symlink_to(meant.name)
    assert read(tmp_path) == Choice(choice.library)


def test_where_the_file_lies_is_kept_for_sending_and_is_not_in_the_plan(
    ssh: fakes.FakeSsh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = observed.fleet(4)
    for node in raw.values():
        node["docker"]["images"] = {"engine:1": "sha256:" + "1" * 64}
    monkeypatch.setattr("fleet.asking.probe", lambda *_, **__: Probe(raw, {}))
    monkeypatch.setattr(survey, "listen", lambda *_: heard.CABLED)
    monkeypatch.setattr("fleet.overlay.holds", lambda *_: True)
    file = built(tmp_path)
    found = survey.survey(load(config(file)), STACK)
    choice = read(file)
    assert choice
    kept = (on_node.folder("test") / "files.json").read_text()
    assert str(file) in kept
    assert choice.library.sha256 in kept
    assert str(tmp_path) not in str(found.plan.nodes[0].stages["nccl"])
    assert found.plan.nodes[0].stages["nccl"]["sha256"] == choice.library.sha256


def test_a_library_of_the_image_needs_no_file() -> None:
    assert local_library(load(switched())) == (None, [])
    assert list(nccl.of_local(load(switched()), None)) == []


def test_the_offline_plan_has_the_digest_of_the_local_file(tmp_path: Path) -> None:
    settings = load(config(built(tmp_path)))
    plan = make(settings, None, STACK, library=local_library(settings)[0])
    assert plan.nodes[0].stages["nccl"]["sha256"] == library.parse("x", observed.library()).sha256
