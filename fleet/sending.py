"""Sending files of the operator's to the nodes: whatever a desired state wants there, unless it is there already.

A desired state names a file by its digest, and where it shall lie on the node. Where it lies on this side is no part
of it, so that moving the file is no change: `remember` keeps that beside the stack's ssh files, at each look at the
settings. The node's part is `node/sent.py`. Standard library only, as `on_node.py`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet import on_node
from fleet.on_node import Answer, Link
from node.pack import program
from node.sent import Sent, files

LISTING = "files.json"
PIECE = 1 << 20
SLOWEST = 256 << 10  # bytes a second: what a way to a node has to manage
TELL_EVERY_S = 5.0
MIB = 1 << 20

Request = dict[str, Any]


class SendingError(Exception):
    """A file cannot be sent; the message says why and what to do."""


def remember(stack: str, paths: Mapping[str, Path]) -> None:
    """Keep where files lie on this side, by their sha256, beside those that are known already and still there."""
    known = {sha256: path for sha256, path in _known(stack).items() if Path(path).exists()}
    known |= {sha256: str(path) for sha256, path in paths.items()}
    if known:
        on_node.replace(on_node.folder(stack) / LISTING, json.dumps(known, indent=1, sort_keys=True) + "\n")


def _known(stack: str) -> dict[str, str]:
    try:
        known: dict[str, str] = json.loads((on_node.folder(stack) / LISTING).read_text())
    except (OSError, ValueError):
        return {}
    return known


def local(stack: str, file: Sent) -> Path:
    """Where a file lies on this side; raises SendingError where it is not known, gone, or of another size."""
    known = _known(stack)
    if file.sha256 not in known:
        raise SendingError(
            f"where {Path(file.path).name} {file.sha256[:12]} lies here is not known: run a preview first"
        )
    path = Path(known[file.sha256])
    try:
        size = path.stat().st_size
    except OSError as error:
        raise SendingError(f"{path} cannot be sent: {error.strerror}") from None
    if size != file.size:
        raise SendingError(f"{path} has {size} bytes and had {file.size}: it has changed since the preview, run again")
    return path


@dataclass(frozen=True)
class Files:
    """The contents of files, one after the other, telling how far it is."""

    node: str
    paths: Sequence[tuple[Path, int]]  # with sizes in bytes

    @property
    def size(self) -> int:
        """Of all of them."""
        return sum(size for _, size in self.paths)

    @property
    def seconds(self) -> int:
        """How long sending may take."""
        return self.size // SLOWEST + 1

    def pieces(self) -> Iterator[bytes]:
        """What the node gets."""
        began = told = time.monotonic()
        sent = 0
        names = ", ".join(path.name for path, _ in self.paths)
        for path, _ in self.paths:
            with path.open("rb") as content:
                while piece := content.read(PIECE):
                    yield piece
                    sent += len(piece)
                    if time.monotonic() - told > TELL_EVERY_S:
                        told = time.monotonic()
                        print(f"{self.node}: {sent * 100 // max(1, self.size)} % of {names} sent", flush=True)
        print(f"{self.node}: {names} sent, {sent / MIB:.1f} MiB in {time.monotonic() - began:.1f} s", flush=True)


def apply_on_all(stack: str, links: Sequence[Link], requests: Mapping[str, Request]) -> list[Answer]:
    """Apply a stage on many nodes at once, with the files that it wants there; in the order of the links."""
    packed = program(on_node.ROOT / on_node.STATE)
    return on_node.at_once(lambda link: apply(stack, link, packed, requests[link.name]), links)


def apply(stack: str, link: Link, packed: bytes, request: Request) -> Answer:
    """Apply a stage on one node. What is there with the right content is not sent again."""
    answer = on_node.ask("wants", stack, link, packed, request)
    if answer.status or answer.result is None:
        return answer
    wanted = set(answer.result["wants"])
    missing = [file for file in files(request["desired"]) if file.path in wanted]
    if not missing:
        return on_node.ask("apply", stack, link, packed, request)
    try:
        content = Files(link.name, [(local(stack, file), file.size) for file in missing])
    except SendingError as error:
        return Answer(link.name, 1, None, str(error))
    return on_node.ask("install", stack, link, packed, request, content=content)
