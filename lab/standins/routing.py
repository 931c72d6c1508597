"""The node's own routes and neighbours, as the kernel answers, and frames that its kernel is to get."""

from __future__ import annotations

import contextlib
import json
import socket
import time

from . import system
from .words import Row

ROCE = 4791
DISCARD = 9  # the port that nobody answers
TRIES, PAUSE = 6, 0.1  # seconds; an answer comes in milliseconds, if one comes


def route(dst: str, src: str, dev: str) -> Row:
    """`gateway`, `dev` and `type` for a queue pair's path, whose source and port are bound by its GID; or `error`."""
    done = system.run("ip", "-j", "-4", "route", "get", dst, "from", src, "oif", dev)
    if done.returncode:
        return {"error": done.stderr.strip()}
    row = json.loads(done.stdout)[0]
    return {"gateway": row.get("gateway"), "dev": row.get("dev"), "type": row.get("type", "")}


def neighbour(address: str, dev: str) -> Row:
    """`lladdr` from the node's table, asked for on the wire where it has none; or `error`."""
    known = True
    for attempt in range(TRIES):
        done = system.run("ip", "-j", "-4", "neigh", "show", "to", address, "dev", dev)
        rows = json.loads(done.stdout or "[]")
        known = known and bool(rows)
        for row in rows:
            if "lladdr" in row and not {"FAILED", "INCOMPLETE"} & set(row.get("state", [])):
                return {"lladdr": row["lladdr"]}
        if attempt == 0:
            with _bound(dev) as asker, contextlib.suppress(OSError):
                asker.sendto(b"", (address, DISCARD))
        time.sleep(PAUSE)
    if not known:  # leave no trace that an `ip neigh add` would stumble over
        system.run("ip", "neigh", "del", address, "dev", dev)
    return {"error": f"no neighbour entry for {address} on {dev}"}


def emit(src: str, dst: str, sport: int, dev: str, count: int) -> int:
    """Send real datagrams as the frames of an unmarked queue pair, for kernels to count; returns how many went."""
    sent = 0
    with _bound(dev) as sender, contextlib.suppress(OSError):
        sender.bind((src, sport))
        for _ in range(count):
            sender.sendto(b"unmarked", (dst, ROCE))
            sent += 1
    return sent


def _bound(dev: str) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with contextlib.suppress(OSError):  # without the port nothing goes out by it
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, dev.encode())
    return sock
