"""Whether queue pairs of this node would work, for programs that cannot send RoCE frames themselves."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from . import labnodes
from .framewalk import Walk
from .model import BY_NETDEV, BY_RDMA
from .words import Row


def reach(paths: list[Row]) -> list[Row]:
    """For each path (`device`, `address`, `sport`, `gid_index`, `bursts`): do frames go there, and answers come back?

    From this node, or from the one that a path names (`node`).

    `works`, `reason` where it does not, `receiver` (node, device) and `hops` there. `bursts` (default none) are the
    frames of messages that are sent, each at once: where they work counters of rules and ports rise, there by the
    frames and back by an answer each, and those of queues that they overrun; where a kernel would get them, it does.
    """
    walk, here = labnodes.walk(), socket.gethostname()
    questions: list[Row] = [{"node": here} | path for path in paths]
    return [_reach(walk, **question) for question in questions]


def _reach(
    walk: Walk, node: str, device: str, address: str, sport: int, gid_index: int = 3, bursts: Sequence[int] = ()
) -> Row:
    there = walk.follow(node, device, address, sport, gid_index)
    if not there.receiver:
        if bursts:
            walk.spill(there, address, sport)
        return {"works": False, "reason": there.reason, "receiver": None, "hops": there.hops}
    far, netdev = there.receiver
    far_device = BY_NETDEV[netdev].rdma
    back = walk.follow(far, far_device, there.source_ip, sport, gid_index)
    works = back.receiver == (node, BY_RDMA[device].netdev)
    reason = "" if works else f"answers of {far}: {back.reason or back.receiver}"
    if works:
        for frames in bursts:
            walk.count(there, frames, burst=frames)
            walk.count(back, 1)
    return {"works": works, "reason": reason, "receiver": [far, far_device], "hops": there.hops}
