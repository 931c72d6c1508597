"""What a node is, as one JSON object: raw facts, no judgement. Looks only, and does so side by side."""

import json
import os
import pwd
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from . import devlink, holders, journal, lock, mesh, nccl, neighbours, netplan, nm, owner, platform, units
from .docker import connect
from .request import Failure, Owner
from .system import System

SCHEMA = 1
SYSCTL = "/etc/sysctl.d"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
FLOWS = ("flower", "route")  # kinds of operations whose "ours" tell what may be ours on the node

Json = dict[str, Any]


def observe(
    system: System,
    asking: Owner | None,
    parts: tuple[str, ...] | None = None,
    named: Iterable[str] = (),
    folders: Iterable[str] = (),
    *,
    weights: str | None = None,
    nfs: Json | None = None,
    with_mesh: bool | str = False,
    image: str = "",
) -> Json:
    """The parts of `Observed` that are asked for, or all of it. A part that cannot be had is null and in "errors".

    `named` are paths of NCCL libraries of the operator's, `folders` those of other things that the engine gets,
    `weights` the folder with its weights, `nfs` what is to be known of sharing them, `image` its image by name. All of
    it has the parts "weights" and "nfs" only where they are asked for, and the mesh only where it is wanted
    (`with_mesh`; "full" for what is left out where all is as the journal has it), or where something of one is on the
    node.
    """
    sides = mesh.EVERYTHING if with_mesh == "full" else mesh.PREVIEW
    if parts is not None:
        sides = frozenset(part.removeprefix("mesh-") for part in parts if part.startswith("mesh-"))
    makers: dict[str, Callable[[], Json]] = {
        "machine": lambda: _machine(system),
        "owner": lambda: {"owner": owner.read(system), "lock": lock.observe(system)},
        "journal": lambda: {"journal": _journal(system, asking), "started": _started(system, asking)},
        "links": lambda: _links(system),
        "hcas": lambda: {"hcas": _hcas(system)},
        "routes": lambda: {"routes": _routes(system)},
        "neighbours": lambda: {"neighbours": neighbours.observe(system)},
        "netplan": lambda: {"netplan": netplan.files(system)},
        "netplan-broken": lambda: {"netplan_broken": _netplan_broken(system, asking)},
        "nm": lambda: {"nm": nm.observe(system)},
        "nm-devices": lambda: {"nm": nm.observe_devices(system)},
        "nm-profiles": lambda: {"nm": nm.observe_profiles(system)},
        "files": lambda: {"files": _files(system)},
        "forwarding": lambda: _forwarding(system),
        "nccl": lambda: {"nccl": nccl.observe(system, asking.stack if asking else None, named)},
        "docker": lambda: {"docker": _docker(system, image)},
        "processes": lambda: holders.observe(system),
        "platform": lambda: platform.observe(system),
        "folders": lambda: {"folders": platform.folders(system, folders)},
        "weights": lambda: {"weights": _weights(system, asking, weights)},
        "nfs": lambda: {"nfs": _nfs(system, nfs)},
        "mesh": lambda: {"mesh": mesh.observe(system, _stages(system, asking), sides)},
    }
    if parts is None:
        has_mesh = bool(with_mesh) or mesh.present(system, _stages(system, asking))
        unwanted = {
            "nm",
            "nm-devices",
            *([] if has_mesh else ["mesh"]),
            *([] if weights else ["weights"]),
            *([] if nfs else ["nfs"]),
        }
        wanted = [name for name in makers if name not in unwanted]
    else:
        wanted = [name for name in makers if name in parts or (name == "mesh" and sides)]
    observed: Json = {"schema": SCHEMA}
    busy = lock.observe(system) if parts is None else None
    errors: list[str] = []

    def make(name: str) -> Json:
        try:
            return makers[name]()
        except Failure as failure:
            if parts is not None:
                raise
            errors.extend(failure.lines)
        except (OSError, ValueError, KeyError, TypeError) as error:
            errors.append(f"{name}: {error}")
        return {name: None}

    for part in system.parallel([partial(make, name) for name in wanted]):
        observed.update(part)
    if observed.get("mesh") is not None:
        observed["mesh"]["routes"] = [route for route in observed.get("routes") or [] if route["to"].endswith("/32")]
    if parts is None:
        observed.setdefault("mesh", None)
        observed["ssh"] = ssh(system, observed.get("links") or {})
        # A change that began or ended meanwhile may have been seen half-done.
        observed["lock"] = busy or observed.get("lock") or lock.observe(system)
    observed["errors"] = errors
    return observed


def libraries_of(*desired: Json) -> list[str]:
    """The libraries that desired states name."""
    return [state["path"] for state in desired if state.get("source") == nccl.THEIRS]


