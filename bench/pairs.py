"""Two things in turn, A B A B, and the ratio of each pair: the machine's speed may drift, the ratio stays."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Pairs:
    """What was measured, in seconds, pair by pair."""

    name: str
    ours: tuple[float, ...]
    reference: tuple[float, ...]
    limit: float | None  # the ratio that must not be exceeded; None: only to know

    @property
    def ratios(self) -> list[float]:
        """Ours by reference, pair by pair."""
        return [one / other for one, other in zip(self.ours, self.reference, strict=True)]

    @property
    def ratio(self) -> float:
        """The median ratio."""
        return statistics.median(self.ratios)

    @property
    def kept(self) -> bool:
        """Whether the limit is kept."""
        return self.limit is None or self.ratio <= self.limit

    def row(self) -> str:
        """One line of the table of results."""
        limit = "" if self.limit is None else f"≤ {self.limit:g}"
        low, high = min(self.ratios), max(self.ratios)
        return (
            f"| {self.name} | {statistics.median(self.ours):.2f} s | {statistics.median(self.reference):.2f} s "
            f"| {self.ratio:.2f} ({low:.2f}–{high:.2f}) | {limit} |"
        )


def seconds(work: Callable[[], object]) -> float:
    """How long something takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(
    name: str,
    ours: Callable[[], object],
    reference: Callable[[], object],
    *,
    limit: float | None = None,
    pairs: int = 5,
    before: Callable[[], object] = lambda: None,
) -> Pairs:
    """Time both in turn after one warm-up of each; `before` runs, untimed, ahead of each."""
    times: list[tuple[float, float]] = []
    for _ in range(pairs + 1):
        both = []
        for work in (ours, reference):
            before()
            both.append(seconds(work))
        times.append((both[0], both[1]))
    counted = times[1:]
    return Pairs(name, tuple(one for one, _ in counted), tuple(other for _, other in counted), limit)
