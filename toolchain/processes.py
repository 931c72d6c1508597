"""What Linux says about processes. Elsewhere (no ``/proc``) nothing is known, and nothing is done."""

import os
import select
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")


class Identity(NamedTuple):
    """A process, told from a later one with the same number by its start (clock ticks since boot)."""

    pid: int
    started: int
    boot: str


def identity(pid: int) -> Identity | None:
    """The process that has this number now; None if there is none, it is a zombie, or this is not Linux."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text("ascii", errors="replace")
        boot = (_PROC / "sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return None
    # The name in parentheses may hold anything, so fields are counted from its end.
    fields = stat[stat.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else Identity(pid, int(fields[19]), boot)


def executable(pid: int) -> str:
    """The file name of what a process runs, or an empty text when that cannot be read."""
    with suppress(OSError):
        return (_PROC / str(pid) / "exe").readlink().name.removesuffix(" (deleted)")
    return ""


def exists(pid: int) -> bool:
    """Whether a process has this number; a zombie does not count where that can be told."""
    if _PROC.joinpath("self/stat").exists():
        return identity(pid) is not None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # Somebody else's process is a process.
    return True


def marked(mark: str) -> list[int]:
    """Processes of this user whose environment, as it was when they started, holds ``NAME=value`` exactly."""
    wanted = mark.encode()
    found = []
    for entry in _PROC.glob("[0-9]*"):
        with suppress(OSError):
            if entry.stat().st_uid == os.getuid() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return [pid for pid in found if pid != os.getpid()]


def end(mark: str, grace_seconds: float = 3) -> list[str]:
    """End all processes with a mark: SIGTERM, and SIGKILL after the grace. Returns what they were."""
    ended: list[str] = []
    handles: list[int] = []
    for pid in marked(mark):
        with suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
            # The handle holds on to one process, whose mark is looked at again: the number may have been taken over.
            if mark.encode() in _environ(pid):
                ended.append(f"{executable(pid) or 'process'} (pid {pid})")
                signal.pidfd_send_signal(handle, signal.SIGTERM)
                handles.append(handle)
            else:
                os.close(handle)
    deadline = time.monotonic() + grace_seconds
    for handle in handles:
        # A pidfd is readable once its process is gone.
        if not select.select([handle], [], [], max(0, deadline - time.monotonic()))[0]:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        os.close(handle)
    return ended


def _environ(pid: int) -> list[bytes]:
    with suppress(OSError):
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    return []
