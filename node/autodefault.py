"""NetworkManager's own profile for a port that nobody configured ("Wired connection 1"): kept, and given back.

NetworkManager makes it when a port appears, looks for a reason to do so only this once, and makes none where the port
has a profile by then. Ours is there when the node boots, or a driver is loaded anew, while a plane is on. Afterwards
nothing makes it look again: no reload, not the port's being handed over to it, no link that goes down and up
(`device_realized` in its src/core/settings/nm-settings.c). But it takes the file back in which it kept the profile
below /run, with its mark and its UUID, from which the port's IPv6 link-local address follows. As its own would be,
that file is gone at the next boot, where NetworkManager makes a new one.
"""

import re

from . import nm
from .netplan import PROFILES, mentions
from .steps import Work
from .system import Meta, System

GIVEN_UP = "/var/lib/NetworkManager/no-auto-default.state"  # ports whose profile a user deleted

Profile = dict[str, str]


def find(system: System, netdev: str) -> Profile | None:
    """UUID, path and text of the profile that NetworkManager made for a port, or None."""
    for path in (f"{PROFILES}/{name}" for name in system.names(PROFILES) if name.endswith(".nmconnection")):
        text = (system.read(path) or b"").decode(errors="replace")
        keys = nm.keys(text)
        # What it makes for addresses that others gave a port is volatile.
        made = keys.get(".nmmeta.nm-generated") == "true" and keys.get(".nmmeta.volatile") != "true"
        if made and keys.get("connection.interface-name") == netdev and "connection.uuid" in keys:
            return {"uuid": keys["connection.uuid"], "path": path, "text": text}
    return None


def give_back(work: Work, netdev: str, kept: Profile) -> str:
    """Let NetworkManager have its own profile for a port again; the UUID, "" where a user has deleted the profile."""
    system = work.system
    there = find(system, netdev)
    if there is not None:  # the one that was kept, or one that was made at a boot in the midst of a revert
        return there["uuid"]
    names = _names(system)
    if kept["uuid"] in names:  # somebody saved it, so that it lies elsewhere now
        return kept["uuid"]
    if mentions(system.text(GIVEN_UP) or "", netdev, system.text(f"/sys/class/net/{netdev}/address") or ""):
        return ""
    _load(work, netdev, kept, set(names.values()))
    return kept["uuid"]


def _names(system: System) -> dict[str, str]:
    """UUID -> name of all profiles."""
    shown = system.run(["nmcli", "-t", "-f", "UUID,NAME", "connection"])
    return {row[0]: row[1] for row in map(nm.fields, shown.out.splitlines()) if len(row) == 2}


def _load(work: Work, netdev: str, kept: Profile, taken: set[str]) -> None:
    name, path = nm.keys(kept["text"])["connection.id"], kept["path"]
    stem, number = re.sub(r"\d+$", "", name), 0
    while name in taken or work.system.exists(path):  # a port without a profile of ours got it at a boot
        number += 1
        name = f"{stem}{number}"
        path = f"{PROFILES}/{name}.nmconnection"
    text = re.sub(r"(?m)^id=.*$", lambda _: f"id={name}", kept["text"], count=1)
    work.system.write(path, text.encode(), Meta(0o600, 0, 0, 0))
    result = work.system.change(["nmcli", "connection", "load", path])
    if result.ok:
        work.report.did(f"{netdev}: NetworkManager has its profile {name!r} again")
    else:
        work.report.note(f"{netdev}: NetworkManager does not take its profile {name!r} back: {result.reason()}")
