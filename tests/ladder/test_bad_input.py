"""Wrong settings through the real Pulumi: every mistake is told once, with what to do, and no node is asked."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet.loading import SettingsError, load
from lab import api
from tests.unit.stacks import changed, ring

from .rig import CHECKOUT, Rig

CASES: list[dict[str, Any]] = yaml.safe_load((CHECKOUT / "tests" / "unit" / "wrong_configs.yaml").read_text())
HOST_KEYS = [f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGm8jTWGuS9gN0aZ3Ek1v8vq2m0a1Rk7mEPgqk0OQ{k}pV" for k in range(4)]
SMALL = 3  # mistakes: a stack file with no more is not worth a run of Pulumi here, reading it is tested elsewhere


@dataclass
class Pack:
    """Mistakes that do not hide each other, in one stack file."""

    config: dict[str, Any]
    wanted: list[tuple[str, str]] = field(default_factory=list)  # config path, a part of the text


def _is_told(config: dict[str, Any], wanted: list[tuple[str, str]]) -> bool:
    """Whether reading this config finds exactly these mistakes."""
    try:
        load(config)
    except SettingsError as error:
        told = {problem.path: problem.text() for problem in error.problems}
        return len(error.problems) == len(wanted) and all(part in told.get(path, "") for path, part in wanted)
    return False


def _with(pack: Pack, case: dict[str, Any]) -> Pack | None:
    """The pack with one more case, if each mistake of both is still told."""
    wanted = pack.wanted + [(f"spark-fabric:{path}", part) for _, path, part in case["problems"]]
    try:
        config = changed(copy.deepcopy(pack.config), case["change"])
    except (KeyError, IndexError, TypeError, AttributeError):
        return None  # they are about the same value
    return Pack(config, wanted) if _is_told(config, wanted) else None


def _is_pulumis(case: dict[str, Any]) -> bool:
    """Whether Pulumi itself sees it first: a whole section that is missing, or that has another shape."""
    sections = ("nodes", "nodes[2]", "ssh", "engine", "fabric", "nccl")
    return any(path in sections and case["problems"][0][0] in ("missing", "wrong-shape") for path in case["change"])


def _packs() -> list[Pack]:
    """The cases in as few stack files as they fit into; cases that fit into none but a small one are left out."""
    packs: list[Pack] = []
    for case in CASES:
        if _is_pulumis(case):
            continue
        for index, pack in enumerate(packs):
            more = _with(pack, case)
            if more:
                packs[index] = more
                break
        else:
            alone = _with(Pack(ring()), case)
            assert alone, case
            packs.append(alone)
    return [pack for pack in packs if len(pack.wanted) > SMALL]


PACKS = _packs()


@dataclass
class Asked:
    """An `ssh` that stands first in PATH and only writes down that it was called."""

    record: Path

    def calls(self) -> int:
        """How often, since the last time that somebody asked."""
        count = len(self.record.read_text().splitlines())
        self.record.write_text("")
        return count


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Asked:
    """The recording `ssh`, in a folder of its own."""
    folder = tmp_path_factory.mktemp("ssh")
    (folder / "ssh").write_text(f'#!/bin/sh\necho "$@" >>{folder}/record\nexit 255\n')
    (folder / "ssh").chmod(0o755)
    (folder / "record").touch()
    return Asked(folder / "record")


@pytest.fixture(scope="module")
def rig(toolchain: dict[str, str], checkout_copy: Path, asked: Asked, tmp_path_factory: pytest.TempPathFactory) -> Rig:
    """A stack without nodes."""
    path = os.pathsep.join((str(asked.record.parent), toolchain["PATH"]))
    backend = f"file://{tmp_path_factory.mktemp('backend-bad')}"
    nothing = api.attach("nothing", tmp_path_factory.mktemp("nothing"))
    return Rig(nothing, checkout_copy, toolchain | {"PATH": path, "PULUMI_BACKEND_URL": backend}, "bad")


def _told(output: str) -> list[str]:
    """The lines about single mistakes."""
    return [line.strip() for line in output.splitlines() if line.strip().startswith("spark-fabric:")]


def _assert_told(output: str, wanted: list[tuple[str, str]]) -> None:
    """Each mistake has one line, and there is no other."""
    told = _told(output)
    for path, part in wanted:
        assert len([line for line in told if line.startswith(f"{path}: ") and part in line]) == 1, (path, part, told)
    assert len(told) == len(wanted), told


@pytest.mark.parametrize("pack", PACKS, ids=lambda pack: f"{len(pack.wanted)}-mistakes")
def test_every_mistake_is_told_once_and_no_node_is_asked(pack: Pack, rig: Rig, asked: Asked) -> None:
    rig.config = pack.config
    _assert_told(rig.pulumi("preview", ok=False).out, pack.wanted)
    assert asked.calls() == 0


def test_at_least_thirty_wrong_configs_are_seen() -> None:
    assert sum(len(pack.wanted) for pack in PACKS) >= 30


@pytest.mark.parametrize("case", [case for case in CASES if _is_pulumis(case)], ids=lambda case: str(case["change"]))
def test_what_pulumi_itself_refuses_names_the_key(case: dict[str, Any], rig: Rig, asked: Asked) -> None:
    rig.config = changed(ring(), case["change"])
    (path,) = case["change"]
    key = str(path).partition("[")[0]
    assert f"'{key}'" in rig.pulumi("preview", ok=False).out
    assert asked.calls() == 0


def test_up_and_the_fleet_command_tell_the_same_mistakes(rig: Rig, asked: Asked) -> None:
    pack = PACKS[-1]
    rig.config = pack.config
    _assert_told(rig.up(ok=False).out, pack.wanted)
    status = rig.fleet("status", ok=False)
    _assert_told(status.out, pack.wanted)
    assert status.code == 2
    assert asked.calls() == 0


def test_a_missing_host_key_and_a_wrong_archive_are_known_without_asking(rig: Rig, asked: Asked) -> None:
    known = {f"nodes[{index}].hostKey": HOST_KEYS[index] for index in (0, 1, 3)}
    image = {"ref": "engine:1", "archive": "no-such.tar"}
    rig.config = changed(ring(), {**known, "ssh.knownHosts": "no-such-file", "engine.image": image})
    wanted = [("spark-fabric:nodes[2].hostKey", "spark3"), ("spark-fabric:engine.image.archive", "no-such.tar")]
    _assert_told(rig.pulumi("preview", ok=False).out, wanted)
    assert asked.calls() == 0


def test_nodes_are_asked_when_the_settings_are_right_and_each_silent_one_is_named(rig: Rig, asked: Asked) -> None:
    rig.config = changed(ring(), {f"nodes[{index}].hostKey": key for index, key in enumerate(HOST_KEYS)})
    run = rig.pulumi("preview", ok=False)
    assert "4 problem(s)" in run.out
    for number in range(1, 5):
        assert f"spark{number} (nvidia@192.168.1.1{number}:22): " in run.out
        assert f"python -m fleet forget spark{number}" in run.out
    assert asked.calls() == 4
