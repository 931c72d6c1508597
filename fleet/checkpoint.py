"""Checks of the weights: the same whole checkpoint on all nodes, as far as that is seen without reading it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from fleet.known import WEIGHTS
from fleet.look import Observed, Planned
from fleet.plan import NodePlan
from fleet.problems import Problem
from fleet.weights import Weights, parse
from node.weights import CONFIG, INDEX

NAMED = 3  # files of a kind that are told by name
DIGITS = 12

COPY = "Copy the whole checkpoint there once more, or correct engine.weights.path."
LINKS = "The container gets the folder alone. Copy what the links lead to: cp -rL, or cp -rlL on one file system."
ONE = "Copy one checkpoint to all nodes."


INSIDE = (
    *("weights-config", "weights-index", "weights-shards", "weights-empty", "weights-unreadable", "weights-link"),
    *("weights-differ", "weights-sizes", "weights-revision", "weights-digest", "weights-unverified"),
)
"""What is found inside of folders, and so nowhere where nobody could look into one."""


def folder(look: Planned) -> Iterator[Problem]:
    """Folders that are not there, that could not be looked at, or that nobody looks into."""
    for node, observed in _having(look):
        found = _seen(observed)
        if found is None:
            said = [line for line in observed.get("errors") or () if line.startswith("weights: ")]
            seen = f"its {said[0]}" if said else "its weights could not be looked at"
            yield Problem("weights-unread", node.name, seen, "a folder that can be read", "See to its disk.")
        elif found.network:
            yield Problem(
                "weights-network",
                f"{node.name} {found.path}",
                "is on a file system of the network, and is not looked into",
                "a folder on the node's own disk",
                "Copy it there. With this code in preflight.ignore it is mounted unseen; a server that goes away can "
                "hang the node.",
            )
        elif not found.there:
            seen, wanted = "is no folder that is there", "the checkpoint"
            hint = "Put it there, or correct engine.weights.path; nodes[].weights.path is for one node."
            yield Problem("weights-folder", f"{node.name} {found.path}", seen, wanted, hint)


def files(look: Planned) -> Iterator[Problem]:
    """What is missing from a checkpoint, and files of it that no engine can load."""
    for name, found in _there(look):
        at = f"{name} {found.path}"
        if CONFIG not in found.files:
            yield Problem("weights-config", f"{at}/{CONFIG}", "is not there", "that of the checkpoint", COPY)
        if INDEX not in found.files:
            yield Problem("weights-index", f"{at}/{INDEX}", "is not there", "the list of the shards", COPY)
        elif found.listed is None and _loadable(found, INDEX):
            seen = "names no shards" if found.index else "is far too large"
            yield Problem("weights-index", f"{at}/{INDEX}", seen, "JSON with a weight_map", COPY)
        missing = [shard for shard in found.listed or () if shard not in found.files]
        if missing:
            seen = f"lacks {len(missing)} of {len(found.listed or ())} shards: {_some(missing)}"
            yield Problem("weights-shards", at, seen, "every shard of its index", COPY)
        yield from _unloadable(found, at)


def _unloadable(found: Weights, at: str) -> Iterator[Problem]:
    out = {name: file.link for name, file in found.files.items() if file.link}
    broken = [name for name, file in found.files.items() if not file.readable and not file.link]
    empty = [name for name, file in found.files.items() if file.readable and not file.size]
    if out:
        seen = f"has links out of it: {_some(f'{name} to {target}' for name, target in out.items())}"
        yield Problem("weights-link", at, seen, "the files themselves", LINKS)
    if broken:
        seen, hint = f"has what cannot be read: {_some(broken)}", f"See to the disk. {COPY}"
        yield Problem("weights-unreadable", at, seen, "files that can be read", hint)
    if empty:
        yield Problem("weights-empty", at, f"has empty files: {_some(empty)}", "files with content", COPY)


def same(look: Planned) -> Iterator[Problem]:
    """Nodes whose checkpoints are not the same. What a node lacks or cannot read is told already."""
    nodes = dict(_there(look))
    for file, digests in (
        (CONFIG, {name: found.config for name, found in nodes.items()}),
        (INDEX, {name: found.index for name, found in nodes.items()}),
    ):
        groups = _groups({name: value[:DIGITS] for name, value in digests.items() if value})
        if len(groups) > 1:
            seen = f"is not the same everywhere: {_listing(groups)}"
            yield Problem("weights-differ", f"weights {file}", seen, "one checkpoint on all nodes", ONE)
    unequal = []
    for shard in sorted({shard for found in nodes.values() for shard in found.shards}):
        groups = _groups({name: size for name, found in nodes.items() if (size := _size(found, shard))})
        if len(groups) > 1:
            unequal.append(f"{shard} is {_listing(groups)}")
    if unequal:
        seen = f"are not the same everywhere: {_some(unequal, '; ')}"
        yield Problem("weights-sizes", "weights shards", seen, "one checkpoint on all nodes", ONE)


def _size(found: Weights, shard: str) -> str:
    """A shard's size in words; "" where something is said of it already."""
    if shard in found.files:
        return f"{found.files[shard].size} bytes" if _loadable(found, shard) else ""
    return "" if shard in (found.listed or ()) else "not there"


