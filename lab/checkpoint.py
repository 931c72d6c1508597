"""A SIMULATED checkpoint: two tiny shards without a tensor, with config and index, under the names of a real one."""

from __future__ import annotations

import json

SHARDS = 2
NAMES = [f"model-{number:05d}-of-{SHARDS:05d}.safetensors" for number in range(1, SHARDS + 1)]
HEADER = b'{"__metadata__":{"simulated":"true"}}   '


def files() -> dict[str, bytes]:
    """All of it, by name; the same bytes each time."""
    shard = len(HEADER).to_bytes(8, "little") + HEADER
    index = {
        "metadata": {"simulated": "true"},
        "weight_map": {f"layers.{at}.weight": name for at, name in enumerate(NAMES)},
    }
    return {
        "config.json": b'{"simulated": true}\n',
        "model.safetensors.index.json": f"{json.dumps(index, indent=2)}\n".encode(),
        **dict.fromkeys(NAMES, shard),
    }
