"""A fabric port: how it was before, and bringing it up with the profile that netplan made of our file."""

import json
import re
from dataclasses import dataclass
from functools import partial
from typing import Any

from . import autodefault
from .journal import Undo
from .netplan import files
from .request import FAILED, Failure
from .steps import Work
from .system import System

WAIT = 5.0  # seconds for NetworkManager to give a port up
STEP = 0.03  # seconds between two looks


def link(system: System, netdev: str) -> dict[str, Any] | None:
    """A port as `ip` shows it: mtu and addresses with prefix length (not those that end by themselves), or None."""
    result = system.run(["ip", "-j", "address", "show", "dev", netdev])
    if not result.ok:
        return None
    shown = next((item for item in json.loads(result.out or "[]") if item.get("ifname") == netdev), None)
    if shown is None:
        return None
    addresses = [
        f"{item['local']}/{item['prefixlen']}"
        for item in shown.get("addr_info", [])
        if item.get("family") == "inet" and not item.get("dynamic")
    ]
    return {"mtu": shown.get("mtu"), "addresses": addresses}


def connection(system: System, netdev: str) -> tuple[str, str]:
    """State and profile UUID of a port in NetworkManager; "" where there is none."""
    result = system.run(["nmcli", "-g", "GENERAL.STATE,GENERAL.CON-UUID", "device", "show", netdev])
    lines = [*result.out.splitlines(), "", ""] if result.ok else ["", ""]
    return lines[0], lines[1]


@dataclass(frozen=True)
class Port:
    """A port that gets an address of ours. Changes nothing itself: it remembers how the port was."""

    netdev: str
    address: str
    was: dict[str, Any]
    needed: bool = False

    @property
    def key(self) -> str:
        return f"port:{self.netdev}"

    def before(self, work: Work) -> Any:
        return {**self.was, "auto": autodefault.find(work.system, self.netdev)}

    def ours(self, work: Work) -> list[str]:  # noqa: ARG002
        return [self.address]

    def do(self, work: Work) -> None:
        pass

    def describe(self) -> dict[str, Any]:
        return {"remember": self.netdev}


@dataclass(frozen=True)
class Manage:
    """Hand a port that NetworkManager was told to leave alone over to it."""

    netdev: str
    needed: bool = True

    @property
    def key(self) -> str:
        return f"managed:{self.netdev}"

    def before(self, work: Work) -> Any:  # noqa: ARG002
        return None

    def ours(self, work: Work) -> list[str]:  # noqa: ARG002
        return []

    def do(self, work: Work) -> None:
        work.system.change(["nmcli", "device", "set", self.netdev, "managed", "yes"])

    def describe(self) -> dict[str, Any]:
        return {"manage": self.netdev}


@dataclass(frozen=True)
class Activate:
    """Bring ports up side by side.

    `again` ports have our profile already; NetworkManager only puts back what differs, without taking the link down.
    """

    netdevs: tuple[str, ...]
    again: tuple[str, ...] = ()
    local: tuple[tuple[str, str], ...] = ()  # port and the one IPv6 link-local address that it shall have
    needed: bool = True

    @property
    def key(self) -> str:
        return ""

    def before(self, work: Work) -> Any:  # noqa: ARG002
        return None

    def ours(self, work: Work) -> list[str]:  # noqa: ARG002
        return []

    def do(self, work: Work) -> None:
        system = work.system
        commands = [
            *(["nmcli", "--wait", "20", "connection", "up", f"netplan-{n}", "ifname", n] for n in self.netdevs),
            *(["nmcli", "--wait", "20", "device", "reapply", n] for n in self.again),
        ]
        results = system.parallel([partial(system.change, command) for command in commands])
        failed = [
            f"{netdev}: {result.reason()}"
            for netdev, result in zip([*self.netdevs, *self.again], results, strict=True)
            if not result.ok
        ]
        if failed:
            raise Failure(FAILED, *failed, "NetworkManager did not bring the port up: is the cable in, the far end on?")
        for netdev, address in self.local:
            one_link_local(system, netdev, address)
        work.report.did(f"up with the plan's profile: {', '.join([*self.netdevs, *self.again])}")

    def describe(self) -> dict[str, Any]:
        parts = {"up": self.netdevs, "reapply": self.again, "link-local": self.local}
        return {name: [*values] for name, values in parts.items() if values}


def one_link_local(system: System, netdev: str, wanted: str) -> None:
    """Leave a port exactly one IPv6 link-local address, the one that the kernel makes of its MAC.

    The profile leaves IPv6 to the kernel, which makes the address when a link comes up and not when it is up already:
    then it has to be told so again.
    """
    seen = link_local(system, netdev)
    for address in seen:
        if address != wanted:
            system.change(["ip", "-6", "address", "del", f"{address}/64", "dev", netdev])
    if wanted not in seen:
        path = f"/proc/sys/net/ipv6/conf/{netdev}/addr_gen_mode"
        for mode in ("1", "0"):
            system.set_value(path, mode)


def link_local(system: System, netdev: str) -> list[str]:
    """The IPv6 link-local addresses of a port."""
    shown = system.run(["ip", "-j", "-6", "address", "show", "dev", netdev, "scope", "link"])
    found = json.loads(shown.out or "[]") if shown.ok else []
    return [str(item["local"]) for part in found for item in part.get("addr_info", []) if "local" in item]


