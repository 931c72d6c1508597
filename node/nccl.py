"""The NCCL library that the engine gets in place of its image's: our copy of the operator's file, or a file of theirs.

Ours ("source": "sent") is put there and removed again. Theirs ("source": "node") is only looked at. Every difference
stops the engine first: all ranks need the same library, and a running one keeps what it has loaded.
"""

import os
from collections.abc import Iterable
from functools import partial
from typing import Any

from . import elf
from .deviation import Deviation, of_journal
from .digest import digest
from .journal import folder
from .platform import far
from .run import TIMED_OUT
from .sent import META, SENT, Place, Sent
from .steps import Step
from .system import System

STAGE = "nccl"
ANSWER = 3.0  # seconds for a file system of the network to answer
THEIRS = "node"  # the source of a file that is on the node already
NAMES = ("libnccl.so.2.30.7", "libnccl.so.2")
"""Names of the library in a folder; the first wins."""

NAME = "libnccl.so.2"
"""The name that programs ask the loader for."""

Json = dict[str, Any]


def candidates(path: str) -> list[str]:
    """Where the library may be if somebody names `path`, a file or a folder; and its rival under the other name."""
    own, name = os.path.split(path.rstrip("/"))
    beside = [f"{own}/{other}" for other in NAMES] if name in NAMES else []
    return list(dict.fromkeys([path, *beside, *(f"{path.rstrip('/')}/{other}" for other in NAMES)]))


def observe(system: System, stack: str | None, named: Iterable[str]) -> Json:
    """What the files are that were sent for a stack, and those that somebody names; missing ones are left out.

    "silent" are named paths on a file system of the network that does not answer: nobody knows what is there.
    """
    own = f"{folder(stack)}/{STAGE}" if stack else ""
    sent = [f"{own}/{sha256}/{name}" for sha256 in system.names(own) for name in system.names(f"{own}/{sha256}")]
    asked = list(dict.fromkeys(path for one in named for path in candidates(one)))
    silent = _silent(system, asked)
    paths = dict.fromkeys(path for path in [*sent, *asked] if path not in silent)
    files = {path: facts for path in paths if (facts := _facts(system, path)) is not None}
    return {"files": files, "silent": silent}


def _silent(system: System, paths: list[str]) -> list[str]:
    """Paths at which a look would hang. Asked of another process, which can be ended; links may lead there as well.

    It opens them: what is only asked for its size may be answered from memory.
    """
    if not paths or not far(system):
        return []
    looks = [partial(system.run, ["head", "-c", "1", "--", path], ANSWER) for path in paths]
    return [path for path, look in zip(paths, system.parallel(looks), strict=True) if look.rc == TIMED_OUT]


def _facts(system: System, path: str) -> Json | None:
    file, meta = system.open_to_read(path), system.meta(path)
    if file is None or meta is None:
        return None
    with file:
        return {**elf.describe(file), "mode": f"{meta.mode:04o}", "uid": meta.uid, "gid": meta.gid}


def deviations(desired: Json, observed: Json) -> list[Deviation]:
    """Everything in which a node's library differs from the plan; empty where there is nothing to do."""
    if desired["state"] == "off":
        entry = ((observed.get("journal") or {}).get("stages") or {}).get(STAGE)
        return [Deviation("nccl.on", STAGE, "is on", "it off", disruptive=True)] if entry else []
    found = of_journal(STAGE, digest(desired), observed, disruptive=True)
    seen = observed.get("nccl") or {}
    silent = desired["path"] in (seen.get("silent") or [])
    return found + _of_file(desired, (seen.get("files") or {}).get(desired["path"]), silent=silent)


def _of_file(desired: Json, file: Json | None, *, silent: bool) -> list[Deviation]:
    path, wanted, theirs = desired["path"], desired["sha256"], desired["source"] == THEIRS
    if wanted is None:
        return []  # nobody has seen the file yet: a draft, or a plan without nodes
    short = f"the library {wanted[:12]}"
    if file is None:
        gone = "is on a file system of the network that does not answer" if silent else "is missing"
        return [Deviation("file.missing", path, gone, short, disruptive=True, foreign=theirs)]
    if file["sha256"] != wanted:
        seen = f"is {file['sha256'][:12]}"
        return [Deviation("file.content", path, seen, short, disruptive=True, foreign=theirs)]
    seen = f"{file['mode']} {file['uid']}:{file['gid']}"
    own = f"{META.mode:04o} {META.uid}:{META.gid}"
    if not theirs and seen != own:
        return [Deviation("file.mode", path, f"mode and owner are {seen}", own, disruptive=True)]
    return []


def plan(desired: Json, observed: Json) -> list[Step]:
    """The steps that lead to the desired state "on"; none where the file is the operator's."""
    if desired["source"] != SENT:
        return []
    file = Sent(desired["path"], desired["sha256"], desired["size"])
    needed = any(found.code.startswith("file.") for found in deviations(desired, observed))
    return [Place(file, needed=needed)]


def validate(system: System, desired: Json, observed: Json) -> list[str]:  # noqa: ARG001
    """What speaks against it: a file of the operator's that is not there any more, or another one by now."""
    if desired["state"] == "off":
        return []
    return [found.text() for found in deviations(desired, observed) if found.foreign]
