"""The marker's arguments, its refusals of them, and the line that it prints."""

from __future__ import annotations

import re
from typing import Any

from .system import ToolError
from .words import number

MAX_SECONDS = 7200
USAGE = """usage: {name} --device RDMA_DEVICE --source-port N
  (--replacement-ethertype T | --replacement-port N | --encap-ethernet HEX28)
  [--attach (--run-seconds N | --managed)]"""
ACTIONS = {
    "replacement-ethertype": "ethertype_rewrite",
    "replacement-port": "udp_destination_rewrite",
    "encap-ethernet": "outer_ethernet_encapsulation",
}
VALUED = ("device", "source-port", *ACTIONS, "run-seconds")
FLAGS = ("attach", "managed", "help")


def _arguments(name: str, argv: list[str]) -> dict[str, str]:
    """As getopt_long reads them: `--name value` or `--name=value`."""
    usage = USAGE.format(name=name)
    found: dict[str, str] = {}
    todo = list(argv)
    while todo:
        word = todo.pop(0)
        option, equals, value = word.partition("=")
        option = "help" if option == "-h" else option.removeprefix("--")
        if option == "help":
            raise ToolError(usage, 0)
        if not (word.startswith("--") and option in VALUED + FLAGS) or (option in FLAGS and equals):
            raise ToolError(f"{name}: unrecognized option '{word}'\n{usage}")
        if option in VALUED and not equals:
            if not todo:
                raise ToolError(f"{name}: option '{word}' requires an argument\n{usage}")
            value = todo.pop(0)
        found[option] = value
    return found


def _range(found: dict[str, str], option: str, high: int) -> int:
    value = number(found[option])
    if value is None or not 1 <= value <= high:
        raise ToolError(f"--{option} must be from 1 to {high}")
    return value


def _seconds(found: dict[str, str]) -> int:
    """The lifetime asked for, 0 for none; refuses what does not go together."""
    attach, managed = "attach" in found, "managed" in found
    seconds = _range(found, "run-seconds", MAX_SECONDS) if "run-seconds" in found else 0
    if managed and seconds:
        raise ToolError("--managed and --run-seconds are mutually exclusive")
    if managed and not attach:
        raise ToolError("--managed is valid only with --attach")
    if attach and not managed and not seconds:
        raise ToolError("--attach requires --run-seconds or --managed")
    if seconds and not attach:
        raise ToolError("--run-seconds is valid only with --attach")
    return seconds


def parse(name: str, argv: list[str]) -> tuple[dict[str, Any], int]:
    """The line on stdout, and the EtherType to write (0 for another action); raises every refusal."""
    found = _arguments(name, argv)
    chosen = [option for option in ACTIONS if option in found]
    if "device" not in found or "source-port" not in found or len(chosen) != 1:
        raise ToolError(USAGE.format(name=name))
    option = chosen[0]
    source_port = _range(found, "source-port", 65535)
    replaced = 0
    if option != "encap-ethernet":
        replaced = _range(found, option, 0xFFFF)
    elif not re.fullmatch(r"[0-9a-fA-F]{28}", found[option]):
        raise ToolError("--encap-ethernet takes 28 hexadecimal digits")
    line: dict[str, Any] = {
        "device": found["device"],
        "rdma_tx_matcher": True,
        "action": ACTIONS[option],
        "source_port": source_port,
        "replacement_port": replaced if option == "replacement-port" else 0,
        "attached": "attach" in found,
        "requested_run_seconds": _seconds(found),
        "max_run_seconds": MAX_SECONDS,
        "sigint_sigterm_cleanup": True,
    }
    if "managed" in found:
        line |= {"managed": True, "lifetime_seconds": None}
    return line, replaced if option == "replacement-ethertype" else 0
