"""One change at a time on a node. The lock goes with its process, however that ends; its file names the holder."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .request import FAILED, LOCKED, Failure, say
from .system import System

PATH = "/run/lock/spark-fabric.lock"
WAIT = 60.0
_STEP = 0.1


@contextmanager
def held(system: System, holder: str, wait: float = WAIT) -> Iterator[None]:
    """Hold the node's lock. Raises `Failure` naming the holder where it is not free within `wait` seconds.

    Also where whoever asked is gone by then: of a run that was killed, what has begun is finished and what still
    waits is dropped, so that it cannot come after the next run.
    """
    with system.open_lock(PATH) as file:
        end = system.clock() + wait
        told = False
        while not system.try_lock(file):
            if system.clock() >= end:
                raise Failure(
                    LOCKED,
                    f"the node is locked by {_words(_content(file))} for more than {wait:g} s",
                    "wait for that run, or end that process on the node",
                )
            if not told:
                say(f"waiting for {_words(_content(file))}")
                told = True
            system.sleep(_STEP)
        if system.caller_gone():
            raise Failure(FAILED, "whoever asked is gone: nothing was changed")
        _put(file, json.dumps({"holder": holder, "pid": os.getpid(), "since": system.now()}))
        try:
            yield
        finally:
            _put(file, "")


def observe(system: System) -> dict[str, Any] | None:
    """Holder, pid and time of the lock, or None where it is free."""
    file = system.open_lock_to_look(PATH)
    if file is None:
        return None
    with file:
        return None if system.try_lock(file, shared=True) else _content(file)


def _content(file: Any) -> dict[str, Any]:
    file.seek(0)
    try:
        value = json.loads(file.read())
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"holder": "a run that just started", "pid": 0, "since": 0.0}


def _put(file: Any, text: str) -> None:
    file.seek(0)
    file.truncate()
    file.write(text)
    file.flush()


def _words(content: dict[str, Any]) -> str:
    return f"{content['holder']} (process {content['pid']})"
