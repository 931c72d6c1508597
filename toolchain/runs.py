"""A record of each run of the wrapper, so that what a killed one left can be told from everything else.

A run is the process that becomes ``pulumi``; its mark is in the environment of all that it starts. When that process is
gone and one with the mark is still there, it belongs to a dead run: nothing else can have the mark.
"""

import json
import os
from contextlib import suppress
from pathlib import Path

from toolchain import processes
from toolchain.errors import note

VARIABLE = "SPARK_FABRIC_RUN"


def begin(folder: Path) -> dict[str, str]:
    """Record this process as a run, and return the variable that marks its children; empty where that is no use."""
    me = processes.identity(os.getpid())
    if not me:
        return {}
    run = os.urandom(16).hex()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / f"{run}.json").write_text(json.dumps(me._asdict()), "utf-8")
    return {VARIABLE: run}


def end_dead(folder: Path) -> None:
    """End the processes that dead runs left, and forget those runs."""
    for path in sorted(folder.glob("*.json")):
        try:
            run = processes.Identity(**json.loads(path.read_text("utf-8")))
        except (OSError, ValueError, TypeError):
            continue  # Being written, or not ours.
        now = processes.identity(run.pid)
        if now == run:
            continue
        # After a restart of the machine there is nothing left to end.
        left = processes.end(f"{VARIABLE}={path.stem}")
        if left:
            note(f"ended what an earlier, killed run had left: {', '.join(left)}")
        with suppress(OSError):
            path.unlink()
