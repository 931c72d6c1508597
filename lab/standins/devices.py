"""What several tools tell of the RDMA devices that are there."""

from __future__ import annotations

import ipaddress
import re

from .model import FUNCTIONS, Function
from .state import State

FIRMWARE = "28.45.4028"
PLACES = 32  # of a GID table


def present(state: State) -> list[Function]:
    """The functions whose device is there."""
    return [function for function in FUNCTIONS if state.device_exists(function.rdma)]


def is_active(state: State, function: Function) -> bool:
    """Whether the port is ACTIVE."""
    return state.port(function.rdma, "state").endswith("ACTIVE")


def guid(state: State, function: Function) -> str:
    """Node GUID, which is made of the MAC."""
    octets = state.net(function.netdev, "address").replace(":", "") or "000000000000"
    return ":".join(re.findall("....", f"{octets[:6]}0300{octets[6:]}"))


def roce_v2_address(state: State, function: Function, index: int) -> str:
    """IPv4 address in the GID at an index; empty if it is none of RoCE v2."""
    if state.port(function.rdma, f"gid_attrs/types/{index}") != "RoCE v2":
        return ""
    return str(ipaddress.IPv6Address(state.port(function.rdma, f"gids/{index}")).ipv4_mapped or "")
