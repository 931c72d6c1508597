"""The cause that an engine's last lines tell. Which causes are known: test_earliest.py."""

from __future__ import annotations

import pytest

from fleet.lastwords import first_error, reason

TREES = "RuntimeError: NCCL error: unhandled system error (ncclTransportTreeConnect)"
TIMEOUT = "NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev rocep1s0f0:1"


def test_what_explains_the_other_lines_is_the_cause_whichever_rank_told_it_first() -> None:
    assert reason([TREES]) == reason([TIMEOUT, "an ordinary line", TREES]) != reason([TIMEOUT])


@pytest.mark.parametrize("line", ["ibv_modify_qp failed with 1101", "Connected all trees", "ValueError: no such model"])
def test_what_is_not_known_has_no_cause(line: str) -> None:
    assert reason([line]) is None


@pytest.mark.parametrize(
    "line",
    [
        "[2026-01-01 00:00:00 TP1] Scheduler hit an exception: ranks [2] did not join within 300 s",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "boot: timed out waiting for /health",
        "ERROR 01-01 00:00:00 engine died",
    ],
)
def test_the_first_line_that_tells_of_a_failure_is_the_first_error(line: str) -> None:
    assert first_error(["Load weight begin.", f"  {line}", "ValueError: a later one"]) == line


def test_ordinary_lines_and_the_head_of_a_traceback_are_no_errors() -> None:
    lines = ["Traceback (most recent call last):", "error_count=0, terrors=1", "loading ErrorCorrection", "Ready: API"]
    assert first_error(lines) is None
