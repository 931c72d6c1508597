"""A process that puts a stage back when the node's management address is gone and stays away.

It is a child in its own session, so it outlives our SSH connection and ourselves. It does nothing about a run that
merely died: the journal knows how to go on.
"""

import contextlib
import os
import select
import signal
from collections.abc import Callable, Iterator

from .limits import BASE
from .management import Management
from .system import System

GONE = 15.0  # seconds without the address before the guard acts; the run itself acts earlier if it still can
AFTER = 30.0  # seconds that it goes on looking when the run ended without a word
_STEP = 0.5


@contextlib.contextmanager
def armed(system: System, management: Management, undo: Callable[[], None], limit: float = BASE) -> Iterator[None]:
    """Watch the management address while the body changes the network; `undo` is called in another process.

    `limit` is what the body may take, in seconds: after it the guard ends in any case.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(writer)
            _detach(reader)
            _watch(system, management, reader, undo, limit)
            status = 0
        finally:
            os._exit(status)  # never back into the caller's code, whatever happened
    os.close(reader)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.write(writer, b".")
        os.close(writer)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)


def _detach(keep: int) -> None:
    """Let go of the connection, the lock and everything else that we inherited."""
    os.setsid()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for handle in (0, 1, 2):
        os.dup2(null, handle)
    for name in os.listdir("/proc/self/fd"):
        handle = int(name)
        if handle > 2 and handle != keep and not _is_program(handle):
            with contextlib.suppress(OSError):
                os.close(handle)


def _is_program(handle: int) -> bool:
    """Whether this is the archive that modules are still loaded from."""
    return f"/proc/self/fd/{handle}" in __file__


def _watch(system: System, management: Management, reader: int, undo: Callable[[], None], limit: float) -> None:
    start = system.clock()
    gone_since: float | None = None
    alone_since: float | None = None
    while system.clock() - start < limit:
        if alone_since is not None:
            system.sleep(_STEP)
        elif select.select([reader], [], [], _STEP)[0]:
            if os.read(reader, 1):
                return
            alone_since = system.clock()
        if not management.missing(system):
            gone_since = None
            if alone_since is not None and system.clock() - alone_since > AFTER:
                return
        elif gone_since is None:
            gone_since = system.clock()
        elif system.clock() - gone_since > GONE:
            undo()
            return
