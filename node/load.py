"""Chat completions on the head, asked for on the node itself: traffic between the ranks whose cause is known."""

from typing import Any

from .completion import ApiError, call, key_of
from .request import Owner
from .system import System

Json = dict[str, Any]


def load(system: System, owner: Owner, desired: Json) -> Json:
    """{"answered": n, "error": "", "refused": bool, "seconds": s} of completions that are asked for one after another.

    Desired: {"address", "port", "model", "requests", "words" of the prompts, which take turns, "tokens" of an answer,
    "timeout" of all in seconds}. It ends at the first one that fails, which "error" is about; "refused" is that the API
    wants another key.
    """
    began = system.clock()
    until = began + float(desired["timeout"])
    key = key_of(system, owner)
    answer: Json = {"answered": 0, "error": "", "refused": False}
    for number in range(int(desired["requests"])):
        left = until - system.clock()
        if left <= 0:
            break
        words = int(desired["words"][number % len(desired["words"])])
        try:
            _completion(desired, f"{began:.6f} {number}", words, key, left)
        except ApiError as error:
            answer |= {"error": str(error), "refused": error.refused}
            break
        answer["answered"] += 1
    return {**answer, "seconds": system.clock() - began}


def _completion(desired: Json, start: str, words: int, key: str, timeout: float) -> None:
    """One completion. No two prompts begin alike: what an engine remembers of a prompt it does not compute again."""
    body = {
        "model": desired["model"],
        "messages": [{"role": "user", "content": f"{start}{' word' * words}"}],
        "max_tokens": int(desired["tokens"]),
        "temperature": 0,
    }
    call((str(desired["address"]), int(desired["port"])), "/v1/chat/completions", key, timeout, body)
