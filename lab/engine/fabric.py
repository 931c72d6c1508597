"""RoCE devices as /sys/class/infiniband shows them, and interfaces as the kernel knows them."""

from __future__ import annotations

import fcntl
import ipaddress
import re
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

SIOCGIFADDR = 0x8915
MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")
NO_GID = ipaddress.IPv6Address(0)


@dataclass(frozen=True)
class Device:
    """One RoCE port that NCCL would list, with the GID it would use on it."""

    index: int
    name: str
    port: int
    domain: int
    netdev: str
    gid_index: int
    gid: str
    gid_type: str

    @property
    def published(self) -> bool:
        """Whether the GID can stand in a listener's handle: not zero, RoCE v2."""
        return bool(self.gid) and self.gid_type == "RoCE v2"

    @property
    def ipv4(self) -> str | None:
        """The IPv4 address inside a usable GID; without one the device cannot be matched."""
        if not self.published:
            return None
        mapped = ipaddress.IPv6Address(self.gid).ipv4_mapped
        return str(mapped) if mapped and int(mapped) else None

    @property
    def pci_root(self) -> str:
        """Name of the PCI root that the device hangs off."""
        return f"pci{self.domain:04x}:00"


def matches(name: str, port: int, listing: str) -> bool:
    """Whether a device is selected: names are prefixes, `=` makes them exact, `^` inverts."""
    if not listing:
        return True
    inverted, exact = listing.startswith("^"), "=" in listing[:2]
    for word in filter(None, listing.lstrip("^=").split(",")):
        wanted, _, number = word.strip().partition(":")
        named = name == wanted if exact else name.startswith(wanted)
        if named and (not number or int(number) == port):
            return not inverted
    return inverted


def _text(path: Path) -> str:
    """Content of a sysfs file; an empty GID slot refuses to be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _address(directory: Path) -> tuple[int, str]:
    """PCI domain, and the full address to sort by."""
    bdf = (directory / "device").resolve().name
    if re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d", bdf):
        return int(bdf[:4], 16), bdf
    named = re.search(r"P(\d+)p", directory.name)
    domain = int(named[1]) if named else 0
    return domain, f"{domain:04x}:{directory.name}"


def _gid(port: Path, index: int) -> tuple[str, str, str]:
    """GID (empty when zero), its type and its interface."""
    text = _text(port / "gids" / str(index))
    try:
        gid = "" if ipaddress.IPv6Address(text) == NO_GID else text
    except ValueError:
        gid = ""
    attributes = port / "gid_attrs"
    netdev = _text(attributes / "ndevs" / str(index))
    return gid, _text(attributes / "types" / str(index)), netdev


def _automatic(port: Path) -> int:
    """The index that NCCL finds when it is given none: the first IPv4 one of RoCE v2."""
    slots = sorted(int(file.name) for file in (port / "gids").glob("[0-9]*"))
    for index in slots:
        gid, kind, _ = _gid(port, index)
        if gid and kind == "RoCE v2" and ipaddress.IPv6Address(gid).ipv4_mapped:
            return index
    return 0


def devices(root: Path, listing: str, gid_index: str | None) -> list[Device]:
    """Selected devices with an active port, in the order of their PCI addresses.

    Unset means automatic; an empty string is read as the number 0, as atoi does.
    """
    found: list[Device] = []
    directories = sorted(root.iterdir(), key=lambda d: _address(d)[1]) if root.is_dir() else []
    for directory in directories:
        for port in sorted((directory / "ports").glob("[0-9]*")):
            number = int(port.name)
            active = _text(port / "state").startswith("4:")
            if not active or not matches(directory.name, number, listing):
                continue
            wanted = -1 if gid_index is None else int(gid_index or 0)
            index = wanted if wanted >= 0 else _automatic(port)
            gid, kind, netdev = _gid(port, index)
            domain, _ = _address(directory)
            found.append(Device(len(found), directory.name, number, domain, netdev, index, gid, kind))
    return found


def interface_address(name: str) -> str | None:
    """First IPv4 address of an interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        try:
            answer = fcntl.ioctl(asker, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def socket_interface(listing: str) -> tuple[str, str] | None:
    """The interface and address that NCCL_SOCKET_IFNAME selects."""
    for _, name in socket.if_nameindex():
        if not listing and name == "lo":
            continue
        address = interface_address(name)
        if address and (not listing or matches(name, 0, listing)):
            return name, address
    return None
