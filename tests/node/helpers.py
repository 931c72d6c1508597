"""Requests as the operator's side makes them."""

import contextlib
from typing import Any

import pytest

from node import changes
from node.request import Failure, Owner, Request
from tests.node.machine import Kill, Machine

OWNER = Owner("spark-fabric", "lab", "fleet-1", "state-1")
SOCKETS = {0: ("enp1s0f0np0", "rocep1s0f0"), 1: ("enp1s0f1np1", "rocep1s0f1")}
SECOND = {0: ("enP2p1s0f0np0", "roceP2p1s0f0"), 1: ("enP2p1s0f1np1", "roceP2p1s0f1")}


def plane(number: int = 0, mtu: int = 9000, pool: int = 10, comment: str = "") -> dict[str, Any]:
    """Rank 0 of a ring of four: a plane that is on."""
    ports: list[dict[str, Any]] = []
    for socket, (netdev, hca) in (SECOND if number else SOCKETS).items():
        cable, end = (0, "10") if socket == 0 else (3, "11")
        far, via = (1, "0.11") if socket == 0 else (2, "3.10")
        base = f"10.{pool + 10 * number}"
        ports.append(
            {
                "socket": f"f{socket}",
                "netdev": netdev,
                "hca": hca,
                "address": f"{base}.{cable}.{end}/24",
                "mtu": mtu,
                "routes": [{"to": f"{base}.{far}.0/24", "via": f"{base}.{via}"}],
            }
        )
    lines = [f"# Written by spark-fabric: plane {number}. {comment}", "network:", "  version: 2", "  ethernets:"]
    for port in ports:
        lines += [f"    {port['netdev']}:", "      renderer: NetworkManager", f"      addresses: [{port['address']}]"]
        lines += ["      dhcp4: false", "      dhcp6: false", "      optional: true", f"      mtu: {port['mtu']}"]
        lines += ["      routes:"]
        lines += [f"      - {{to: {route['to']}, via: {route['via']}}}" for route in port["routes"]]
    text = "\n".join(lines) + "\n"
    return {"state": "on", "plane": number, "file": _file(number), "text": text, "ports": ports}


def plane_off(number: int = 0) -> dict[str, Any]:
    """The same plane, off."""
    ports = [{key: port[key] for key in ("socket", "netdev", "hca")} for port in plane(number)["ports"]]
    return {"state": "off", "plane": number, "file": _file(number), "ports": ports}


def relay() -> dict[str, Any]:
    """Forwarding between the ports of both planes."""
    return {"state": "on", "pairs": [["enp1s0f0np0", "enp1s0f1np1"], ["enP2p1s0f0np0", "enP2p1s0f1np1"]]}


def _file(number: int) -> str:
    return f"/etc/netplan/41-spark-fabric-plane{number}.yaml"


def ask(
    machine: Machine,
    verb: str,
    stage: str = "",
    desired: dict[str, Any] | None = None,
    owner: Owner = OWNER,
    **more: Any,
) -> dict[str, Any]:
    """Do a verb that changes something, or `check`."""
    request = Request(owner, "spark1", stage, desired or {}, "a test", **more)
    if verb == "check":
        return changes.check(machine, request)
    return changes.change(machine, verb, request)


def take(machine: Machine) -> None:
    """Make the machine ours."""
    ask(machine, "apply", "node", {"name": "spark1", "rank": 0})


def refused(machine: Machine, *arguments: Any, **more: Any) -> Failure:
    """The failure of a request that must fail."""
    with pytest.raises(Failure) as caught:
        ask(machine, *arguments, **more)
    return caught.value


def killed(machine: Machine, at: int, *arguments: Any, **more: Any) -> bool:
    """Do a request and end the program at its checkpoint number `at`; whether it came that far."""
    machine.steps.clear()
    machine.kill_at = at
    with contextlib.suppress(Kill):
        ask(machine, *arguments, **more)
    reached = machine.kill_at is None
    machine.kill_at = None
    return reached
