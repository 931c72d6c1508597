"""`python -m fleet pack`: the packed engram of every rank, once: else each engine makes it in its first start."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from typing import Any

from fleet import on_node, oneshot
from fleet.containers import ENGRAM, engram_files, engram_space
from fleet.engine_settings import Volume
from fleet.facts import parse
from fleet.on_node import Answer, Link
from fleet.plan import NodePlan
from fleet.problems import Problem, config_path
from fleet.survey import Survey
from fleet.weights_settings import MODEL, TOLD
from node.docker import PACKS
from node.pack import program

VERB = "pack-engram"
TELL_EVERY_S = 10.0
WHY = "An engine reads and writes the same files."
GIB = 1 << 30

Json = dict[str, Any]


def pack(found: Survey) -> list[str]:
    """Have each rank's engram packed on its node, all at once, and print how far it is and how it ended.

    What stands in the way, of all nodes and before anything is begun, or what went wrong; nothing where all is there.
    """
    mounted = oneshot.folder(found, ENGRAM, "the folder of the packed engram")
    if not isinstance(mounted, Volume):
        return [one.text() for one in (mounted, *oneshot.strangers(found))]
    problems = list(oneshot.strangers(found))
    ranks = [node for node in found.plan.ranks if node.name in found.ours]
    todo: list[NodePlan] = []
    for node in ranks:
        wrong = _folder(found, node, mounted)
        problems += wrong
        if not wrong and _missing(found, node, mounted):
            todo.append(node)
    if todo or problems:
        problems += [one for node in ranks for one in _lacking(found, node)]
        problems += [one for node in todo for one in _room(found, node, mounted)]
        problems += oneshot.engines(found, WHY)
    if problems:
        return [one.text() for one in problems]
    for node in ranks:
        if node not in todo:
            print(f"{node.name} {mounted.source}: holds the packed engram of rank {node.rank}: nothing was done")
    return _on_all(found, {node.name: _desired(found, node, mounted) for node in todo})


def _files(found: Survey, node: NodePlan) -> list[str]:
    assert node.rank is not None
    return engram_files(node.rank, len(found.plan.ranks))


def _seen(found: Survey, node: NodePlan, folder: str) -> Json | None:
    seen: Json | None = (found.seen.observed[node.name].get("folders") or {}).get(folder)
    return seen


def _missing(found: Survey, node: NodePlan, mounted: Volume) -> list[str]:
    seen = _seen(found, node, mounted.source)
    return [name for name in _files(found, node) if not (seen or {"files": {}})["files"].get(name)]


def _folder(found: Survey, node: NodePlan, mounted: Volume) -> list[Problem]:
    """What is wrong with the folder itself."""
    path, seen = f"{node.name} {mounted.source}", _seen(found, node, mounted.source)
    observed = found.seen.observed[node.name]
    if observed.get("folders") is None:
        what = "; ".join(observed.get("errors") or ()) or "nothing was told of the engine's folders"
        return [Problem("engram-folder", path, f"could not be looked at: {what}", "a look at it", "Run it again.")]
    if seen is None:
        what, hint = "cannot be looked at: it is on a file system of the network", "Correct engine.volumes."
        return [Problem("engram-folder", path, what, "a folder of the node's own disk", hint)]
    if not seen["folder"]:
        return [Problem("engram-folder", path, "is no folder that is there", "that folder", "Make it.")]
    if not seen["folder"]["writable"]:
        what = "is on a file system that is mounted read-only"
        return [Problem("engram-folder", path, what, "to write", "Mount it anew.")]
    return []


def _room(found: Survey, node: NodePlan, mounted: Volume) -> Iterator[Problem]:
    seen = _seen(found, node, mounted.source)
    assert seen
    assert node.rank is not None
    yield from engram_space(f"{node.name} {mounted.source}", node.rank, len(found.plan.ranks), seen)


def _lacking(found: Survey, node: NodePlan) -> Iterator[Problem]:
    """What a node lacks for the container, or has in its place."""
    observed = found.seen.observed[node.name]
    up = f"`./pulumiw up -s {found.plan.stack.stack}` brings it."
    if lock := observed.get("lock"):
        seen = f"is being changed by {lock.get('holder')}"
        yield Problem("node-busy", node.name, seen, "nobody at work there", "Wait for that run.")
    docker = observed.get("docker")
    if docker is None:
        yield Problem("docker", node.name, "docker does not answer", "a running daemon", "sudo systemctl start docker")
        return
    if not _image(found, node):
        yield Problem("image-missing", node.name, f"has no image {found.plan.image_ref}", "the plan's image", up)
    name = _name(found)
    for one in docker.get("containers") or []:
        # One of ours is a leftover, as nobody has the node's lock: the node removes it.
        if one["name"] == name and one["labels"].get(PACKS) != found.plan.label:
            seen, hint = f"has a container {name} that is not this stack's", "Remove or rename it."
            yield Problem("container-name", node.name, seen, "the name free", hint)
    weights, checkpoint = _weights(node)
    if weights is None:
        seen, hint = f"mounts nothing at {checkpoint}", "Set engine.weights, or add it to engine.volumes."
        yield Problem("engram-weights", f"{node.name} {config_path(('engine',))}", seen, "the checkpoint there", hint)
    elif not _there(observed, weights.source):
        what = "a folder" if weights.source.startswith("/") else "a docker volume"
        hint = "Put the checkpoint there." if weights.source.startswith("/") else up
        yield Problem("engram-weights", f"{node.name} {weights.source}", "is not there", f"{what} of weights", hint)


def _image(found: Survey, node: NodePlan) -> str | None:
    """The id of the plan's image, where the node has it."""
    images = parse(found.seen.observed[node.name]).images
    known = found.plan.image_id or images.get(found.plan.image_ref)
    return known if known in images.values() else None


