"""Where a mistake about NCCL is caught: as early as it can be known, with nothing done before.

CONFIG   reading the settings, and the files that they name here: no node is asked
PREVIEW  looking at the nodes: nothing is registered
UP       on the node, in the stages before the engine: for what changed since the preview
HEALTH   the last lines of the engine: for what nobody can know before it loads and connects

On booted nodes: tests/ladder/test_nccl.py and test_traffic.py.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from fleet import lastwords, overlay, survey
from fleet.loading import load
from fleet.planner import make
from fleet.probe import Probe
from fleet.problems import ProblemsError
from fleet.stack import StackName
from fleet.survey import Refused
from lab.library import KINDS, build, content
from node import nccl, sent
from node.request import Failure
from tests.node import helpers
from tests.node.machine import Machine
from tests.unit import fakes, heard, observed
from tests.unit.stacks import LIBRARY, changed, ring, switched

STACK = StackName("spark-fabric", "test")
ID = "sha256:" + "1" * 64

Raw = dict[str, dict[str, Any]]


class Caught(StrEnum):
    """Where."""

    CONFIG = "config"
    PREVIEW = "preview"
    WARNED = "preview, as a warning"  # it may work: the image can bring its own variables


@dataclass(frozen=True)
class Mistake:
    """Changed settings, a kind of local library, or nodes that somebody changed; and the code of the problem."""

    where: Caught
    code: str
    settings: dict[str, Any] | None = None
    local: str | None = None
    nodes: Callable[[Raw], None] | None = None
    machine: str = "aarch64"
    target: bool = True
    fabric: Callable[[], dict[str, Any]] = ring


def _other_on_one(raw: Raw) -> None:
    raw["spark3"]["nccl"]["files"][LIBRARY] = observed.library(edition=2)


def _stock_on_one(raw: Raw) -> None:
    raw["spark3"]["nccl"]["files"][LIBRARY] = observed.library("stock")


def _none_on_one(raw: Raw) -> None:
    raw["spark3"]["nccl"]["files"] = {}


def _another_arch(raw: Raw) -> None:
    raw["spark3"]["arch"] = "x86_64"


def _keep_gids(raw: Raw, keep: Callable[[dict[str, Any]], bool]) -> None:
    """All ports have their addresses, and one of them only some of its GIDs."""
    addressed = observed.fleet_applied(make(load(ring()), None, STACK), journaled=True)
    for name, node in addressed.items():
        raw[name] |= {key: node[key] for key in ("links", "hcas", "routes", "journal")}
    hca = raw["spark2"]["hcas"]["rocep1s0f0"]
    hca["gids"] = [gid for gid in hca["gids"] if keep(gid)]


def _v1_only(raw: Raw) -> None:
    _keep_gids(raw, lambda gid: gid["type"] != "RoCE v2")


def _no_gid(raw: Raw) -> None:
    _keep_gids(raw, lambda _: False)


ENV = "engine.env."
NO_PROFILE = {"engine.profile": "none"}
MISTAKES: dict[str, Mistake] = {
    "ring mode left out": Mistake(Caught.CONFIG, "env-forbidden", {f"{ENV}NCCL_SWITCHLESS_RING_ONLY": 0}),
    "another algorithm": Mistake(Caught.CONFIG, "env-forbidden", {f"{ENV}NCCL_ALGO": "Tree"}),
    "ring mode on a switch": Mistake(
        Caught.CONFIG, "env-forbidden", {f"{ENV}NCCL_SWITCHLESS_RING_ONLY": 1}, fabric=switched
    ),
    "the cap in force": Mistake(Caught.CONFIG, "env-forbidden", {f"{ENV}NCCL_IB_EXTENDED_IPV4_GIDS": 0}),
    "domains mixed": Mistake(Caught.CONFIG, "env-forbidden", {f"{ENV}NCCL_IB_PRESERVE_PCI_DOMAIN": 0}),
    "wrong channel count": Mistake(Caught.CONFIG, "env-channels", {f"{ENV}NCCL_MAX_NCHANNELS": 2}),
    "a second library": Mistake(Caught.CONFIG, "env-forbidden", {f"{ENV}LD_PRELOAD": "/x/libnccl.so.2"}),
    "a second library by path": Mistake(Caught.CONFIG, "env-forbidden", {f"{ENV}LD_LIBRARY_PATH": "/x"}),
    "the image's library on a ring": Mistake(Caught.CONFIG, "nccl-mode", {"nccl": {"mode": "image"}}),
    "no library on a ring": Mistake(Caught.CONFIG, "library-missing", {"nccl": {}}),
    "no such local file": Mistake(Caught.CONFIG, "library-absent", {"nccl": {"library": "no/such"}}),
    "a stock local library": Mistake(Caught.CONFIG, "library-stock", local="stock"),
    "a local library of the older patch": Mistake(Caught.CONFIG, "library-skip-tree", local="skip-tree"),
    "a local library for one plane": Mistake(Caught.CONFIG, "library-one-plane", local="no-extended"),
    "another sha256 than trusted": Mistake(
        Caught.CONFIG, "library-untrusted", {"nccl.sha256": "0" * 64}, local="patched"
    ),
    "another machine's local library": Mistake(Caught.PREVIEW, "library-machine", local="patched", machine="x86_64"),
    "a node of another machine": Mistake(Caught.PREVIEW, "library-machine", nodes=_another_arch),
    "a stock library on one node": Mistake(Caught.PREVIEW, "library-stock", nodes=_stock_on_one),
    "another library on one node": Mistake(Caught.PREVIEW, "library-ids", nodes=_other_on_one),
    "no library on one node": Mistake(Caught.PREVIEW, "library-absent", nodes=_none_on_one),
    "an untrusted library on the nodes": Mistake(Caught.PREVIEW, "library-untrusted", {"nccl.sha256": "0" * 64}),
    "no such file in the image": Mistake(Caught.PREVIEW, "overlay-target", target=False),
    "a GID of RoCE v1 only": Mistake(Caught.PREVIEW, "gid-type", nodes=_v1_only),
    "no GID on one port": Mistake(Caught.PREVIEW, "gid-missing", nodes=_no_gid),
    "ring mode left out, without a profile": Mistake(Caught.WARNED, "ring-trees", NO_PROFILE),
    "the cap in force, without a profile": Mistake(
        Caught.WARNED, "listener-cap", {**NO_PROFILE, f"{ENV}NCCL_SWITCHLESS_RING_ONLY": 1}
    ),
    "fewer channels than devices": Mistake(
        Caught.WARNED, "channels-few", {f"{ENV}NCCL_MIN_NCHANNELS": 2, f"{ENV}NCCL_MAX_NCHANNELS": 2}
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_caught_there_and_not_later(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mistake, ssh = MISTAKES[name], fakes.install(tmp_path, monkeypatch)
    keys = {f"nodes[{index}].hostKey": f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAA{index}" for index in range(4)}
    config = changed(mistake.fabric(), keys)
    if mistake.local:
        build(tmp_path / "libnccl.so.2", markers=KINDS[mistake.local], machine=mistake.machine)
        config = changed(config, {"nccl": {"library": str(tmp_path / "libnccl.so.2")}})
    config = changed(config, mistake.settings or {})
    raw = observed.fleet(4)
    for node in raw.values():
        node["docker"]["images"] = {"engine:1": ID}
    if mistake.nodes:
        mistake.nodes(raw)
    asked: list[bool] = []

    def probe(*_: Any, **__: Any) -> Probe:
        asked.append(True)
        return Probe(raw, {})

    monkeypatch.setattr("fleet.asking.probe", probe)
    monkeypatch.setattr(survey, "listen", lambda *_: heard.CABLED)
    monkeypatch.setattr(overlay, "holds", lambda *_: mistake.target)
    if mistake.where is Caught.WARNED:
        assert mistake.code in {one.code for one in survey.survey(load(config), STACK).warnings}
        return
    with pytest.raises(ProblemsError) as raised:
        survey.survey(load(config), STACK)
    assert mistake.code in {one.code for one in raised.value.problems}
    for one in raised.value.problems:
        assert one.seen
        assert one.wanted
    assert isinstance(raised.value, Refused) == (mistake.where is Caught.PREVIEW)
    assert asked == ([True] if mistake.where is Caught.PREVIEW else [])
    assert ssh.calls() == []


# At the `up`: what was right when the plan was made


PATCHED = content(KINDS["patched"], "x86_64")
SHA256 = hashlib.sha256(PATCHED).hexdigest()


def test_a_file_that_changed_since_the_preview_ends_before_any_engine_starts() -> None:
    machine = Machine()
    helpers.take(machine)
    path = sent.place("lab", nccl.STAGE, SHA256, nccl.NAME)
    desired = {"state": "on", "source": "sent", "sha256": SHA256, "size": len(PATCHED), "path": path}
    with pytest.raises(Failure, match="it has changed since the preview"):
        helpers.ask(machine, "install", "nccl", desired, content=io.BytesIO(PATCHED[::-1]))
    assert not machine.exists(path)


def test_a_library_on_a_node_that_was_replaced_since_the_preview_ends_before_any_engine_starts() -> None:
    machine = Machine()
    helpers.take(machine)
    machine.put(LIBRARY, "another")
    desired = {"state": "on", "source": "node", "sha256": SHA256, "path": LIBRARY}
    with pytest.raises(Failure, match=f"{LIBRARY}: is .*, plan wants the library {SHA256[:12]}"):
        helpers.ask(machine, "apply", "nccl", desired)


# By health: what the engine alone can see


ENDINGS = {
    "trees on a ring": "RuntimeError: NCCL error: unhandled system error (ncclTransportTreeConnect)",
    "a second library that the image or a folder brings": "AssertionError: Duplicate NCCL runtime found in the current",
    "images with different libraries": "NCCL WARN Mismatched NCCL version detected : rank 1 version 23203",
    "no device that can be used": "NCCL WARN Failed to initialize NET plugin IB: no RoCE device is usable",
    "no line of the library's": "RuntimeError: NCCL error: unhandled system error",
    "a GID that is not reached": "NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev",
}


@pytest.mark.parametrize("name", ENDINGS)
def test_what_ends_the_engine_is_told_with_cause_and_next_step(name: str) -> None:
    told = lastwords.reason([ENDINGS[name]])
    assert told
    cause, _, step = told.removeprefix("cause: ").partition(". ")
    assert cause
    assert step
