"""Ring all-reduce over connected channels. Real bytes, sums checked on every rank."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

from . import wire

LANE = 4  # bytes of one element; sums stay far below its limit, so one addition adds all lanes
PERIOD = 251


class WrongSum(Exception):
    """The result differs from what the ranks put in."""


@dataclass
class Channel:
    """One ring through all ranks."""

    number: int
    out: socket.socket
    source: socket.socket
    send_device: str
    receive_device: str


def pattern(rank: int, step: int, elements: int) -> bytes:
    """What one rank puts in."""
    block = b"".join(((rank + 1) * (j + 1) + step).to_bytes(LANE, "little") for j in range(PERIOD))
    return (block * (elements // PERIOD + 1))[: elements * LANE]


def expected(ranks: int, step: int, elements: int) -> bytes:
    """What all ranks must get out."""
    weight = ranks * (ranks + 1) // 2
    block = b"".join((weight * (j + 1) + ranks * step).to_bytes(LANE, "little") for j in range(PERIOD))
    return (block * (elements // PERIOD + 1))[: elements * LANE]


def add(one: bytes, other: bytes) -> bytes:
    """Element-wise sum."""
    return (int.from_bytes(one, "little") + int.from_bytes(other, "little")).to_bytes(len(one), "little")


def spoil(data: bytes) -> bytes:
    """What a faulty device makes of it."""
    return bytes([data[0] ^ 1]) + data[1:] if data else data


def _ring(channel: Channel, rank: int, ranks: int, data: bytes, bad: bool, limit: float) -> bytes:
    """Reduce-scatter, then all-gather, on one channel."""
    size = len(data) // ranks
    parts = [data[k * size : (k + 1) * size] for k in range(ranks)]
    for reducing in (True, False):
        for step in range(ranks - 1):
            outgoing = (rank - step + (0 if reducing else 1)) % ranks
            incoming = (outgoing - 1) % ranks
            piece = spoil(parts[outgoing]) if bad else parts[outgoing]
            got = wire.exchange(channel.out, piece, channel.source, size, limit)
            parts[incoming] = add(parts[incoming], got) if reducing else got
    return b"".join(parts)


def _verify(channel: Channel, result: bytes, wanted: bytes) -> None:
    if result != wanted:
        first = next(k for k in range(len(wanted)) if result[k] != wanted[k])
        raise WrongSum(
            f"channel {channel.number} (out {channel.send_device}, in {channel.receive_device}): "
            f"element {first // LANE} of {len(wanted) // LANE} is wrong"
        )


def all_reduce(
    channels: list[Channel],
    rank: int,
    ranks: int,
    size: int,
    step: int,
    limit: float,
    bad_device: str = "",
    count: Callable[[str, int], None] = lambda _device, _sent: None,
) -> int:
    """Sum a vector of about `size` bytes over all ranks; returns the bytes that were summed."""
    unit = LANE * ranks * len(channels)
    share = max(1, size // unit) * ranks  # elements of one channel
    total = share * len(channels)
    mine, wanted = pattern(rank, step, total), expected(ranks, step, total)
    failures: list[Exception] = []

    def work(position: int, channel: Channel) -> None:
        low, high = position * share * LANE, (position + 1) * share * LANE
        try:
            bad = channel.send_device == bad_device
            result = _ring(channel, rank, ranks, mine[low:high], bad, limit)
            count(channel.send_device, 2 * (ranks - 1) * (high - low) // ranks)
            _verify(channel, result, wanted[low:high])
        except (WrongSum, wire.WireError) as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k, channel)) for k, channel in enumerate(channels)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return total * LANE
