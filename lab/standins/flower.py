"""A flower filter's match, as strict as the real tool about its words."""

from __future__ import annotations

import ipaddress
import re

from .actions import actions
from .model import ANY_PROTOCOL, IPV4, PROTOCOLS
from .system import NotSimulatedError, ToolError
from .words import Row, Words, mac, number

# Words that the real flower takes and that nothing here can follow: said so, not mistaken.
NOT_SIMULATED = re.compile(
    r"(indev|c?vlan_\w+|num_of_vlans|pppoe_sid|ppp_proto|ip_(tos|ttl|flags)|mpls\w*|tcp_flags|type"
    r"|code|arp_\w+|enc_\w+|\w+_opts|ct_\w+|hw_tc|classid|flowid)"
)
USAGE = "Usage: ... flower [ MATCH-LIST ] [ skip_sw | skip_hw ] [ action ACTION-SPEC ]"


def parse(words: Words, eth_type: int) -> Row:
    """Keys, flags and actions that follow the word `flower`."""
    keys: Row = {}
    row: Row = {"keys": keys, "skip_sw": False, "skip_hw": False, "actions": []}
    while words:
        word = words.take()
        if word in ("skip_sw", "skip_hw"):
            row[word] = True
        elif word in KEYS:
            keys[word] = KEYS[word](words.take(), word, eth_type, keys)
        elif word == "action":
            row["actions"] = actions(words)
        elif NOT_SIMULATED.fullmatch(word):
            raise NotSimulatedError(f"flower word {word}")
        elif word != "verbose":
            raise ToolError(f'What is "{word}"?\n{USAGE}', 1)
    if eth_type != ANY_PROTOCOL:
        keys["eth_type"] = {IPV4: "ipv4", PROTOCOLS["ipv6"]: "ipv6"}.get(eth_type, f"{eth_type:04x}")
    return row


def _mac(text: str, word: str, _: int, __: Row) -> str:
    address, slash, mask = text.partition("/")
    if slash and mask.isdigit():
        bits = ((1 << int(mask)) - 1) << (48 - int(mask))
        mask = ":".join(f"{octet:02x}" for octet in bits.to_bytes(6, "big"))
    try:
        mask = mac(mask) if slash else "ff:ff:ff:ff:ff:ff"
        return mac(address) + ("" if mask == "ff:ff:ff:ff:ff:ff" else f"/{mask}")
    except ToolError as error:
        raise ToolError(f'{error.text}\nIllegal "{word}"', 1) from None


def _prefix(text: str, word: str, eth_type: int, _: Row) -> str:
    try:
        prefix = ipaddress.IPv4Network(text, strict=False)
    except ValueError:
        message = f'Error: inet prefix is expected rather than "{text}".'
        raise ToolError(message, 1) from None
    if eth_type != IPV4:
        raise ToolError(f'Illegal "{word}"', 1)
    return str(prefix.network_address) if prefix.prefixlen == 32 else str(prefix)


def _ip_proto(text: str, word: str, eth_type: int, _: Row) -> str:
    if text not in ("udp", "tcp", "icmp") or eth_type != IPV4:
        raise ToolError(f'Illegal "{word}"', 1)
    return text


def _port(text: str, word: str, _: int, keys: Row) -> int:
    port = number(text, 0xFFFF)
    if port is None or keys.get("ip_proto") not in ("udp", "tcp"):
        raise ToolError(f'Illegal "{word}"', 1)
    return port


KEYS = {
    "dst_mac": _mac,
    "src_mac": _mac,
    "ip_proto": _ip_proto,
    "dst_ip": _prefix,
    "src_ip": _prefix,
    "dst_port": _port,
    "src_port": _port,
}
