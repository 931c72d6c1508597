"""One plane of the fabric on one node: addresses, MTU, routes. Pure: facts in, differences and steps out.

The twins of a QSFP port share its wire, and by default each answers ARP for the other's address. RoCE takes its
destination MAC from the same table and would send to the wrong function. So every port answers for its own address
only (`arp_ignore` 1) and asks with its own (`arp_announce` 2).

IPv6 link-local stays on with exactly one EUI-64 address: with it, RoCE v2 over IPv4 lands on GID index 3.
"""

import ipaddress
from dataclasses import replace
from typing import Any

from . import nm
from .deviation import Deviation, of_file, of_journal
from .digest import digest
from .files import MARK, File
from .netplan import Load, is_nm_stanza, mentions
from .ports import Activate, Manage, Port, was
from .steps import Step
from .values import Value

ARP = {"arp_ignore": "1", "arp_announce": "2"}

Json = dict[str, Any]


def stage_of(desired: Json) -> str:
    """The stage's name, "plane0" or "plane1"."""
    return f"plane{desired['plane']}"


def sysctl_path(desired: Json) -> str:
    """The file that sets the ARP values at boot, when a port appears."""
    return f"/etc/sysctl.d/60-spark-fabric-plane{desired['plane']}.conf"


def sysctl_text(desired: Json) -> str:
    """The content of that file."""
    lines = [f"# {MARK}: each of the two functions on a wire answers for its own address only."]
    lines += [
        f"net/ipv4/conf/{port['netdev']}/{key} = {value}" for port in desired["ports"] for key, value in ARP.items()
    ]
    return "\n".join(lines) + "\n"


def eui64(mac: str) -> str:
    """The IPv6 link-local address that follows from a MAC."""
    octets = bytes.fromhex(mac.replace(":", ""))
    tail = bytes([octets[0] ^ 2, *octets[1:3], 0xFF, 0xFE, *octets[3:]])
    return str(ipaddress.IPv6Address(bytes([0xFE, 0x80, *([0] * 6), *tail])))


def deviations(desired: Json, observed: Json) -> list[Deviation]:
    """Everything in which a node differs from the plan for this plane; empty where there is nothing to do."""
    if desired["state"] == "off":
        return _off(desired, observed)
    stage, mark = stage_of(desired), digest(desired)
    found = of_journal(stage, mark, observed, disruptive=True)
    found += of_file(observed, stage, mark, desired["file"], desired["text"], "0600")
    found += of_file(observed, stage, mark, sysctl_path(desired), sysctl_text(desired), "0644")
    found += _strangers(desired, observed)
    for port in desired["ports"]:
        found += _port(port, observed)
    return found


def _off(desired: Json, observed: Json) -> list[Deviation]:
    stage = stage_of(desired)
    if stage in ((observed.get("journal") or {}).get("stages") or {}):
        return [Deviation("plane.on", stage, "is on", "it off", disruptive=True)]
    return [
        Deviation("file.leftover", path, "is there", "no such file", disruptive=True)
        for path in _leftovers(desired, observed)
    ]


def _leftovers(desired: Json, observed: Json) -> list[str]:
    files = {**(observed.get("netplan") or {}), **(observed.get("files") or {})}
    ours = (desired["file"], sysctl_path(desired))
    return [path for path in ours if MARK in ((files.get(path) or {}).get("text") or "")]


def _port(port: Json, observed: Json) -> list[Deviation]:
    netdev = port["netdev"]
    link = (observed.get("links") or {}).get(netdev)
    if link is None:
        return [Deviation("link.missing", netdev, "there is no such port (cable out?)", "the port", disruptive=True)]
    found: list[Deviation] = []

    def differs(code: str, seen: str, wanted: str, *, disruptive: bool) -> None:
        found.append(Deviation(code, netdev, seen, wanted, disruptive=disruptive))

    if link["mtu"] != port["mtu"]:
        differs("link.mtu", f"MTU is {link['mtu']}", str(port["mtu"]), disruptive=True)
    if port["address"] not in link["addresses"]:
        seen = ", ".join(link["addresses"]) or "none"
        cause = "" if link.get("carrier", True) else " (no carrier)"
        differs("link.address", f"address is {seen}{cause}", port["address"], disruptive=True)
    for extra in sorted(set(link["addresses"]) - {port["address"]}):
        differs("link.extra-address", f"has {extra} too", f"{port['address']} only", disruptive=False)
    local = [address.split("/")[0] for address in link.get("inet6", []) if address.startswith("fe80")]
    if local != [eui64(link["mac"])]:
        seen = f"link-local is {', '.join(local) or 'none'}"
        differs("link.local", seen, f"{eui64(link['mac'])} only", disruptive=True)
    for key, value in ARP.items():
        seen = str(link.get("arp", {}).get(key.removeprefix("arp_")))
        if seen != value:
            differs("link.arp", f"{key} is {seen}", value, disruptive=False)
    profile = (((observed.get("nm") or {}).get("devices") or {}).get(netdev) or {}).get("connection", "")
    if profile != f"netplan-{netdev}":
        seen = f"NetworkManager holds it with {profile!r}" if profile else "NetworkManager does not hold it"
        differs("nm.profile", seen, f"'netplan-{netdev}'", disruptive=True)
    return found + _routes(port, observed) + _gid(port, link, observed)


