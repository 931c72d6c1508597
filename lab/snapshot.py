#!/usr/bin/env python3
"""A node's configuration and network state as plain data, to compare before with after.

Independent of everything: it runs on the node with nothing but Python's standard library, and what it
covers is read from snapshot-scope.txt, which comes in on standard input.

    ssh root@NODE "python3 -IS -c \"$(cat snapshot.py)\" take" < snapshot-scope.txt > before.json
    python3 snapshot.py diff before.json after.json
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import os
import re
import socket
import stat
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Snapshot = dict[str, dict[str, Any]]
KINDS = ("skip", "skip-sysctl", "skip-unit", "skip-link", "skip-profile", "anew-link", "anew-profile", "anew-unit")
MTIME = 3  # place in a file's entry
TC = "/usr/sbin/tc"  # not the lab's stand-in: what that holds is the card's
CARD = ("127.0.0.1", 18500)  # answers for the lab's simulated card


@dataclass
class Scope:
    """The rules of snapshot-scope.txt."""

    trees: list[str] = field(default_factory=list)
    skips: dict[str, list[str]] = field(default_factory=dict)  # kind: globs
    blurs: list[str] = field(default_factory=list)  # regular expressions

    @classmethod
    def parse(cls, text: str) -> Scope:
        """Read the rules; ValueError for a line that is none."""
        scope = cls()
        for line in text.splitlines():
            words = line.partition("#")[0].split()
            if not words:
                continue
            if words[0] == "tree" and len(words) == 2:
                scope.trees.append(words[1])
            elif words[0] in KINDS and len(words) > 2:
                scope.skips.setdefault(words[0], []).append(words[1])
            elif words[0] == "blur" and len(words) > 2:
                scope.blurs.append(words[1])
            else:
                raise ValueError(f"not a rule, or one without its reason: {line!r}")
        return scope

    def matcher(self, kind: str) -> re.Pattern[str]:
        """What a kind of rule leaves out."""
        return re.compile("|".join(fnmatch.translate(glob) for glob in self.skips.get(kind, [])) or r"(?!)")


def files(scope: Scope) -> dict[str, Any]:
    """Path: [content, mode, owner, time of change in ns]. Content is a sha256, `folder` or `-> target`."""
    skipped = scope.matcher("skip")
    found: dict[str, Any] = {}
    for tree in scope.trees:
        for folder, _, names in os.walk(tree):
            links = [entry.name for entry in os.scandir(folder) if entry.is_symlink() and entry.name not in names]
            for path in [folder, *(f"{folder}/{name}" for name in [*names, *links])]:
                if not skipped.fullmatch(path):
                    found[path] = entry_of(Path(path))
    return found


def entry_of(path: Path) -> list[Any]:
    """One file's entry."""
    info = path.lstat()
    if stat.S_ISLNK(info.st_mode):
        content = f"-> {path.readlink()}"
    elif stat.S_ISDIR(info.st_mode):
        content = "folder"
    elif stat.S_ISREG(info.st_mode):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
    else:
        content = "special"
    return [content, f"{stat.S_IMODE(info.st_mode):04o}", f"{info.st_uid}:{info.st_gid}", info.st_mtime_ns]


def links(scope: Scope) -> dict[str, Any]:
    """Link: MTU, whether it is up, its addresses."""
    skipped = scope.matcher("skip-link")
    return {
        link["ifname"]: {
            "mtu": link["mtu"],
            "up": "UP" in link["flags"],
            "mac": link.get("address"),
            "addresses": sorted(f"{row['local']}/{row['prefixlen']}" for row in link["addr_info"]),
        }
        for link in json.loads(output("ip", "-j", "address"))
        if not skipped.fullmatch(link["ifname"])
    }


