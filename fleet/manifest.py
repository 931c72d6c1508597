"""The operator's manifest of a checkpoint: the digests that `sha256sum` prints, and what nodes have of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.look import Planned
from fleet.plan import Plan
from fleet.problems import Problem
from fleet.settings import Settings
from node.receipts import Json

LINE = re.compile(r"([0-9a-f]{64}) [ *](?:\./)?([^/\s][^/\n]*)")
NAMED = 3  # files that are told by name

Observed = Mapping[str, Any]


class ManifestError(Exception):
    """The file is no manifest; the message completes "cannot be used: "."""


def read(path: Path) -> dict[str, str]:
    """sha256 by file name. Raises ManifestError."""
    found: dict[str, str] = {}
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ManifestError(str(error)) from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        match = LINE.fullmatch(line)
        if match is None:
            raise ManifestError(f"line {number} is not a sha256 and a file of the folder")
        if found.setdefault(match[2], match[1]) != match[1]:
            raise ManifestError(f"line {number} has another digest of {match[2]} than a line before")
    if not found:
        raise ManifestError("it is empty")
    return found


@dataclass(frozen=True)
class Reading:
    """The files of one node that are to be read: what the node program takes, with the digests that are wanted.

    `reason` says what has not been read yet, or has changed since; None where nothing is left to do. `ours`: the node
    is ours already, so that it can be done while an engine runs.
    """

    node: str
    desired: Json
    reason: str | None
    ours: bool


def readings(plan: Plan, manifest: Mapping[str, str], observed: Mapping[str, Observed]) -> list[Reading]:
    """Of all ranks that have a folder that can be read; none without a manifest, or where nobody wants to know."""
    if not manifest or _ignored(plan.settings):
        return []
    found = []
    for node in plan.ranks:
        seen = observed.get(node.name) or {}
        if folder := _folder(seen):
            left, owner = _left(folder, manifest), seen.get("owner")
            reason = f"not read yet: {left} files (seen at {seen.get('time') or 0:.0f})" if left else None
            # One that may be adopted is nobody's until it is: it refuses to read.
            ours = bool(owner and not owner.get("adoptable") and plan.stack.owns(owner, plan.settings.fleet.id))
            found.append(Reading(node.name, {"path": folder["path"], "files": dict(manifest)}, reason, ours))
    return found


def digests(look: Planned) -> Iterator[Problem]:
    """Files that were read and are others than the manifest says, and a note about those that were not read yet."""
    waiting = []
    for node, observed in look.ranks:
        found = _folder(observed)
        if not look.manifest or not found:
            continue
        wrong = [(name, sha) for name, sha in found["read"].items() if sha != look.manifest.get(name, sha)]
        if wrong:
            texts = [f"{name} is {sha[:12]}, not {look.manifest[name][:12]}" for name, sha in wrong]
            more = f" and {len(texts) - NAMED} more" if len(texts) > NAMED else ""
            seen = f"holds other files: {', '.join(texts[:NAMED])}{more}"
            hint = "Copy them there once more, or correct engine.weights.manifest."
            yield Problem("weights-digest", f"{node.name} {found['path']}", seen, "those of the manifest", hint)
        if left := _left(found, look.manifest):
            waiting.append(f"{left} on {node.name}")
    if waiting and not _ignored(look.settings):
        seen, wanted = f"are not read yet: {', '.join(waiting)}", "each read once"
        hint = "`up` reads them before it stops anything, and on a node that is not this stack's yet once it is."
        yield Problem("weights-unverified", "weights files", seen, wanted, hint)


def _ignored(settings: Settings) -> bool:
    return "weights-digest" in settings.preflight.ignore


def _left(found: Observed, manifest: Mapping[str, str]) -> int:
    return len(manifest.keys() - found["read"].keys())


def _folder(observed: Observed) -> Observed | None:
    found: Observed | None = observed.get("weights")
    return found if found and found["there"] and "read" in found else None
