"""What the last lines of an engine's ranks tell of why it does not serve. Standard library only, as `health.py`."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

OF_SIGNAL = 128  # an exit code above it names the signal that ended the process
KILLED = OF_SIGNAL + signal.SIGKILL
BY_KERNEL = "SIGKILL, as the kernel does for want of memory: `journalctl -k` on the node tells"


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


ERROR = re.compile(
    r"\b[A-Z]\w*(?:Error|Exception|Interrupt)\b|[Ee]xception:|\b(?:ERROR|FATAL|CRITICAL)\b"
    r"|[Oo]ut of memory|[Ss]egmentation fault|[Tt]imed out|\berror:"
)
"""A line that tells of a failure: Python's, SGLang's, and those of the libraries below."""


def first_error(lines: Iterable[str]) -> str | None:
    """The first of a rank's lines that tells of a failure: what follows it mostly follows from it."""
    return next((line.strip() for line in lines if ERROR.search(line)), None)


def ended(container: Mapping[str, Any]) -> str:
    """How a container ended that does not run any more, in words."""
    if container.get("oom_killed"):
        return "out of memory"
    code = int(container.get("exit_code") or 0)
    if code == KILLED:
        return f"exit code {code} ({BY_KERNEL})"
    try:
        return (
            f"exit code {code} ({signal.Signals(code - OF_SIGNAL).name})" if code > OF_SIGNAL else f"exit code {code}"
        )
    except ValueError:
        return f"exit code {code}"
