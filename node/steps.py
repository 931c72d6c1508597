"""What a stage is made of: steps that change one thing each, and what undoes them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Protocol

from .journal import Journal, Undo
from .request import say
from .system import System

ABSENT = "absent"  # stands for "there is no such file" where a digest of its content is expected

# In which order the kinds are undone; within a kind, the last change goes first.
UNDO_ORDER = (
    *("marker", "boot", "unit", "managed", "placed", "file", "units", "netplan", "rule"),
    *("flower", "route", "qdisc", "nic", "value", "port", "folder"),
)


@dataclass
class Report:
    """What a run tells its caller: `changed` is what was done, `notes` what a person should know."""

    changed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def did(self, text: str) -> None:
        """Remember and print what was done."""
        self.changed.append(text)
        say(text)

    def note(self, text: str) -> None:
        """Remember and print what a person should know."""
        self.notes.append(text)
        say(f"note: {text}")


@dataclass
class Work:
    """What steps work with. `content` is what is being sent: the bytes of files, one after the other."""

    system: System
    journal: Journal
    report: Report
    content: BinaryIO | None = None


class Step(Protocol):
    """One change. `needed` is false where the machine is already as wanted."""

    @property
    def key(self) -> str:
        """The identity of the changed thing in the journal; "" for a step that needs no undo of its own."""

    @property
    def needed(self) -> bool:
        """Whether `do` has anything to do."""

    def before(self, work: Work) -> Any:
        """How it is now, for the journal."""

    def ours(self, work: Work) -> list[str]:
        """What we are about to put there, for the journal."""

    def do(self, work: Work) -> None:
        """Make the change; the second time it changes nothing."""

    def describe(self) -> dict[str, Any]:
        """The step as plain JSON."""


UndoStep = Callable[[Work, Undo], None]


def undo_order(operations: list[Undo]) -> list[Undo]:
    """The operations in the order in which they are undone."""
    last_first = operations[::-1]
    return sorted(last_first, key=lambda operation: UNDO_ORDER.index(operation["kind"]))
