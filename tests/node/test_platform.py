"""What a node says of itself besides its fabric: versions, memory, disks, folders, and who holds what."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest

from node import holders, observe, platform
from node.digest import sha256
from node.system import System
from tests.node.helpers import OWNER
from tests.node.machine import Machine

DRIVER = """\
NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.173.02  Release Build  (dvs-builder@U22)  Wed Oct 1
GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)
"""
DGX = 'DGX_NAME="DGX Spark"\nDGX_SWBUILD_VERSION="7.2.3"\n\nDGX_OTA_VERSION="7.3.1"\nDGX_OTA_VERSION="7.5.0"\n'
MEMORY = "MemTotal:       127601664 kB\nMemAvailable:   121000000 kB\nCmaTotal:       0 kB\nHugePages_Total:       0\n"
TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:22B8 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 101 1 0 100 0 0 10 0
   1: 0100007F:4E20 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 102 1 0 100 0 0 10 0
   2: 0100007F:22B8 0100007F:9999 01 00000000:00000000 00:00000000 00000000     0        0 103 1 0 100 0 0 10 0
"""
TCP6 = """\
  sl  local_address                         remote_address                        st tx_queue rx_queue inode
   0: 00000000000000000000000000000000:0016 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 104 1 0
"""


def process(machine: Machine, pid: int, parent: int, command: str, *handles: str) -> None:
    """A process of the machine, with what it holds open."""
    machine.put(f"/proc/{pid}/stat", f"{pid} (a (very) odd name) S {parent} 1 1 0")
    machine.put(f"/proc/{pid}/cmdline", command.replace(" ", "\0") + "\0")
    for number, handle in enumerate(handles):
        machine.put(f"/proc/{pid}/fd/.{number}", "")  # so that there is a folder
        machine.symlinks[f"/proc/{pid}/fd/{number}"] = handle


def seen(machine: Machine, part: str, **asked: Any) -> dict[str, Any]:
    return observe.observe(machine, OWNER, (part,), **asked)


# Platform


def test_levels_memory_and_boot_options_are_told(machine: Machine) -> None:
    machine.put("/etc/dgx-release", DGX)
    machine.put("/etc/os-release", 'PRETTY_NAME="Ubuntu 24.04.4 LTS"\nNAME="Ubuntu"\n')
    machine.put("/proc/driver/nvidia/version", DRIVER)
    machine.put("/proc/meminfo", MEMORY)
    machine.put("/proc/cmdline", "root=/dev/nvme0n1p2 kho=off\n")
    found = seen(machine, "platform")
    assert found["levels"] == {"system": "DGX OS 7.5.0", "driver": "580.173.02"}
    assert found["memory"] == {"total": 127601664 << 10, "available": 121000000 << 10, "cma_total": 0, "cma_free": None}
    assert found["boot_options"] == "root=/dev/nvme0n1p2 kho=off"


def test_a_machine_that_is_no_dgx_has_the_name_of_its_system_and_no_driver(machine: Machine) -> None:
    machine.put("/etc/os-release", 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.4 LTS"\n')
    assert seen(machine, "platform")["levels"] == {"system": "Ubuntu 24.04.4", "driver": None}
    machine.drop("/etc/os-release")
    assert seen(machine, "platform")["levels"]["system"] is None


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("", "/var/lib/docker"),
        ('{"data-root": "/data/docker"}', "/data/docker"),
        ("{", "/var/lib/docker"),
        ("[]", "/var/lib/docker"),
    ],
)
def test_the_disk_of_dockers_images_is_looked_at_where_it_is(text: str, path: str, machine: Machine) -> None:
    if text:
        machine.put("/etc/docker/daemon.json", text)
    machine.free = 5
    disks = seen(machine, "platform")["disks"]
    assert list(disks) == ["/etc", "/var/lib/spark-fabric", path]
    assert disks[path]["free"] == 5


def test_a_firmware_is_told_with_its_device(machine: Machine) -> None:
    machine.put("/sys/class/infiniband/rocep1s0f0/fw_ver", "28.45.4028\n")
    hcas = seen(machine, "hcas")["hcas"]
    assert hcas["rocep1s0f0"]["firmware"] == "28.45.4028"
    assert hcas["rocep1s0f1"]["firmware"] is None


# Folders