def _machine(system: System) -> Json:
    return {
        "hostname": system.text("/proc/sys/kernel/hostname"),
        "machine_id": system.text("/etc/machine-id"),
        "boot_id": system.text(BOOT_ID),
        "time": system.now(),
        "arch": os.uname().machine,
        "kernel": os.uname().release,
        "python": ".".join(map(str, sys.version_info[:3])),
        "tools": {
            name: _has(system, name) for name in ("ip", "nmcli", "netplan", "docker", "iptables", "ping", "systemctl")
        },
    }


def _weights(system: System, asking: Owner | None, path: str | None) -> Json | None:
    if path is None:
        return None
    from .receipts import valid  # noqa: PLC0415 - few ask, and compiling these costs time
    from .weights import observe as look  # noqa: PLC0415

    found = look(system, path)
    return {**found, "read": valid(system, asking.stack, path) if asking and found["there"] else {}}


def _nfs(system: System, asked: Json | None) -> Json | None:
    if asked is None:
        return None
    from .nfs import observe as look  # noqa: PLC0415

    return look(system, asked)


def _has(system: System, name: str) -> bool:
    return any(
        system.exists(f"{folder}/{name}")
        for folder in ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
    )


def _journal(system: System, asking: Owner | None) -> Json | None:
    if asking is None:
        return None
    value = journal.read(system, asking.stack)
    if value is None:
        return None
    stages, boot = {}, system.text(BOOT_ID) or ""
    for name, entry in value["stages"].items():
        stages[name] = {key: content for key, content in entry.items() if key != "undo"}
        flows = [text for operation in entry["undo"] if operation["kind"] in FLOWS for text in operation["ours"]]
        stages[name] |= {"flows": flows} if flows else {}
        counts = _in_effect(entry["undo"], boot)
        stages[name] |= {devlink.SINCE: counts} if counts else {}
    return {"schema": value["schema"], "generation": value["generation"], "stages": stages}


def _in_effect(operations: list[Json], boot: str) -> dict[str, int]:
    """PCI address -> the counter of re-initialisations when the values of a function were last in effect."""
    counts = {operation["key"].removeprefix("nic:"): devlink.since(operation, boot) for operation in operations}
    return {pci: count for pci, count in counts.items() if count is not None}


def _stages(system: System, asking: Owner | None) -> Json:
    """The journal's stages; none where it cannot be read, which the part "journal" tells."""
    try:
        return ((journal.read(system, asking.stack) if asking else None) or {}).get("stages") or {}
    except Failure:
        return {}


def _started(system: System, asking: Owner | None) -> Json | None:
    """The start of the engine that was completed last, if it still counts."""
    data = system.read(f"{journal.folder(asking.stack)}/{journal.MARK}") if asking else None
    started: Json | None = json.loads(data) if data else None
    return started


def _links(system: System) -> Json:
    shown = system.run(["ip", "-j", "address"])
    if not shown.ok:
        message = f"ip address: {shown.reason()}"
        raise ValueError(message)
    return {
        "links": {
            item["ifname"]: _link(system, item) for item in json.loads(shown.out or "[]") if item["ifname"] != "lo"
        }
    }


def _link(system: System, item: Json) -> Json:
    netdev = item["ifname"]
    addresses = item.get("addr_info", [])
    flags = item.get("flags", [])
    speed = system.text(f"/sys/class/net/{netdev}/speed") or ""
    v4, v6 = f"/proc/sys/net/ipv4/conf/{netdev}", f"/proc/sys/net/ipv6/conf/{netdev}"
    return {
        "index": item.get("ifindex"),
        "mac": item.get("address", ""),
        "mtu": item.get("mtu"),
        "up": "UP" in flags,
        "carrier": "LOWER_UP" in flags,
        "carrier_changes": _number(system.text(f"/sys/class/net/{netdev}/carrier_changes")),
        "addresses": [f"{a['local']}/{a['prefixlen']}" for a in addresses if a["family"] == "inet"],
        "inet6": [f"{a['local']}/{a['prefixlen']}" for a in addresses if a["family"] == "inet6"],
        "speed": int(speed) if speed.isdigit() else None,
        "addr_gen_mode": _number(system.text(f"{v6}/addr_gen_mode")),
        "disable_ipv6": _number(system.text(f"{v6}/disable_ipv6")),
        "arp": {
            "ignore": _number(system.text(f"{v4}/arp_ignore")),
            "announce": _number(system.text(f"{v4}/arp_announce")),
        },
    }


def _number(text: str | None) -> int | None:
    return int(text) if text and text.lstrip("-").isdigit() else None


def _hcas(system: System) -> Json:
    root = "/sys/class/infiniband"
    return {name: _hca(system, f"{root}/{name}") for name in system.names(root)}