def _routes(port: Json, observed: Json) -> list[Deviation]:
    netdev = port["netdev"]
    routes = observed.get("routes") or []
    found = []
    for wanted in port["routes"]:
        seen = sorted((route for route in routes if route["to"] == wanted["to"]), key=lambda one: one.get("metric", 0))
        # The kernel takes the first of them, whatever else is there.
        if not any(route["netdev"] == netdev and route["via"] == wanted["via"] for route in seen[:1]):
            ways = ", ".join(f"via {route['via']} {route['netdev']}" for route in seen)
            text = f"route to {wanted['to']} is {ways or 'missing'}"
            found.append(Deviation("route.missing", netdev, text, f"via {wanted['via']}", disruptive=False))
    planned = {(route["to"], route["via"]) for route in port["routes"]}
    found += [
        Deviation("route.extra", netdev, f"has a route to {route['to']} via {route['via']}", "none", disruptive=False)
        for route in routes
        # Routes of later stages are not of NetworkManager and have no "static".
        if route["netdev"] == netdev and route["protocol"] == "static" and (route["to"], route["via"]) not in planned
    ]
    return found


def _gid(port: Json, link: Json, observed: Json) -> list[Deviation]:
    hca = (observed.get("hcas") or {}).get(port["hca"])
    if hca is None:
        return [Deviation("hca.missing", port["hca"], "there is no such RDMA device", "the device", disruptive=True)]
    if hca["netdev"] != port["netdev"]:
        seen = f"belongs to {hca['netdev'] or 'no port'}"
        return [Deviation("hca.netdev", port["hca"], seen, port["netdev"], disruptive=True, foreign=True)]
    if not hca["state"].startswith("4") or port["address"] not in link["addresses"]:
        return []
    if not gid_indexes(port, hca):
        seen = f"has no RoCE v2 GID of {port['address'].split('/')[0]}"
        return [Deviation("hca.gid", port["hca"], seen, "one", disruptive=True)]
    return []


def gid_indexes(port: Json, hca: Json) -> list[int]:
    """Where a port has a RoCE v2 GID of its own that maps its IPv4 address; in order, empty where it has none."""
    wanted = ipaddress.IPv6Address(f"::ffff:{port['address'].split('/')[0]}")
    own = [gid for gid in hca["gids"] if gid["type"] == "RoCE v2" and gid["netdev"] == port["netdev"]]
    return [int(gid["index"]) for gid in own if ipaddress.IPv6Address(gid["gid"]) == wanted]


def _strangers(desired: Json, observed: Json) -> list[Deviation]:
    """Netplan files and profiles of others that speak for our ports."""
    found = []
    for port in desired["ports"]:
        netdev, mac = port["netdev"], _mac(port, observed)
        for path in _speakers(desired, port, observed):
            if is_nm_stanza(path) or path in desired.get("setAside", []):
                seen = f"speaks for {netdev}"
                found.append(Deviation("netplan.stanza", path, seen, "it set aside", disruptive=False))
            else:
                seen = f"is not ours and configures {netdev}"
                wanted = "one file for that port: remove the stanza, or list the file in fabric.setAside"
                found.append(Deviation("netplan.foreign", path, seen, wanted, disruptive=False, foreign=True))
        found += [
            Deviation(
                "nm.rival", netdev, f"profile {rival['name']!r} starts on it by itself", "ours only", disruptive=False
            )
            for rival in nm.rivals(_profiles(observed), netdev, mac)
            if nm.silence(rival) is not None
        ]
    return found


