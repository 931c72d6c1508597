"""The address by which a node is reached: remembered before a change, looked for afterwards."""

import json
from dataclasses import dataclass

from .system import System

PATIENCE = 5.0  # seconds: a manager that reloads the port may take the address away for about one
_STEP = 0.1


@dataclass(frozen=True)
class Management:
    """Ports and their addresses that must stay, as pairs."""

    addresses: frozenset[tuple[str, str]]

    def missing(self, system: System) -> list[str]:
        """What is not there now, as lines for a person."""
        return [f"{address} is gone from {netdev}" for netdev, address in sorted(self.addresses - _addresses(system))]

    def lost(self, system: System, patience: float = PATIENCE) -> list[str]:
        """What is still not there after `patience` seconds; looks at once and every 0.1 s."""
        end = system.clock() + patience
        while (missing := self.missing(system)) and system.clock() < end:
            system.sleep(_STEP)
        return missing


def remember(system: System, netdevs: set[str]) -> Management:
    """The port that carries our SSH connection, and the ports with a default route; none of `netdevs`, our own."""
    words = system.environ("SSH_CONNECTION").split()
    ours = words[2] if len(words) == 4 else ""
    shown = system.run(["ip", "-j", "-4", "route", "show", "default"])
    default = {str(route.get("dev")) for route in json.loads(shown.out or "[]")} if shown.ok else set()
    default -= netdevs
    return Management(
        frozenset(
            (netdev, address)
            for netdev, address in _addresses(system)
            if netdev in default or address.split("/")[0] == ours
        )
    )


def _addresses(system: System) -> set[tuple[str, str]]:
    shown = system.run(["ip", "-j", "address"])
    if not shown.ok:
        return set()
    return {
        (str(item["ifname"]), f"{entry['local']}/{entry['prefixlen']}")
        for item in json.loads(shown.out or "[]")
        for entry in item.get("addr_info", [])
        if entry.get("scope") == "global"
    }