def test_folders_that_are_asked_for_are_told_with_their_files(machine: Machine) -> None:
    machine.put("/data/engram/engram-l1-r0of4.bin", "12345")
    machine.put("/data/engram/engram-l14-r0of4.bin", "")
    machine.put("/data/engram/dspark_sps.json", "{}")
    found = seen(machine, "folders", folders=["/data/engram", "/data/none"])["folders"]
    assert found["/data/engram"]["tables"] == {"dspark_sps.json": sha256(b"{}")}
    sizes = {"dspark_sps.json": 2, "engram-l1-r0of4.bin": 5, "engram-l14-r0of4.bin": 0}
    assert found["/data/engram"]["files"] == sizes
    assert found["/data/engram"]["there"]
    assert not found["/data/none"]["there"]


def test_a_real_folder_has_an_owner_and_a_mode_and_a_file_has_not(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o750)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").write_text("x")
    found = platform.folders(System(), [str(tmp_path / name) for name in ("real", "link", "file", "none")])
    own = {"owner": f"{os.getuid()}:{os.getgid()}", "mode": "0750", "writable": True}
    assert [one["folder"] for one in found.values()] == [own, own, None, None]


def test_a_folder_on_the_network_is_not_touched(machine: Machine) -> None:
    machine.put("/proc/self/mounts", "head:/x /models nfs4 rw 0 0\nproc /proc proc rw 0 0\n")
    machine.put("/models2/x", "")
    found = seen(machine, "folders", folders=["/models/a", "/models", "/models2"])["folders"]
    assert (found["/models/a"], found["/models"]) == (None, None)
    assert found["/models2"]["there"]


# Who holds what


def test_holders_of_devices_and_ports_are_told_apart_with_the_processes_above_them(machine: Machine) -> None:
    machine.put("/proc/net/tcp", TCP)
    machine.put("/proc/net/tcp6", TCP6)
    process(machine, 700, 1, "containerd-shim")
    process(machine, 701, 700, "python3 boot.py run")
    process(machine, 702, 701, "sglang", "socket:[101]", "/dev/nvidia-uvm", "/dev/infiniband/uverbs0", "/dev/null")
    process(machine, 800, 1, "nginx", "socket:[102]", "socket:[103]", "/dev/nvidiactl")
    found = observe.observe(machine, OWNER)
    assert [(one["pid"], one["parents"]) for one in found["rdma_users"]] == [(702, [701, 700])]
    assert [one["command"] for one in found["gpu_users"]] == ["sglang"]
    listeners = {one["port"]: (one["address"], one["pid"]) for one in found["listeners"]}
    assert listeners == {8888: (str(IPv4Address(0)), 702), 20000: ("127.0.0.1", 800), 22: ("::", None)}


def test_a_process_that_ends_while_it_is_looked_at_is_no_trouble(machine: Machine) -> None:
    process(machine, 900, 900, "gone", "/dev/nvidia-uvm")  # its own parent: what a reused number may look like
    machine.drop("/proc/900/cmdline")
    assert holders.observe(machine)["gpu_users"] == [{"pid": 900, "command": "", "parents": [900]}]


def test_a_real_listener_is_found_with_its_port_and_process() -> None:
    with socket.socket(socket.AF_INET6) as ours, socket.socket() as other:
        for one, address in ((ours, "::1"), (other, "127.0.0.1")):
            one.bind((address, 0))
            one.listen()
        ports = {ours.getsockname()[1]: "::1", other.getsockname()[1]: "127.0.0.1"}
        found = holders.observe(System())["listeners"]
    mine = {one["port"]: (one["address"], one["pid"]) for one in found if one["port"] in ports}
    assert mine == {port: (address, os.getpid()) for port, address in ports.items()}


def test_a_real_child_has_its_parents() -> None:
    program = (
        "import socket,sys; s=socket.create_server(('127.0.0.1',0)); print(s.getsockname()[1],flush=True); input()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdout
        port = int(child.stdout.readline())
        listener = next(one for one in holders.observe(System())["listeners"] if one["port"] == port)
        child.communicate("\n")
    assert (listener["pid"], listener["parents"][0]) == (child.pid, os.getpid())


def test_the_space_of_a_real_disk_is_that_of_the_nearest_folder() -> None:
    found = platform.folders(System(), ["/etc/no/such/folder"])["/etc/no/such/folder"]
    assert found["space"]["total"] == System().space("/etc")["total"] > 0  # type: ignore[index]
    assert System().space("/no/such/folder") is None
