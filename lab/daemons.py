"""The lab's own long-running processes, known by the lock that each one holds."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from typing import IO, TYPE_CHECKING

from . import registry
from .model import PACKAGE
from .shell import LabError, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from .model import Lab

OWNED = "owned"  # ends the lab when its owner has ended (owner.py)


def _lock_file(lab: Lab, name: str) -> Path:
    return registry.folder(lab.name) / f"{name}.pid"


def enter(lab: Lab, name: str) -> IO[str]:
    """In the daemon: take the lock and write the pid. Keep the file open."""
    file = _lock_file(lab, name).open("a+")

    def locked() -> bool:  # a `pid` may be holding it for a moment
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    if not wait_for(locked, 2, every=0.01):
        raise LabError(f"{name} is running already")
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file


def pid(lab: Lab, name: str) -> int | None:
    """The running daemon's pid. The lock dies with it, so a recycled pid is never taken for it."""
    try:
        with _lock_file(lab, name).open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(file.read() or 0) or None
    except FileNotFoundError:
        pass
    return None


def start(lab: Lab, name: str, *arguments: str) -> None:
    """Start `lab ARGUMENTS` in the background unless it runs."""
    if pid(lab, name):
        return
    with (lab.directory / "log" / f"{name}.log").open("a") as log:
        subprocess.Popen(
            [sys.executable, "-m", PACKAGE.name, "--name", lab.name, "--dir", str(lab.directory), *arguments],
            cwd=PACKAGE.parent,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    if not wait_for(lambda: pid(lab, name) is not None, every=0.02):
        raise LabError(f"{name} did not start, see {log.name}")


def stop(lab: Lab, name: str, timeout: float = 60) -> bool:
    """Ask the daemon to end; True once it has."""
    running = pid(lab, name)
    if running:
        os.kill(running, signal.SIGTERM)
    return wait_for(lambda: pid(lab, name) is None, timeout)
