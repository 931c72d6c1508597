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
    """Whose files are to be read: by node what the node program takes, with the digests that are wanted.

    `reason` says what has not been read yet, or has changed since; None where nothing is left to do. `before`: all
    these nodes are ours already, so that it can be done while an engine runs.
    """

    desired: Mapping[str, Json]
    reason: str | None
    before: bool


def reading(plan: Plan, manifest: Mapping[str, str] | None, observed: Mapping[str, Observed]) -> Reading | None:
    """None without a manifest, or where no node has a folder that can be read."""
    if not manifest:
        return None
    folders = {name: found for name, seen in observed.items() if (found := _folder(seen))}
    ranks = [node.name for node in plan.ranks if node.name in folders]
    desired = {name: {"path": folders[name]["path"], "files": dict(manifest)} for name in ranks}
    left = [f"{name}: {_left(folders[name], manifest)} files" for name in ranks if _left(folders[name], manifest)]
    now = max((float(observed[name].get("time") or 0) for name in ranks), default=0.0)
    owners = [observed[name].get("owner") for name in ranks]
    fleet_id = plan.settings.fleet.id
    before = all(owner and plan.stack.owns(owner, fleet_id) for owner in owners)
    reason = f"not read yet: {', '.join(left)} (seen at {now:.0f})" if left else None
    return Reading(desired, reason, before) if desired else None


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
    if waiting:
        seen, wanted = f"are not read yet: {', '.join(waiting)}", "each read once"
        yield Problem("weights-unverified", "weights files", seen, wanted, "`up` reads them before it stops anything.")


def _left(found: Observed, manifest: Mapping[str, str]) -> int:
    return len(manifest.keys() - found["read"].keys())


def _folder(observed: Observed) -> Observed | None:
    found: Observed | None = observed.get("weights")
    return found if found and found["there"] and "read" in found else None
