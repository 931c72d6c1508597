"""How long a change of a node may take: one sum for its guard there and for whoever waits for it. Pure.

Every step has its own limit; these here bound all of them together, so they are long, and reached only by what hangs.
"""

from collections.abc import Mapping
from typing import Any

BASE = 180  # seconds for any change, the wait for the node's lock included
CALL = 30.0  # seconds for one call of a tool that is done in moments: a node that is slow is not broken

# Of one function's re-initialisation, in seconds.
RELOAD = 60.0  # for the driver; 4 to 8 are usual
ALONE = 10.0  # in which NetworkManager brings a port up that came back
RETURN = 40.0  # until everything must be there again, and before, until the far end is
SETTLE = 15.0  # for a GID to move back after its address was given again
HELP = 10.0  # for the calls of tools in between

FUNCTIONS = 4  # RDMA functions of a Spark: where a state does not name them, there may be as many
MESH_UP = 120.0  # for the mesh's boot unit, started with ports that are up and nothing left to change

_RESET = ("nic", "undo")  # what may re-initialise functions


def seconds(stage: str, desired: Mapping[str, Any] | None) -> int:
    """How long applying or reverting a stage may take: functions are re-initialised one after the other."""
    if stage in _RESET:
        functions = len((desired or {}).get("functions") or ()) or FUNCTIONS
        return round(BASE + functions * (RETURN + RELOAD + RETURN + SETTLE + HELP))
    return round(BASE + MESH_UP) if stage == "markers" else BASE
