"""What the programs of perftest have in common: how two ends find each other, and how their tables are read."""

import itertools
import re
from collections.abc import Callable

from .run import Result
from .system import System

CONNECT = 15.0  # seconds in which a client looks for its server
_STEP = 0.3
_REFUSED = ("Couldn't connect", "Unable to init the socket connection", "Failed to exchange data")
_NAME = re.compile(r"(?:BW |[\d.]+% )?\S+")  # of a column


def once_heard(system: System, run: Callable[[], Result]) -> Result:
    """How a client ends, once its server is there. One that finds none begins again, for `CONNECT` seconds."""
    end = system.clock() + CONNECT
    while True:
        result = run()
        if not unheard(result) or system.clock() > end:
            return result
        system.sleep(_STEP)


def unheard(result: Result) -> bool:
    """Whether a client found no server."""
    return not result.ok and any(text in result.err + result.out for text in _REFUSED)


def figure(text: str, column: str) -> float | None:
    """The figure below the name of a column, such as `t_typical[usec]`; None where there is no such table."""
    for head, row in itertools.pairwise(text.splitlines()):
        names, values = _NAME.findall(head), row.split()
        if column in names and len(values) == len(names):
            try:
                return float(values[names.index(column)])
            except ValueError:
                return None
    return None
