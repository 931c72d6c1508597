"""The engine's speculation tables in its folder of state: told, and made those of another node.

The folder is the operator's: nothing of this is in the journal, and nothing undoes it.
"""

import base64
from typing import Any

from .alive import refuse_rank
from .digest import sha256
from .platform import TABLES, refuse_folder
from .request import BAD_REQUEST, FAILED, Failure
from .system import Meta
from .transaction import Run

LARGEST = 1 << 20  # bytes of a table; real ones have some thousands
MODE = 0o644

WHY = "an engine reads the tables when it starts, and all ranks have to decode by the same"

Json = dict[str, Any]


def tables(run: Run) -> Json:
    """{"tables": {name: {"sha256", "size"} or None}, "changed", "notes"}: which tables are in a folder.

    Desired: {"action", "folder"}. With the action "read" each has its "content" too, in base64; "look" leaves that
    out; "write" first makes them what {"tables": {name: content or None}} says, where None is no such file.
    Raises `Failure` with every problem, before anything is changed: a rank of the stack that runs, a folder that cannot
    be used, what is no file of a table's size.
    """
    desired = run.request.desired
    action, folder = str(desired.get("action")), str(desired.get("folder"))
    if action not in ("look", "read", "write") or not folder.startswith("/"):
        raise Failure(BAD_REQUEST, f"tables: look, read or write in a folder by its whole path, not {action} {folder}")
    refuse_rank(run.system, run.node, run.request.owner.label(), WHY)
    wanted = desired.get("tables", {}) if action == "write" else {}
    refuse_folder(run.system, run.node, folder, writing=action != "read")
    held = _held(run, folder)
    for name in TABLES:
        if name in wanted:
            content = None if wanted[name] is None else base64.b64decode(wanted[name])
            if held[name] != content:
                _put(run, folder, name, content)
                held[name] = content
    told = {name: _told(content, whole=action == "read") for name, content in held.items()}
    return {"tables": told, "changed": run.report.changed, "notes": run.report.notes}


def _told(content: bytes | None, *, whole: bool) -> Json | None:
    if content is None:
        return None
    more = {"content": base64.b64encode(content).decode()} if whole else {}
    return {"sha256": sha256(content), "size": len(content), **more}


def _held(run: Run, folder: str) -> dict[str, bytes | None]:
    """The tables as they are. A link in the place of one is followed by nobody here: it may lead anywhere."""
    held: dict[str, bytes | None] = {}
    problems = []
    for name in TABLES:
        path, held[name] = f"{folder}/{name}", None
        if not run.system.exists(path):
            continue
        file = run.system.open_no_link(path)
        if file is None:
            seen = "is a symbolic link" if run.system.target(path) else "is no file"
            problems.append(f"{run.node} {path}: {seen}, wanted the table itself: remove it, or put the table there")
            continue
        with file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            problems.append(f"{run.node} {path}: has more than {LARGEST} bytes, which no table has: look what it is")
        held[name] = content
    if problems:
        raise Failure(FAILED, *problems)
    return held


def _put(run: Run, folder: str, name: str, content: bytes | None) -> None:
    """Put a table there, or take it away. It belongs to the owner of the folder, as whom an engine may run."""
    path = f"{folder}/{name}"
    found = run.system.folder(folder) or {}
    try:
        if content is None:
            run.system.remove(path)
            run.report.did(f"{path}: removed")
        else:
            uid, gid = map(int, found["owner"].split(":"))
            run.system.write(path, content, Meta(MODE, uid, gid, 0))
            run.report.did(f"{path}: written, {len(content)} bytes")
    except OSError as error:
        raise Failure(FAILED, f"{run.node} {path}: cannot be changed: {error.strerror or error}") from None
