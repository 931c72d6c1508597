"""What the driver knows of each function: values that are shown, values in effect, re-inits counted."""

from __future__ import annotations

from .state import State
from .system import ToolError
from .words import Row, number

QUEUE_MAX = 8192
STEERING_MODES = ("dmfs", "smfs", "hmfs")
DOCUMENT = "devlink"
# name: (configuration mode, kind, value after a boot)
PARAMETERS: dict[str, tuple[str, str, int | str]] = {
    "hairpin_num_queues": ("driverinit", "driver-specific", 4),
    "hairpin_queue_size": ("driverinit", "driver-specific", 1024),
    "flow_steering_mode": ("runtime", "driver-specific", "hmfs"),
}


def fresh() -> Row:
    """A function after a boot. A `generation` begins with each re-init: what hung on the last one is gone."""
    values = {name: value for name, (_, _, value) in PARAMETERS.items()}
    return {"shown": values, "effective": dict(values), "reloads": 0, "failed": False, "generation": 0}


def load(state: State, handle: str) -> Row:
    """The driver's memory of one function."""
    return {**fresh(), **state.load(DOCUMENT, {}).get(handle, {})}


def keep(state: State, handle: str, row: Row) -> None:
    """Store it; the caller holds the lock."""
    state.save(DOCUMENT, state.load(DOCUMENT, {}) | {handle: row})


def known(state: State, handle: str) -> bool:
    """Whether the driver remembers a function, also one whose netdev did not come back."""
    return handle in state.load(DOCUMENT, {})


def parsed(name: str, text: str) -> int | str:
    """A value that the driver takes for a parameter; the words of its refusals are guesses."""
    if name == "flow_steering_mode":
        if text not in STEERING_MODES:
            raise _bad_value("Error: mlx5_core: Bad parameter: unsupported flow steering mode.")
        return text
    value = number(text)
    if value is None:
        raise ToolError(f'Value "{text}" is not a number or too large')
    if name == "hairpin_queue_size":
        if value == 0 or value & (value - 1):
            raise _bad_value("Error: mlx5_core: Value is not power of two.")
        if value > QUEUE_MAX:
            raise _bad_value(f"Error: mlx5_core: Maximum hairpin queue size is {QUEUE_MAX}.")
    elif value == 0:
        raise ToolError("kernel answers: Invalid argument")
    return value


def _bad_value(reason: str) -> ToolError:
    return ToolError(f"{reason}\nkernel answers: Invalid argument")
