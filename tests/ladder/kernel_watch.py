"""Runs on a node and writes down, with its own clock, what the kernel does to the fabric ports. Standard library only.

Independent of who makes a change and how: a daemon that reacts a second later is seen, and so is a value written
straight to /proc/sys. One JSON object a line: {"time": ns since 1970, "kind": "link", "text": "…"}.
"""

import ctypes
import json
import os
import struct
import subprocess
import threading
import time
from pathlib import Path

FOLDER = Path("/run/kernel-watch")
LOG, LEADER = FOLDER / "log", FOLDER / "pid"
FABRIC = ("enp1s0f", "enP2p1s0f")
VALUES = (
    "ipv4/conf/{}/arp_ignore",
    "ipv4/conf/{}/arp_announce",
    "ipv6/conf/{}/addr_gen_mode",
    "ipv6/conf/{}/disable_ipv6",
)
MODIFIED = 2  # IN_MODIFY of inotify.h
HEADER = struct.Struct("iIII")


def write(kind: str, text: str) -> None:
    """One line, whole: several threads write here."""
    line = json.dumps({"time": time.time_ns(), "kind": kind, "text": text}) + "\n"
    handle = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(handle, line.encode())
    os.close(handle)


def follow(kind: str) -> None:
    """Everything that the kernel announces of links, addresses or routes of the fabric ports."""
    command = ["/usr/sbin/ip", "-o", "monitor", kind]  # not the wrapper that records calls
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as monitor:
        for line in monitor.stdout or ():
            if any(name in line for name in FABRIC):
                write(kind, " ".join(line.replace("\\", " ").split()))


def follow_values() -> None:
    """Every write to a kernel value that shapes the fabric."""
    libc = ctypes.CDLL(None)
    handle = libc.inotify_init()
    ports = [path.name for path in Path("/sys/class/net").iterdir() if path.name.startswith(FABRIC)]
    paths = ["ipv4/ip_forward", *(value.format(port) for value in VALUES for port in ports)]
    watched = {libc.inotify_add_watch(handle, f"/proc/sys/net/{path}".encode(), MODIFIED): path for path in paths}
    while True:
        data, place = os.read(handle, 65536), 0
        while place < len(data):
            number, _, _, length = HEADER.unpack_from(data, place)
            place += HEADER.size + length
            write("value", watched.get(number, f"watch {number}"))


def main() -> None:
    """Entry point: watches until its process group is ended."""
    FOLDER.mkdir(exist_ok=True)
    for kind in ("link", "address", "route"):
        threading.Thread(target=follow, args=(kind,)).start()
    threading.Thread(target=follow_values).start()
    time.sleep(0.5)  # until all of them listen
    LEADER.write_text(str(os.getpgid(0)))


if __name__ == "__main__":
    main()
