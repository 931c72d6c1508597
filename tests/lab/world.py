"""Four nodes as network namespaces, each with a simulated /sys/class/infiniband, and engines in them."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from lab import library
from lab.cabling import FUNCTIONS
from lab.model import PACKAGE

RANKS = 4
PORTS = {function.netdev: function for function in FUNCTIONS}
HCAS = {netdev: "roce" + netdev.removeprefix("en").rpartition("np")[0] for netdev in PORTS}
NETDEVS = {hca: netdev for netdev, hca in HCAS.items()}
PLANE0 = "rocep1s0f0,rocep1s0f1"
ALL = f"{PLANE0},roceP2p1s0f0,roceP2p1s0f1"
DUAL = {
    "NCCL_IB_HCA": ALL, "NCCL_IB_EXTENDED_IPV4_GIDS": "1", "NCCL_IB_PRESERVE_PCI_DOMAIN": "1",
    "NCCL_IB_ROUTE_DIAGNOSTICS": "1",
}  # fmt: skip
OF_TOPOLOGY = {
    "ring": {
        "NCCL_IB_HCA": PLANE0, "NCCL_SWITCHLESS_RING_ONLY": "1", "NCCL_ALGO": "Ring", "NCCL_SKIP_TREE_CONNECT": "1",
        "NCCL_MIN_NCHANNELS": "4", "NCCL_MAX_NCHANNELS": "4",
    },
    "switched": {"NCCL_IB_HCA": "rocep1s0f0,roceP2p1s0f0"},
}  # fmt: skip
MANAGEMENT = "enP7s7"
SIZE = 4 << 20  # bytes of one all-reduce
SHARE = 2 * (RANKS - 1) * SIZE // RANKS  # of them that each rank sends


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


class World:
    """The namespaces of one topology; on a ring both functions of a port share one wire. Gone with `remove`."""

    def __init__(self, topology: str) -> None:
        self.topology = topology
        self.name = f"sim{os.getpid()}{topology[0]}"
        self.made: list[str] = []
        wires = [MANAGEMENT, "p0", "p1"] if topology == "switched" else [MANAGEMENT, *(f"c{k}" for k in range(RANKS))]
        for name in (self.node(None), *map(self.node, range(RANKS))):
            ip("netns", "add", name)
            self.made.append(name)
        lines = [f"link add {wire} type bridge\nlink set {wire} up" for wire in wires]
        self._batch(self.node(None), lines)
        for rank in range(RANKS):
            here, there = [], []
            for netdev, wire, address in self.ports(rank):
                end = f"n{rank}{netdev}"[:15]
                there.append(f"link add {end} type veth peer name {netdev} netns {self.node(rank)}")
                there.append(f"link set {end} master {wire} up")
                here += [f"address add {address}/24 dev {netdev}", f"link set {netdev} up"]
            self._batch(self.node(None), there)
            self._batch(self.node(rank), ["link set lo up", *here])
            quiet = ["sysctl", "-qw", "net.ipv4.conf.all.arp_ignore=1"]  # both functions of a port hear each request
            subprocess.run(["ip", "netns", "exec", self.node(rank), *quiet], check=True)

    def node(self, rank: int | None) -> str:
        """Name of a node's namespace; without a rank that of the wires."""
        return f"{self.name}-{'wires' if rank is None else rank}"

    @staticmethod
    def _batch(namespace: str, lines: list[str]) -> None:
        text = "\n".join(lines) + "\n"
        subprocess.run(["ip", "-n", namespace, "-batch", "-"], check=True, input=text, text=True, capture_output=True)

    def ports(self, rank: int) -> list[tuple[str, str, str]]:
        """Interface, wire and address of every port of a node that has a cable."""
        found = [(MANAGEMENT, MANAGEMENT, f"198.18.77.{10 + rank}")]
        for netdev, function in PORTS.items():
            plane, socket = function.domain // 2, function.socket
            cable = rank if socket == 0 else (rank - 1) % RANKS
            if self.topology == "ring":
                found.append((netdev, f"c{cable}", f"10.{10 + 10 * plane}.{cable}.{10 + socket}"))
            elif socket == 0:
                found.append((netdev, f"p{plane}", f"10.{10 + 10 * plane}.0.{10 + rank}"))
        return found

    def sent(self) -> dict[tuple[int, str], int]:
        """Bytes that every fabric port has sent, by rank and interface, as the kernel counts."""
        return {
            (rank, link["ifname"]): link["stats64"]["tx"]["bytes"]
            for rank in range(RANKS)
            for link in json.loads(ip("-n", self.node(rank), "-j", "-s", "link"))
            if link["ifname"] in PORTS
        }

    def remove(self) -> None:
        """Delete what was made."""
        for name in self.made:
            ip("netns", "del", name)


