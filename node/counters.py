"""What each RDMA function of this node has carried so far, and whether it can be used at all.

The counters are those of the function: `counters/port_xmit_data` and `port_rcv_data`, in words of 4 bytes. Those of the
physical port (`*_phy` of ethtool) are no help: both functions of a port show the same ones, so they tell no plane from
the other, and a sum would count each byte twice (FujitsuPolycom/sparkring, proof of the mesh).
"""

from typing import Any

from . import meshcounts
from .request import Failure
from .system import System

WORD = 4  # bytes that one unit stands for

Json = dict[str, Any]


def counters(system: System, desired: Json) -> Json:
    """{"ports": {hca: {…}}, "mesh": …} for desired {"hcas": […], "gid_index": n, "mesh": {"forward", "ends"} or null}.

    "sent" and "received" are bytes, or None where there is no such counter; "state" as sysfs has it; "gid" and
    "gid_type" are those at the index. "mesh" is null where it is not asked for.
    """
    index, mesh = int(desired.get("gid_index", 0)), desired.get("mesh")
    ports = {hca: _port(system, f"/sys/class/infiniband/{hca}/ports/1", index) for hca in desired["hcas"]}
    return {"ports": ports, "mesh": _mesh(system, mesh) if mesh else None}


def _mesh(system: System, desired: Json) -> Json:
    """What the node counts of the rules "forward" and, for the devices "ends", of paths that end there.

    {"rules", "kernel", "received", "overruns", "lost", "error"}; only "error" where tc does not answer.
    """
    try:
        found = meshcounts.read(system, desired["forward"])
    except Failure as failure:
        return {"error": str(failure)}
    found["overruns"] = meshcounts.overruns(system, desired["forward"])
    found["lost"] = {hca: meshcounts.lost(system, hca) for hca in desired["ends"]}
    return {**found, "error": ""}


def _port(system: System, port: str, index: int) -> Json:
    return {
        "sent": _bytes(system, f"{port}/counters/port_xmit_data"),
        "received": _bytes(system, f"{port}/counters/port_rcv_data"),
        "state": system.text(f"{port}/state") or "",
        "gid": system.text(f"{port}/gids/{index}") or "",
        "gid_type": system.text(f"{port}/gid_attrs/types/{index}") or "",
    }


def _bytes(system: System, path: str) -> int | None:
    text = system.text(path)
    return int(text) * WORD if text and text.isdigit() else None
