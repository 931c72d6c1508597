"""What can be asked of a node's simulated card and of its kernel; one JSON object each way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import announce, counters, reach, routing, rules, view
from .state import State

QUESTIONS: dict[str, Callable[..., Any]] = {
    "view": lambda state, **_: view.take(state),
    "route": lambda _, **words: routing.route(**words),
    "neighbour": lambda _, **words: routing.neighbour(**words),
    "wires": lambda _, **words: announce.listen(**words),
    "emit": lambda _, **words: routing.emit(**words),
    "count-rule": rules.count,
    "count-port": counters.add,
    "reach": lambda _, **words: reach.reach(**words),
}


def answer(request: dict[str, Any]) -> Any:
    """The answer to `{"op": …, …}`; a KeyError or TypeError for a question that is none."""
    words = {name: value for name, value in request.items() if name != "op"}
    return QUESTIONS[request["op"]](State(), **words)
