"""Which of its RDMA devices a rank uses for each peer: what RoCEnante and sparkring's native tools are told.

A device is named by its index in `B12X_ROCE_HCA`, which lists both ports of plane 0 and then those of plane 1. Path i
of a peer is that of plane i: both ends pair their paths by number, so it has to be the same way at both.
"""

from collections.abc import Mapping

from fleet.mesh.paths import SIZE, Ring
from fleet.topology import PLANES, End, Socket


def index(plane: int, end: End) -> int:
    """The place of a port in `B12X_ROCE_HCA`."""
    return plane * len(Socket) + end.socket.function


def peer_map(ring: Ring, rank: int) -> str:
    """`peer=a/b,…`: the devices of paths 0 and 1 to each other rank."""
    paths = {(path.destination, path.plane): path for path in ring.paths_from(rank)}
    return ",".join(
        f"{peer}={'/'.join(str(index(plane, paths[peer, plane].origin)) for plane in PLANES)}"
        for peer in range(SIZE)
        if peer != rank
    )


def peer_maps(ring: Ring) -> str:
    """The maps of all ranks in rank order, as `B12X_ROCE_PEER_HCA_MAPS` takes them."""
    return ";".join(peer_map(ring, rank) for rank in range(SIZE))


def native_paths(ring: Ring, rank: int, hcas: Mapping[tuple[int, Socket], str], gid_index: int) -> tuple[str, ...]:
    """A rank's paths as arguments of sparkring's native RoCE tools: `destination,function,device,gid index,hops`.

    `hcas` are the rank's RDMA devices by plane and socket.
    """
    return tuple(
        f"{path.destination},{path.plane},{hcas[path.plane, path.origin.socket]},{gid_index},{len(path.edges)}"
        for path in ring.paths_from(rank)
    )
