"""Which paths of a mesh something that is wrong stands in the way of."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fleet.mesh.paths import Diagonal
from fleet.mesh.plan import MeshPlan
from fleet.topology import Topology

CUT_OFF = ("unreachable", "host-key", "login")  # codes of nodes that nobody can look at
PLAIN = re.compile(r": route to ")  # of plain IP: no part of the mesh


def broken(
    mesh: MeshPlan,
    topology: Topology,
    names: Sequence[str],
    path: Diagonal,
    place: tuple[str, str],
    kind: str,
    text: str,
) -> bool:
    """Whether something wrong at a place of the picture is in the way of a path.

    `names` are the nodes' by rank, `place` a node and network device as marks have it, `kind` the code of a problem or
    the stage of a deviation.
    """
    node, netdev = place
    stops = [names[rank] for rank in path.stops]
    source, via, destination = stops
    origin, ingress, egress, arrival = (
        mesh.ports[path.plane, end] for end in (path.origin, path.ingress, path.egress, path.arrival)
    )
    if kind in CUT_OFF:
        return node in stops
    if not node:
        crossed = {topology.segment(path.origin).index, topology.segment(path.arrival).index}
        return netdev in {f"cable {index}" for index in crossed}
    if " pref " in text:
        return node == via and f"{ingress.netdev} pref {path.number}:" in text
    if kind == "forwarding" and "/32: " in text:
        return node == source and f"{arrival.interface.ip}/32: " in text
    if kind == "markers" and netdev:
        return (node, netdev) == (source, origin.netdev)
    if netdev:
        ports = {(source, origin.netdev), (via, ingress.netdev), (via, egress.netdev), (destination, arrival.netdev)}
        return place in ports and kind != "relay" and not PLAIN.search(text)
    return node in {"markers": [source], "forwarding": [source, via], "nic": stops}.get(kind, [])
