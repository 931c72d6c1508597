"""The command line: `VERB` with a request on stdin, or `status` and `revert` by hand (see `node.manual`)."""

import contextlib
import json
import os
import signal
import sys
from dataclasses import replace
from typing import Any

from . import manual, observe
from .request import BAD_REQUEST, FAILED, OK, Failure, Request, parse, say
from .system import System

Json = dict[str, Any]

LOOKS = ("counters", "load", "loaded", "smoke", "by-hand", "bandwidth")
VERBS = (
    *("observe", "check", "apply", "wants", "install", "revert", "engines", "verify", "reach", "unshare", "weigh"),
    *("cabling", "status", "adopt", "retry", "mesh-up", "mesh-verify", "tables", "pack-engram"),
    *LOOKS,
)


def main(argv: list[str]) -> int:
    """Do one verb; the exit code."""
    os.umask(0o077)
    for number in (signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)  # a lost connection must not stop us half-way
    system = System()
    try:
        verb = _verb(argv)
        answer = act(system, verb, _request(system, verb))
    except Failure as failure:
        for line in failure.lines:
            say(line)
        answer, code = {"ok": False, "error": "\n".join(failure.lines)}, failure.code
    else:
        code = OK if answer.pop("ok", True) else FAILED
        answer = {"ok": code == OK, **answer}
    with contextlib.suppress(OSError):  # nobody may be there to read it
        print(json.dumps(answer), flush=True)
    return code


def _request(system: System, verb: str) -> Request:
    if verb in ("install", "pack-engram"):
        stdin = sys.stdin.buffer
        return replace(parse(stdin.readline().decode()), content=stdin)
    text = "" if sys.stdin.isatty() else sys.stdin.read()
    return parse(text) if text.strip() else manual.request(system, verb)


def _verb(argv: list[str]) -> str:
    verb = argv[0] if argv else ""
    if verb not in VERBS:
        raise Failure(BAD_REQUEST, f"{verb!r} is no verb: {', '.join(VERBS)}")
    return verb


def act(system: System, verb: str, request: Request) -> Json:
    """Do one verb; the answer. Raises `Failure`."""
    if verb == "observe":
        asked = request.desired
        return observe.observe(
            system,
            request.owner,
            named=asked.get("libraries") or (),
            folders=asked.get("folders") or (),
            weights=asked.get("weights"),
            nfs=asked.get("nfs"),
            with_mesh=asked.get("mesh") or False,
            image=asked.get("image") or "",
        )
    # Compiling these costs more time than `observe` takes.
    if verb == "status":
        from .status import status  # noqa: PLC0415

        return status(system, request.owner, request.desired)
    if verb == "verify":
        from .verify import verify  # noqa: PLC0415

        return verify(system, request.node or "this node", request.desired)
    if verb == "reach":
        from .nfs import reach  # noqa: PLC0415

        return reach(system, request.node or "this node", request.desired)
    if verb == "wants":
        from .sent import wants  # noqa: PLC0415

        return wants(system, request.desired)
    if verb == "cabling":
        from .cabling import cabling  # noqa: PLC0415

        return cabling(system, request.node or "this node", request.desired)
    if verb == "mesh-up":
        from .meshup import up  # noqa: PLC0415

        return up(system, request)
    if verb == "mesh-verify":
        from .meshverify import verify as verify_mesh  # noqa: PLC0415

        return verify_mesh(system, request.node or "this node", request.desired)
    if verb in LOOKS:
        return _look(system, verb, request)
    from . import changes  # noqa: PLC0415

    if verb == "check":
        return changes.check(system, request)
    return changes.change(system, verb, request)


def _look(system: System, verb: str, request: Request) -> Json:
    """What an engine does on this node, ours or one that somebody started by hand, or what the fabric carries without
    one. Nothing is changed.
    """
    if verb == "counters":
        from .counters import counters  # noqa: PLC0415

        return counters(system, request.desired)
    if verb == "load":
        from .load import load  # noqa: PLC0415

        return load(system, request.owner, request.desired)
    if verb == "loaded":
        from .loaded import loaded  # noqa: PLC0415

        return loaded(system, request.owner, request.desired)
    if verb == "bandwidth":
        from .bandwidth import bandwidth  # noqa: PLC0415

        return bandwidth(system, request.node or "this node", request.desired)
    if verb == "smoke":
        from .smoke import smoke  # noqa: PLC0415

        return smoke(system, request.owner, request.desired)
    from .byhand import by_hand  # noqa: PLC0415

    return by_hand(system)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
