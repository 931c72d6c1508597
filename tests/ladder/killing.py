"""Ending a Pulumi command, or the program that it runs on a node, at a moment that an event chooses."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from lab import api, trace

from .rig import Rig, Unexpected

What = Literal["cli", "everything"]

WRAPPER, POINTS = "/usr/local/sbin/python3", "/usr/local/lib/lab/break_points.py"
# Stands before the node's Python, as the lab's wrappers stand before other commands, and adds break points to a
# program that comes as text (`-IS -c`) and whose only argument is a verb. Both are reached from outside the program,
# which knows nothing of them: `program-VERB` before it reads its first line, `journal-VERB` once a new journal is on
# disk, at the first thing that the interpreter is asked to do afterwards.
SCRIPT = f"""#!/bin/sh
case "$1 $2 $4" in
"-IS -c apply" | "-IS -c install" | "-IS -c revert" | "-IS -c engines")
    code=$3 && shift 3
    exec /usr/bin/python3 -IS -c "$(cat {POINTS})
$code" "$@"
    ;;
esac
exec /usr/bin/python3 "$@"
"""
AUDIT = f"""
def _break_points():
    import os, sys, time
    verb, saved, busy = sys.argv[-1], [], []
    def stop(name):
        point, reached = "{trace.BREAK}/" + name, "{trace.BROKEN}/" + name
        if os.path.exists(point):
            os.makedirs("{trace.BROKEN}", exist_ok=True)
            with open(reached, "w") as file:
                file.write(str(os.getpid()))
            while os.path.exists(point):
                time.sleep(0.02)
            os.unlink(reached)
    def hook(event, args):
        if busy or event not in ("open", "os.rename", "os.remove", "subprocess.Popen", "os.fork"):
            return
        if event == "os.rename" and str(args[1]).endswith("/journal.json"):
            saved.append(True)
        elif saved and not (event == "open" and str(args[0]).startswith("/var/lib/spark-fabric")):
            saved.clear()
            busy.append(True)
            stop("journal-" + verb)
            busy.clear()
    stop("program-" + verb)
    sys.addaudithook(hook)
_break_points()
del _break_points
"""


@contextmanager
def program_points(lab: api.Handle) -> Iterator[None]:
    """Nodes on which `lab.stopped_at` also knows `program-VERB` and `journal-VERB`."""
    for name in lab.names:
        lab.run(name, f"cat > {POINTS}", stdin=AUDIT)
        lab.run(name, f"cat > {WRAPPER}.new", stdin=SCRIPT)
    lab.everywhere(f"chmod 755 {WRAPPER}.new && mv {WRAPPER}.new {WRAPPER}")
    try:
        yield
    finally:
        lab.everywhere(f"rm -f {WRAPPER} {POINTS}")


class Running:
    """A Pulumi command that is not meant to see its end."""

    def __init__(self, rig: Rig, *words: str) -> None:
        self.process = rig.start(*words)
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        self._lines.extend(self.process.stdout)

    @property
    def out(self) -> str:
        """What it has printed so far."""
        return "".join(self._lines)

    def until(self, *points: api.BreakPoint, timeout: float = 90) -> None:
        """Wait until a call is stopped at each of the points."""
        end = time.monotonic() + timeout
        for point in points:
            while not point.reached():
                if self.process.poll() is not None or time.monotonic() > end:
                    self.kill("everything")
                    raise Unexpected(f"{point.node} was to come to {point.point}\n{self.out[-6000:]}")
                time.sleep(0.1)

    def until_printed(self, text: str, timeout: float = 90) -> None:
        """Wait until it has printed a text."""
        end = time.monotonic() + timeout
        while text not in self.out:
            if self.process.poll() is not None or time.monotonic() > end:
                self.kill("everything")
                raise Unexpected(f"{text!r} was to be printed\n{self.out[-6000:]}")
            time.sleep(0.1)

    def left(self) -> list[int]:
        """Its processes on this machine that are still there."""
        return session(self.process.pid)

    def kill(self, what: What) -> None:
        """SIGKILL for the Pulumi process alone, or for all that it started on this machine as well.

        All are stopped before the first is killed, so that none lives to see the end of another, whatever the order
        of their numbers: Pulumi would write into its state that a step has failed.
        """
        victims = [self.process.pid] if what == "cli" else self.left()
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in victims:
                _signal(pid, number)
        self.process.wait()

    def interrupt(self) -> None:
        """Ctrl-C, as a terminal sends it: to the foreground group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self, timeout: float = 120) -> int:
        """Wait for its own end; its exit code."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill("everything")
            raise Unexpected(f"not finished after {timeout:g} s\n{self.out[-6000:]}") from None
        self._reader.join(10)
        return code


def session(leader: int) -> list[int]:
    """All living processes of a session; Pulumi gives its plugins groups of their own, but no session."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader and fields[0] not in "ZX":  # one that has ended may wait for process 1 for ever
            found.append(int(entry.name))
    return found


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def kill_program(point: api.BreakPoint) -> None:
    """SIGKILL for the program on the node that is stopped there, or whose command is."""
    text = point.handle.run(point.node, f"cat {trace.BROKEN}/{point.point}").stdout
    pid = re.findall(r"\d+", text)[-1]  # a command's wrapper writes its own process, then its caller's
    point.handle.run(point.node, f"kill -KILL {pid} && rm {trace.BROKEN}/{point.point}")