def was(netdev: str, observed: dict[str, Any], *, leftover: bool) -> dict[str, Any]:
    """How a port is, as far as it must be so again after a revert. Pure.

    Addresses and routes of a profile come back with the profile; those without one are remembered. `leftover`: what
    is there now is ours, of a journal that was lost.
    """
    link = (observed.get("links") or {}).get(netdev) or {}
    profiles = (observed.get("nm") or {}).get("profiles") or []
    active = next((p for p in profiles if netdev in p["active_on"].split(",")), None)
    uuid = active["uuid"] if active else ""
    bare = not uuid and not leftover
    routes = [r for r in observed.get("routes") or [] if r["netdev"] == netdev and r["protocol"] != "kernel"]
    return {
        "mtu": link.get("mtu"),
        "uuid": "" if leftover else uuid,
        # NetworkManager takes a stanza of the same name as ours for the same profile.
        "namesake": bool(active and active["name"] == f"netplan-{netdev}" and not leftover),
        "addresses": list(link.get("addresses", [])) if bare else [],
        "routes": [[route["to"], route["via"]] for route in routes] if bare else [],
        "local": None if leftover else [held for held in link.get("inet6", []) if held.startswith("fe80")],
        "ipv6": {name: link.get(name) for name in ("disable_ipv6", "addr_gen_mode")},
    }


def undo_managed(work: Work, operation: Undo) -> None:
    """Take a port from NetworkManager again, before it would start a profile of its own there."""
    netdev = operation["key"].removeprefix("managed:")
    work.system.change(["nmcli", "device", "set", netdev, "managed", "no"])


def undo_port(work: Work, operation: Undo) -> None:
    """Wait until NetworkManager gave the port back, and put right what it leaves behind."""
    system = work.system
    netdev, before = operation["key"].removeprefix("port:"), operation["before"]
    if link(system, netdev) is None:
        work.report.note(f"{netdev} is not there (cable out?): only its files were put back")
        return
    if before["namesake"]:  # it came back, and NetworkManager sees no reason to apply it
        system.change(["nmcli", "--wait", "20", "connection", "up", before["uuid"], "ifname", netdev])
    if _drop_addresses(work, netdev, operation["ours"]):
        return
    uuid = _wanted_profile(work, netdev, before)
    seen = _former_profile(system, netdev, uuid)
    if uuid and seen != uuid:
        result = system.change(["nmcli", "--wait", "0", "connection", "up", uuid, "ifname", netdev])
        if not result.ok:
            work.report.note(f"{netdev}: its former profile could not be started: {result.reason()}")
    _settle(work, netdev, before)
    work.report.did(f"{netdev}: as before")


def _wanted_profile(work: Work, netdev: str, before: dict[str, Any]) -> str:
    """The UUID of the profile that a port had; NetworkManager's own is there again then, maybe with another UUID."""
    auto = before.get("auto")
    own = autodefault.give_back(work, netdev, auto) if auto else ""
    return own if auto and before["uuid"] == auto["uuid"] else str(before["uuid"])


def _former_profile(system: System, netdev: str, uuid: str) -> str:
    """The profile of a port, as soon as NetworkManager went back to `uuid` by itself or did not for 0.6 s."""
    end = system.clock() + 0.6
    while True:
        seen = connection(system, netdev)[1]
        if seen == uuid or system.clock() > end:
            return seen
        system.sleep(STEP)


def _drop_addresses(work: Work, netdev: str, ours: list[str]) -> bool:
    """Wait for our addresses to go, and remove those that stay; whether a file that is not ours still holds one."""
    system = work.system
    end = system.clock() + WAIT
    texts = [file["text"] or "" for file in files(system).values()]
    held = {address for address in ours if any(re.search(rf"(?<![\d.]){re.escape(address)}", text) for text in texts)}
    for address in sorted(held):
        work.report.note(f"{netdev}: {address} stays, a netplan file that is not ours any more holds it")
    left = set(ours) - held
    while left & set((link(system, netdev) or {"addresses": []})["addresses"]):
        if system.clock() > end or not connection(system, netdev)[1]:
            for address in sorted(left & set((link(system, netdev) or {"addresses": []})["addresses"])):
                system.change(["ip", "address", "del", address, "dev", netdev])
            if left & set((link(system, netdev) or {"addresses": []})["addresses"]):
                raise Failure(FAILED, f"{netdev}: {', '.join(sorted(left))} cannot be removed")
            break
        system.sleep(STEP)
    return bool(held)


def _settle(work: Work, netdev: str, before: dict[str, Any]) -> None:
    """Wait for NetworkManager to put MTU and IPv6 right; what it does not do, or where it has no part, is done here."""
    system = work.system
    end = system.clock() + (WAIT / 2 if before["uuid"] else 0.0)
    while (seen := link(system, netdev)) and before["mtu"] and seen["mtu"] != before["mtu"]:
        if system.clock() > end:
            system.change(["ip", "link", "set", "dev", netdev, "mtu", str(before["mtu"])])
            break
        system.sleep(STEP)
    for address in before["addresses"]:
        if seen and address not in seen["addresses"]:
            system.change(["ip", "address", "add", address, "dev", netdev])
    for to, via in before["routes"]:
        way = ["via", via] if via else []
        system.change(["ip", "route", "replace", to, *way, "dev", netdev])
    kernels = system.text(f"/proc/sys/net/ipv6/conf/{netdev}/addr_gen_mode") == "0"  # else NetworkManager makes them
    for address in link_local(system, netdev):
        if kernels and before["local"] is not None and f"{address}/64" not in before["local"]:
            system.change(["ip", "-6", "address", "del", f"{address}/64", "dev", netdev])
    for name, value in before["ipv6"].items():
        path = f"/proc/sys/net/ipv6/conf/{netdev}/{name}"
        end = system.clock() + (1.0 if before["uuid"] else 0.0)
        while value is not None and system.text(path) not in (str(value), None):
            if system.clock() > end:
                system.set_value(path, str(value))
                break
            system.sleep(STEP)
