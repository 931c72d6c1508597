"""Which ports hear which: every node announces its ports on their wires, and listens."""

from __future__ import annotations

import contextlib
import socket
import struct
import time

from .model import FUNCTIONS

ETHERTYPE = 0x88B6  # the second local experimental one (IEEE 802)
MAGIC = b"lab wire "
EVERY, QUIET, LONGEST = 0.03, 0.2, 1.0  # seconds
Heard = tuple[str, str, str]  # my netdev, node, its netdev


def listen(node: str) -> list[Heard]:
    """Announce every port and report what was heard, when for a while nothing new was and every port heard a node."""
    sockets = _open()
    heard: set[Heard] = set()
    began = news = time.monotonic()
    shout = 0.0
    with contextlib.ExitStack() as stack:
        for link in sockets.values():
            stack.enter_context(link)
        while (now := time.monotonic()) - began < LONGEST:
            if _complete(sockets, heard, node) and now - news > QUIET:
                break
            if now >= shout:
                shout = now + EVERY
                _announce(sockets, node)
            if new := _receive(sockets) - heard:
                heard |= new
                news = now
            time.sleep(0.005)
    return sorted(heard)


def _open() -> dict[str, socket.socket]:
    sockets = {}
    for function in FUNCTIONS:
        with contextlib.suppress(OSError):  # no such port now
            link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETHERTYPE))
            link.bind((function.netdev, ETHERTYPE))
            link.setblocking(False)
            sockets[function.netdev] = link
    return sockets


def _announce(sockets: dict[str, socket.socket], node: str) -> None:
    for netdev, link in sockets.items():
        words = MAGIC + f"{node} {netdev} ".encode()
        frame = b"\xff" * 6 + link.getsockname()[4] + struct.pack("!H", ETHERTYPE) + words.ljust(46)
        with contextlib.suppress(OSError):  # down
            link.send(frame)


def _receive(sockets: dict[str, socket.socket]) -> set[Heard]:
    heard = set()
    for netdev, link in sockets.items():
        with contextlib.suppress(OSError):  # nothing more
            while True:
                frame, origin = link.recvfrom(2048)
                if frame[14:].startswith(MAGIC) and origin[2] != socket.PACKET_OUTGOING:
                    node, port = frame[14 + len(MAGIC) :].decode().split()[:2]
                    heard.add((netdev, node, port))
    return heard


def _complete(sockets: dict[str, socket.socket], heard: set[Heard], node: str) -> bool:
    """Whether every port that has carrier has heard another node."""
    far = {netdev for netdev, other, _ in heard if other != node}
    return all(netdev in far for netdev in sockets if _has_carrier(netdev))


def _has_carrier(netdev: str) -> bool:
    try:
        with open(f"/sys/class/net/{netdev}/carrier") as file:
            return file.read().strip() == "1"
    except OSError:  # down, or gone
        return False
