"""A node in a temporary folder: its card, its /sys, and an `ip` that knows its addresses."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from lab import standins
from lab.standins import view
from lab.standins.main import MARKER, TOOLS
from lab.standins.model import FUNCTIONS
from lab.standins.state import State

HERE = Path(standins.__file__).resolve().parent


class Bench:
    """One simulated node without a kernel of its own."""

    def __init__(self, root: Path, addresses: dict[str, str], macs: dict[str, str]) -> None:
        self.root = root
        self.state = State(root / "state", root / "sys", root / "lasting")
        self.bin, self.real = root / "bin", root / "real"
        for folder in (self.bin, self.real):
            folder.mkdir(parents=True)
        for name in TOOLS:
            (self.bin / name).symlink_to(HERE / "bin/standin")
        (self.bin / MARKER).symlink_to(HERE / "bin" / MARKER)
        script = self.real / "ip"
        script.write_text(f'#!/bin/sh\necho "$@" >> {root}/ip.log\n[ "$2" = address ] && cat {root}/ip.json\nexit 0\n')
        script.chmod(0o755)
        self.addresses, self.macs = dict(addresses), dict(macs)
        self.routes: list[dict[str, Any]] = [
            {"dst": f"{address.rsplit('.', 1)[0]}.0/24", "dev": dev} for dev, address in addresses.items()
        ]
        self.markers: list[subprocess.Popen[str]] = []
        (root / "sys/class/net/enP7s7").mkdir(parents=True)
        for function in FUNCTIONS:
            self._lay_out(function.netdev, function.rdma)
        self._write_addresses()

    def _lay_out(self, netdev: str, rdma: str) -> None:
        """The /sys of one port."""
        files = {
            f"net/{netdev}/address": self.macs[netdev],
            f"net/{netdev}/mtu": "9000",
            f"net/{netdev}/operstate": "up",
            f"net/{netdev}/ifindex": "3",
            f"infiniband/{rdma}/ports/1/state": "4: ACTIVE",
        }
        octets = "".join(f"{int(part):02x}" for part in self.addresses[netdev].split("."))
        gid = f"0000:0000:0000:0000:0000:ffff:{octets[:4]}:{octets[4:]}"
        for index, kind in ((2, "IB/RoCE v1"), (3, "RoCE v2")):
            files[f"infiniband/{rdma}/ports/1/gids/{index}"] = gid
            files[f"infiniband/{rdma}/ports/1/gid_attrs/types/{index}"] = kind
        for name, content in files.items():
            path = self.root / "sys/class" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content + "\n")

    def _write_addresses(self) -> None:
        """What `ip -j address` says."""
        rows = [
            {
                "ifname": dev,
                "address": self.macs[dev],
                "mtu": 9000,
                "flags": ["BROADCAST", "UP", "LOWER_UP"],
                "addr_info": [{"family": "inet", "local": address, "prefixlen": 24}],
            }
            for dev, address in self.addresses.items()
        ]
        (self.root / "ip.json").write_text(json.dumps(rows))

    @property
    def env(self) -> dict[str, str]:
        """Environment of the node's tools."""
        return os.environ | {
            "STANDINS_HOME": str(HERE.parent),
            "STANDINS_STATE": str(self.state.root),
            "STANDINS_SYS": str(self.state.sys),
            "STANDINS_LASTING": str(self.state.lasting),
            "STANDINS_REAL": str(self.real),
            "STANDINS_RELOAD_SECONDS": "0",
        }

    def run(self, command: str, **env: str) -> subprocess.CompletedProcess[str]:
        """One command line, as typed at the node."""
        tool, *words = shlex.split(command)
        argv = [sys.executable, "-IS", str(self.bin / tool), *words]
        return subprocess.run(argv, check=False, capture_output=True, text=True, env=self.env | env)

    def ok(self, command: str, **env: str) -> str:
        """The same, and it must succeed."""
        done = self.run(command, **env)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def type(self, command: str) -> None:
        """A tc command for the stand-in, or an `ip route add` for the table of this bench."""
        words = command.split()
        if words[0] == "ip":
            assert words[1:3] == ["route", "add"]
            pairs = dict(zip(words[4::2], words[5::2], strict=True))
            row = {"dst": words[3], "gateway": pairs["via"], "dev": pairs["dev"], "prefsrc": pairs["src"]}
            self.routes.append(row)
        else:
            self.ok(command)

    def mark(self, rdma: str, *more: str) -> tuple[subprocess.Popen[str], str]:
        """Start a marker; returns it with its line."""
        words = f"--device {rdma} --source-port 65535 --replacement-ethertype 0x88b5 --attach".split()
        process = subprocess.Popen(
            [sys.executable, "-IS", str(self.bin / MARKER), *words, *(more or ["--managed"])],
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.env,
        )
        self.markers.append(process)
        assert process.stdout
        return process, process.stdout.readline()

    def set_fault(self, name: str, value: str = "") -> None:
        """Have the card go wrong."""
        path = self.state.lasting / "faults" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value + "\n")

    def close(self) -> None:
        """End the markers."""
        for process in self.markers:
            process.kill()
            process.communicate()

    def view(self) -> dict[str, Any]:
        """As a walk reads it of a node."""
        before = os.environ.get("STANDINS_REAL")
        os.environ["STANDINS_REAL"] = str(self.real)
        try:
            taken: dict[str, Any] = json.loads(json.dumps(view.take(self.state)))
        finally:
            if before is None:
                del os.environ["STANDINS_REAL"]
        return taken
