"""Whether the model fits into a node's memory, which CPU and GPU share, as far as that is arithmetic.

Sizes are of DeepSeek-V4.1-Flash at four ranks (the launcher's .env.tp4.example, and the engine's line `DSV4 memory
calculation`). So they are for profiles that tell everything; other sizes of fleets are scaled.
"""

from collections.abc import Mapping
from dataclasses import dataclass

GIB = 1 << 30

SPARK = 121.7 * GIB
"""Bytes of memory that a DGX Spark shows."""

WEIGHTS, WEIGHTS_RANKS = 77 * GIB, 4
"""Bytes of weights for each of so many ranks."""

DRAFT = 2.5 * GIB
KV_TOKEN = 1670.75
"""Bytes of the KV pool for each token, on every rank."""

PINNED, PINNED_TUNED = 4.7 * GIB, 0.14 * GIB
"""NCCL's buffers at its own settings, and with buffers of at most 1 MiB and at most 8 channels."""

INDEXER_CHUNKED = 2 * GIB
INDEXER_PLAIN = 14
"""What a prefill chunk takes beside the pool: at most so much by chunks; else bytes for each token of the chunk and of
the context before it."""

ENGRAM, ENGRAM_ROOM = 48 * GIB, 24 * GIB
"""The packed table of a rank, and what has to be free beside it where it is kept in RAM."""

FRACTION = "MEM_FRACTION_STATIC"


@dataclass(frozen=True)
class Room:
    """Bytes of one node: what the engine sets aside, of that the weights, and what others need of the rest."""

    total: float
    static: float
    weights: float
    beside: float

    @property
    def rest(self) -> float:
        """Bytes that the engine does not set aside."""
        return self.total - self.static

    @property
    def tokens(self) -> int:
        """Tokens that a KV pool has room for; negative where not even the weights fit."""
        return int((self.static - self.weights) / KV_TOKEN)


def room(env: Mapping[str, str], size: int, total: float | None) -> Room | None:
    """The room of a rank among so many, on a node with so much memory; None where no share of it is told."""
    total = total or SPARK
    try:
        static = float(env[FRACTION]) * total
    except (KeyError, ValueError):
        return None
    weights = WEIGHTS * WEIGHTS_RANKS / size + (DRAFT if env.get("SPEC_ALGO") == "DSPARK" else 0)
    return Room(total, static, weights, _beside(env))


def _beside(env: Mapping[str, str]) -> float:
    tuned = _number(env, "NCCL_BUFFSIZE", 1 << 22) <= 1 << 20 and _number(env, "NCCL_MAX_NCHANNELS", 32) <= 8
    beside = _number(env, "DSV41_CACHE_GIB", 0) * GIB + (PINNED_TUNED if tuned else PINNED)
    if env.get("DSV41_INDEXER_CHUNKED") == "1":
        beside += INDEXER_CHUNKED
    else:
        beside += INDEXER_PLAIN * _number(env, "CHUNKED_PREFILL_SIZE", 0) * _number(env, "CONTEXT_LENGTH", 0)
    return beside + (ENGRAM + ENGRAM_ROOM if env.get("OFFLOAD_MODE") == "ram" else 0)


def _number(env: Mapping[str, str], name: str, otherwise: int) -> int:
    text = env.get(name, "")
    return int(text) if text.isdecimal() else otherwise
