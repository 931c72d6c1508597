"""`cabling` on real links, in a network namespace of the test's own with a bridge for a cable; and what frames say."""

from __future__ import annotations

import errno
import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from node import cabling, observe
from node.request import Failure
from node.system import System
from tests.node.machine import Machine

ROOT = Path(__file__).resolve().parent.parent.parent
PORT = {"netdev": "enp1s0f0np0", "hca": "rocep1s0f0", "domain": 0, "function": 0, "mac": "02:5a:ab:00:01:11"}
WHO = {"node": "spark1", **PORT}

# Node a has the devices a0 (PCI domain 0) and a2 (domain 2), node b likewise; all are on one wire.
NETWORK = """set -e
ip link add name wire type bridge mcast_snooping 0
ip link set wire up
for port in a0 a2 b0 b2; do
    ip link add name $port type veth peer name $port-far
    ip link set $port-far master wire up
    ip link set $port up
done
"""

LISTEN = """
import json, sys
from node.cabling import cabling
from node.system import System
root, node, run, seconds = sys.argv[1:]
print(json.dumps(cabling(System(root), node, {"run": run, "seconds": float(seconds)})))
"""

UNSHARE = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--net", "--map-root-user"]


def namespaces() -> bool:
    """Whether this user may make a network namespace with links in it."""
    try:
        made = subprocess.run([*UNSHARE, "ip", "link", "add", "name", "x", "type", "veth"], check=False)
    except FileNotFoundError:
        return False
    return made.returncode == 0


def sysfs(root: Path, node: str) -> Path:
    """Files that make a node of two devices."""
    for domain in (0, 2):
        device = root / f"sys/devices/{domain:04x}:01:00.0/net/{node}{domain}"
        device.mkdir(parents=True)
        hca = root / f"sys/class/infiniband/hca{domain}"
        hca.mkdir(parents=True)
        (hca / "device").symlink_to(device.parent.parent)
    return root


def call(root: Path, node: str, run: str = "1", seconds: float = 2.0) -> str:
    """The shell command that lets a node listen; its answer goes to a file."""
    words = [sys.executable, "-c", LISTEN, str(sysfs(root / node, node)), node, run, str(seconds)]
    return f"{shlex.join(words)} >{root}/{node}.json &\n"


def listening(root: Path, before: str = "", nodes: str = "ab") -> dict[str, Any]:
    """What the nodes hear of each other once the shell text `before` has run; the links as they are then, in a file."""
    script = f"{NETWORK}{before}\n{''.join(call(root, node) for node in nodes)}wait\nip -j -d link >{root}/links.json"
    subprocess.run([*UNSHARE, "sh", "-c", script], check=True, cwd=ROOT, timeout=60)
    return {node: json.loads((root / f"{node}.json").read_text())["ports"] for node in nodes}


def names(port: dict[str, Any]) -> list[str]:
    return [f"{who['node']} {who['netdev']}" for who in port["heard"]]


real = pytest.mark.skipif(not namespaces(), reason="no network namespace can be made")


@real
def test_each_device_hears_its_twin_and_both_of_the_far_port(tmp_path: Path) -> None:
    found = listening(tmp_path)
    assert [(port["netdev"], port["domain"], port["function"]) for port in found["a"]] == [("a0", 0, 0), ("a2", 2, 0)]
    assert names(found["a"][0]) == ["a a2", "b b0", "b b2"]
    assert names(found["a"][1]) == ["a a0", "b b0", "b b2"]
    assert names(found["b"][0]) == ["a a0", "a a2", "b b2"]
    far = found["a"][0]["heard"][1]
    mac = next(port["mac"] for port in found["b"] if port["netdev"] == "b0")
    assert far == {"node": "b", "netdev": "b0", "hca": "hca0", "domain": 0, "function": 0, "mac": mac}
    assert all(port["up"] and port["carrier"] and not port["error"] for port in found["a"])


@real
def test_nothing_of_a_port_is_changed(tmp_path: Path) -> None:
    """Looked at all the time: flags, promiscuity, groups."""
    show = f"(ip -j -d link; ip -j maddress) >>{tmp_path}/looks"
    watch = f"{{ for look in $(seq 30); do {show}; sleep 0.1; done; }} &\n"
    found = listening(tmp_path, before=f"ip link set a2 down; sleep 0.3; {show}\n{watch}")
    assert names(found["a"][0]) == ["b b0", "b b2"]
    shown = [json.loads(line) for line in (tmp_path / "looks").read_text().splitlines()]
    kept = ("flags", "promiscuity", "allmulti", "maddr")
    looks = [{link["ifname"]: [link.get(key) for key in kept] for link in part} for part in shown]
    assert looks[0]["a0"][1:3] == [0, 0]
    assert len(looks) == 62
    for links, groups in zip(looks[::2], looks[1::2], strict=True):
        assert (links, groups) == (looks[0], looks[1])


@real
def test_a_port_that_is_down_is_told_and_heard_by_nobody(tmp_path: Path) -> None:
    found = listening(tmp_path, before="ip link set a2 down; ip link set b2-far down")
    down, cut = found["a"][1], found["b"][1]
    assert (down["up"], down["carrier"], down["heard"]) == (False, False, [])
    assert (cut["up"], cut["carrier"], cut["heard"]) == (True, False, [])
    assert names(found["a"][0]) == ["b b0"]


@real
def test_who_speaks_of_another_run_is_not_heard(tmp_path: Path) -> None:
    found = listening(tmp_path, before=call(tmp_path, "b", run="2", seconds=4), nodes="a")
    assert names(found["a"][0]) == ["a a2"]


