"""Chat completions on the head, asked for on the node itself: traffic between the ranks whose cause is known.

The API's key is in the environment of the container that wants it. It is taken from there, so that it has to be sent to
no node and shows in no process list.
"""

import json
from typing import Any

from . import httpcall
from .docker import OK, STACK, connect
from .request import Owner
from .system import System

UNAUTHORIZED, FORBIDDEN = 401, 403
KEY = "API_KEY="
HIDDEN = "[secret]"
SHOWN = 300  # characters of an answer

Json = dict[str, Any]


def load(system: System, owner: Owner, desired: Json) -> Json:
    """{"answered": n, "error": "", "refused": bool, "seconds": s} of completions that are asked for one after another.

    Desired: {"address", "port", "model", "requests", "words" of the prompts, which take turns, "tokens" of an answer,
    "timeout" of all in seconds}. It ends at the first one that fails, which "error" is about; "refused" is that the API
    wants another key.
    """
    began = system.clock()
    until = began + float(desired["timeout"])
    key = _key(system, owner)
    answer: Json = {"answered": 0, "error": "", "refused": False}
    for number in range(int(desired["requests"])):
        left = until - system.clock()
        if left <= 0:
            break
        words = int(desired["words"][number % len(desired["words"])])
        answer["error"], answer["refused"] = _completion(desired, f"{began:.6f} {number}", words, key, left)
        if answer["error"]:
            break
        answer["answered"] += 1
    return {**answer, "seconds": system.clock() - began}


def _completion(desired: Json, start: str, words: int, key: str, timeout: float) -> tuple[str, bool]:
    """What went wrong with one completion, and whether that is for want of a key.

    No two prompts begin alike: what an engine remembers of a prompt it does not compute again.
    """
    body = {
        "model": desired["model"],
        "messages": [{"role": "user", "content": f"{start}{' word' * words}"}],
        "max_tokens": int(desired["tokens"]),
        "temperature": 0,
    }
    headers = "Content-Type: application/json\r\n" + (f"Authorization: Bearer {key}\r\n" if key else "")
    where = (str(desired["address"]), int(desired["port"]))
    try:
        status, said = httpcall.call(where, "POST", "/v1/chat/completions", timeout, json.dumps(body).encode(), headers)
    except OSError as error:
        return str(error) or type(error).__name__, False
    if status == OK:
        return "", False
    text = said.decode(errors="replace")
    if key:  # hidden before anything is cut: a part of it would not be found any more
        text = text.replace(key, HIDDEN).replace(json.dumps(key)[1:-1], HIDDEN)
    return f"status {status}: {' '.join(text.split())[:SHOWN]}", status in (UNAUTHORIZED, FORBIDDEN)


def _key(system: System, owner: Owner) -> str:
    """The key in the environment of the stack's container here; "" where there is none."""
    docker = connect(system)
    try:
        for container in docker.containers():
            if container["labels"].get(STACK) == owner.label():
                config = (docker.get(f"/containers/{container['id']}/json") or {}).get("Config") or {}
                found = (entry for entry in config.get("Env") or [] if entry.startswith(KEY))
                return str(next(found, KEY)).removeprefix(KEY)
    except OSError:
        pass  # the completion will tell
    return ""
