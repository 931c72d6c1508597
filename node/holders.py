"""Who holds devices and ports of this machine: one walk through the open files of all processes."""

import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any

from .system import System

RDMA = "/dev/infiniband/uverbs"
GPU = "/dev/nvidia-uvm"
"""What programs with CUDA hold open; a desktop and the driver's own services do not."""

MARKERS = "dsv41-mesh-marker@"
"""How the units of the mesh's markers begin."""

LISTENING = " 0A "  # in a line of /proc/net/tcp: in no other field of it

Json = dict[str, Any]


def held(system: System, wanted: Callable[[str], bool]) -> Iterator[tuple[str, list[str]]]:
    """Each process that has something wanted open, as text, with what its handles lead to."""
    for pid in (name for name in system.names("/proc") if name.isdigit()):
        handles = (system.target(f"/proc/{pid}/fd/{name}") for name in system.names(f"/proc/{pid}/fd"))
        found = [handle for handle in handles if wanted(handle)]
        if found:
            yield pid, found


def describe(system: System, pid: str) -> Json:
    """A process for people."""
    command = (system.read(f"/proc/{pid}/cmdline") or b"").replace(b"\0", b" ").decode(errors="replace").strip()
    return {"pid": int(pid), "command": command[:200]}


def marker_unit(system: System, pid: int) -> str:
    """The unit of the mesh that a process belongs to, "" where it belongs to none."""
    group = (system.read(f"/proc/{pid}/cgroup") or b"").decode(errors="replace")
    return next((part for part in group.replace("\n", "/").split("/") if part.startswith(MARKERS)), "")


def rdma_users(system: System) -> list[Json]:
    """The processes that hold an RDMA device open and would miss it.

    A marker of the mesh is none: no data goes through it, and the mesh's own stages stop and start it.
    """
    found = held(system, lambda handle: handle.startswith(RDMA))
    return [describe(system, pid) for pid, _ in found if not marker_unit(system, int(pid))]


def observe(system: System) -> Json:
    """Users of RDMA devices and of the GPU, and who listens on which TCP port. Each with the processes above it.

    A listener of the kernel has no process.
    """
    sockets = _listening(system)
    found: dict[str, list[Json]] = {"rdma_users": [], "gpu_users": [], "listeners": []}
    known = {f"socket:[{inode}]": place for inode, place in sockets.items()}
    seen: set[str] = set()
    for pid, handles in held(system, lambda handle: handle.startswith((RDMA, GPU)) or handle in known):
        process = {**describe(system, pid), "parents": _parents(system, pid)}
        if any(handle.startswith(RDMA) for handle in handles) and not marker_unit(system, int(pid)):
            found["rdma_users"].append(process)
        if any(handle.startswith(GPU) for handle in handles):
            found["gpu_users"].append(process)
        places = {handle: known[handle] for handle in handles if handle in known}
        found["listeners"] += [{**place, **process} for place in places.values()]
        seen |= places.keys()
    found["listeners"] += [{**known[handle], "pid": None, "command": ""} for handle in sorted(known.keys() - seen)]
    return found


def _parents(system: System, pid: str) -> list[int]:
    """The processes above one, nearest first."""
    found: list[int] = []
    while True:
        # The name, in parentheses, may hold anything.
        fields = (system.text(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()
        if len(fields) < 2 or fields[1] in ("0", "1") or int(fields[1]) in found:
            return found
        pid = fields[1]
        found.append(int(pid))


def _listening(system: System) -> dict[str, Json]:
    """Where somebody listens with TCP, by the inode of the socket."""
    found = {}
    for family, name in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        for line in (system.text(f"/proc/net/{name}") or "").splitlines():
            if LISTENING in line:
                fields = line.split()
                address, _, port = fields[1].partition(":")
                found[fields[9]] = {"address": _address(family, address), "port": int(port, 16)}
    return found


def _address(family: socket.AddressFamily, text: str) -> str:
    """An address as the kernel prints it: words of four bytes, each in the machine's own order."""
    words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    return socket.inet_ntop(family, b"".join(word.to_bytes(4, sys.byteorder) for word in words))
