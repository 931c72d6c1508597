"""`python -m fleet tables`: the head's speculation tables on all workers, or none where the head has none.

All ranks decode by these tables, and read them when they start: so they change together, while no rank runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleet import on_node, oneshot
from fleet.containers import STATE
from fleet.engine_settings import Volume
from fleet.on_node import Answer
from fleet.survey import Survey
from node.platform import TABLES

VERB = "tables"
WHY = "An engine reads the tables when it starts, and all ranks have to decode by the same."

Json = dict[str, Any]


def tables(found: Survey) -> list[str]:
    """Make the workers' tables the head's, and print what was done, a line for each node and table.

    What stands in the way, of all nodes and before anything is changed, or what went wrong; nothing where all is done.
    """
    state = oneshot.folder(found, STATE, "the engine's folder of state, with its tables")
    problems = [
        *([] if isinstance(state, Volume) else [state]),
        *oneshot.strangers(found),
        *oneshot.engines(found, WHY),
    ]
    if problems or not isinstance(state, Volume):
        return [one.text() for one in problems]
    head, *workers = [node.name for node in found.plan.ranks]
    look = {"action": "look", "folder": state.source}
    answers = _ask(found, {head: {**look, "action": "read"}, **dict.fromkeys(workers, look)})
    if failed := oneshot.failed(answers):
        return [*failed, "Nothing was changed."]
    held: dict[str, Json] = {answer.node: (answer.result or {})["tables"] for answer in answers}
    todo = {name: wrong for name in workers if (wrong := _wrong(held[head], held[name]))}
    write = {
        name: {
            "action": "write",
            "folder": state.source,
            "tables": {one: (held[head][one] or {}).get("content") for one in wrong},
        }
        for name, wrong in todo.items()
    }
    done = _ask(found, write)
    refused = {answer.node for answer in done if oneshot.failed([answer])}
    for name in workers:
        for table in TABLES:
            said = _said(head, held[head][table], changed=table in todo.get(name, ()))
            if name not in refused:
                print(f"{name} {state.source}/{table}: {said}")
    return oneshot.failed(done)


def _ask(found: Survey, desired: Mapping[str, Json]) -> list[Answer]:
    links = [found.links[name] for name in desired]
    return on_node.on_all(VERB, found.plan.stack.stack, links, oneshot.requests(found, desired)) if links else []


def _wrong(head: Json, worker: Json) -> list[str]:
    """The tables that a worker has otherwise than the head."""
    return [name for name in TABLES if (head[name] or {}).get("sha256") != (worker[name] or {}).get("sha256")]


def _said(head: str, table: Json | None, *, changed: bool) -> str:
    if table is None:
        return f"removed, as {head} has none" if changed else f"none, as on {head}"
    what = f"{table['size']} bytes, sha256 {table['sha256'][:12]}"
    return f"copied from {head}: {what}" if changed else f"as on {head}: {what}"
