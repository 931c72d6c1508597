"""The card's table: the ingress qdiscs of the ports, and the filters that hang on them."""

from __future__ import annotations

from . import offload
from .state import State
from .words import Row

DOCUMENT = "tc"
EMPTY: Row = {"qdiscs": {}, "filters": {}, "next_index": {}}


def load(state: State) -> Row:
    """All of it: `qdiscs` by port, `filters` by port, the next index of each kind of action."""
    document: Row = state.load(DOCUMENT, EMPTY)
    return document


def save(state: State, document: Row) -> None:
    """Store it; the caller holds the lock."""
    state.save(DOCUMENT, document)


def of(state: State, dev: str) -> list[Row]:
    """A port's filters as the card holds them now, in the order in which it tries them."""
    rows = load(state)["filters"].get(dev, [])
    return [row | {"in_hw": offload.in_hardware(state, dev, row)} for row in rows]


def forget(document: Row, dev: str) -> None:
    """Drop a port's ingress qdisc, and with it its filters."""
    document["qdiscs"].pop(dev, None)
    document["filters"].pop(dev, None)


def count(state: State, dev: str, pref: int, handle: int, packets: int, size: int) -> None:
    """Count frames that a filter forwarded in hardware; `size` is in bytes."""
    with state.locked():
        document = load(state)
        for row in document["filters"].get(dev, []):
            if (row["pref"], row["handle"]) == (pref, handle):
                row["hw_packets"] = row.get("hw_packets", 0) + packets
                row["hw_bytes"] = row.get("hw_bytes", 0) + size
        save(state, document)
