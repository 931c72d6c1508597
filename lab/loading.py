"""Bringing images into the nodes' docker, on all nodes at once."""

from __future__ import annotations

import json
import subprocess
import tarfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from . import node as nodes
from .shell import LabError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from .model import Lab, Node


def images_in(archive: Path) -> dict[str, str]:
    """Tags and ids of the images in an archive of `docker save`."""
    with tarfile.open(archive) as tar:
        member = tar.extractfile("manifest.json") if "manifest.json" in tar.getnames() else None
        if not member:
            raise LabError(f"{archive}: not an archive of `docker save`")
        manifest = json.load(member)
    return {
        tag: f"sha256:{entry['Config'].removesuffix('.json').rpartition('/')[2]}"
        for entry in manifest
        for tag in entry["RepoTags"] or ()
    }


def load(lab: Lab, wanted: Sequence[Node], archive: Path, images: dict[str, str]) -> Iterable[str]:
    """`docker load` where the images are not there yet; yields a line for each node."""
    with ThreadPoolExecutor(len(wanted) or 1) as pool:
        yield from pool.map(partial(_load_one, lab, archive, images), wanted)


def _load_one(lab: Lab, archive: Path, images: dict[str, str], node: Node) -> str:
    listing = ["docker", "image", "ls", "--no-trunc", "--format", "'{{.Repository}}:{{.Tag}} {{.ID}}'"]
    there = dict(line.split() for line in _on(lab, node, listing).splitlines())
    if all(there.get(tag) == identity for tag, identity in images.items()):
        return f"{node.name}: {', '.join(images)} there already"
    _on(lab, node, ["docker", "load", "--quiet"], archive)
    return f"{node.name}: loaded {', '.join(images)}"


def _on(lab: Lab, node: Node, command: list[str], stdin: Path | None = None) -> str:
    argv = nodes.ssh(lab, node.name, *command)
    if stdin:
        with stdin.open("rb") as content:
            done = subprocess.run(argv, check=False, stdin=content, capture_output=True, text=True)
    else:
        done = subprocess.run(argv, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise LabError(f"{node.name}: {' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
