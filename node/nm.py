"""NetworkManager: profiles and devices, and profiles of others that would take our ports."""

import re
from dataclasses import dataclass
from typing import Any

from .digest import sha256
from .files import File
from .netplan import is_nm_stanza
from .steps import ABSENT, Work
from .system import System

_FIELD = re.compile(r"(?<!\\):")


def fields(line: str) -> list[str]:
    """The fields of a line of `nmcli -t`, in which ":" and "\\" are escaped."""
    return [re.sub(r"\\(.)", r"\1", part) for part in _FIELD.split(line)]


def keys(keyfile: str) -> dict[str, str]:
    """The keys of a profile as `section.key`; secrets are among them, so the result stays on the node."""
    found: dict[str, str] = {}
    section = ""
    for raw in keyfile.splitlines():
        line = raw.strip()
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
        elif "=" in line and not line.startswith("#"):
            key, value = line.split("=", 1)
            found[f"{section}.{key.strip()}"] = value.strip()
    return found


def observe(system: System) -> dict[str, Any]:
    """Profiles of Ethernet kind and all devices, as `Observed` has them in "nm"."""
    devices, profiles = system.parallel([lambda: observe_devices(system), lambda: observe_profiles(system)])
    return {**profiles, **devices}


def observe_devices(system: System) -> dict[str, Any]:
    """All devices with their states: half the time."""
    shown = system.run(["nmcli", "-t", "-f", "DEVICE,STATE,CONNECTION", "device"])
    rows = [row for row in map(fields, shown.out.splitlines()) if len(row) == 3]
    devices = {row[0]: {"state": row[1], "connection": row[2]} for row in rows}
    return {"running": shown.ok, "devices": devices}


def observe_profiles(system: System) -> dict[str, Any]:
    """Profiles, and the devices that one is active on, without their states: half the time."""
    shown = system.run(["nmcli", "-t", "-f", "UUID,NAME,TYPE,AUTOCONNECT,DEVICE,FILENAME", "connection"])
    rows = [row for row in map(fields, shown.out.splitlines()) if len(row) == 6]
    return {
        "running": shown.ok,
        "profiles": [_profile(system, row) for row in rows if row[2] == "802-3-ethernet"],
        "devices": {device: {"connection": row[1]} for row in rows for device in row[4].split(",") if device},
    }


def _profile(system: System, row: list[str]) -> dict[str, Any]:
    uuid, name, kind, autoconnect, device, filename = row
    found = keys((system.read(filename) or b"").decode(errors="replace")) if filename else {}
    mac = found.get("ethernet.mac-address", found.get("802-3-ethernet.mac-address", ""))
    return {
        "uuid": uuid,
        "name": name,
        "type": kind,
        "netdev": found.get("connection.interface-name", ""),
        "mac": mac.lower(),
        # The file may have been changed since NetworkManager read it.
        "autoconnect": autoconnect == "yes" or (bool(found) and found.get("connection.autoconnect") != "false"),
        # NetworkManager makes these by itself for ports without a profile; every real profile goes before them.
        "generated": found.get(".nmmeta.nm-generated") == "true",
        "filename": filename,
        "active_on": device,
    }


def rivals(profiles: list[dict[str, Any]], netdev: str, mac: str) -> list[dict[str, Any]]:
    """The profiles that could take a port at its next start, besides the one that netplan makes of our file."""
    return [
        profile
        for profile in profiles
        if profile["autoconnect"]
        and not profile["generated"]
        and profile["name"] != f"netplan-{netdev}"
        and (profile["netdev"] == netdev or (not profile["netdev"] and mac and profile.get("mac") == mac.lower()))
    ]


def quiet(keyfile: str) -> str:
    """A profile's text with autoconnect switched off."""
    lines = [line for line in keyfile.splitlines() if not re.match(r"\s*autoconnect\s*=", line)]
    at = next((index for index, line in enumerate(lines) if line.strip() == "[connection]"), None)
    if at is None:
        return keyfile
    return "\n".join([*lines[: at + 1], "autoconnect=false", *lines[at + 1 :]]) + "\n"


@dataclass(frozen=True)
class Quiet:
    """Keep a profile of somebody else from starting by itself on a port of ours."""

    path: str
    name: str
    needed: bool = True

    @property
    def key(self) -> str:
        return f"file:{self.path}"

    def before(self, work: Work) -> Any:
        data, meta = work.system.read(self.path), work.system.meta(self.path)
        return None if data is None or meta is None else {"blob": work.journal.keep(data), **vars(meta)}

    def ours(self, work: Work) -> list[str]:
        data = work.system.read(self.path)
        return [ABSENT if data is None else work.journal.keep(quiet(data.decode(errors="replace")).encode())]

    def do(self, work: Work) -> None:
        data, meta = work.system.read(self.path), work.system.meta(self.path)
        if data is None or meta is None:
            return
        fresh = quiet(data.decode(errors="replace")).encode()
        if sha256(fresh) != sha256(data):
            work.system.write(self.path, fresh, meta)
            work.report.did(f"NetworkManager profile {self.name!r}: does not start by itself any more")

    def describe(self) -> dict[str, Any]:
        return {"quiet": self.path}


def silence(profile: dict[str, Any]) -> File | Quiet | None:
    """The step that keeps a rival away, or None where its netplan file is dealt with as a stanza.

    A profile that lies in /etc/netplan cannot be edited without a YAML library; its file is set aside instead.
    """
    path = str(profile["filename"])
    if "/netplan-" in path or is_nm_stanza(path) or not path:
        return None
    return Quiet(path, str(profile["name"]))
