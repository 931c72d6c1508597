"""ethtool: offload, driver, speed and statistics of the fabric ports; all else is the real one's."""

from __future__ import annotations

import json
import re
import sys

from . import counters, devices, offload, rules, system
from .model import BY_NETDEV
from .state import State
from .system import ToolError
from .words import Row

FEATURE = "hw-tc-offload"
OVERRUN = "rx_out_of_buffer"  # packets that a queue had no room for, hairpin queues' included

KERNEL = "6.17.0-1031-nvidia"
USAGE = "ethtool: bad command line argument(s)\nFor more information run ethtool -h"


def main(_: str, argv: list[str]) -> int:
    """Entry point."""
    state = State()
    words = [word for word in argv if word != "--json"]
    dev = next((word for word in words[:2] if word in BY_NETDEV and state.netdev_exists(word)), "")
    option = words[0] if dev else ""
    if option in ("-k", "--show-features", "--show-offload"):
        return _show(state, dev, "--json" in argv)
    if option in ("-K", "--features", "--offload") and FEATURE in words[2::2]:
        return _set(state, dev, words[2:])
    if option in ("-i", "--driver"):
        return _driver(dev)
    if option in ("-S", "--statistics") and len(argv) == len(words):
        return _statistics(state, dev)
    if dev and argv == [dev]:
        return _settings(dev)
    return system.become("ethtool", argv)


def _settings(dev: str) -> int:
    """A veth always says 10000."""
    done = system.run("ethtool", dev)
    sys.stdout.write(done.stdout.replace("Speed: 10000Mb", "Speed: 200000Mb"))
    sys.stderr.write(done.stderr)
    return done.returncode


def _statistics(state: State, dev: str) -> int:
    """Those of a veth, and the one of a Spark's port that is simulated."""
    listing = system.run("ethtool", "-S", dev).stdout or "NIC statistics:\n"
    print(f"{listing}     {OVERRUN}: {counters.of(state, BY_NETDEV[dev].rdma, OVERRUN)}")
    return 0


def _show(state: State, dev: str, as_json: bool) -> int:
    fixed, on = offload.is_fixed(state, dev), offload.is_on(state, dev)
    if as_json:
        listing = system.run("ethtool", "--json", "-k", dev).stdout
        rows: list[Row] = json.loads(listing or "[]") or [{"ifname": dev}]
        rows[0][FEATURE] = {"active": on, "fixed": fixed, "requested": on}
        print(json.dumps(rows, indent=4))
        return 0
    line = f"{FEATURE}: {'on' if on else 'off'}{' [fixed]' if fixed else ''}"
    listing = system.run("ethtool", "-k", dev).stdout or f"Features for {dev}:\n"
    text, found = re.subn(rf"^{FEATURE}: .*$", line, listing, flags=re.MULTILINE)
    sys.stdout.write(text if found else f"{text}{line}\n")
    return 0


def _set(state: State, dev: str, words: list[str]) -> int:
    if len(words) % 2:
        raise ToolError(USAGE)
    pairs = dict(zip(words[::2], words[1::2], strict=True))
    value = pairs.pop(FEATURE)
    if value not in ("on", "off"):
        raise ToolError(USAGE)
    system.require_root("netlink error: Operation not permitted", 92)
    if pairs:
        done = system.run("ethtool", "-K", dev, *(word for pair in pairs.items() for word in pair))
        if done.returncode:
            raise ToolError(done.stderr.rstrip(), done.returncode)
    with state.locked():
        held = any(row["in_hw"] for row in rules.of(state, dev))
        if (value == "on" and offload.is_fixed(state, dev)) or (value == "off" and held):
            shown = "off [requested on]" if value == "on" else "on [requested off]"
            print(f"Actual changes:\n{FEATURE}: {shown}")
            raise ToolError("Could not change any device features", 1)
        offload.keep(state, dev, value == "on")
    return 0


def _driver(dev: str) -> int:
    yes = ["supports-statistics", "supports-test", "supports-register-dump", "supports-priv-flags"]
    print(f"driver: mlx5_core\nversion: {KERNEL}\nfirmware-version: {devices.FIRMWARE}")
    print(f"expansion-rom-version: \nbus-info: {BY_NETDEV[dev].bdf}")
    for name in (*yes[:2], "supports-eeprom-access", *yes[2:]):
        print(f"{name}: {'yes' if name in yes else 'no'}")
    return 0
