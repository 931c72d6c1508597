"""A machine of files and tool stand-ins: ports, NetworkManager, netplan, iptables, systemd, Docker.

It stands for a Spark as the node program sees it. Everything that the program changes can be ended in between
(`kill_at`), as by a power cut of the program alone: what was done so far stays.
"""

import fnmatch
import ipaddress
import json
import re
import uuid as uuids
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from node.plane import eui64
from node.run import Result
from node.system import Meta, System

T = TypeVar("T")

FABRIC = {
    "enp1s0f0np0": ("rocep1s0f0", "0000:01:00.0"),
    "enp1s0f1np1": ("rocep1s0f1", "0000:01:00.1"),
    "enP2p1s0f0np0": ("roceP2p1s0f0", "0002:01:00.0"),
    "enP2p1s0f1np1": ("roceP2p1s0f1", "0002:01:00.1"),
}
MANAGEMENT = "enP7s7"
PROFILES = "/run/NetworkManager/system-connections"
STABLE = "fe80::9fe:75dc:b4f5:4227"  # what NetworkManager's own profiles give a port

MANAGEMENT_YAML = """network:
  version: 2
  renderer: NetworkManager
  ethernets:
    enP7s7:
      dhcp4: false
      addresses: [198.18.0.11/24]
"""


class Kill(BaseException):  # noqa: N818 - not an error: the end of the program
    """The program is gone from here on."""


