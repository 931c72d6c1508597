"""One request to the engine's API, asked on the head itself.

The API's key is in the environment of the container that wants it. It is taken from there, so that it has to be sent to
no node and shows in no process list, and it is in nothing that is told.
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


class ApiError(Exception):
    """The API did not answer, or not with success. `refused`: it wants another key."""

    def __init__(self, text: str, *, refused: bool = False) -> None:
        super().__init__(text)
        self.refused = refused


def call(where: tuple[str, int], path: str, key: str, timeout: float, body: Json | None = None) -> bytes:
    """The body of an answer with status 200, to a GET or, with a body, to a POST. Raises ApiError."""
    headers = "Content-Type: application/json\r\n" + (f"Authorization: Bearer {key}\r\n" if key else "")
    method, content = ("GET", b"") if body is None else ("POST", json.dumps(body).encode())
    try:
        status, said = httpcall.call(where, method, path, timeout, content, headers)
    except OSError as error:
        raise ApiError(str(error) or type(error).__name__) from None
    if status != OK:
        text = hidden(said.decode(errors="replace"), key)
        refused = status in (UNAUTHORIZED, FORBIDDEN)
        raise ApiError(f"status {status}: {' '.join(text.split())[:SHOWN]}", refused=refused)
    return said


def hidden(text: str, key: str) -> str:
    """A text without the key. Before anything is cut off it: a part of a key would not be found any more."""
    return text.replace(key, HIDDEN).replace(json.dumps(key)[1:-1], HIDDEN) if key else text


def key_of(system: System, owner: Owner) -> str:
    """The key in the environment of the stack's container here; "" where there is none."""
    docker = connect(system)
    try:
        for container in docker.containers():
            if container["labels"].get(STACK) == owner.label():
                config = (docker.get(f"/containers/{container['id']}/json") or {}).get("Config") or {}
                found = (entry for entry in config.get("Env") or [] if entry.startswith(KEY))
                return str(next(found, KEY)).removeprefix(KEY)
    except OSError:
        pass  # the request will tell
    return ""
