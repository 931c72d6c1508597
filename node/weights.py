"""The folder of weights that the engine gets: what is in it, without reading more than its small files.

Weights are never hashed here, they are hundreds of gigabytes. Nothing is written.
"""

import hashlib
import json
import os
import re
from typing import Any

from .platform import far, under
from .run import TIMED_OUT
from .system import System

CONFIG, INDEX = "config.json", "model.safetensors.index.json"
SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")

ANSWER = 3.0  # seconds for a file system of the network to answer
LARGEST = 64 << 20  # bytes of a small file; an index has about 100 for each tensor
LINKS = 8  # that may lead from one to the next

Json = dict[str, Any]


def observe(system: System, path: str) -> Json:
    """What is in a folder of weights.

    "network" is whether it lies on a file system of the network: then nobody looked further, it might take for ever.
    "config" and "index" are digests, "listed" the names of the shards in the index, each null where it cannot be had.
    "files" are these three kinds, and whatever else is called as a shard; of each its size, whether it can be read, and
    where it leads if that is out of the folder, which is all that the container gets. Raises OSError.
    """
    seen: Json = {"path": path, "network": _on_network(system, path)}
    if seen["network"] or not system.is_folder(path):
        return {**seen, "there": False, "config": None, "index": None, "listed": None, "files": {}}
    config, index = (_small(system, path, name) for name in (CONFIG, INDEX))
    listed = _listed(index)
    present = system.names(path)
    shards = {name for name in present if SHARD.fullmatch(name)} | set(listed or ())
    return {
        **seen,
        "there": True,
        "config": _digest(config),
        "index": _digest(index),
        "listed": listed,
        "files": {name: _file(system, path, name) for name in sorted({CONFIG, INDEX, *shards} & set(present))},
    }


def _on_network(system: System, path: str) -> bool:
    """Whether it lies on a network, or leads there. Links are followed by another process, which can be ended."""
    mounted = far(system)
    if not mounted or under(path, mounted):
        return bool(mounted)
    led = system.run(["readlink", "-f", "--", path], ANSWER)
    return led.rc == TIMED_OUT or under(led.out.strip(), mounted)


def _small(system: System, folder: str, name: str) -> bytes | None:
    """The content of a small file; None where it cannot be read, leads out of the folder, or is no small file."""
    path = f"{folder}/{name}"
    file = None if _leads_out(system, folder, name) else system.open_to_read(path)
    if file is None:
        return None
    with file:
        try:
            data = file.read(LARGEST + 1)
        except OSError:
            return None
    return data if len(data) <= LARGEST else None


def _digest(data: bytes | None) -> str | None:
    return None if data is None else hashlib.sha256(data).hexdigest()


def _listed(index: bytes | None) -> list[str] | None:
    """The shards that an index of Hugging Face names: the values of its weight_map."""
    try:
        found = set(json.loads(index or b"")["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    plain = all(isinstance(name, str) and name and "/" not in name for name in found)
    return sorted(found) if found and plain else None


def _file(system: System, folder: str, name: str) -> Json:
    path, out = f"{folder}/{name}", _leads_out(system, folder, name)
    if out:
        return {"size": None, "readable": False, "link": out}
    return {"size": system.size(path), "readable": _readable(system, path), "link": None}


def _readable(system: System, path: str) -> bool:
    """Whether it is a file whose beginning can be read: a disk may fail at that."""
    file = system.open_to_read(path)
    if file is None:
        return False
    with file:
        try:
            file.read(1)
        except OSError:
            return False
    return True


def _leads_out(system: System, folder: str, name: str) -> str | None:
    """What a link holds that leads out of the folder, as those of Hugging Face's cache do; None where none does."""
    path = f"{folder}/{name}"
    for _ in range(LINKS):
        target = system.target(path)
        if not target:
            return None
        if target.startswith("/"):
            return target  # also into this folder: in the container it is somewhere else
        path = os.path.normpath(os.path.join(os.path.dirname(path), target))
        if not under(path, [folder]):
            return target
    return target