def revision(look: Planned) -> Iterator[Problem]:
    """Checkpoints of another revision than the settings name, by what is recorded of that one."""
    wanted = look.settings.engine.weights
    if wanted is None or wanted.revision is None:
        return
    of, hint = f"as revision {wanted.revision[:7]} has", f"Bring that revision of {WEIGHTS.repository}."
    for name, found in _there(look):
        at = f"{name} {found.path}"
        if found.config and found.config != WEIGHTS.config_sha256:
            seen = f"has the sha256 {found.config[:DIGITS]}"
            right = f"{WEIGHTS.config_sha256[:DIGITS]} {of}"
            yield Problem("weights-revision", f"{at}/{CONFIG}", seen, right, hint)
        if found.listed is None:
            continue
        if len(found.listed) != WEIGHTS.shards:
            seen = f"names {len(found.listed)} shards"
            yield Problem("weights-revision", f"{at}/{INDEX}", seen, f"{WEIGHTS.shards} {of}", hint)
        elif all(_loadable(found, shard) for shard in found.listed):
            size = sum(found.files[shard].size or 0 for shard in found.listed)
            if size != WEIGHTS.size:
                right = f"{WEIGHTS.size} {of}"
                yield Problem("weights-revision", at, f"has shards of {size} bytes", right, hint)


def _there(look: Planned) -> Iterator[tuple[str, Weights]]:
    """The ranks' folders that could be looked into."""
    for node, observed in _having(look):
        found = _seen(observed)
        if found and found.there:
            yield node.name, found


def _having(look: Planned) -> Iterator[tuple[NodePlan, Observed]]:
    """The ranks whose nodes have the weights: all, or the head that shares them, or none where nobody named any."""
    having = {node.name for node in look.settings.ranks if look.settings.weights_on(node)}
    return ((node, observed) for node, observed in look.ranks if node.name in having)


def looked_into(observed: Observed) -> bool:
    """Whether a node's folder of weights could be looked into."""
    found = _seen(observed)
    return found is not None and found.there


def _seen(observed: Observed) -> Weights | None:
    raw = observed.get("weights")
    return parse(raw) if raw else None


def _loadable(found: Weights, name: str) -> bool:
    file = found.files.get(name)
    return bool(file and file.readable and file.size)


def _groups(values: Mapping[str, str]) -> dict[str, list[str]]:
    """By value: the nodes that have it."""
    groups: dict[str, list[str]] = {}
    for name, value in values.items():
        groups.setdefault(value, []).append(name)
    return groups


def _listing(groups: Mapping[str, Iterable[str]]) -> str:
    return ", ".join(f"{value} on {' and '.join(names)}" for value, names in groups.items())


def _some(names: Iterable[str], between: str = ", ") -> str:
    """The first of them, and how many more."""
    told = list(names)
    more = f" and {len(told) - NAMED} more" if len(told) > NAMED else ""
    return between.join(told[:NAMED]) + more
