"""What the program is asked to do, and the words in which it answers.

A request is one JSON object on stdin:

    {"owner": {"project": "spark-fabric", "stack": "ring", "fleet_id": "…", "state_id": "…"},
     "node": "spark1", "stage": "plane0", "desired": {…}, "holder": "who asks, and from where", "force": false}

For `install` it is one line, and the contents of files follow (see `node.sent`). For `pack-engram` it is one line too,
and nothing follows: stdin stays open for as long as somebody wants it.

The answer is one JSON object on stdout; progress and errors are short lines on stderr.
"""

import contextlib
import json
import re
import sys
from dataclasses import dataclass, field
from typing import Any, BinaryIO

OK = 0
FAILED = 1
BAD_REQUEST = 3
ENGINE_ALIVE = 9
OTHER_OWNER = 10
LOCKED = 11
READ_BACK = 12
NEWER_SCHEMA = 13

LINE = 4000  # bytes; longer lines have hung a reader of ours

_STACK = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


class Failure(Exception):
    """The end of a run that did not do what was asked: an exit code and lines that say what was seen and what to do."""

    def __init__(self, code: int, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.code = code
        self.lines = lines


@dataclass(frozen=True)
class Owner:
    """The stack that a node belongs to.

    `state_id` tells two checkouts of one stack apart: it lies beside the Pulumi state and not in the stack file.
    """

    project: str
    stack: str
    fleet_id: str
    state_id: str

    def label(self) -> str:
        """The value of the container label `spark-fabric.stack`."""
        return f"{self.project}/{self.stack}/{self.fleet_id}"

    def to_json(self) -> dict[str, str]:
        """The owner as the JSON object of requests and of the owner file."""
        return {"project": self.project, "stack": self.stack, "fleet_id": self.fleet_id, "state_id": self.state_id}


@dataclass(frozen=True)
class Request:
    """One request. `desired` is empty where the verb takes none; `content` is what follows an `install`."""

    owner: Owner
    node: str
    stage: str
    desired: dict[str, Any] = field(default_factory=dict)
    holder: str = "someone"
    force: bool = False
    content: BinaryIO | None = None


def parse_owner(value: Any) -> Owner:
    """An owner from its JSON object. Raises `Failure` (bad request) naming the wrong key."""
    if not isinstance(value, dict):
        raise Failure(BAD_REQUEST, "the request has no owner")
    texts: dict[str, str] = {}
    for key in ("project", "stack", "fleet_id", "state_id"):
        text = value.get(key)
        if not isinstance(text, str) or not text:
            raise Failure(BAD_REQUEST, f"owner.{key} is {text!r}, a text is wanted")
        texts[key] = text
    if not _STACK.fullmatch(texts["stack"]):
        raise Failure(BAD_REQUEST, f"owner.stack is {texts['stack']!r}: letters, digits, '-', '_' and '.' are wanted")
    return Owner(**texts)


def parse(text: str) -> Request:
    """A request from its JSON text. Raises `Failure` (bad request)."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise Failure(BAD_REQUEST, f"the request is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise Failure(BAD_REQUEST, "the request is not a JSON object")
    desired = value.get("desired") or {}
    if not isinstance(desired, dict):
        raise Failure(BAD_REQUEST, "desired is not a JSON object")
    return Request(
        owner=parse_owner(value.get("owner")),
        node=str(value.get("node") or ""),
        stage=str(value.get("stage") or ""),
        desired=desired,
        holder=str(value.get("holder") or "someone"),
        force=value.get("force") is True,
    )


def say(line: str) -> None:
    """Print a progress line on stderr, cut where it would be too long for a reader."""
    data = line.encode(errors="replace")
    if len(data) > LINE:
        line = data[:LINE].decode(errors="ignore") + "…"
    with contextlib.suppress(OSError):  # nobody may listen any more, and the work must go on
        print(line, file=sys.stderr, flush=True)
