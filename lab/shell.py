"""Running commands and talking to the person at the terminal."""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class LabError(RuntimeError):
    """Something the user should read without a traceback."""


def say(message: str) -> None:
    """Print one progress line."""
    print(f"lab: {message}", flush=True)


def run(*argv: str | Path, stdin: str | None = None, check: bool = True) -> str:
    """Run a command and return its stdout; a failure is a LabError with the command's stderr."""
    command = [str(arg) for arg in argv]
    done = subprocess.run(command, check=False, input=stdin, capture_output=True, text=True)
    if check and done.returncode:
        raise LabError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def stream(argv: list[str], log: Path, doing: str) -> None:
    """Run a long command with its output in a log, showing its last line every 5 s."""
    began = shown = time.monotonic()
    with (
        log.open("w") as sink,
        subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process,
    ):
        assert process.stdout
        for line in process.stdout:
            sink.write(line)
            if time.monotonic() - shown > 5:
                shown = time.monotonic()
                say(f"{doing}, {shown - began:.0f} s: {line.strip()[:70]}")
    if process.returncode:
        tail = "\n".join(log.read_text().splitlines()[-5:])
        raise LabError(f"{doing} failed, see {log}:\n{tail}")


def wait_for(condition: Callable[[], bool], timeout: float = 60, every: float = 0.1) -> bool:
    """Poll until the condition holds; False when the time (seconds) is up.

    By default that is far longer than anything takes that comes at all, also on a machine that stands still a while.
    """
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(every)
    return True
