"""A machine of files and tool stand-ins: ports, NetworkManager, netplan, iptables, systemd, Docker.

It stands for a Spark as the node program sees it. Everything that the program changes can be ended in between
(`kill_at`), as by a power cut of the program alone: what was done so far stays.
"""

import copy
import functools
import io
import ipaddress
import itertools
import json
import re
import tempfile
import uuid as uuids
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import yaml

from node.limits import CALL
from node.plane import eui64
from node.run import Result
from node.system import Meta, System
from node.system import copy as copied

T = TypeVar("T")

FABRIC = {
    "enp1s0f0np0": ("rocep1s0f0", "0000:01:00.0"),
    "enp1s0f1np1": ("rocep1s0f1", "0000:01:00.1"),
    "enP2p1s0f0np0": ("roceP2p1s0f0", "0002:01:00.0"),
    "enP2p1s0f1np1": ("roceP2p1s0f1", "0002:01:00.1"),
}
MANAGEMENT = "enP7s7"
PROFILES = "/run/NetworkManager/system-connections"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
FORWARDING = "/proc/sys/net/ipv4/ip_forward"
NO_AUTO_DEFAULT = "/var/lib/NetworkManager/no-auto-default.state"

MANAGEMENT_YAML = """network:
  version: 2
  renderer: NetworkManager
  ethernets:
    enP7s7:
      dhcp4: false
      addresses: [198.18.0.11/24]
"""


class File(NamedTuple):
    """A file of the machine."""

    data: bytes
    mode: int
    mtime: int


class Lock(io.StringIO):
    """The node's lock file: held by `machine.lock_holder`."""

    def __init__(self, machine: "Machine") -> None:
        super().__init__(json.dumps({"holder": machine.lock_holder, "pid": 7, "since": 1.0}))


class Kill(BaseException):
    """The program is gone from here on."""