def rows(scope: Scope, *command: str) -> dict[str, Any]:
    """Lines of a command, without those about links that are left out; in any order, each counted."""
    skipped = scope.matcher("skip-link")
    lines = [" ".join(line.split()) for line in output(*command).splitlines()]
    for blur in scope.blurs:
        lines = [re.sub(blur, "~", line) for line in lines]
    kept = [line for line in lines if not any(skipped.fullmatch(word) for word in line.split())]
    return {line: kept.count(line) for line in sorted(set(kept))}


def sysctls(scope: Scope) -> dict[str, Any]:
    """Name: value, of all that can be read below net."""
    skipped = scope.matcher("skip-sysctl")
    found: dict[str, Any] = {}
    for folder, _, names in os.walk("/proc/sys/net"):
        for name in names:
            path = Path(folder) / name
            key = str(path.relative_to("/proc/sys")).replace("/", ".")
            if not skipped.fullmatch(key):
                try:
                    found[key] = path.read_text().strip()
                except OSError:
                    found[key] = None
    return found


def units(scope: Scope) -> dict[str, Any]:
    """Unit: `active/sub` unless it is dead, and `file/UNIT`: whether it is enabled."""
    skipped = scope.matcher("skip-unit")
    found = {}
    options = ("--all", "--plain", "--no-legend", "--no-pager", "--full")
    for line in output("systemctl", "list-units", *options).splitlines():
        name, loaded, active, sub = line.split()[:4]
        if loaded == "loaded" and active != "inactive" and not skipped.fullmatch(name):
            found[name] = f"{active}/{sub}"
    for line in output("systemctl", "list-unit-files", *options[2:]).splitlines():
        name, enabled = line.split()[:2]
        if not skipped.fullmatch(name):
            found[f"file/{name}"] = enabled
    return found


def profiles(scope: Scope) -> dict[str, Any]:
    """UUID: what NetworkManager holds of each profile, and where it is active."""
    skipped = scope.matcher("skip-profile")
    found = {}
    fields = "UUID,NAME,TYPE,AUTOCONNECT,FILENAME,DEVICE"
    for line in output("nmcli", "-t", "-e", "no", "-f", fields, "connection", "show").splitlines():
        uuid, _, rest = line.partition(":")
        if not skipped.fullmatch(rest.partition(":")[0]):
            found[uuid] = rest
    return found


def boot(scope: Scope) -> dict[str, Any]:
    """Which boot this is, and what is made anew at each: links, units, and UUID: port of profiles."""
    links, profiles, units = (scope.matcher(f"anew-{kind}") for kind in ("link", "profile", "unit"))
    ports = {}
    for line in output("nmcli", "-t", "-e", "no", "-f", "UUID,NAME,FILENAME", "connection", "show").splitlines():
        uuid, name, path = line.split(":", 2)
        if profiles.fullmatch(name):
            found = re.search(r"(?m)^interface-name=(.+)$", Path(path).read_text())
            ports[uuid] = found[1] if found else ""
    return {
        "id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "links": [name for name in os.listdir("/sys/class/net") if links.fullmatch(name)],
        "profiles": ports,
        "units": units.pattern,
    }


def between_boots(snapshot: Snapshot) -> Snapshot:
    """A snapshot without what a boot alone changes in the things that are made anew at each."""
    boot, text = snapshot["boot"], json.dumps(snapshot)
    for netdev in boot["profiles"].values():
        for address in snapshot["links"].get(netdev, {}).get("addresses", []):
            if address.startswith("fe80:") and "ff:fe" not in address:  # that would be made of the MAC
                text = text.replace(address.partition("/")[0], "fe80::~")
    found: Snapshot = json.loads(text)
    for name in boot["links"]:
        found["links"][name]["mac"] = "~"
    for uuid, netdev in boot["profiles"].items():
        found["profiles"][f"of {netdev}"] = re.sub(r"\d+(?=[:.])", "~", found["profiles"].pop(uuid))
    found["units"] = {name: state for name, state in found["units"].items() if not re.fullmatch(boot["units"], name)}
    return found


