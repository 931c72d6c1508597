"""mlx5-rdma-tx-rewrite-probe: marks the RDMA frames of one UDP source port that leave by a device."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from . import driver, markerline
from .model import BY_RDMA
from .state import State, try_lock
from .system import ToolError
from .words import Row

POLL = 0.1
TRACE = "/usr/local/lib/lab/traced/marker"  # there in a lab with trace


def attached(state: State) -> dict[str, Row]:
    """Markers by device. A marker is attached while its process lives, which holds a lock.

    A re-initialised function has lost the flow although the process goes on: then it is not `in_effect`. (A guess.)
    """
    found = {}
    for rdma, function in BY_RDMA.items():
        try:
            with _file(state, rdma).open() as file:
                if try_lock(file.fileno(), fcntl.LOCK_SH):
                    continue
                content = file.read()
        except (FileNotFoundError, PermissionError):
            continue
        if not content:  # about to attach, or just detached
            continue
        row = json.loads(content)
        row["in_effect"] = row["generation"] == driver.load(state, function.handle)["generation"]
        found[rdma] = row
    return found


def _file(state: State, rdma: str) -> Path:
    return state.root / "markers" / f"{rdma}.json"


def main(name: str, argv: list[str]) -> int:
    """Attach, say so, and wait for the end."""
    line, ethertype = markerline.parse(name, argv)
    state, rdma = State(), line["device"]
    if rdma not in BY_RDMA or not state.device_exists(rdma):
        raise ToolError(f"cannot open RDMA device {rdma}: No such device")
    if os.geteuid() != 0 or state.fault("marker-refused", rdma) is not None:
        raise ToolError("RDMA-TX matcher creation failed: Operation not permitted")
    if not line["attached"]:
        print(json.dumps(line, separators=(",", ":")), flush=True)
        return 0
    ended: list[int] = []
    for signal_ in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_, lambda received, _: ended.append(received))
    path = _file(state, rdma)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        patience = time.monotonic() + 0.5  # a reader may hold the lock for a moment
        while not try_lock(file.fileno(), fcntl.LOCK_EX):
            if time.monotonic() > patience:
                raise ToolError("RDMA-TX UDP rewrite flow attachment failed: File exists")
            time.sleep(0.02)
        file.truncate(0)
        _trace("attach", rdma)
        row = {
            "pid": os.getpid(),
            "generation": driver.load(state, BY_RDMA[rdma].handle)["generation"],
            "ethertype": ethertype,
            "source_port": line["source_port"],
            "action": line["action"],
        }
        file.write(json.dumps(row))
        file.flush()
        print(json.dumps(line, separators=(",", ":")), flush=True)
        try:
            _wait(state, rdma, line["requested_run_seconds"], ended)
        finally:
            file.truncate(0)
    _trace("detach", rdma)
    return 0


def _trace(verb: str, rdma: str) -> None:
    """Record in the lab's trace what no wrapper can see, since markers are started by their path."""
    if os.path.exists(TRACE):
        subprocess.run([TRACE, verb, rdma], check=False, stdout=subprocess.DEVNULL)


def _wait(state: State, rdma: str, seconds: int, ended: list[int]) -> None:
    began = time.monotonic()
    while not ended and (not seconds or time.monotonic() - began < seconds):
        dies = state.fault("marker-dies", rdma)
        if dies is not None and time.monotonic() - began >= float(dies or 0):
            print("flow wait failed: Input/output error", file=sys.stderr, flush=True)
            raise SystemExit(1)
        time.sleep(POLL)