class Machine(System):
    """See the module. `calls` lists what was run to change something, `steps` every checkpoint."""

    def __init__(self) -> None:
        super().__init__("/nowhere")
        self.files: dict[str, File] = {}
        self.folders: dict[str, int] = {}
        self.symlinks: dict[str, str] = {}
        self.ticks = 0
        self.lock_holder: str | None = None
        self.calls: list[list[str]] = []
        self.steps: list[str] = []
        self.kill_at: int | None = None
        self.time = 1000.0
        self.links: dict[str, dict[str, Any]] = {}
        self.profiles: dict[str, dict[str, Any]] = {}
        self.active: dict[str, str] = {}
        self.unmanaged: set[str] = set()
        self.looked: set[str] = set()  # ports that NetworkManager has looked at for a profile of its own
        self.routes: list[dict[str, Any]] = []
        self.chains: dict[str, list[str]] = {"FORWARD": []}
        self.policy = "ACCEPT"  # of FORWARD
        self.docker = False  # whether Docker makes a chain of its own
        self.units: dict[str, bool] = {}
        self.containers: list[dict[str, Any]] = []
        self.docker_word = "Docker/20.10.24+dfsg1 (linux)"
        self.made = 0  # containers
        self.volumes: list[dict[str, Any]] = []
        self.images: dict[str, dict[str, str]] = {}  # by name, as `inspect` shows them
        self.env = {"SSH_CONNECTION": "198.18.0.254 40000 198.18.0.11 22"}
        self.hooks: dict[str, Callable[[list[str]], Result | None]] = {}
        self.neighbours: list[dict[str, Any]] = []
        self.listening: set[tuple[str, int]] = set()  # what takes TCP connections
        self.reached = 0  # times that one was tried
        self.silent: set[str] = set()  # addresses that answer no ping
        self.nm_running = True
        self.free = 1 << 39  # bytes on every file system
        self.shown: dict[str, Any] = {}
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
        self.put("/proc/sys/kernel/hostname", "spark1")
        self.put("/etc/machine-id", "0" * 32)
        for folder in (
            "/var/lib",
            "/run/lock",
            "/run/NetworkManager/system-connections",
            "/var/lib/NetworkManager",
            "/etc/sysctl.d",
            "/etc/systemd/system",
        ):
            self._fill(f"{folder}/x", b"", 0)
            self.drop(f"{folder}/x")
        self.put("/run/docker.sock", "")
        self.put("/usr/libexec/netplan/generate", "")
        self.put("/etc/netplan/01-mgmt.yaml", MANAGEMENT_YAML, 0o600)
        self.boot()

    def put(self, path: str, text: str, mode: int = 0o644) -> None:
        """Put a file there as somebody else would."""
        self._fill(path, text.encode(), mode)

    def drop(self, path: str) -> None:
        """Remove a file as somebody else would."""
        del self.files[path]

    def boot(self) -> None:
        """Cut the power and boot: what was in memory only is gone."""
        for path in [path for path in self.files if path.startswith(f"{PROFILES}/")]:
            self.drop(path)
        self.active, self.looked, self.routes = {}, set(), []
        for netdev, link in self.links.items():
            link.update(mtu=1500, addresses=[], inet6=[f"{eui64(link['mac'])}/64"])
            self.put(f"/proc/sys/net/ipv6/conf/{netdev}/addr_gen_mode", "0")
            for key in ("arp_ignore", "arp_announce"):
                self.put(f"/proc/sys/net/ipv4/conf/{netdev}/{key}", "0")
        self.put(FORWARDING, "0")
        for name in self.names("/etc/sysctl.d"):
            for key, value in re.findall(r"^(\S+) = (\S+)$", self.text(f"/etc/sysctl.d/{name}") or "", re.MULTILINE):
                self.put(f"/proc/sys/{key}", value)
        self._generate([])
        self._reload()
        self.start_docker()
        for unit in [path.rpartition("/")[2] for path in self.symlinks if path.startswith("/etc/systemd/system/")]:
            self._systemctl(["reload-or-restart", unit])

    def start_docker(self) -> None:
        """Docker's rules, and those of units that start after it. It drops what others forward if it switched it on."""
        self.chains, self.policy, self.units = {"FORWARD": []}, "ACCEPT", {}
        if self.docker:
            self.chains["DOCKER-USER"] = ["-j RETURN"]
            if self.text(FORWARDING) == "0":
                self.put(FORWARDING, "1")
                self.policy = "DROP"

    def delete_profile(self, netdev: str) -> None:
        """Delete NetworkManager's own profile of a port, as a user does."""
        profile = next(p for p in self.profiles.values() if p["netdev"] == netdev and p["generated"])
        self.drop(profile["filename"])
        self.put(NO_AUTO_DEFAULT, (self.text(NO_AUTO_DEFAULT) or "") + f"interface-name:={netdev}\n")
        self._reload()

    def copy(self) -> "Machine":
        """Another machine in the same state."""
        twin = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, (dict, list, set)):
                setattr(twin, name, copy.copy(value))
        twin.links = {netdev: {k: copy.copy(v) for k, v in link.items()} for netdev, link in self.links.items()}
        twin.chains = {name: list(rules) for name, rules in self.chains.items()}
        twin.containers = [dict(container) for container in self.containers]
        return twin

    def snapshot(self) -> dict[str, Any]:
        """Everything that must be as before after a revert."""
        skipped = ("/run/lock", "/sys/class/infiniband")
        seen: dict[str, Any] = {path: mode for path, mode in self.folders.items() if not path.startswith(skipped)}
        for path, file in self.files.items():
            if not path.startswith(skipped):
                seen[path] = (file.data, file.mode, file.mtime if path.startswith("/etc") else 0)
        links = {name: {**link, "inet6": sorted(link["inet6"])} for name, link in self.links.items()}
        seen["links"] = json.dumps(links, sort_keys=True)
        seen["nm"] = (
            dict(self.active),
            {p["name"]: p["autoconnect"] for p in self.profiles.values()},
            set(self.unmanaged),
        )
        seen["routes"] = sorted(json.dumps(route, sort_keys=True) for route in self.routes)
        seen["chains"], seen["units"] = (self.policy, json.dumps(self.chains)), dict(self.units)
        return seen

    # files

    def _fill(self, path: str, data: bytes, mode: int, mtime: int = 0) -> None:
        parent = path.rpartition("/")[0]
        while parent and parent not in self.folders:
            self.folders[parent] = 0o755
            parent = parent.rpartition("/")[0]
        self.ticks += 1
        self.files[path] = File(data, mode, mtime or self.ticks)

    def path(self, path: str) -> Path:
        message = f"{path}: the real file system is used"
        raise AssertionError(message)

    def read(self, path: str) -> bytes | None:
        return self.files[path].data if path in self.files else None

    def open_to_read(self, path: str) -> BinaryIO | None:
        return io.BytesIO(self.files[path].data) if path in self.files else None

    def open_no_link(self, path: str) -> BinaryIO | None:
        return None if path in self.symlinks else self.open_to_read(path)

    def is_folder(self, path: str) -> bool:
        return path in self.folders

    def meta(self, path: str) -> Meta | None:
        file = self.files.get(path)
        return file and Meta(file.mode, 0, 0, file.mtime)

    def size(self, path: str) -> int | None:
        return len(self.files[path].data) if path in self.files else None

    def space(self, path: str) -> dict[str, int] | None:
        return {"free": self.free, "total": 1 << 40, "files_free": 1000, "files_total": 2000} if path else None

    def folder(self, path: str) -> dict[str, Any] | None:
        return {"owner": "0:0", "mode": "0755", "writable": True} if path in self.folders else None

    def names(self, path: str) -> list[str]:
        inside = f"{path}/"
        everything = (*self.files, *self.folders, *self.symlinks) if path in self.folders else self.symlinks
        return sorted({name[len(inside) :].split("/")[0] for name in everything if name.startswith(inside)})

    def link(self, path: str) -> str | None:
        return self.symlinks.get(path)

    def target(self, path: str) -> str:
        return self.symlinks.get(path, "")

    def exists(self, path: str) -> bool:
        return path in self.files or path in self.folders or path in self.symlinks

    def write(self, path: str, data: bytes, meta: Meta) -> None:
        assert path.rpartition("/")[0] in self.folders, path
        self.checkpoint(f"before write {path}")
        self._fill(self._fresh(path), data[: len(data) // 2], 0o600)
        self.checkpoint(f"half of {path}")
        self.clean(path)
        self._fill(path, data, meta.mode, meta.mtime_ns)
        self.checkpoint(f"after write {path}")

    def receive(self, path: str, content: BinaryIO, size: int, sha256: str, meta: Meta) -> None:
        came = io.BytesIO()
        copied(content, came, size, sha256)
        self.write(path, came.getvalue(), meta)

    def remove(self, path: str) -> None:
        self.clean(path)
        if path in self.files:
            self.checkpoint(f"before remove {path}")
            del self.files[path]
            self.checkpoint(f"after remove {path}")

    def clean(self, path: str) -> None:
        self.files.pop(self._fresh(path), None)

    def make_folder(self, path: str, mode: int = 0o755) -> None:
        if path in self.folders or not path:
            return
        self.make_folder(path.rpartition("/")[0])
        self.checkpoint(f"before mkdir {path}")
        self.folders[path] = mode
        self.checkpoint(f"after mkdir {path}")

    def remove_folder(self, path: str) -> bool:
        if path not in self.folders:
            return True
        if self.names(path):
            return False
        self.checkpoint(f"before rmdir {path}")
        del self.folders[path]
        self.checkpoint(f"after rmdir {path}")
        return True

    @staticmethod
    def _fresh(path: str) -> str:
        folder, _, name = path.rpartition("/")
        return f"{folder}/.{name}.spark-fabric-new"

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
            yield Path(folder)

    def open_lock(self, path: str) -> Any:  # noqa: ARG002
        return Lock(self)

    def open_lock_to_look(self, path: str) -> Any | None:  # noqa: ARG002
        return Lock(self)

    def try_lock(self, file: Any, shared: bool = False) -> bool:  # noqa: ARG002
        return self.lock_holder is None

    # what the program calls

    def checkpoint(self, name: str) -> None:
        self.steps.append(name)
        if self.kill_at is not None and len(self.steps) > self.kill_at:
            self.kill_at = None
            raise Kill(name)

    def set_value(self, path: str, value: str) -> None:
        self.checkpoint(f"before set {path}")
        before = self.text(path)
        self.put(path, value)
        found = re.fullmatch(r"/proc/sys/net/ipv6/conf/(.+)/addr_gen_mode", path)
        if found and value == "0" and before != "0":
            self._local(found[1])
        self.checkpoint(f"after set {path}")

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

    def change(self, argv: list[str], timeout: float = CALL) -> Result:
        self.calls.append(argv)
        return super().change(argv, timeout)

    def run(self, argv: list[str], timeout: float = CALL) -> Result:  # noqa: ARG002
        name = argv[0].rpartition("/")[2]
        if name in self.hooks and (result := self.hooks[name](argv)) is not None:
            return result
        result = getattr(self, f"_{name}")(argv[1:])
        self._sysfs()
        assert isinstance(result, Result)
        return result

    def run_for_caller(self, argv: list[str], timeout: float) -> Result:
        return self.run(argv, timeout)

    def let_go(self) -> bool:
        return False

    def docker_server(self) -> str:
        return self.docker_word

    def docker_call(self, method: str, path: str, timeout: float, body: bytes = b"") -> tuple[int, bytes]:  # noqa: ARG002
        if method == "GET" and path.startswith("/containers/json"):
            return 200, json.dumps([self._listed(c) for c in self.containers]).encode()
        if path.startswith("/images/"):
            return self._image(path.split("/", 2)[2])
        if path == "/volumes":
            return 200, json.dumps({"Volumes": self.volumes}).encode()
        if one := re.fullmatch(r"/volumes/([\w.-]+)", path):
            return self._volume(method, path, one[1])
        if created := re.fullmatch(r"/containers/create\?name=(\S+)", path):
            return self._create(created[1], json.loads(body))
        found = re.fullmatch(r"/containers/([^/?]+)(/\w+)?(\?.*)?", path)
        container = next((c for c in self.containers if found and c["id"] == found[1]), None)
        if container is None:
            return {"/version": (200, b'{"Version": "20.10"}')}.get(path, (404, b"{}"))
        self.calls.append(["docker", method, path])
        if found and found[2] == "/archive":
            files = container.get("files", {}).get((found[3] or "").partition("path=")[2])
            return (200, files) if files else (404, b"{}")
        if method == "DELETE":
            self.containers.remove(container)
            return 204, b""
        if found and found[2] == "/stop":
            container["state"] = "exited"
            return 204, b""
        if found and found[2] == "/start":
            container["state"] = "running"
            return 204, b""
        if found and found[2] == "/logs":
            line = b"loading\nready\n"
            return 200, b"\1\0\0\0" + len(line).to_bytes(4, "big") + line
        return 200, json.dumps(self._told_of(container)).encode()

    def _image(self, path: str) -> tuple[int, bytes]:
        """What is told of all images, `json`, or of one, `NAME/json`."""
        if path == "json":
            listed = [{"Id": one["Id"], "RepoTags": [name]} for name, one in self.images.items()]
            return 200, json.dumps(listed).encode()
        one = self.images.get(path.removesuffix("/json"))
        return (200, json.dumps(one).encode()) if one else (404, b"{}")

    @staticmethod
    def _told_of(container: dict[str, Any]) -> dict[str, Any]:
        told = container.get("told") or {}
        return {
            "State": {
                "ExitCode": container.get("exit_code", 1),
                "StartedAt": "2025-01-01T00:00:00Z",
                "Running": container["state"] == "running",
            },
            "Image": told.get("Image", "sha256:1"),
            "Config": {
                "Image": "engine:1",
                "Hostname": "spark1",
                **told.get("Config", {}),
                "Labels": container["labels"],
            },
            "HostConfig": told.get("HostConfig", {}),
            "Mounts": told.get("Mounts", []),
        }

    def _volume(self, method: str, path: str, name: str) -> tuple[int, bytes]:
        volume = next((one for one in self.volumes if one["Name"] == name), None)
        if volume is None:
            return 404, b"{}"
        if method == "DELETE":
            self.calls.append(["docker", method, path])
            if volume.get("used"):
                return 409, b'{"message": "volume is in use"}'
            self.volumes.remove(volume)
            return 204, b""
        return 200, json.dumps(volume).encode()

    def _create(self, name: str, told: dict[str, Any]) -> tuple[int, bytes]:
        """A container as docker makes it; `told` keeps what `inspect` shows of it."""
        if any(one["name"] == name for one in self.containers):
            return 409, b'{"message": "the name is in use"}'
        self.made += 1
        config = {key: value for key, value in told.items() if key not in ("HostConfig", "Labels")}
        one = {"id": f"made-{self.made}", "name": name, "labels": told["Labels"], "state": "created"}
        told = {"Image": told["Image"], "Config": config, "HostConfig": told["HostConfig"]}
        self.containers.append({**one, "told": told})
        return 201, json.dumps({"Id": one["id"]}).encode()

    @staticmethod
    def _listed(container: dict[str, Any]) -> dict[str, Any]:
        names = {"Id": "id", "Labels": "labels", "State": "state"}
        return {key: container[name] for key, name in names.items()} | {
            "Names": ["/" + container["name"]],
            "ImageID": "sha256:1",
        }

    def reach(self, address: str, port: int, timeout: float) -> str:  # noqa: ARG002
        self.reached += 1
        return "" if (address, port) in self.listening else "Connection refused"

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
        elif words[:2] == ["route", "replace"]:
            self.routes.append({"dst": words[2], "dev": words[-1], "gateway": words[4], "protocol": "boot"})
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
            families = (
                [("inet6", link["inet6"])] if "-6" in argv else [("inet", link["addresses"]), ("inet6", link["inet6"])]
            )
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

    def _generate(self, argv: list[str]) -> Result:
        root = Path(argv[argv.index("--root-dir") + 1]) if argv else None
        places = [(p.name, p.read_text()) for p in root.rglob("*.yaml")] if root else self._netplan_files()
        try:
            made = _generated(sorted(places))
        except (yaml.YAMLError, ValueError) as error:
            return Result(1, "", f"/etc/netplan: {error}")
        if root:
            for path, text in made.items():
                place = root / path.lstrip("/")
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(text)
            return Result(0)
        for path in [path for path in self.files if path.startswith(f"{PROFILES}/netplan-")]:
            del self.files[path]
        for path, text in made.items():
            self.put(path, text, 0o600)
        return Result(0)

    def _netplan_files(self) -> list[tuple[str, str]]:
        found = [path for path in self.files if re.fullmatch(r"/(etc|lib|run)/netplan/[^/]+\.yaml", path)]
        return [(path.rpartition("/")[2], self.files[path].data.decode()) for path in found]

    def _nmcli(self, argv: list[str]) -> Result:
        if not self.nm_running:
            return Result(8, "", "Error: NetworkManager is not running.")
        words = [word for word in argv if word != "--wait"]
        if words[0].isdigit():
            words = words[1:]
        if words[:2] == ["connection", "reload"]:
            self._reload()
        elif words[:2] == ["connection", "load"]:
            self._load(words[2])
            self._autoconnect()
        elif words[:2] == ["connection", "up"]:
            return self._up(words[2], words[4])
        elif words[:2] == ["device", "reapply"]:
            return self._up(self.active[words[2]], words[2])
        elif words[:2] == ["device", "set"]:
            if words[4] == "yes":
                self.unmanaged.discard(words[2])
            else:
                self.unmanaged.add(words[2])
                self.active.pop(words[2], None)
        elif words[-1] == "connection":
            rows = [self._row(uuid, words[2].split(",")) for uuid in self.profiles]
            return Result(0, "".join(":".join(row) + "\n" for row in rows))
        elif words[-1] == "device":
            return Result(0, "".join(f"{n}:{self._state(n)}:{self._name(n)}\n" for n in self.links))
        elif words[:3] == ["-g", "GENERAL.STATE,GENERAL.CON-UUID", "device"]:
            number = "10 (unmanaged)" if words[4] in self.unmanaged else "100 (connected)"
            return Result(0, f"{number}\n{self.active.get(words[4], '')}\n")
        return Result(0)

    def _row(self, uuid: str, fields: list[str]) -> list[str]:
        profile = self.profiles[uuid]
        shown = {
            "UUID": uuid,
            "NAME": profile["name"],
            "TYPE": "802-3-ethernet",
            "AUTOCONNECT": "yes" if profile["autoconnect"] else "no",
            "DEVICE": next((netdev for netdev, held in self.active.items() if held == uuid), ""),
            "FILENAME": profile["filename"],
        }
        return [shown[field] for field in fields]

    def _state(self, netdev: str) -> str:
        if netdev in self.unmanaged:
            return "unmanaged"
        return "connected" if netdev in self.active else "disconnected"

    def _name(self, netdev: str) -> str:
        return str(self.profiles[self.active[netdev]]["name"]) if netdev in self.active else ""

    def _iptables(self, argv: list[str]) -> Result:
        words = argv[2:]
        if words[0] == "-S":
            lines = [f"-P FORWARD {self.policy}", *(f"-N {name}" for name in self.chains if name != "FORWARD")]
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
        wants = f"/etc/systemd/system/multi-user.target.wants/{unit}"
        rules = [m[1] for m in re.finditer(r"^ExecStart=.* -I \$\$c 1 (.+)'$", self.text(path) or "", re.MULTILINE)]
        chain = self.chains.get("DOCKER-USER", self.chains["FORWARD"])
        if argv[0] == "enable":
            self.symlinks[wants] = path
        elif argv[0] == "reload-or-restart":
            chain[:] = [rule for rule in rules if rule not in chain] + chain
            for value, name in re.findall(r"^ExecStartPre=.* 'echo (.+) >(.+)'$", self.text(path) or "", re.MULTILINE):
                self.put(name, value)
            self.units[unit] = True
        elif argv[0] == "disable":
            chain[:] = [rule for rule in chain if rule not in rules]
            self.units.pop(unit, None)
            self.symlinks.pop(wants, None)
        return Result(0)

    # NetworkManager

    def _reload(self) -> None:
        self.profiles = {}
        for folder in (PROFILES, "/etc/NetworkManager/system-connections"):
            for name in self.names(folder):
                if not name.startswith("."):
                    self._load(f"{folder}/{name}")
        for netdev in [n for n, uuid in self.active.items() if uuid not in self.profiles]:
            del self.active[netdev]
            self._down(netdev)
        for netdev in FABRIC:
            self._auto_default(netdev)
        self._autoconnect()

    def _load(self, path: str) -> None:
        keys = dict(line.split("=", 1) for line in (self.text(path) or "").splitlines() if "=" in line)
        self.profiles[keys["uuid"]] = {
            "name": keys["id"],
            "netdev": keys.get("interface-name", ""),
            "autoconnect": keys.get("autoconnect", "true") != "false",
            "priority": int(keys.get("autoconnect-priority", "0")),
            "generated": keys.get("nm-generated") == "true",
            "filename": path,
            "keys": keys,
        }

    def _auto_default(self, netdev: str) -> None:
        """What NetworkManager makes of a port without a profile, in the one moment in which it looks."""
        if netdev in self.looked or netdev in self.unmanaged or netdev not in self.links:
            return
        self.looked.add(netdev)
        given_up = f"interface-name:={netdev}" in (self.text(NO_AUTO_DEFAULT) or "").splitlines()
        if given_up or any(profile["netdev"] == netdev for profile in self.profiles.values()):
            return
        taken = {profile["name"] for profile in self.profiles.values()}
        name = next(name for n in itertools.count(1) if (name := f"Wired connection {n}") not in taken)
        text = f"[connection]\nid={name}\nuuid={_uuid(name + netdev)}\ntype=ethernet\nautoconnect-priority=-999\n"
        text += f"interface-name={netdev}\n[.nmmeta]\nnm-generated=true\n"
        self.put(f"{PROFILES}/{name}.nmconnection", text, 0o600)
        self._load(f"{PROFILES}/{name}.nmconnection")

    def _autoconnect(self) -> None:
        for netdev in self.links:
            if netdev not in self.active and netdev not in self.unmanaged and self.links[netdev]["carrier"]:
                fitting = [
                    (p["priority"], u) for u, p in self.profiles.items() if p["netdev"] == netdev and p["autoconnect"]
                ]
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
        kernels = self.text(f"/proc/sys/net/ipv6/conf/{netdev}/addr_gen_mode") == "0"
        local = list(self.links[netdev]["inet6"]) if again or kernels else []
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
        generated = self.profiles[uuid]["generated"]
        link["inet6"] = [_stable(uuid)] if generated else local
        self.put(f"/proc/sys/net/ipv6/conf/{netdev}/addr_gen_mode", "1" if generated else "0")
        self._sysfs()
        return Result(0)

    def _local(self, netdev: str) -> None:
        address = f"{eui64(self.links[netdev]['mac'])}/64"
        if address not in self.links[netdev]["inet6"]:
            self.links[netdev]["inet6"].append(address)

    # the kernel

    def _kernel_routes(self) -> None:
        held = {(str(ipaddress.ip_interface(a).network), n) for n, k in self.links.items() for a in k["addresses"]}
        devs = {netdev for _, netdev in held}
        self.routes = [r for r in self.routes if r["protocol"] != "kernel" and r["dev"] in devs]
        self.routes += [{"dst": to, "dev": netdev, "protocol": "kernel"} for to, netdev in sorted(held)]

    def _sysfs(self) -> None:
        for netdev, (hca, pci) in FABRIC.items():
            port = f"/sys/class/infiniband/{hca}/ports/1"
            if netdev not in self.links:
                continue
            if not self.exists(port):
                self.put(f"/sys/class/infiniband/{hca}/device/net/{netdev}", "")
                self.put(f"{port}/rate", "200 Gb/sec (4X HDR)")
                self.symlinks[f"/sys/class/infiniband/{hca}/device"] = f"/sys/devices/{pci}"
            link = self.links[netdev]
            shown = (link["carrier"], link["mac"], *link["addresses"])
            if self.shown.get(netdev) == shown:
                continue
            self.shown[netdev] = shown
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


def _stable(uuid: str) -> str:
    """The IPv6 link-local address that NetworkManager's own profiles give a port."""
    return f"{ipaddress.IPv6Address((0xFE80 << 112) + (uuids.UUID(uuid).int >> 64))}/64"


def _scope(address: str) -> str:
    return "link" if address.startswith("fe80") else "global"


@functools.lru_cache(maxsize=64)
def _loaded(text: str) -> dict[str, Any]:
    return yaml.load(text, LOADER) or {}  # noqa: S506 - a safe one


def _generated(files: list[tuple[str, str]]) -> dict[str, str]:
    """What netplan makes of files: same stanza, later values win, lists grow."""
    stanzas: dict[str, dict[str, Any]] = {}
    renderer = "networkd"
    for _, text in files:
        network = _loaded(text).get("network") or {}
        renderer = network.get("renderer", renderer)
        for name, stanza in (network.get("ethernets") or {}).items():
            merged = stanzas.setdefault(name, {})
            for key, value in stanza.items():
                merged[key] = [*merged.get(key, []), *value] if isinstance(value, list) else value
    made: dict[str, str] = {}
    rules = "/run/udev/rules.d/90-netplan.rules"
    for name, stanza in stanzas.items():
        netdev = (stanza.get("match") or {}).get("name", name)
        if stanza.get("renderer", renderer) != "NetworkManager":
            made[f"/run/systemd/network/10-netplan-{name}.network"] = f"[Match]\nName={netdev}\n"
            continue
        rule = f'ENV{{ID_NET_NAME}}=="{netdev}", ENV{{NM_UNMANAGED}}="0"'
        made[rules] = made.get(rules, "") + f"# netplan: network.ethernets.{name} (on an allow-list)\n{rule}\n"
        lines = ["[connection]", f"id=netplan-{name}", "type=ethernet", f"interface-name={netdev}"]
        lines += [f"uuid={_uuid(name)}", "[ethernet]", f"mtu={stanza.get('mtu', 0)}", "[ipv4]"]
        lines += [f"address{i}={a}" for i, a in enumerate(stanza.get("addresses") or [], 1)]
        for index, route in enumerate(stanza.get("routes") or [], 1):
            lines.append(f"route{index}={ipaddress.ip_network(route['to'])},{route['via']}")
        made[f"{PROFILES}/netplan-{name}.nmconnection"] = "\n".join(lines) + "\n"
    return made
