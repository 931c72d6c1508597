"""The cause that an engine's last lines tell. Which causes are known: test_earliest.py."""

from __future__ import annotations

import pytest

from fleet.lastwords import reason

TREES = "RuntimeError: NCCL error: unhandled system error (ncclTransportTreeConnect)"
TIMEOUT = "NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev rocep1s0f0:1"


def test_what_explains_the_other_lines_is_the_cause_whichever_rank_told_it_first() -> None:
    assert reason([TREES]) == reason([TIMEOUT, "an ordinary line", TREES]) != reason([TIMEOUT])


@pytest.mark.parametrize("line", ["ibv_modify_qp failed with 1101", "Connected all trees", "ValueError: no such model"])
def test_what_is_not_known_has_no_cause(line: str) -> None:
    assert reason([line]) is None
