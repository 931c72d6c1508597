"""What the last lines of an engine's ranks tell of why it does not serve. Standard library only, as `health.py`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Reason:
    """A failure that is known: what its line looks like, what it comes from, and the next step."""

    line: re.Pattern[str]
    cause: str
    hint: str


REASONS = (
    # MiaAI-Lab/DeepSeek-v4.1-Flash-DGX-Sparks PR #3 and #19, and its guide to rings
    Reason(
        re.compile(r"ncclTransportTreeConnect"),
        "NCCL connects trees, and opposite ranks of a ring share no cable",
        "It needs a library that is patched for rings and NCCL_SWITCHLESS_RING_ONLY=1: leave engine.profile at auto.",
    ),
    # DeepEP's check of /proc/self/maps
    Reason(
        re.compile(r"Duplicate NCCL runtime found"),
        "a second NCCL is in the process, beside the one that torch uses",
        "Use nccl.mode: overlay, and take LD_PRELOAD and LD_LIBRARY_PATH out of engine.env and the image.",
    ),
    # NCCL compares the versions of all ranks as they meet
    Reason(
        re.compile(r"Mismatched NCCL version"),
        "the ranks have NCCL of different versions",
        "All need one file: set nccl.library, or load one image on every node.",
    ),
    # NCCL with NCCL_NET=IB and no device that fits NCCL_IB_HCA
    Reason(
        re.compile(r"Failed to initialize NET plugin IB"),
        "NCCL finds no RoCE device that it could use",
        "Does the container see /dev/infiniband, and are the ports ACTIVE? `python -m fleet status` tells.",
    ),
    # NVIDIA/nccl: a queue pair that cannot reach its peer's GID; getainode/ainode PR #89
    Reason(
        re.compile(r"ibv_modify_qp failed with (?:110|61)\b"),
        "a port does not reach the GID that it was told",
        "`./pulumiw up` checks cables, MTU and GIDs anew; the line names device and GIDs.",
    ),
    # torch, of whatever NCCL said more of in lines that are not shown
    Reason(
        re.compile(r"NCCL error: unhandled system error"),
        "NCCL could not connect the ranks, and no line says which",
        "Set NCCL_DEBUG to WARN or INFO in engine.env, and run `./pulumiw up` again.",
    ),
)
"""An earlier one explains the later ones: a tree that is not connected ends in a time-out of a queue pair."""


def reason(lines: Iterable[str]) -> str | None:
    """The cause that these lines tell, with the next step; None where it is not known."""
    told = list(lines)
    found = next((one for one in REASONS if any(one.line.search(line) for line in told)), None)
    return f"cause: {found.cause}. {found.hint}" if found else None
