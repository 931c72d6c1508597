"""Desired states of the mesh's stages for rank 0 of a ring of four, and requests about them."""

import copy
from typing import Any

from node.digest import sha256
from tests.node.helpers import ask, plane, take
from tests.node.machine import FABRIC
from tests.node.meshmachine import BINARY, BINARY_TEXT, MeshMachine

Json = dict[str, Any]

STAGES = ("nic", "forwarding", "markers")


def nic(size: int = 8192) -> Json:
    """All four functions."""
    ports = {port["netdev"]: port for number in (0, 1) for port in plane(number)["ports"]}
    functions = [
        {
            "netdev": netdev,
            "hca": hca,
            "pci": pci,
            "hairpin_num_queues": 4,
            "hairpin_queue_size": size,
            "address": ports[netdev]["address"],
            "mtu": 9000,
            "gid_index": 3,
        }
        for netdev, (hca, pci) in FABRIC.items()
    ]
    return {"state": "on", "functions": functions}


def forwarding(**changes: Any) -> Json:
    """Both rules of rank 0, which forwards in domain 0002, and its routes to rank 2; `changes` to the first rule."""
    one, two = "enP2p1s0f0np0", "enP2p1s0f1np1"
    rules = [
        {
            "name": "restore-rank1-to-rank3-diagonal-counter_clockwise-via-rank0-function1",
            "netdev": one,
            "pref": 49159,
            "handle": 49159,
            "src_mac": "02:5a:ab:00:02:14",
            "dst_mac": "02:5a:ab:00:01:13",
            "new_dst_mac": "02:5a:ab:00:04:13",
            "egress": two,
            **changes,
        },
        {
            "name": "restore-rank3-to-rank1-diagonal-clockwise-via-rank0-function1",
            "netdev": two,
            "pref": 49165,
            "handle": 49165,
            "src_mac": "02:5a:ab:00:04:13",
            "dst_mac": "02:5a:ab:00:01:14",
            "new_dst_mac": "02:5a:ab:00:02:14",
            "egress": one,
        },
    ]
    routes = [
        {
            "name": "rank0-to-rank2-diagonal-clockwise-via-rank1-function0",
            "to": "10.10.1.11/32",
            "via": "10.10.0.11",
            "netdev": "enp1s0f0np0",
            "src": "10.10.0.10",
        },
        {
            "name": "rank0-to-rank2-diagonal-counter_clockwise-via-rank3-function1",
            "to": "10.20.2.10/32",
            "via": "10.20.3.10",
            "netdev": two,
            "src": "10.20.3.11",
        },
    ]
    return {"state": "on", "qdiscs": [one, two], "rules": rules, "routes": routes}


def marks(text: str = BINARY_TEXT, hcas: tuple[str, ...] = ("rocep1s0f0", "roceP2p1s0f1")) -> Json:
    """The two markers of rank 0."""
    markers = [{"hca": hca, "source_port": 65535, "ethertype": 34997} for hca in hcas]
    return {"state": "on", "binary": {"path": BINARY, "sha256": sha256(text.encode())}, "markers": markers}


WANTED = {"nic": nic(), "forwarding": forwarding(), "markers": marks()}
OFF = {"state": "off"}


def planes(machine: MeshMachine) -> None:
    """Both planes on, as before any stage of the mesh."""
    take(machine)
    for number in (0, 1):
        ask(machine, "apply", f"plane{number}", plane(number))


def meshed(machine: MeshMachine, stages: tuple[str, ...] = STAGES) -> None:
    """Planes, and the mesh up to some stage."""
    planes(machine)
    for stage in stages:
        ask(machine, "apply", stage, copy.deepcopy(WANTED[stage]))
