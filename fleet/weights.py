"""The weights of the engine as a node has them.

Nobody reads 500 GB before a start: checkpoints are told apart by the digests of config and index, and by the names and
sizes of the shards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from node.digest import digest
from node.weights import CONFIG, INDEX


@dataclass(frozen=True)
class File:
    """A file of a checkpoint; `size` in bytes. `link` is what it holds where it leads out of the folder."""

    size: int | None
    readable: bool
    link: str | None


@dataclass(frozen=True)
class Weights:
    """A folder of weights. `config` and `index` are digests, `listed` the shards that the index names.

    Of one on a file system of the `network` nothing else is known.
    """

    path: str
    network: bool
    there: bool
    config: str | None
    index: str | None
    listed: tuple[str, ...] | None
    files: Mapping[str, File]

    @property
    def shards(self) -> dict[str, File]:
        """What lies there as a shard, also what the index does not name."""
        return {name: file for name, file in self.files.items() if name not in (CONFIG, INDEX)}

    @property
    def content(self) -> str | None:
        """Digest of what an engine would load, as far as that is seen without reading it; None where nothing is."""
        if not self.there:
            return None
        sizes = {name: file.size for name, file in self.shards.items()}
        return digest({"config": self.config, "index": self.index, "shards": sizes})


def parse(raw: Mapping[str, Any]) -> Weights:
    """Read what the node program says of a folder."""
    listed = raw["listed"]
    return Weights(
        path=raw["path"],
        network=raw["network"],
        there=raw["there"],
        config=raw["config"],
        index=raw["index"],
        listed=None if listed is None else tuple(listed),
        files={name: File(**file) for name, file in raw["files"].items()},
    )
