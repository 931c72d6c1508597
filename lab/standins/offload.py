"""hw-tc-offload of the ports, and which filters the card takes."""

from __future__ import annotations

from .model import BY_NETDEV
from .state import State
from .words import Row

DOCUMENT = "offload"


def is_on(state: State, dev: str) -> bool:
    """Whether the port offloads filters; a Spark's ports do from the factory."""
    return bool(state.load(DOCUMENT, {}).get(dev, True)) and not is_fixed(state, dev)


def is_fixed(state: State, dev: str) -> bool:
    """Fault: the driver keeps it off."""
    return state.fault("offload-fixed", dev) is not None


def keep(state: State, dev: str, on: bool) -> None:
    """Store it; the caller holds the lock."""
    state.save(DOCUMENT, state.load(DOCUMENT, {}) | {dev: on})


def refusal(state: State, dev: str, row: Row) -> str:
    """Why the card does not take a filter; empty when it does. The driver's words are guesses."""
    if not row["actions"]:
        return "Error: mlx5_core: The rule must have at least one action."
    if any(action.get("to_dev", dev) not in BY_NETDEV for action in row["actions"]):
        return "Error: mlx5_core: device is not on same HW, can't offload."
    if not is_on(state, dev):
        return "Error: TC offload is disabled on net device."
    return ""


def in_hardware(state: State, dev: str, row: Row) -> bool:
    """Whether a filter is in the card now: the fault `evicted` takes it out, for as long as it is set."""
    return bool(row["in_hw"]) and state.fault("evicted", dev, str(row["pref"])) is None