def _there(observed: Mapping[str, Any], source: str) -> bool:
    """Whether what is mounted is there, as far as anybody looked: not at a folder on a network."""
    facts = parse(observed)
    if not source.startswith("/"):
        return source in facts.volumes
    if facts.weights and facts.weights.path == source:
        return facts.weights.there or facts.weights.network
    folder = (observed.get("folders") or {}).get(source)
    return folder is None or bool(folder["there"])


def _weights(node: NodePlan) -> tuple[Volume | None, str]:
    """What the rank's container has for the checkpoint, and where it looks for that."""
    assert node.container
    told = (node.container.env.get(name) for name in reversed(TOLD))
    checkpoint = next((flag.value for flag in told if flag), MODEL)
    over = [one for one in node.container.volumes if f"{checkpoint}/".startswith(f"{one.target.rstrip('/')}/")]
    return max(over, key=lambda one: len(one.target), default=None), checkpoint


def _name(found: Survey) -> str:
    return f"spark-fabric-{found.plan.stack.stack}-pack"


def _desired(found: Survey, node: NodePlan, mounted: Volume) -> Json:
    weights, checkpoint = _weights(node)
    assert weights
    return {
        "files": _files(found, node),
        "folder": mounted.source,
        "weights": {"source": weights.source, "target": weights.target},
        "checkpoint": checkpoint,
        "image": _image(found, node),
        "name": _name(found),
        "rank": node.rank,
        "size": len(found.plan.ranks),
    }


class Lifeline:
    """What follows the requests: nothing, until it is closed. Nodes stop packing when it ends.

    It ends with this program too, which may be killed alone: an ssh that outlives it would have its node pack on.
    """

    seconds = 0

    def __init__(self) -> None:
        self._closed = threading.Event()

    def close(self) -> None:
        """Nodes that still pack stop."""
        self._closed.set()

    def pieces(self) -> Iterator[bytes]:
        """None at all, once it is closed."""
        self._closed.wait()
        yield from ()


def _on_all(found: Survey, desired: Mapping[str, Json]) -> list[str]:
    """Pack on some nodes, each by itself: what one has done stays, whatever the others do. What failed."""
    if not desired:
        return []
    packed, requests = program(on_node.ROOT / on_node.STATE), oneshot.requests(found, desired)
    began, failed, lifeline = time.monotonic(), [], Lifeline()

    def one(link: Link) -> Answer:
        return on_node.ask(VERB, found.plan.stack.stack, link, packed, requests[link.name], content=lifeline)

    with ThreadPoolExecutor(len(desired)) as pool, closing(lifeline):
        at_work: dict[Future[Answer], str] = {pool.submit(one, found.links[name]): name for name in desired}
        print(f"packing on {', '.join(desired)}", flush=True)
        while at_work:
            done, _ = wait(at_work, TELL_EVERY_S, FIRST_COMPLETED)
            for future in done:
                failed += _told(future.result(), str(desired[at_work.pop(future)]["folder"]))
            if not done:
                print(f"packing for {time.monotonic() - began:.0f} s on {', '.join(at_work.values())}", flush=True)
    return failed


def _told(answer: Answer, folder: str) -> list[str]:
    """Print how it ended on one node; what failed."""
    if answer.status or answer.result is None:
        return oneshot.failed([answer])
    result = answer.result
    if result["packed"]:
        files = ", ".join(f"{name} ({size / GIB:.1f} GiB)" for name, size in result["files"].items())
        print(f"{answer.node} {folder}: packed in {result['seconds']:.0f} s: {files}", flush=True)
        if result["said"]:
            print(f"{answer.node}: {result['said']}", flush=True)
    for note in result["notes"]:
        print(note, flush=True)
    return []
