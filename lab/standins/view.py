"""What a frame walk reads of a node apart from routes and neighbours."""

from __future__ import annotations

import json
from pathlib import Path

from . import devices, driver, marker, offload, rules, system
from .model import FUNCTIONS, Function
from .state import State
from .words import Row


def take(state: State) -> Row:
    """`functions` by netdev, `markers` by device, all `local` IPv4 addresses, whether the kernel forwards."""
    links = {row["ifname"]: row for row in json.loads(system.run("ip", "-j", "address").stdout)}
    return {
        "functions": {
            function.netdev: _function(state, function, links.get(function.netdev)) for function in FUNCTIONS
        },
        "markers": marker.attached(state),
        "local": [address for link in links.values() for address in _addresses(link)],
        "ip_forward": Path("/proc/sys/net/ipv4/ip_forward").read_text().strip() == "1",
    }


def _addresses(link: Row) -> list[str]:
    return [row["local"] for row in link["addr_info"] if row["family"] == "inet"]


def _function(state: State, function: Function, link: Row | None) -> Row:
    row = driver.load(state, function.handle)
    places = range(devices.PLACES)
    gids = {str(place): devices.roce_v2_address(state, function, place) for place in places}
    return {
        "rdma": function.rdma,
        "mac": link["address"] if link else "",
        "mtu": link["mtu"] if link else 0,
        "up": link is not None and {"UP", "LOWER_UP"} <= set(link["flags"]),
        "addresses": _addresses(link) if link else [],
        "gids": {place: address for place, address in gids.items() if address},
        "qdisc": rules.load(state)["qdiscs"].get(function.netdev, ""),
        "rules": rules.of(state, function.netdev),
        "offload": offload.is_on(state, function.netdev),
        "parameters": {"shown": row["shown"], "effective": row["effective"]},
    }
