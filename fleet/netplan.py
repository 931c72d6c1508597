"""The netplan file of a plane on a node, as text."""

from collections.abc import Iterable, Mapping
from typing import Any


def path(plane: int) -> str:
    """Where the file goes on the node."""
    return f"/etc/netplan/41-spark-fabric-plane{plane}.yaml"


def render(header: Iterable[str], ports: Iterable[Mapping[str, Any]], notes: Mapping[str, str]) -> str:
    """The file's text for planned ports (`netdev`, `address`, `mtu`, `routes`); `notes` are comments by netdev.

    The renderer stands in each stanza: at the top it would hold for every netplan file of the node, the management
    port's too. The pass-through keys make exactly one link-local address, EUI-64, so that the RoCE v2 GID of the IPv4
    address lands on index 3: without them netplan writes `ipv6.method=ignore` (seen with netplan 0.106 and
    NetworkManager 1.42), and a port that leaves a factory profile keeps no link-local address at all.
    """
    lines = [f"# {line}" for line in header]
    lines += ["network:", "  version: 2", "  ethernets:"]
    for port in ports:
        lines += [
            f"    {port['netdev']}:  # {notes[port['netdev']]}",
            "      renderer: NetworkManager",
            "      dhcp4: false",
            "      dhcp6: false",
            "      optional: true",
            f"      mtu: {port['mtu']}",
            f"      addresses: [{port['address']}]",
        ]
        if port["routes"]:
            lines.append("      routes:")
            lines += [f"        - {{to: {route['to']}, via: {route['via']}}}" for route in port["routes"]]
        lines += [
            "      networkmanager:",
            "        passthrough:",
            "          ipv6.method: link-local",
            "          ipv6.addr-gen-mode: eui64",
        ]
    return "\n".join(lines) + "\n"
