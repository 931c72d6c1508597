"""`status` and `revert` by hand on a node: `sudo python3 /var/lib/spark-fabric/<stack>/spark-node.pyz revert`.

And `mesh-up`, which the boot unit of the mesh runs.
"""

import os

from . import owner
from .request import BAD_REQUEST, Failure, Owner, Request
from .system import System


def request(system: System, verb: str) -> Request:
    """The request that takes its owner from the node. Raises `Failure`."""
    if verb not in ("status", "revert", "observe", "mesh-up"):
        raise Failure(BAD_REQUEST, f"{verb} needs a request on stdin")
    held = owner.read(system)
    if held is None:
        raise Failure(BAD_REQUEST, "this node belongs to no stack: there is nothing to do")
    who = system.environ("SUDO_USER") or system.environ("USER") or "root"
    names = Owner(held["project"], held["stack"], held["fleet_id"], held["state_id"])
    holder = "the boot unit of the mesh" if verb == "mesh-up" else f"{who} by hand on this node"
    return Request(names, os.uname().nodename, "undo", {}, holder)
