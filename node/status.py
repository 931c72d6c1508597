"""How the containers of a stack on this node are doing, and whether the head's API answers."""

import json
from typing import Any

from . import httpcall
from .docker import OK, STACK, connect
from .kept import kept
from .request import Owner
from .system import System

LINES = 20
UNAUTHORIZED, FORBIDDEN = 401, 403
TIMEOUT = 3.0  # seconds for each request to the API

Json = dict[str, Any]


def status(system: System, owner: Owner, desired: Json) -> Json:
    """How rank and API are, for {"lines": n, "api": bool, "address": "…", "port": n}.

    {"containers": […], "kept": null or {…}, "api": null or {…}}.
    """
    containers, api = system.parallel(
        [
            lambda: _containers(system, owner, int(desired.get("lines", LINES))),
            lambda: _api((desired["address"], int(desired["port"]))) if desired.get("api") else {},
        ]
    )
    return {**containers, "api": api or None}


def _containers(system: System, owner: Owner, lines: int) -> Json:
    docker = connect(system)
    found: list[Json] = []
    try:
        everything = docker.containers()
        for container in everything:
            if container["labels"].get(STACK) == owner.label():
                log = [line[:500] for line in docker.logs(container["id"], lines)]
                found.append({**container, "log": log})
    except OSError as error:
        return {"containers": found, "kept": None, "docker_error": str(error)}
    return {"containers": found, "kept": kept(everything, owner.label()), "docker_error": None}


def _api(where: tuple[str, int]) -> Json:
    """What `/health` and `/v1/models` answer.

    "health" is a status or 0, "models" a list of ids, "key_needed" whether we are not shown it, "error" the reason.
    """
    answer: Json = {"health": 0, "models": [], "key_needed": False, "error": ""}
    try:
        answer["health"], _ = httpcall.call(where, "GET", "/health", TIMEOUT)
        code, body = httpcall.call(where, "GET", "/v1/models", TIMEOUT)
        answer["key_needed"] = code in (UNAUTHORIZED, FORBIDDEN)
        if code == OK:
            answer["models"] = [str(model["id"]) for model in json.loads(body)["data"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        answer["error"] = str(error) or type(error).__name__
    return answer
