"""What nodes are asked. Little is loaded for it, so that they can answer while all that judges the answers is."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from fleet import sending
from fleet.brought import NOTHING, Brought, brought, to_be_sent
from fleet.node_settings import Node
from fleet.on_node import Link
from fleet.probe import Probe, Question, at_rest, probe
from fleet.problems import ProblemsError
from fleet.settings import Settings
from fleet.ssh import links as links_of
from fleet.stack import StackName

OFFLINE = "SPARK_FABRIC_OFFLINE"  # set to 1: plan with the usual names, without any node; refuses `up`


def offline() -> bool:
    """Whether the operator asked for a plan without nodes."""
    return os.environ.get(OFFLINE, "") not in ("", "0")


@dataclass(frozen=True)
class Asked:
    """Nodes that have been asked; `answers` waits for them. `brought` is what the operator brings."""

    links: Sequence[Link]
    brought: Brought
    changing: bool
    answers: Callable[[], Probe]


def begin(settings: Settings, stack: StackName, *, changing: bool = False) -> Asked:
    """Ask all nodes of the settings, or none when offline.

    Raises ProblemsError with every problem that can be known without nodes; then none is asked.
    """
    links, problems = links_of(settings, keys_needed=not offline())
    own = brought(settings)
    problems += own.problems
    if problems:
        raise ProblemsError(problems)
    if offline():
        return Asked(links, own, changing, lambda: Probe({}, {}))
    sending.remember(stack.stack, to_be_sent(settings, own.library))
    return ask(settings, stack, links, own, changing=changing)


def ask(
    settings: Settings, stack: StackName, links: Sequence[Link], own: Brought = NOTHING, *, changing: bool = False
) -> Asked:
    """Ask nodes once. For a run that will change something, `changing` waits for nodes that somebody else is just
    changing.
    """
    named = {node.name: path for node in settings.ranks if (path := settings.library_on(node))}
    folders = sorted({volume.source for volume in settings.engine.volumes if volume.source.startswith("/")})
    weights = {node.name: path for node in settings.ranks if (path := settings.weights_on(node))}
    shared = {node.name: wanted for node in settings.ranks if (wanted := _of_nfs(settings, node))}
    image = own.image_ref or settings.engine.image.ref
    question = Question(stack, settings.fleet.id, links, named, folders, weights, settings.mesh.enabled, shared, image)

    def wait() -> Probe:
        return at_rest(lambda: probe(question)) if changing else probe(question)

    return Asked(links, own, changing, ThreadPoolExecutor(1, "asking").submit(wait).result)


def _of_nfs(settings: Settings, node: Node) -> dict[str, Any]:
    """What a rank's node is asked about docker volumes and, where weights are shared, about that."""
    volumes = [volume.source for volume in settings.engine.volumes if not volume.source.startswith("/")]
    nfs, server = settings.nfs, settings.weights_server(node)
    if nfs is None:
        return {"volumes": volumes} if volumes else {}
    if server is None:
        return {"volumes": volumes, "reuse": nfs.reuse}
    return {"volumes": [nfs.volume, *volumes], "server": None if nfs.image else str(server)}
