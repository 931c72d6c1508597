"""systemd units of ours."""

from dataclasses import dataclass
from typing import Any

from .journal import Undo
from .request import FAILED, Failure
from .steps import Work
from .system import System

FOLDER = "/etc/systemd/system"
RELAY = "spark-fabric-relay.service"


def state(system: System, name: str, target: str = "multi-user.target") -> dict[str, Any] | None:
    """Text, "enabled" and "active" of a unit of ours, or None where there is none."""
    data = system.read(f"{FOLDER}/{name}")
    if data is None:
        return None
    active = system.run(["systemctl", "is-active", name]).out.strip()
    enabled = system.exists(f"{FOLDER}/{target}.wants/{name}")
    return {"text": data.decode(errors="replace"), "enabled": enabled, "active": active in ("active", "reloading")}


@dataclass(frozen=True)
class Reload:
    """Make systemd read its unit files as they are now."""

    needed: bool = True

    @property
    def key(self) -> str:
        return "units"

    def before(self, work: Work) -> Any:  # noqa: ARG002
        return None

    def ours(self, work: Work) -> list[str]:  # noqa: ARG002
        return []

    def do(self, work: Work) -> None:
        undo_units(work, {})

    def describe(self) -> dict[str, Any]:
        return {"load": "units"}


@dataclass(frozen=True)
class Unit:
    """A unit of ours that is enabled and started, or reloaded where it runs: what is in place already stays."""

    name: str
    needed: bool = True

    @property
    def key(self) -> str:
        return f"unit:{self.name}"

    def before(self, work: Work) -> Any:  # noqa: ARG002
        return None

    def ours(self, work: Work) -> list[str]:  # noqa: ARG002
        return []

    def do(self, work: Work) -> None:
        for command in (["enable", self.name], ["reload-or-restart", self.name]):
            result = work.system.change(["systemctl", *command], timeout=60)
            if not result.ok:
                hint = f"see journalctl -u {self.name} on the node"
                raise Failure(FAILED, f"systemctl {' '.join(command)}: {result.reason()}", hint)
        work.report.did(f"{self.name}: enabled and started")

    def describe(self) -> dict[str, Any]:
        return {"start": self.name}


def undo_unit(work: Work, operation: Undo) -> None:
    """Stop and disable a unit of ours; its file goes afterwards."""
    name = operation["key"].removeprefix("unit:")
    if not work.system.exists(f"{FOLDER}/{name}"):
        return
    result = work.system.change(["systemctl", "disable", "--now", name], timeout=60)
    if not result.ok:
        raise Failure(FAILED, f"systemctl disable --now {name}: {result.reason()}")
    work.report.did(f"{name}: stopped and disabled")


def undo_units(work: Work, operation: Undo) -> None:  # noqa: ARG001
    """Make systemd forget a unit file that is gone."""
    result = work.system.change(["systemctl", "daemon-reload"], timeout=60)
    if not result.ok:
        raise Failure(FAILED, f"systemctl daemon-reload: {result.reason()}")
