"""Answers of `observe` as a factory-fresh or an addressed node gives them, for tests of the planner."""

import io
from collections.abc import Mapping
from ipaddress import IPv6Address
from typing import Any

from fleet.plan import NodePlan, Plan
from fleet.ports import USUAL, USUAL_MANAGEMENT
from lab.library import KINDS, content
from node import elf
from node.plane import eui64
from tests.unit.stacks import LIBRARY

DOMAIN = {0: 0, 1: 2}


def fresh(number: int, address: str | None = None) -> dict[str, Any]:
    """Node `number` (from 1) as delivered: ports up without addresses, docker, a management port."""
    address = address or f"192.168.1.{10 + number}"
    network = address.rsplit(".", 1)[0] + ".0/24"
    mac = f"02:00:00:00:{number:02x}:"
    links: dict[str, Any] = {
        USUAL_MANAGEMENT: _link(f"{mac}10", 1500, [f"{address}/24"]),
        "docker0": _link(f"{mac}99", 1500, ["172.17.0.1/16"]),
    }
    hcas = {}
    for offset, ((plane, socket), (netdev, hca)) in zip((1, 2, 5, 6), USUAL.items(), strict=True):
        links[netdev] = _link(f"{mac}{0x10 + offset:02x}", 1500, [])
        domain, function = DOMAIN[plane], socket.function
        hcas[hca] = {
            "netdev": netdev, "pci": f"{domain:04x}:01:00.{function}", "domain": domain, "function": function,
            "state": "4: ACTIVE", "rate": "200 Gb/sec (4X HDR)", "gids": [],
        }  # fmt: skip
    return {
        "schema": 1,
        "hostname": f"spark{number}",
        "machine_id": f"{number:032x}",
        "boot_id": f"boot-{number}",
        "arch": "aarch64",
        "ssh": {"address": address, "netdev": USUAL_MANAGEMENT},
        "owner": None,
        "journal": None,
        "links": links,
        "hcas": hcas,
        "routes": [
            {
                "to": "default",
                "netdev": USUAL_MANAGEMENT,
                "via": network.replace(".0/24", ".1"),
                "src": None,
                "protocol": "static",
            },
            {"to": network, "netdev": USUAL_MANAGEMENT, "via": None, "src": address, "protocol": "kernel"},
            {"to": "172.17.0.0/16", "netdev": "docker0", "via": None, "src": "172.17.0.1", "protocol": "kernel"},
        ],
        "docker": {"version": "29.2.1", "images": {}, "containers": []},
        "nccl": {"files": {LIBRARY: library()}},
        "errors": [],
    }


def library(kind: str = "patched", machine: str = "aarch64", edition: int = 1) -> dict[str, Any]:
    """A NCCL library as a node reports it."""
    seen = elf.describe(io.BytesIO(content(KINDS[kind], machine, edition=edition)))
    return {**seen, "mode": "0644", "uid": 0, "gid": 0}


def _link(mac: str, mtu: int, addresses: list[str]) -> dict[str, Any]:
    state = {"up": True, "carrier": True, "carrier_changes": 2, "speed": 200000}
    return {"index": int(mac[-2:], 16), "mac": mac, "mtu": mtu, **state, "addresses": addresses, "inet6": []}


def gids(mac: str, netdev: str, *addresses: str) -> list[dict[str, Any]]:
    """The table of a port with these IPv4 addresses (with prefix) and the link-local one of its MAC."""
    own = [IPv6Address(eui64(mac)), *(IPv6Address(f"::ffff:{address.split('/')[0]}") for address in addresses)]
    return [
        {"index": 2 * place + second, "gid": gid.exploded, "type": kind, "netdev": netdev}
        for place, gid in enumerate(own)
        for second, kind in enumerate(("IB/RoCE v1", "RoCE v2"))
    ]


def fleet(size: int) -> dict[str, dict[str, Any]]:
    """A fresh fleet, spark1 …"""
    return {f"spark{number}": fresh(number) for number in range(1, size + 1)}


def applied(raw: Mapping[str, Any], node: NodePlan, *, journaled: bool) -> dict[str, Any]:
    """The node with its planned addresses and routes in place: by our own hand (`journaled`) or by somebody's."""
    links = {name: dict(link) for name, link in raw["links"].items()}
    hcas = {name: dict(hca) for name, hca in raw["hcas"].items()}
    routes = list(raw["routes"])
    stages = {}
    for stage in ("plane0", "plane1"):
        desired = node.stages[stage]
        stages[stage] = {"status": "applied", "digest": "", "desired": desired, "written": {}, "failures": 0}
        for port in desired["ports"] if desired["state"] == "on" else ():
            link = links[port["netdev"]]
            link |= {"addresses": [port["address"]], "mtu": port["mtu"], "inet6": [f"{eui64(link['mac'])}/64"]}
            hcas[port["hca"]]["gids"] = gids(link["mac"], port["netdev"], port["address"])
            network = ".".join(port["address"].split(".")[:3]) + ".0/24"
            routes.append({"to": network, "netdev": port["netdev"], "via": None, "src": None, "protocol": "kernel"})
            routes += [
                {**route, "netdev": port["netdev"], "src": None, "protocol": "static"} for route in port["routes"]
            ]
    journal = {"schema": 1, "generation": 1, "stages": stages} if journaled else None
    return {**raw, "links": links, "hcas": hcas, "routes": routes, "journal": journal}


def fleet_applied(plan: Plan, *, journaled: bool) -> dict[str, dict[str, Any]]:
    """A fleet that holds a plan."""
    return {
        node.name: applied(fresh(number, node.address), node, journaled=journaled)
        for number, node in enumerate(plan.nodes, start=1)
    }