def _hca(system: System, path: str) -> Json:
    pci = os.path.basename(system.link(f"{path}/device") or "")
    domain, _, rest = pci.partition(":")
    _, _, function = rest.rpartition(".")
    port = f"{path}/ports/1"
    gids = _gids(system, port)
    netdevs = system.names(f"{path}/device/net")
    return {
        "netdev": netdevs[0] if netdevs else next((gid["netdev"] for gid in gids if gid["netdev"]), ""),
        "pci": pci,
        "domain": int(domain, 16) if domain else None,
        "function": int(function) if function.isdigit() else None,
        "state": system.text(f"{port}/state") or "",
        "rate": system.text(f"{port}/rate") or "",
        "firmware": system.text(f"{path}/fw_ver"),
        "gids": gids,
    }


def _gids(system: System, port: str) -> list[Json]:
    """The entries in use. Reading the type of an unused one fails, so the GID comes first."""
    found = []
    for index in sorted(int(name) for name in system.names(f"{port}/gids") if name.isdigit()):
        gid = system.text(f"{port}/gids/{index}") or ""
        if gid.strip("0:"):
            kind = system.text(f"{port}/gid_attrs/types/{index}") or ""
            netdev = system.text(f"{port}/gid_attrs/ndevs/{index}") or ""
            found.append({"index": index, "gid": gid, "type": kind, "netdev": netdev})
    return found


def _routes(system: System) -> list[Json]:
    shown = system.run(["ip", "-j", "-4", "route", "show", "table", "main"])
    if not shown.ok:
        message = f"ip route: {shown.reason()}"
        raise ValueError(message)
    return [
        {
            "to": route["dst"] if "/" in route["dst"] or route["dst"] == "default" else f"{route['dst']}/32",
            "netdev": route.get("dev", ""),
            "via": route.get("gateway"),
            "src": route.get("prefsrc"),
            "protocol": str(route.get("protocol", "")),
            "metric": int(route.get("metric", 0)),
        }
        for route in json.loads(shown.out or "[]")
    ]


def _netplan_broken(system: System, asking: Owner | None) -> str | None:
    """The last change of the journal tells when the files were found valid."""
    meta = system.meta(f"{journal.folder(asking.stack)}/journal.json") if asking else None
    return netplan.broken(system, netplan.files(system), meta.mtime_ns if meta else 0)


def _files(system: System) -> Json:
    """Our own files outside netplan."""
    paths = [f"{SYSCTL}/{name}" for name in system.names(SYSCTL) if "spark-fabric" in name]
    paths += [f"{units.FOLDER}/{name}" for name in system.names(units.FOLDER) if name.startswith("spark-fabric")]
    found = {}
    for path in paths:
        data, meta = system.read(path), system.meta(path)
        if data is not None and meta is not None:
            text = data.decode(errors="replace")
            found[path] = {"text": text, "mode": f"{meta.mode:04o}", "uid": meta.uid, "gid": meta.gid}
    return found


def _forwarding(system: System) -> Json:
    shown = system.run(["iptables", "-w", "5", "-S"])
    lines = shown.out.splitlines() if shown.ok else []
    return {
        "sysctl": {"net.ipv4.ip_forward": system.text("/proc/sys/net/ipv4/ip_forward")},
        "forward_rules": [line for line in lines if line.startswith(("-A DOCKER-USER ", "-A FORWARD "))]
        if shown.ok
        else None,
        "forward_policy": next((line.split()[2] for line in lines if line.startswith("-P FORWARD ")), None),
        "docker_user": "-N DOCKER-USER" in lines,
        "relay_unit": units.state(system, units.RELAY),
    }


def _docker(system: System, image: str) -> Json:
    docker = connect(system)
    version, images, containers = system.parallel([docker.version, docker.images, docker.containers])
    shut_out = _shut_out(system, system.environ("SUDO_USER"))
    own = docker.image(image) if image in images else None
    return {"version": version, "images": images, "image": own, "containers": containers, "shut_out": shut_out}


def _shut_out(system: System, user: str) -> str | None:
    """The user who logged in, where docker's socket is closed to them; None where it is open, or nobody used sudo."""
    if not user:
        return None
    try:
        account = pwd.getpwnam(user)
        socket = system.path(system.docker_socket).stat()
    except (KeyError, OSError):
        return None
    groups = os.getgrouplist(user, account.pw_gid)
    opened = socket.st_mode & 0o002 or (socket.st_mode & 0o020 and socket.st_gid in groups)
    return None if opened or account.pw_uid in (0, socket.st_uid) else user


def ssh(system: System, links: Json) -> Json | None:
    """The address and port that our caller came in by, "" where no port holds it; None without ssh."""
    words = system.environ("SSH_CONNECTION").split()
    if len(words) != 4:
        return None
    address = words[2]
    held = (n for n, link in links.items() for a in [*link["addresses"], *link["inet6"]] if a.split("/")[0] == address)
    return {"address": address, "netdev": next(held, "")}
