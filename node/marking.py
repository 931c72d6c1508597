"""Starting markers and the boot unit, and stopping them; the steps of the stage `markers`."""

import json
from dataclasses import dataclass
from typing import Any

from . import archive, mesh, meshunits
from .files import MARK
from .journal import APPLIED, Undo
from .limits import MESH_UP
from .request import FAILED, READ_BACK, Failure
from .steps import Work
from .system import System

Json = dict[str, Any]
READY = 10.0  # seconds for a marker to say that it is attached
_STEP = 0.1


def ready(marker: Json, line: Json | None) -> str:
    """What is wrong with the line that a marker wrote; "" where it is attached and managed as planned. Pure."""
    if line is None:
        return "has not said that it is attached"
    wanted = {"device": marker["hca"], "attached": True, "managed": True, "source_port": marker["source_port"]}
    wrong = [f"{key} {line.get(key)}" for key, value in wanted.items() if line.get(key) != value]
    if line.get("lifetime_seconds") is not None:
        wrong.append(f"lifetime_seconds {line['lifetime_seconds']}")
    if line.get("action") != "ethertype_rewrite":
        wrong.append(f"action {line.get('action')}")
    return f"says {', '.join(wrong)}" if wrong else ""


@dataclass(frozen=True)
class Service:
    """The boot unit, enabled and started: its program starts the markers that are not up."""

    needed: bool = True

    @property
    def key(self) -> str:
        return f"boot:{meshunits.SERVICE}"

    def before(self, work: Work) -> Any:
        """How the unit was where somebody else put the same one there, else null."""
        text = work.system.text(f"{meshunits.UNITS}/{meshunits.SERVICE}")
        if text is None or MARK in text:
            return None
        words = ("is-enabled", "is-active")
        return {word: work.system.run(["systemctl", word, meshunits.SERVICE]).ok for word in words}

    def ours(self, work: Work) -> list[str]:  # noqa: ARG002
        return []

    def do(self, work: Work) -> None:
        for stage in ("nic", "forwarding"):
            entry = work.journal.stages.get(stage)
            if entry is None or entry.status != APPLIED:
                state = f"is {entry.status}" if entry else "is not applied"
                raise Failure(FAILED, f"{stage} {state}, plan wants it applied on this node before any marker")
        archive.store(work.system, work.journal)  # what the unit runs
        for command in (["enable", meshunits.SERVICE], ["start", meshunits.SERVICE]):
            result = work.system.change(["systemctl", *command], timeout=MESH_UP)
            if not result.ok:
                why = work.system.text(meshunits.WHY) or ""
                reason = _error(why) or result.reason()
                hint = f"see journalctl -u {meshunits.SERVICE} on the node"
                raise Failure(FAILED, f"systemctl {' '.join(command)}: {reason}", hint)
        work.report.did(f"{meshunits.SERVICE}: enabled and started")

    def describe(self) -> dict[str, Any]:
        return {"start": meshunits.SERVICE}


def _error(text: str) -> str:
    try:
        return str(json.loads(text)["error"] or "")
    except (ValueError, KeyError, TypeError):
        return ""


@dataclass(frozen=True)
class Marker:
    """One marker that is attached and managed. `again`: also one that is, for it runs something older."""

    marker: Json
    again: bool = False
    needed: bool = True

    @property
    def key(self) -> str:
        return f"marker:{self.marker['hca']}"

    def before(self, work: Work) -> Any:
        """Whether it ran before us, as part of the same installation."""
        return bool(mesh.busy(work.system, self.marker["hca"]))

    def ours(self, work: Work) -> list[str]:  # noqa: ARG002
        return []

    def do(self, work: Work) -> None:
        start(work, self.marker, again=self.again)

    def describe(self) -> dict[str, Any]:
        return {"mark": self.marker["hca"], **({"again": True} if self.again else {})}


def is_ready(system: System, marker: Json) -> bool:
    """Whether a marker runs and said that it is attached."""
    active = system.run(["systemctl", "is-active", meshunits.instance(marker["hca"])]).ok
    return active and not ready(marker, mesh.line(system, marker["hca"]))


def start(work: Work, marker: Json, *, again: bool = False) -> None:
    """Start a marker and wait until it is ready. Raises `Failure` with what it says instead."""
    system, unit = work.system, meshunits.instance(marker["hca"])
    if is_ready(system, marker) and not again:
        return
    system.change(["systemctl", "reset-failed", unit])  # after five deaths systemd does not start it else
    result = system.change(["systemctl", "restart", unit])
    end = system.clock() + READY
    while not is_ready(system, marker):
        if not result.ok or system.clock() > end:
            shown = system.run(["journalctl", "-u", unit, "-n", "3", "-o", "cat", "--no-pager"])
            said = " ".join(shown.out.split())[-300:] if shown.ok else ""
            wrong = ready(marker, mesh.line(system, marker["hca"]))
            raise Failure(
                READ_BACK,
                f"{unit}: {wrong or 'is not active'}, plan wants it attached and managed within {READY:g} s",
                *([f"{unit}: {said}"] if said else []),
            )
        system.sleep(_STEP)
    work.report.did(f"{unit}: attached")


def undo_marker(work: Work, operation: Undo) -> None:
    """Stop a marker of ours."""
    hca = operation["key"].removeprefix("marker:")
    if operation["before"]:
        return
    unit = meshunits.instance(hca)
    state = work.system.run(["systemctl", "is-active", unit]).out.strip()
    if state == "failed":
        work.system.change(["systemctl", "reset-failed", unit])
    elif state not in mesh.IDLE:
        result = work.system.change(["systemctl", "stop", unit])
        if not result.ok:
            raise Failure(FAILED, f"systemctl stop {unit}: {result.reason()}")
        work.report.did(f"{unit}: stopped")
    work.system.remove(meshunits.said(hca))


def undo_service(work: Work, operation: Undo) -> None:
    """Stop and disable the boot unit of ours; give back how an adopted one was."""
    before, name = operation["before"], meshunits.SERVICE
    if not work.system.exists(f"{meshunits.UNITS}/{name}"):
        return
    commands = [["disable", "--now", name]]
    if before:
        commands = [] if before["is-enabled"] else [["disable", name]]
        commands += [] if before["is-active"] else [["stop", name]]
    for command in commands:
        result = work.system.change(["systemctl", *command], timeout=60)
        if not result.ok:
            raise Failure(FAILED, f"systemctl {' '.join(command)}: {result.reason()}")
        work.report.did(f"{name}: {command[0]}d" if command[0] == "disable" else f"{name}: stopped")
    if not before:
        work.system.remove(meshunits.WHY)
