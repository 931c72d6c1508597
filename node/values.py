"""Values of the kernel (sysctl)."""

from dataclasses import dataclass
from typing import Any

from .journal import Undo
from .steps import Work

ROOT = "/proc/sys/"


@dataclass(frozen=True)
class Value:
    """A value below /proc/sys, for example `net/ipv4/ip_forward`, as it shall be."""

    name: str
    value: str
    needed: bool = True

    @property
    def key(self) -> str:
        return f"value:{self.name}"

    def before(self, work: Work) -> Any:
        return work.system.text(ROOT + self.name)

    def ours(self, work: Work) -> list[str]:  # noqa: ARG002
        return [self.value]

    def do(self, work: Work) -> None:
        if work.system.text(ROOT + self.name) != self.value:
            work.system.set_value(ROOT + self.name, self.value)
            work.report.did(f"{self.name} = {self.value}")

    def describe(self) -> dict[str, Any]:
        return {"value": self.name, "to": self.value}


def undo_value(work: Work, operation: Undo) -> None:
    """Give a value back, unless it is neither as we set it nor as it was."""
    name = operation["key"].removeprefix("value:")
    before = operation["before"]
    seen = work.system.text(ROOT + name)
    if seen is None or before is None or seen == before:
        return  # a port that is gone took its values with it
    if seen not in operation["ours"]:
        work.report.note(f"{name} is {seen}, which is neither ours nor what it was ({before}): left as it is")
        return
    work.system.set_value(ROOT + name, before)
    work.report.did(f"{name} = {before} again")
