"""What simulated traffic adds to the counters of RDMA ports; the lab's devices show the sum."""

from __future__ import annotations

from .state import State

DOCUMENT = "counters"


def add(state: State, rdma: str, deltas: dict[str, int]) -> None:
    """Raise a port's counters, named as their files below ports/1 or as `ethtool -S` has them; files show it within a
    second."""
    with state.locked():
        document = state.load(DOCUMENT, {})
        device = document.setdefault(rdma, {})
        for name, delta in deltas.items():
            device[name] = device.get(name, 0) + delta
        state.save(DOCUMENT, document)


def of(state: State, rdma: str, name: str) -> int:
    """What was added to one counter."""
    return int(state.load(DOCUMENT, {}).get(rdma, {}).get(name, 0))