def filters(scope: Scope) -> dict[str, Any]:
    """Link: lines about the filters at its ingress and egress, each counted."""
    names = [name for name in os.listdir("/sys/class/net") if not scope.matcher("skip-link").fullmatch(name)]
    found = {
        f"{name} {way}": rows(scope, TC, "filter", "show", "dev", name, way)
        for name in names
        for way in ("ingress", "egress")
    }
    return {name: lines for name, lines in found.items() if lines}


def card() -> dict[str, Any]:
    """Port or device: what the lab's simulated card holds for it, without what only counts; nothing on a real machine.

    Ports: offload, ingress qdisc, rules, driver values that are shown and that are in effect. Devices: their marker.
    """
    try:
        with socket.create_connection(CARD, timeout=30) as connection:
            connection.sendall(b'{"op": "view"}\n')
            view = json.loads(connection.makefile().readline())["answer"]
    except OSError:
        return {}
    found = {}
    for port, row in view["functions"].items():
        found[port] = {name: row[name] for name in ("offload", "qdisc", "parameters")}
        found[port]["rules"] = [_without(rule, "hw_packets", "hw_bytes", "actions") for rule in row["rules"]]
        for shown, rule in zip(found[port]["rules"], row["rules"], strict=True):
            shown["actions"] = [_without(action, "index") for action in rule["actions"]]
    for device, row in view["markers"].items():
        found[device] = _without(row, "pid", "generation")
    return found


def _without(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in names}


def output(*command: str) -> str:
    """What a command prints; a command that is missing or fails prints nothing that counts."""
    try:
        done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except FileNotFoundError:
        return ""
    return done.stdout


def take(scope: Scope) -> Snapshot:
    """All of it."""
    return {
        "files": files(scope),
        "links": links(scope),
        "routes": rows(scope, "ip", "-4", "route", "show", "table", "all"),
        "routes6": rows(scope, "ip", "-6", "route", "show", "table", "all"),
        "rules": rows(scope, "ip", "-4", "rule"),
        "neighbours": rows(scope, "ip", "neigh", "show", "nud", "permanent"),
        "qdiscs": rows(scope, TC, "qdisc", "show"),
        "filters": filters(scope),
        "card": card(),
        "iptables": rows(scope, "iptables", "-S"),
        "nat": rows(scope, "iptables", "-t", "nat", "-S"),
        "sysctl": sysctls(scope),
        "units": units(scope),
        "profiles": profiles(scope),
        "boot": boot(scope),
    }


def diff(before: Snapshot, after: Snapshot, times: bool = False) -> list[str]:
    """One line for each difference; times of change count only if wanted."""
    lines = []
    if before.get("boot", {}).get("id") != after.get("boot", {}).get("id"):
        before, after = between_boots(before), between_boots(after)
    for part in sorted({*before, *after} - {"boot"}):
        old, new = before.get(part, {}), after.get(part, {})
        for key in sorted({*old, *new}):
            one, other = old.get(key), new.get(key)
            if part == "files" and not times:
                one, other = (entry and entry[:MTIME] for entry in (one, other))
            if one != other:
                lines.append(f"{part}: {key}: {_shown(one)} -> {_shown(other)}")
    return lines


def _shown(value: Any) -> str:
    return "absent" if value is None else json.dumps(value)


def main() -> int:
    """Entry point: exit code 1 when a comparison finds differences."""
    top = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = top.add_subparsers(dest="command", required=True)
    commands.add_parser("take", help="print this machine's snapshot; the scope comes on standard input")
    command = commands.add_parser("diff", help="compare two snapshots")
    command.add_argument("before", type=Path)
    command.add_argument("after", type=Path)
    command.add_argument("--times", action="store_true", help="times of change count too")
    options = top.parse_args()
    if options.command == "take":
        json.dump(take(Scope.parse(sys.stdin.read())), sys.stdout)
        return 0
    lines = diff(json.loads(options.before.read_text()), json.loads(options.after.read_text()), options.times)
    print("\n".join(lines) or "no differences")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