def _speakers(desired: Json, port: Json, observed: Json) -> list[str]:
    profiles = {profile["uuid"]: profile for profile in _profiles(observed)}
    found = []
    for path, file in sorted((observed.get("netplan") or {}).items()):
        if path == desired["file"] or not mentions(file["text"] or "", port["netdev"], _mac(port, observed)):
            continue
        uuid = is_nm_stanza(path)
        quiet = uuid in profiles and not profiles[uuid]["autoconnect"]
        merged = f"\n    {port['netdev']}:" in (file["text"] or "")  # would be merged into our stanza
        if not (uuid and quiet and not merged):
            found.append(path)
    return found


def _profiles(observed: Json) -> list[Json]:
    return list((observed.get("nm") or {}).get("profiles") or [])


def _mac(port: Json, observed: Json) -> str:
    return str(((observed.get("links") or {}).get(port["netdev"]) or {}).get("mac", ""))


def netplan_texts(desired: Json, observed: Json) -> tuple[dict[str, str], dict[str, str]]:
    """All netplan files as they are, and as they would be with this plane on."""
    before = {path: file["text"] or "" for path, file in (observed.get("netplan") or {}).items()}
    aside = {path for port in desired["ports"] for path in _speakers(desired, port, observed)}
    after = {path: text for path, text in before.items() if path not in aside}
    return before, {**after, desired["file"]: desired["text"]}


def plan(desired: Json, observed: Json) -> list[Step]:
    """The steps that lead to the desired state "on", in order; those with nothing to do are marked so."""
    found = deviations(desired, observed)
    codes: dict[str, set[str]] = {}
    for deviation in found:
        codes.setdefault(deviation.subject, set()).add(deviation.code)
    steps: list[Step] = [_remember(desired, port, observed) for port in desired["ports"]]
    for port in desired["ports"]:
        off = {d.seen.split()[0] for d in found if d.subject == port["netdev"] and d.code == "link.arp"}
        steps += [Value(f"net/ipv4/conf/{port['netdev']}/{k}", v, needed=k in off) for k, v in ARP.items()]
    path = sysctl_path(desired)
    steps.append(File(path, sysctl_text(desired).encode(), 0o644, own=True, needed=path in codes))
    steps += _others_away(desired, observed)
    path = desired["file"]
    steps.append(File(path, desired["text"].encode(), 0o600, own=True, needed=path in codes))
    unfinished = bool(codes.get(stage_of(desired)))
    activate = _activation(desired, observed, codes, everything=unfinished)
    ours = tuple(port["netdev"] for port in desired["ports"])
    load = any(step.needed for step in steps if step.key.startswith("file:")) or activate.needed
    devices = (observed.get("nm") or {}).get("devices") or {}
    steps += [Manage(netdev) for netdev in ours if (devices.get(netdev) or {}).get("state") == "unmanaged"]
    return [*steps, Load(ours, needed=load), activate]


def _remember(desired: Json, port: Json, observed: Json) -> Port:
    leftover = bool(_leftovers(desired, observed))
    return Port(port["netdev"], port["address"], was(port["netdev"], observed, leftover=leftover))


def _others_away(desired: Json, observed: Json) -> list[Step]:
    steps: dict[str, Step] = {}
    for port in desired["ports"]:
        for path in _speakers(desired, port, observed):
            steps[f"file:{path}"] = File(path, None)
        for rival in nm.rivals(_profiles(observed), port["netdev"], _mac(port, observed)):
            silence = nm.silence(rival)
            if silence is not None:
                steps[silence.key] = silence
    return list(steps.values())


def _activation(desired: Json, observed: Json, codes: dict[str, set[str]], *, everything: bool) -> Activate:
    """Which ports NetworkManager brings up anew, and which it only has to correct."""
    in_place = {"link.extra-address", "route.missing", "route.extra"}
    up, again = [], []
    for netdev in (port["netdev"] for port in desired["ports"]):
        kinds = codes.get(netdev, set()) - {"link.arp", "nm.rival"}
        if everything or kinds - in_place:
            up.append(netdev)
        elif kinds:
            again.append(netdev)
    local = ((netdev, eui64(_mac({"netdev": netdev}, observed))) for netdev in [*up, *again])
    wanted = Activate(tuple(up), tuple(again), tuple(local))
    return replace(wanted, needed=bool(up or again))
