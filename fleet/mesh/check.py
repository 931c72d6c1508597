"""What proves that the mesh carries data: one RDMA write over each of its paths, and what is to be counted meanwhile.

The writes of a rank are a *turn*; turns follow one another, so that no path disturbs another. Writer and listener agree
by TCP first. That goes to the listener's management address: to its fabric address it would take the path's own route,
unmarked, and a kernel between would forward it, which is just what must not be counted.
"""

from collections.abc import Sequence
from typing import Any

from fleet.mesh.desired import FLOW_LABEL, GID_INDEX, forwarding
from fleet.mesh.paths import SIZE
from fleet.mesh.plan import MeshPlan

BYTES = 61440
"""The size of most collectives of a decode step, and of the latencies that others published."""

FIRST_PORT = 18515  # perftest's own; a port for each path


def checks(mesh: MeshPlan, names: Sequence[str], addresses: Sequence[str], image: str) -> dict[str, dict[str, Any]]:
    """By node name: what it writes, what it listens for, which of its rules must count.

    `names` and management `addresses` are by rank; `image` is the engine's as docker takes it, for nodes without
    perftest.
    """
    found: dict[str, dict[str, Any]] = {
        names[rank]: {
            "size": BYTES,
            "flow_label": FLOW_LABEL,
            "gid_index": GID_INDEX,
            "image": image,
            "listen": [],
            "write": [],
            "forward": forwarding(mesh.ring, mesh.ports, rank)["rules"],
        }
        for rank in range(SIZE)
    }
    for place, path in enumerate(mesh.ring.taken()):
        far = names[path.destination]
        common = {"path": path.name, "turn": path.source, "port": FIRST_PORT + place}
        listen = {**common, "hca": mesh.ports[path.plane, path.arrival].hca}
        write = {**common, "hca": mesh.ports[path.plane, path.origin].hca}
        found[far]["listen"].append(listen)
        found[names[path.source]]["write"].append({**write, "host": addresses[path.destination], "peer": far})
    return found
