"""The arithmetic of memory, against the figures that the launcher's profile was measured with."""

import pytest

from fleet.profiles import Profile, values
from fleet.sizing import GIB, SPARK, room
from fleet.topology import Kind

ENV = {
    name: value
    for name, (value, _) in values(Kind.SWITCHED, 2, profile=Profile.BASE).items()
    if not value.startswith("$")
}


def test_the_profile_leaves_room_for_its_pool() -> None:
    found = room(ENV, 4, None)
    assert found
    assert found.total == SPARK
    assert found.static == pytest.approx(97.36 * GIB)
    assert found.weights == pytest.approx(79.5 * GIB)
    assert 8_000_000 < found.tokens < 16_000_000  # 8M are asked for; 16M were counted at 0.90


def test_the_pool_is_counted_by_the_bytes_of_a_token() -> None:
    one, other = (room({**ENV, "MEM_FRACTION_STATIC": text}, 4, 100 * GIB) for text in ("0.80", "0.90"))
    assert one
    assert other
    assert (other.tokens - one.tokens) * 1670.75 == pytest.approx(10 * GIB, rel=1e-6)


def test_without_a_draft_there_is_more_room() -> None:
    with_draft, without = room(ENV, 4, None), room({**ENV, "SPEC_ALGO": "off"}, 4, None)
    assert with_draft
    assert without
    assert with_draft.weights - without.weights == 2.5 * GIB


@pytest.mark.parametrize(
    ("change", "more"),
    [
        ({"DSV41_CACHE_GIB": "0"}, -4 * GIB),
        ({"NCCL_BUFFSIZE": "4194304"}, (4.7 - 0.14) * GIB),
        ({"NCCL_MAX_NCHANNELS": "32"}, (4.7 - 0.14) * GIB),
        ({"OFFLOAD_MODE": "ram"}, 72 * GIB),
        # A plain indexer takes about 15 GB for a chunk of 1024 at the end of a context of 1M.
        ({"DSV41_INDEXER_CHUNKED": "0", "CHUNKED_PREFILL_SIZE": "1024"}, 14 * 1024 * 1048576 - 2 * GIB),
    ],
)
def test_what_is_beside_the_pool_is_counted(change: dict[str, str], more: float) -> None:
    before, after = room(ENV, 4, None), room({**ENV, **change}, 4, None)
    assert before
    assert after
    assert after.beside - before.beside == pytest.approx(more)


@pytest.mark.parametrize("text", [None, "", "much"])
def test_nothing_is_counted_without_a_share(text: str | None) -> None:
    env = {name: value for name, value in ENV.items() if name != "MEM_FRACTION_STATIC"}
    assert room(env if text is None else {**env, "MEM_FRACTION_STATIC": text}, 4, None) is None