class Fleet:
    """Four ranks in a world, and what they print. Environment and library may be another on one rank."""

    def __init__(self, world: World, folder: Path, kind: str = "patched", **more: str) -> None:
        self.world, self.folder, self.more = world, folder, more
        self.own: dict[int, dict[str, str]] = {}
        self.processes: list[subprocess.Popen[bytes]] = []
        self.before = world.sent()
        (folder / "model").mkdir()
        (folder / "model/config.json").write_text("{}")
        (folder / "model/model-00001-of-00001.safetensors").write_bytes(bytes(64))
        (folder / "dev").mkdir()
        (folder / "dev/uverbs0").touch()
        for rank in range(RANKS):
            self.bring(rank, kind)
            addresses = {netdev: address for netdev, _, address in world.ports(rank)}
            for netdev, function in PORTS.items():
                hca = HCAS[netdev]
                device = folder / f"sys{rank}/infiniband" / hca
                pci = folder / f"sys{rank}/{function.domain:04x}:01:00.{function.socket}"
                device.mkdir(parents=True)
                pci.mkdir()
                (device / "device").symlink_to(pci)
                self.set(rank, hca, "state", "4: ACTIVE" if netdev in addresses else "1: DOWN")
                mapped = f"::ffff:{addresses[netdev]}" if netdev in addresses else "::"
                for index, gid in enumerate(["fe80::1", "fe80::1", mapped, mapped]):
                    self.set_gid(rank, hca, index, gid)

    def bring(self, rank: int, kind: str, version: str = library.VERSION) -> None:
        """Give a rank a library of another kind or version."""
        library.build(self.folder / f"libnccl{rank}.so.2", markers=library.KINDS[kind], version=version)

    def set(self, rank: int, hca: str, name: str, value: str) -> None:
        """Write one file below a device's port."""
        path = self.folder / f"sys{rank}/infiniband/{hca}/ports/1/{name}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value + "\n")

    def set_gid(self, rank: int, hca: str, index: int, gid: str) -> None:
        """One entry of a table: places are by turns for RoCE v1 and v2."""
        there = int(ipaddress.IPv6Address(gid)) != 0
        self.set(rank, hca, f"gids/{index}", ipaddress.IPv6Address(gid).exploded)
        self.set(rank, hca, f"gid_attrs/types/{index}", ("IB/RoCE v1", "RoCE v2")[index % 2] if there else "")
        self.set(rank, hca, f"gid_attrs/ndevs/{index}", NETDEVS[hca] if there else "")

    def start(self) -> Fleet:
        """Start the engines, each in its namespace."""
        for rank in range(RANKS):
            env = {
                "PATH": os.environ["PATH"], "PYTHONPATH": str(PACKAGE), "NODE_RANK": str(rank), "NNODES": str(RANKS),
                "TP_SIZE": str(RANKS), "EP_SIZE": str(RANKS), "DIST_INIT_ADDR": "198.18.77.10:20000",
                "HOST": "127.0.0.1", "MODEL_PATH": str(self.folder / "model"), "STATE_PATH": str(self.folder / "state"),
                "NCCL_PIP_SO": str(self.folder / f"libnccl{rank}.so.2"), "NCCL_NET": "IB", "NCCL_IB_GID_INDEX": "3",
                "NCCL_IB_SUBNET_AWARE_ROUTING": "1", "NCCL_IB_SUBNET_PREFIX_LEN": "24",
                "NCCL_SOCKET_IFNAME": MANAGEMENT, "GLOO_SOCKET_IFNAME": MANAGEMENT, "NCCL_DEBUG": "INFO",
                "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET", "ENGINE_SYSFS": str(self.folder / f"sys{rank}/infiniband"),
                "ENGINE_DEV_INFINIBAND": str(self.folder / "dev"), "ENGINE_CONNECT_S": "2", "ENGINE_RENDEZVOUS_S": "20",
                "ENGINE_PEER_S": "3", "ENGINE_ALLREDUCE_BYTES": str(SIZE), "ENGINE_ALLREDUCE_REPS": "1",
                **OF_TOPOLOGY[self.world.topology], **self.more, **self.own.get(rank, {}),
            }  # fmt: skip
            inside = ["nsenter", f"--net=/run/netns/{self.world.node(rank)}"]
            command = [*inside, sys.executable, "-u", "-m", "engine", "rank"]
            with (self.folder / f"log{rank}").open("wb") as log:
                process = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
            self.processes.append(process)
        return self

    def log(self, rank: int) -> str:
        return (self.folder / f"log{rank}").read_text(errors="replace")

    def ready(self, seconds: float = 60) -> str:
        """Wait until rank 0 serves; its log."""
        deadline = time.monotonic() + seconds
        while "Uvicorn running" not in self.log(0):
            assert self.processes[0].poll() is None, self.log(0)
            assert time.monotonic() < deadline, self.log(0)
            time.sleep(0.05)
        return self.log(0)

    def fail(self, seconds: float = 60) -> None:
        """Wait until all have ended, each with 1."""
        assert [process.wait(seconds) for process in self.processes] == [1] * RANKS, self.log(0)

    def carried(self, rank: int) -> dict[str, int]:
        """Eighths of the share that each port of a rank has sent since before the start; none sent is left out."""
        after = self.world.sent()
        moved = {port: after[rank, port] - self.before[rank, port] for port in PORTS if (rank, port) in after}
        return {port: round(8 * count / SHARE) for port, count in moved.items() if round(8 * count / SHARE)}

    def end(self) -> None:
        """End the ranks that still run, by their own process groups."""
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def shares(log: str) -> dict[str, int]:
    """Bytes by device, of the engine's own line."""
    found = re.search(r"sums right.* sent by device: (.*)", log)
    assert found, log
    return {name: int(count) for name, count in re.findall(r"(\S+) (\d+)", found[1])}
