"""The real tools behind the stand-ins, and the errors that stand-ins end with."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import NoReturn

PLACES = "/usr/sbin:/usr/bin:/usr/lib/systemd"  # not /usr/local/sbin: that is where the stand-ins are


class ToolError(Exception):
    """What a tool says on stderr, and its exit status."""

    def __init__(self, text: str, status: int = 1) -> None:
        super().__init__(text)
        self.text = text
        self.status = status


class NotSimulatedError(ToolError):
    """Something that the real tool can do and its stand-in cannot; 70 is EX_SOFTWARE."""

    def __init__(self, what: str) -> None:
        super().__init__(f"standins: {what} is not simulated", 70)


def real(tool: str) -> str | None:
    """Path of the real tool; None where the machine has none."""
    for place in os.environ.get("STANDINS_REAL", PLACES).split(":"):
        path = f"{place}/{tool}"
        if os.access(path, os.X_OK):
            return path
    return None


def become(tool: str, argv: list[str]) -> NoReturn:
    """Hand the whole command over to the real tool."""
    path = real(tool)
    if path is None:
        raise NotSimulatedError(f"this call of {tool}")
    sys.stdout.flush()
    os.execv(path, [tool, *argv])  # noqa: S606 - the real tool takes over


def run(tool: str, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run the real tool; a missing one fails like a command not found."""
    path = real(tool)
    if path is None:
        return subprocess.CompletedProcess([tool, *argv], 127, "", f"{tool}: not found")
    return subprocess.run([path, *argv], capture_output=True, text=True, check=False)


def require_root(text: str, status: int) -> None:
    """End as the kernel makes a tool end that lacks the rights to change something."""
    if os.geteuid():
        raise ToolError(text, status)
