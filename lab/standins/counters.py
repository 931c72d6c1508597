"""What simulated traffic adds to the counters of RDMA ports; the lab's devices show the sum."""

from __future__ import annotations

from .state import State

DOCUMENT = "counters"


def add(state: State, rdma: str, deltas: dict[str, int]) -> None:
    """Raise a port's counters, named as their files below ports/1; shown within a second."""
    with state.locked():
        document = state.load(DOCUMENT, {})
        device = document.setdefault(rdma, {})
        for name, delta in deltas.items():
            device[name] = device.get(name, 0) + delta
        state.save(DOCUMENT, document)
