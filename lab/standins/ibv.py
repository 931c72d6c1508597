"""ibv_devinfo and ibdev2netdev: devices and ports as the verbs library sees them."""

from __future__ import annotations

import ipaddress

from . import devices, rocemtu
from .model import FUNCTIONS, Function
from .state import State
from .system import ToolError
from .words import Words


def main(name: str, argv: list[str]) -> int:
    """Entry point of both."""
    state = State()
    present = devices.present(state)
    if name == "ibv_devinfo":
        return _devinfo(state, present, Words(argv))
    for function in present:
        up = state.net(function.netdev, "operstate") == "up"
        print(f"{function.rdma} port 1 ==> {function.netdev} ({'Up' if up else 'Down'})")
    return 0


def _devinfo(state: State, present: list[Function], words: Words) -> int:
    chosen, verbose = present, False
    while words:
        name, _, value = words.take().partition("=")
        if name in ("-l", "--list"):
            print(f"{len(present)} HCAs found:")
            print("".join(f"\t{function.rdma}\n" for function in present))
            return 0
        if name in ("-v", "--verbose"):
            verbose = True
        elif name in ("-d", "--ib-dev"):
            value = value or words.take()
            chosen = [function for function in present if function.rdma == value]
            if not chosen:
                raise ToolError(f"IB device '{value}' wasn't found", 255)
        elif name in ("-i", "--ib-port"):
            if (value or words.take()) != "1":
                raise ToolError("Invalid port requested for device", 255)
        else:
            raise ToolError("Usage: ibv_devinfo             print the ca attributes", 255)
    if not chosen:
        raise ToolError("No IB devices found", 255)
    for function in chosen:
        print("\n".join(_device(state, function, verbose)) + "\n")
    return 0


def _device(state: State, function: Function, verbose: bool) -> list[str]:
    size, place = rocemtu.active(int(state.net(function.netdev, "mtu") or 1500))
    lines = [
        f"hca_id:\t{function.rdma}",
        "\ttransport:\t\t\tInfiniBand (0)",
        f"\tfw_ver:\t\t\t\t{devices.FIRMWARE}",
        f"\tnode_guid:\t\t\t{devices.guid(state, function)}",
        f"\tsys_image_guid:\t\t\t{devices.guid(state, FUNCTIONS[0])}",
        "\tvendor_id:\t\t\t0x02c9",
        "\tvendor_part_id:\t\t\t4129",
        "\thw_ver:\t\t\t\t0x0",
        "\tphys_port_cnt:\t\t\t1",
        "\t\tport:\t1",
        f"\t\t\tstate:\t\t\t{'PORT_ACTIVE (4)' if devices.is_active(state, function) else 'PORT_DOWN (1)'}",
        "\t\t\tmax_mtu:\t\t4096 (5)",
        f"\t\t\tactive_mtu:\t\t{size} ({place})",
        "\t\t\tsm_lid:\t\t\t0",
        "\t\t\tport_lid:\t\t0",
        "\t\t\tport_lmc:\t\t0x00",
        "\t\t\tlink_layer:\t\tEthernet",
    ]
    for index in range(devices.PLACES if verbose else 0):
        if kind := state.port(function.rdma, f"gid_attrs/types/{index}"):
            gid = _short(state.port(function.rdma, f"gids/{index}"))
            lines.append(f"\t\t\tGID[{index:3}]:\t\t{gid}, {kind}")
    return lines


def _short(gid: str) -> str:
    address = ipaddress.IPv6Address(gid)
    return f"::ffff:{address.ipv4_mapped}" if address.ipv4_mapped else str(address)
