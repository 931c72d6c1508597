"""One RoCE v2 frame as bytes, and what a card's match keys and actions do to it."""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass

from .words import Row

BASES = {"eth": 0, "ipv4": 14, "udp": 34, "network": 14}
ROCE = 4791


def octets(mac: str) -> bytes:
    """A MAC as bytes."""
    return bytes.fromhex(mac.replace(":", ""))


def text(mac: bytes) -> str:
    """Bytes as a MAC."""
    return ":".join(f"{octet:02x}" for octet in mac)


@dataclass
class Frame:
    """Ethernet, IPv4, UDP and the first of BTH; changed in place by pedit."""

    data: bytearray
    length: int  # of the IP packet

    @classmethod
    def build(cls, dst_mac: str, src_mac: str, src: str, dst: str, sport: int, payload: int) -> Frame:
        """As an RC queue pair sends it: write header, payload, ICRC."""
        length = 20 + 8 + 12 + 16 + payload + 4
        ip = struct.pack(
            "!BBHHHBBH4s4s",
            0x45,
            2,
            length,
            0,
            0x4000,
            64,
            17,
            0,
            ipaddress.IPv4Address(src).packed,
            ipaddress.IPv4Address(dst).packed,
        )
        udp = struct.pack("!HHHH", sport, ROCE, length - 20, 0)
        ethernet = octets(dst_mac) + octets(src_mac) + b"\x08\x00"
        return cls(bytearray(ethernet + ip + udp + bytes(16)), length)

    @property
    def dst_mac(self) -> str:
        """Destination address."""
        return text(bytes(self.data[0:6]))

    @property
    def src_mac(self) -> str:
        """Source address."""
        return text(bytes(self.data[6:12]))

    @property
    def ethertype(self) -> int:
        """Outer EtherType."""
        return int.from_bytes(self.data[12:14], "big")

    @ethertype.setter
    def ethertype(self, value: int) -> None:
        self.data[12:14] = value.to_bytes(2, "big")

    @property
    def dst_ip(self) -> str:
        """Destination address."""
        return str(ipaddress.IPv4Address(bytes(self.data[30:34])))

    @property
    def covered_by_icrc(self) -> bytes:
        """What the ICRC covers of the headers: none of it may change on the way."""
        return bytes(self.data[26:34] + self.data[34:38])

    def misses(self, row: Row) -> str:
        """Why a filter does not match; empty when it does."""
        if row["protocol"] not in (0x0003, self.ethertype):
            return f"protocol 0x{row['protocol']:04x} is not the frame's 0x{self.ethertype:04x}"
        for key, wanted in row["keys"].items():
            if (seen := self._differs(key, str(wanted))) is not None:
                return f"{key} {wanted} is not the frame's {seen}"
        return ""

    def _differs(self, key: str, wanted: str) -> str | None:
        """What the frame has instead; None where it has what is wanted."""
        if key in ("dst_mac", "src_mac"):
            value, _, mask = wanted.partition("/")
            have = octets(self.dst_mac if key == "dst_mac" else self.src_mac)
            bits = octets(mask or "ff:ff:ff:ff:ff:ff")
            same = all(a & m == b & m for a, b, m in zip(have, octets(value), bits, strict=True))
            return None if same else text(have)
        if key == "eth_type":
            number = {"ipv4": 0x0800, "ipv6": 0x86DD}.get(wanted)
            number = int(wanted, 16) if number is None else number
            return None if number == self.ethertype else f"{self.ethertype:04x}"
        if self.ethertype != 0x0800:
            return f"EtherType {self.ethertype:04x}"
        if key == "ip_proto":
            return None if wanted == "udp" else "udp"
        if key in ("src_ip", "dst_ip"):
            at = 26 if key == "src_ip" else 30
            have_ip = ipaddress.IPv4Address(bytes(self.data[at : at + 4]))
            return None if have_ip in ipaddress.IPv4Network(wanted) else str(have_ip)
        if key in ("src_port", "dst_port"):
            at = 34 if key == "src_port" else 36
            port = int.from_bytes(self.data[at : at + 2], "big")
            return None if port == int(wanted) else str(port)
        return "(a key that the walk does not know)"

    def edit(self, key: Row) -> None:
        """One pedit key: keep the bits of the mask, then set the value's, in a 32-bit word."""
        at = BASES[key["htype"]] + key["offset"]
        word = int.from_bytes(self.data[at : at + 4], "big")
        self.data[at : at + 4] = ((word & key["mask"]) ^ key["val"]).to_bytes(4, "big")