# Frames


def test_a_frame_says_who_sent_it_and_only_to_its_own_run() -> None:
    frame = cabling.announcement(PORT, "run-1", "spark1")
    assert frame[:14] == bytes.fromhex("ffffffffffff" + "025aab000111" + "88b6")
    assert 60 <= len(frame) <= 1514
    assert cabling.heard(frame, "run-1") == WHO
    assert cabling.heard(frame, "run-2") is None


def _frames() -> Iterator[bytes]:
    head = cabling.announcement(PORT, "run-1", "spark1")[:14]
    whole = {"run": "run-1", **WHO}
    yield b""
    yield head
    yield head + b"something else"
    values: tuple[Any, ...] = (None, [], "x", {}, {"run": "run-1"}, {**whole, "node": 7}, {**whole, "function": "0"})
    for value in values:
        yield head + cabling.MAGIC + json.dumps(value).encode()
    yield head + cabling.MAGIC + b"{"
    yield head + cabling.MAGIC + b"\xff\xfe"
    yield head + cabling.MAGIC + b"[" * 1400


@pytest.mark.parametrize("frame", [*_frames()])
def test_what_anybody_else_sends_is_no_announcement(frame: bytes) -> None:
    assert cabling.heard(frame, "run-1") is None


def test_a_port_whose_pci_place_is_unknown_can_be_heard() -> None:
    frame = cabling.announcement({**PORT, "domain": None, "function": None}, "run-1", "spark1")
    assert cabling.heard(frame, "run-1") == {**WHO, "domain": None, "function": None}


# The machine


@pytest.mark.parametrize(
    "desired", [{}, {"run": "1"}, {"run": "", "seconds": 1}, {"run": "1", "seconds": 0}, {"run": "1", "seconds": 60}]
)
def test_a_request_without_run_or_with_wrong_seconds_is_refused(machine: Machine, desired: dict[str, Any]) -> None:
    with pytest.raises(Failure) as refused:
        cabling.cabling(machine, "spark1", desired)
    assert refused.value.code == 3


def test_the_port_that_the_caller_came_in_by_takes_no_part(machine: Machine) -> None:
    links = observe.observe(machine, None, ("links", "hcas"))["links"]
    address = next(iter(links["enP7s7"]["addresses"])).split("/")[0]
    assert {port["netdev"] for port in cabling._ports(machine)} == {
        "enp1s0f0np0", "enp1s0f1np1", "enP2p1s0f0np0", "enP2p1s0f1np1"
    }  # fmt: skip
    machine.links["enp1s0f0np0"]["addresses"] = [f"{address}/24"]
    machine.links["enP7s7"]["addresses"] = []
    assert "enp1s0f0np0" not in {port["netdev"] for port in cabling._ports(machine)}


def test_ports_are_told_as_they_are_at_the_end(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that has just booted brings its ports up while others listen already."""
    machine.links["enp1s0f0np0"] |= {"up": False, "carrier": False}
    listened: list[str] = []

    def listen(_: System, ports: dict[str, Any], *__: Any) -> None:
        listened.extend(ports)
        machine.links["enp1s0f0np0"] |= {"up": True, "carrier": True}
        del machine.links["enp1s0f1np1"]

    monkeypatch.setattr(cabling, "_listen", listen)
    ports = {one["netdev"]: one for one in cabling.cabling(machine, "spark1", {"run": "1", "seconds": 1})["ports"]}
    assert sorted(listened) == ["enP2p1s0f0np0", "enP2p1s0f1np1", "enp1s0f1np1"]
    late, gone = ports["enp1s0f0np0"], ports["enp1s0f1np1"]
    assert (late["up"], late["carrier"], late["heard"]) == (True, True, [])
    assert (gone["up"], gone["carrier"]) == (False, False)


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.ENOBUFS])
@pytest.mark.parametrize("always", [False, True])
def test_a_queue_that_is_full_for_a_moment_is_no_error(machine: Machine, code: int, always: bool) -> None:
    sides = []

    class Full:
        """A socket whose queue is full at first, or always."""

        def __init__(self) -> None:
            self.left = 10**6 if always else 3
            self.real, self.far = socket.socketpair()

        def fileno(self) -> int:
            return self.real.fileno()

        def send(self, frame: bytes) -> int:
            self.left -= 1
            if self.left >= 0:
                raise OSError(code, os.strerror(code))
            return len(frame)

        def close(self) -> None:
            self.real.close()
            self.far.close()

    def frames(netdev: str, ethertype: int) -> Any:
        sides.append(Full())
        return sides[-1]

    machine.frames = frames  # type: ignore[method-assign]
    machine.clock = iter(time / 20 for time in range(1000)).__next__  # type: ignore[method-assign]
    (port, *_) = cabling.cabling(machine, "spark1", {"run": "1", "seconds": 1})["ports"]
    assert port["error"] == ("its queue was full all the time: no announcement went out" if always else "")


def test_a_port_that_gives_no_socket_is_told(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def frames(_: System, netdev: str, ethertype: int) -> Any:
        raise OSError(1, f"not permitted on {netdev} for {ethertype:04x}")

    monkeypatch.setattr(System, "frames", frames)
    monkeypatch.setattr(machine, "clock", iter(range(1000)).__next__)
    (port, *_) = cabling.cabling(machine, "spark1", {"run": "1", "seconds": 1})["ports"]
    assert port["error"] == "[Errno 1] not permitted on enP2p1s0f0np0 for 88b6"
    assert port["heard"] == []