class Machine(System):
    """See the module. `calls` lists what was run to change something, `steps` every checkpoint."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root))
        self.calls: list[list[str]] = []
        self.steps: list[str] = []
        self.kill_at: int | None = None
        self.time = 1000.0
        self.links: dict[str, dict[str, Any]] = {}
        self.profiles: dict[str, dict[str, Any]] = {}
        self.active: dict[str, str] = {}
        self.unmanaged: set[str] = set()
        self.routes: list[dict[str, Any]] = []
        self.chains: dict[str, list[str]] = {"FORWARD": []}
        self.units: dict[str, bool] = {}
        self.containers: list[dict[str, Any]] = []
        self.env = {"SSH_CONNECTION": "198.18.0.254 40000 198.18.0.11 22"}
        self.hooks: dict[str, Callable[[list[str]], Result | None]] = {}
        self.neighbours: list[dict[str, Any]] = []
        self.silent: set[str] = set()  # addresses that answer no ping
        self.nm_running = True
        self._factory()

    # the machine as delivered

    def _factory(self) -> None:
        for index, netdev in enumerate([MANAGEMENT, *FABRIC]):
            mac = f"02:5a:ab:00:01:1{index}"
            mtu, up = 1500, True
            self.links[netdev] = {"mac": mac, "mtu": mtu, "up": up, "carrier": True, "addresses": [], "inet6": []}
            self.put(f"/sys/class/net/{netdev}/address", mac)
            for key in ("arp_ignore", "arp_announce"):
                self.put(f"/proc/sys/net/ipv4/conf/{netdev}/{key}", "0")
            self.put(f"/proc/sys/net/ipv6/conf/{netdev}/disable_ipv6", "0")
            self.put(f"/proc/sys/net/ipv6/conf/{netdev}/addr_gen_mode", "0")
        self.put("/proc/sys/net/ipv4/ip_forward", "0")
        self.put("/proc/sys/kernel/hostname", "spark1")
        self.put("/etc/machine-id", "0" * 32)
        for folder in ("/run/lock", "/run/NetworkManager/system-connections", "/etc/sysctl.d", "/etc/systemd/system"):
            self.path(folder).mkdir(parents=True)
        self.put("/run/docker.sock", "")
        self.put("/usr/libexec/netplan/generate", "")
        self.put("/etc/netplan/01-mgmt.yaml", MANAGEMENT_YAML, 0o600)
        for number, netdev in enumerate(FABRIC, 1):
            name = f"Wired connection {number}"
            text = f"[connection]\nid={name}\nuuid={_uuid(name)}\ntype=ethernet\nautoconnect-priority=-999\n"
            text += f"interface-name={netdev}\n[.nmmeta]\nnm-generated=true\n"
            self.put(f"{PROFILES}/{name}.nmconnection", text, 0o600)
        self._generate(self.root)
        self._reload()

    def put(self, path: str, text: str, mode: int = 0o644) -> None:
        """Put a file there as somebody else would."""
        place = self.path(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        place.chmod(mode)

    def snapshot(self) -> dict[str, Any]:
        """Everything that must be as before after a revert."""
        seen: dict[str, Any] = {}
        for path in sorted(self.root.rglob("*")):
            name = f"/{path.relative_to(self.root)}"
            if name.startswith(("/run/lock", "/sys/class/infiniband")):
                continue
            info = path.lstat()
            inside = (path.read_bytes(), info.st_mtime_ns) if path.is_file() and name.startswith("/etc") else ()
            inside = inside or ((path.read_bytes(),) if path.is_file() else ())
            seen[name] = (oct(info.st_mode), *inside)
        links = {name: {**link, "inet6": sorted(link["inet6"])} for name, link in self.links.items()}
        seen["links"] = json.dumps(links, sort_keys=True)
        seen["nm"] = (dict(self.active), {p["name"]: p["autoconnect"] for p in self.profiles.values()}, self.unmanaged)
        seen["routes"], seen["chains"], seen["units"] = list(self.routes), dict(self.chains), dict(self.units)
        return seen

    # what the program calls

    def checkpoint(self, name: str) -> None:
        self.steps.append(name)
        if self.kill_at is not None and len(self.steps) > self.kill_at:
            self.kill_at = None
            raise Kill(name)

    def meta(self, path: str) -> Meta | None:
        found = super().meta(path)
        return found and Meta(found.mode, 0, 0, found.mtime_ns)

    def write(self, path: str, data: bytes, meta: Meta) -> None:
        place = self.path(path).parent.stat()
        super().write(path, data, Meta(meta.mode, place.st_uid, place.st_gid, meta.mtime_ns))

    def set_value(self, path: str, value: str) -> None:
        before = self.text(path)
        super().set_value(path, value)
        found = re.fullmatch(r"/proc/sys/net/ipv6/conf/(.+)/addr_gen_mode", path)
        if found and value == "0" and before != "0":
            self._local(found[1])

    def parallel(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        return [call() for call in calls]

    def now(self) -> float:
        return self.time

    def clock(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds
        if "sleep" in self.hooks:
            self.hooks["sleep"]([])

    def environ(self, name: str) -> str:
        return self.env.get(name, "")

    def change(self, argv: list[str], timeout: float = 30.0) -> Result:
        self.calls.append(argv)
        return super().change(argv, timeout)

    def run(self, argv: list[str], timeout: float = 10.0) -> Result:  # noqa: ARG002
        name = argv[0].rpartition("/")[2]
        if name in self.hooks and (result := self.hooks[name](argv)) is not None:
            return result
        result = getattr(self, f"_{name}")(argv[1:])
        self._sysfs()
        assert isinstance(result, Result)
        return result

    def docker_call(self, method: str, path: str, timeout: float) -> tuple[int, bytes]:  # noqa: ARG002
        if method == "GET" and path.startswith("/containers/json"):
            return 200, json.dumps([self._listed(c) for c in self.containers]).encode()
        found = re.fullmatch(r"/containers/([^/?]+)(/\w+)?(\?.*)?", path)
        container = next((c for c in self.containers if found and c["id"] == found[1]), None)
        if container is None:
            return {"/version": (200, b'{"Version": "20.10"}'), "/images/json": (200, b"[]")}.get(path, (404, b"{}"))
        self.calls.append(["docker", method, path])
        if method == "DELETE":
            self.containers.remove(container)
            return 204, b""
        if found and found[2] == "/stop":
            container["state"] = "exited"
            return 204, b""
        if found and found[2] == "/logs":
            line = b"loading\nready\n"
            return 200, b"\1\0\0\0" + len(line).to_bytes(4, "big") + line
        return 200, json.dumps({"State": {"ExitCode": 1, "StartedAt": "2025-01-01T00:00:00Z"}}).encode()

    @staticmethod
    def _listed(container: dict[str, Any]) -> dict[str, Any]:
        names = {"Id": "id", "Labels": "labels", "State": "state"}
        return {key: container[name] for key, name in names.items()} | {
            "Names": ["/" + container["name"]],
            "ImageID": "sha256:1",
        }

    # tools

    def _ip(self, argv: list[str]) -> Result:
        words = [word for word in argv if word not in ("-j", "-4", "-6")]
        if words[:2] == ["address", "del"]:
            self.links[words[4]]["addresses" if "." in words[2] else "inet6"].remove(words[2])
            self._kernel_routes()
        elif words[:2] == ["address", "add"]:
            self.links[words[4]]["addresses"].append(words[2])
            self._kernel_routes()
        elif words[0] == "link":
            self.links[words[3]]["mtu"] = int(words[5])
        elif words[0] == "neigh":
            if words[1] == "del":
                self.neighbours = [n for n in self.neighbours if n["dst"] != words[2]]
            return Result(0, json.dumps(self.neighbours))
        elif words[0] == "route":
            shown = [r for r in self.routes if words[2] != "default" or r["dst"] == "default"]
            return Result(0, json.dumps(shown))
        else:
            return self._address(argv, words)
        return Result(0)

    def _address(self, argv: list[str], words: list[str]) -> Result:
        shown = []
        for netdev, link in self.links.items():
            if "dev" in words and netdev != words[words.index("dev") + 1]:
                continue
            families = [("inet6", link["inet6"])] if "-6" in argv else [("inet", link["addresses"]), ("inet6", link["inet6"])]
            entries = [
                {"family": family, "local": a.split("/")[0], "prefixlen": int(a.split("/")[1]), "scope": _scope(a)}
                for family, addresses in families
                for a in addresses
            ]
            flags = [*(["UP"] if link["up"] else []), *(["LOWER_UP"] if link["carrier"] else [])]
            shown.append(
                {"ifname": netdev, "mtu": link["mtu"], "flags": flags, "address": link["mac"], "addr_info": entries}
            )
        if "dev" in words and not shown:
            return Result(1, "", f'Device "{words[-1]}" does not exist.')
        return Result(0, json.dumps(shown))

    def _ping(self, argv: list[str]) -> Result:
        return Result(1 if argv[-1] in self.silent else 0)

    def _generate(self, argv: "list[str] | Path") -> Result:
        root = argv if isinstance(argv, Path) else self.root
        if isinstance(argv, list) and "--root-dir" in argv:
            root = Path(argv[argv.index("--root-dir") + 1])
        try:
            stanzas = _merged(root)
        except (yaml.YAMLError, ValueError) as error:
            return Result(1, "", f"/etc/netplan: {error}")
        folder = root / PROFILES.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("netplan-*"):
            old.unlink()
        networkd = root / "run/systemd/network"
        networkd.mkdir(parents=True, exist_ok=True)
        for name, stanza in stanzas.items():
            netdev = (stanza.get("match") or {}).get("name", name)
            if stanza["renderer"] != "NetworkManager":
                (networkd / f"10-netplan-{name}.network").write_text(f"[Match]\nName={netdev}\n")
                continue
            lines = ["[connection]", f"id=netplan-{name}", "type=ethernet", f"interface-name={netdev}"]
            lines += [f"uuid={_uuid(name)}", "[ethernet]", f"mtu={stanza.get('mtu', 0)}", "[ipv4]"]
            lines += [f"address{i}={a}" for i, a in enumerate(stanza.get("addresses") or [], 1)]
            lines += [f"route{i}={r['to']},{r['via']}" for i, r in enumerate(stanza.get("routes") or [], 1)]
            (folder / f"netplan-{name}.nmconnection").write_text("\n".join(lines) + "\n")
        return Result(0)

    def _nmcli(self, argv: list[str]) -> Result:
        if not self.nm_running:
            return Result(8, "", "Error: NetworkManager is not running.")
        words = [word for word in argv if word != "--wait"]
        if words[0].isdigit():
            words = words[1:]
        if words[:2] == ["connection", "reload"]:
            self._reload()
        elif words[:2] == ["connection", "up"]:
            return self._up(words[2], words[4])
        elif words[:2] == ["device", "reapply"]:
            return self._up(self.active[words[2]], words[2])
        elif words[:2] == ["device", "set"]:
            (self.unmanaged.discard if words[4] == "yes" else self.unmanaged.add)(words[2])
        elif words[-1] == "connection":
            held = {uuid: netdev for netdev, uuid in self.active.items()}
            rows = [
                [u, p["name"], "802-3-ethernet", "yes" if p["autoconnect"] else "no", held.get(u, ""), p["filename"]]
                for u, p in self.profiles.items()
            ]
            return Result(0, "".join(":".join(row) + "\n" for row in rows))
        elif words[-1] == "device":
            return Result(0, "".join(f"{n}:{self._state(n)}:{self._name(n)}\n" for n in self.links))
        elif words[:3] == ["-g", "GENERAL.STATE,GENERAL.CON-UUID", "device"]:
            number = "10 (unmanaged)" if words[4] in self.unmanaged else "100 (connected)"
            return Result(0, f"{number}\n{self.active.get(words[4], '')}\n")
        return Result(0)

    def _state(self, netdev: str) -> str:
        if netdev in self.unmanaged:
            return "unmanaged"
        return "connected" if netdev in self.active else "disconnected"

    def _name(self, netdev: str) -> str:
        return str(self.profiles[self.active[netdev]]["name"]) if netdev in self.active else ""

    def _iptables(self, argv: list[str]) -> Result:
        words = argv[2:]
        if words[0] == "-S":
            lines = ["-P FORWARD ACCEPT", *(f"-N {name}" for name in self.chains if name != "FORWARD")]
            return Result(0, "\n".join(lines + [f"-A {n} {r}" for n, rules in self.chains.items() for r in rules]))
        chain, rule = self.chains.get(words[1]), " ".join(words[2:])
        if chain is None or (words[0] in ("-C", "-D") and rule not in chain):
            return Result(1, "", "iptables: Bad rule")
        if words[0] == "-D":
            chain.remove(rule)
        return Result(0)

    def _systemctl(self, argv: list[str]) -> Result:
        unit = argv[-1]
        path = f"/etc/systemd/system/{unit}"
        if argv[0] == "is-active":
            return Result(0 if self.units.get(unit) else 3, "active" if self.units.get(unit) else "inactive")
        if argv[0] == "daemon-reload":
            return Result(0)
        wants = self.path(f"/etc/systemd/system/multi-user.target.wants/{unit}")
        rules = [m[1] for m in re.finditer(r"^ExecStart=.* -I \$\$c 1 (.+)'$", self.text(path) or "", re.MULTILINE)]
        chain = self.chains.get("DOCKER-USER", self.chains["FORWARD"])
        if argv[0] == "enable":
            wants.parent.mkdir(exist_ok=True)
            wants.unlink(missing_ok=True)
            wants.symlink_to(path)
        elif argv[0] == "restart":
            chain[:] = [rule for rule in rules if rule not in chain] + chain
            self.units[unit] = True
        elif argv[0] == "disable":
            chain[:] = [rule for rule in chain if rule not in rules]
            self.units.pop(unit, None)
            wants.unlink(missing_ok=True)
            if wants.parent.is_dir() and not any(wants.parent.iterdir()):
                wants.parent.rmdir()
        return Result(0)

    # NetworkManager

    def _reload(self) -> None:
        self.profiles = {}
        for folder in (PROFILES, "/etc/NetworkManager/system-connections"):
            for name in self.names(folder):
                text = self.text(f"{folder}/{name}") or ""
                keys = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
                self.profiles[keys["uuid"]] = {
                    "name": keys["id"],
                    "netdev": keys.get("interface-name", ""),
                    "autoconnect": keys.get("autoconnect", "true") != "false",
                    "priority": int(keys.get("autoconnect-priority", "0")),
                    "filename": f"{folder}/{name}",
                    "keys": keys,
                }
        for netdev in [n for n, uuid in self.active.items() if uuid not in self.profiles]:
            del self.active[netdev]
            self._down(netdev)
        for netdev in self.links:
            if netdev not in self.active and netdev not in self.unmanaged and self.links[netdev]["carrier"]:
                fitting = [(p["priority"], u) for u, p in self.profiles.items() if p["netdev"] == netdev and p["autoconnect"]]
                if fitting:
                    self._up(max(fitting)[1], netdev)

    def _down(self, netdev: str) -> None:
        self.links[netdev].update(addresses=[], inet6=[], mtu=1500)
        self._kernel_routes()

    def _up(self, wanted: str, netdev: str) -> Result:
        uuid = next((u for u, p in self.profiles.items() if wanted in (u, p["name"])), None)
        if uuid is None or netdev not in self.links:
            return Result(10, "", f"Error: unknown connection '{wanted}'.")
        if netdev in self.unmanaged or not self.links[netdev]["carrier"]:
            return Result(4, "", f"Error: device {netdev} not available")
        again = self.active.get(netdev) == uuid
        keys = self.profiles[uuid]["keys"]
        local = list(self.links[netdev]["inet6"]) if again else []
        self._down(netdev)
        self.active[netdev] = uuid
        link = self.links[netdev]
        link["mtu"] = int(keys.get("mtu", 0)) or 1500
        link["addresses"] = [value for key, value in keys.items() if key.startswith("address")]
        self._kernel_routes()
        for key, value in keys.items():
            if key.startswith("route"):
                to, via = value.split(",")
                self.routes.append({"dst": to, "dev": netdev, "gateway": via, "protocol": "static"})
        generated = keys.get("nm-generated") == "true"
        link["inet6"] = [f"{STABLE}/64"] if generated else local
        self.put(f"/proc/sys/net/ipv6/conf/{netdev}/addr_gen_mode", "1" if generated else "0")
        self._sysfs()
        return Result(0)

    def _local(self, netdev: str) -> None:
        address = f"{eui64(self.links[netdev]['mac'])}/64"
        if address not in self.links[netdev]["inet6"]:
            self.links[netdev]["inet6"].append(address)

    # the kernel

    def _kernel_routes(self) -> None:
        held = {(str(ipaddress.ip_interface(a).network), n) for n, l in self.links.items() for a in l["addresses"]}
        devs = {netdev for _, netdev in held}
        self.routes = [r for r in self.routes if r["protocol"] != "kernel" and r["dev"] in devs]
        self.routes += [{"dst": to, "dev": netdev, "protocol": "kernel"} for to, netdev in sorted(held)]

    def _sysfs(self) -> None:
        for netdev, (hca, pci) in FABRIC.items():
            port = f"/sys/class/infiniband/{hca}/ports/1"
            if netdev not in self.links:
                continue
            if not self.exists(port):
                self.put(f"/sys/devices/{pci}/net/{netdev}/x", "")
                self.put(f"{port}/rate", "200 Gb/sec (4X HDR)")
                self.path(f"/sys/class/infiniband/{hca}/device").symlink_to(self.path(f"/sys/devices/{pci}"))
            link = self.links[netdev]
            self.put(f"{port}/state", "4: ACTIVE" if link["carrier"] else "1: DOWN")
            gids = [eui64(link["mac"])] + [f"::ffff:{a.split('/')[0]}" for a in link["addresses"]]
            for index in range(6):
                kind = ("IB/RoCE v1", "RoCE v2")[index % 2]
                gid = gids[index // 2] if index // 2 < len(gids) else "::"
                self.put(f"{port}/gids/{index}", ipaddress.IPv6Address(gid).exploded)
                self.put(f"{port}/gid_attrs/types/{index}", kind)
                self.put(f"{port}/gid_attrs/ndevs/{index}", netdev)


def _uuid(name: str) -> str:
    return str(uuids.uuid5(uuids.NAMESPACE_DNS, name))


def _scope(address: str) -> str:
    return "link" if address.startswith("fe80") else "global"


def _merged(root: Path) -> dict[str, dict[str, Any]]:
    """The stanzas of all files as netplan merges them: same name, later values win, lists grow."""
    stanzas: dict[str, dict[str, Any]] = {}
    renderer = "networkd"
    for path in sorted([p for folder in ("lib", "etc", "run") for p in (root / folder / "netplan").glob("*.yaml")], key=lambda p: p.name):
        network = (yaml.safe_load(path.read_text()) or {}).get("network") or {}
        renderer = network.get("renderer", renderer)
        for name, stanza in (network.get("ethernets") or {}).items():
            merged = stanzas.setdefault(name, {})
            for key, value in stanza.items():
                merged[key] = [*merged.get(key, []), *value] if isinstance(value, list) else value
    for name, stanza in stanzas.items():
        stanza.setdefault("renderer", renderer)
        assert not fnmatch.fnmatch(name, "*[*]")
        for route in stanza.get("routes") or []:
            ipaddress.ip_network(route["to"])
    return stanzas
