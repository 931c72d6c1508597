"""Re-initialising one function: what is lost, what comes back, what can go wrong."""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from pathlib import Path

from . import driver, offload, rules, system
from .model import Function
from .state import State
from .system import ToolError

SECONDS = "2"  # a Spark's function is away for 4 to 8
KEPT = ("disable_ipv6", "addr_gen_mode", "mtu", "stable_secret")  # NetworkManager sets these; writing them has effects


def begin(state: State, function: Function) -> None:
    """Re-initialise, and wait for the end, which comes even if the waiting process is killed: as in the kernel."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nowhere, stream)
        try:
            _reload(state, function)
        except ToolError as error:
            os.write(writer, error.text.encode())
        except Exception:  # noqa: BLE001 - whatever it was, a port that stays away is not left unexplained
            os.write(writer, traceback.format_exc().encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as answer:
        if text := answer.read():
            raise ToolError(text)


def _reload(state: State, function: Function) -> None:
    """Take the function down, forget what hung on it, bring it back as new."""
    netdev = function.netdev
    outcome = _outcome(state, function)
    if outcome == "refused":
        raise ToolError("kernel answers: Device or resource busy")
    managed = _managed(netdev)
    if managed:  # so that NetworkManager sees the port go and come, as with a real one
        system.run("nmcli", "device", "set", netdev, "managed", "no")
    system.run("ip", "link", "set", netdev, "down")
    _forget(state, function)
    _strip(netdev)
    while _outcome(state, function) == "hang":
        time.sleep(0.1)
    time.sleep(float(state.setting("reload_seconds", SECONDS)))
    _initialise(state, function, outcome)
    if outcome == "broken":
        raise ToolError("kernel answers: Input/output error")
    if outcome == "vanish":
        system.run("ip", "link", "set", netdev, "name", f"lost{function.domain}{function.port}")
        return
    _apply_sysctls(netdev)
    system.run("ip", "link", "set", netdev, "up")
    if managed:
        system.run("nmcli", "device", "set", netdev, "managed", "yes")


def _outcome(state: State, function: Function) -> str:
    return state.fault("reload", function.netdev, function.bdf) or ""


def _managed(netdev: str) -> bool:
    shown = system.run("nmcli", "-g", "GENERAL.STATE", "device", "show", netdev)
    return shown.returncode == 0 and not shown.stdout.startswith("10 ")


def _forget(state: State, function: Function) -> None:
    """Queue pairs, the marker's flow, qdiscs and rules go with the old function."""
    with state.locked():
        row = driver.load(state, function.handle)
        row["generation"] += 1
        driver.keep(state, function.handle, row)
        document = rules.load(state)
        rules.forget(document, function.netdev)
        rules.save(state, document)


def _strip(netdev: str) -> None:
    """A new netdev has no addresses, routes, neighbours, qdiscs or settings of the old one."""
    for kind in ("clsact", "ingress"):
        system.run("tc", "qdisc", "del", "dev", netdev, kind)
    system.run("ip", "address", "flush", "dev", netdev)
    for family in ("-4", "-6"):
        system.run("ip", family, "route", "flush", "dev", netdev)
        system.run("ip", family, "neigh", "flush", "dev", netdev, "nud", "all")
    system.run("ip", "link", "set", netdev, "mtu", "1500")
    for family in ("ipv4", "ipv6"):
        folder = Path("/proc/sys/net") / family / "conf"
        for path in (folder / netdev).glob("*"):
            if path.name not in KEPT:
                with contextlib.suppress(OSError):
                    default = (folder / "default" / path.name).read_text()
                    if path.read_text() != default:
                        path.write_text(default)


def _initialise(state: State, function: Function, outcome: str) -> None:
    """The driver's memory after a re-init: the values that were shown are in effect, if it went well."""
    with state.locked():
        row = driver.load(state, function.handle)
        row["failed"] = outcome in ("broken", "flagged")
        if outcome != "broken":
            row["reloads"] += {"uncounted": 0, "double": 2}.get(outcome, 1)
            row["effective"] = dict(row["shown"])
        driver.keep(state, function.handle, row)
        offload.keep(state, function.netdev, on=True)


def _apply_sysctls(netdev: str) -> None:
    """What udev does on a machine when a port appears: settings of sysctl.d that name it."""
    names = [f"--prefix=/net/{family}/{part}/{netdev}" for family in ("ipv4", "ipv6") for part in ("conf", "neigh")]
    system.run("systemd-sysctl", *names)
