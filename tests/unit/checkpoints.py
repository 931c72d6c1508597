"""A checkpoint as a node tells of it: the one that is recorded."""

from typing import Any

from fleet.known import WEIGHTS
from node.weights import CONFIG, INDEX

PATH = "/data/weights"
SHARDS = [f"model-{number:05d}-of-{WEIGHTS.shards:05d}.safetensors" for number in range(1, WEIGHTS.shards + 1)]
SMALL = 10_000_000_000  # bytes of every shard but the last


def sound(size: int) -> dict[str, Any]:
    """A file that can be read, of so many bytes."""
    return {"size": size, "readable": True, "link": None}


def checkpoint() -> dict[str, Any]:
    """All of it."""
    sizes = dict.fromkeys(SHARDS, SMALL) | {SHARDS[-1]: WEIGHTS.size - SMALL * (WEIGHTS.shards - 1)}
    return {
        "path": PATH,
        "network": False,
        "there": True,
        "config": WEIGHTS.config_sha256,
        "index": "1" * 64,
        "listed": list(SHARDS),
        "files": {CONFIG: sound(900), INDEX: sound(9_000_000), **{name: sound(size) for name, size in sizes.items()}},
    }


def on_network() -> dict[str, Any]:
    """A folder that nobody looks into."""
    unseen: dict[str, Any] = {"there": False, "config": None, "index": None, "listed": None, "files": {}}
    return {"path": PATH, "network": True, **unseen}
