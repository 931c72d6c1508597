"""TCP sockets that behave like queue pairs: bound to one device, never through a router."""

from __future__ import annotations

import json
import selectors
import socket
import struct
import threading
import time
from contextlib import suppress
from typing import Any

IP_PKTINFO, IP_PKTOPTIONS = 8, 9  # of linux/in.h
BUFFER = 1 << 20
GREETING = 10.0  # seconds that a connection may take to say who it is


class WireError(Exception):
    """A connection could not be made, or broke."""


def _confine(sock: socket.socket, netdev: str, fabric: bool) -> None:
    """Tie a socket to its interface; fabric packets may not cross a router."""
    if netdev:
        with suppress(PermissionError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, netdev.encode())
    if fabric:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_DONTROUTE, 1)


def send_message(sock: socket.socket, value: Any) -> None:
    """One JSON value, with its length before it."""
    body = json.dumps(value).encode()
    sock.sendall(struct.pack(">I", len(body)) + body)


def _exactly(sock: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = sock.recv(count - len(parts))
        if not part:
            raise WireError("connection closed by the other end")
        parts += part
    return bytes(parts)


def receive_message(sock: socket.socket) -> Any:
    """The next JSON value; the socket's own time limit holds."""
    (length,) = struct.unpack(">I", _exactly(sock, 4))
    return json.loads(_exactly(sock, length))


class Listener:
    """Accepts connections on some addresses and keeps them by their hello."""

    def __init__(self) -> None:
        self.ports: dict[str, int] = {}
        self.arrived: dict[str, socket.socket] = {}
        self.strays: list[str] = []
        self._news = threading.Condition()
        self._sockets: list[socket.socket] = []

    def open(self, address: str, netdev: str = "", fabric: bool = False) -> None:
        """Listen on one more address; it need not come in by the interface that holds it."""
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
        if fabric:
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 1)
        try:
            sock.bind((address, 0))
        except OSError as error:
            sock.close()
            raise WireError(f"{address} ({netdev}): {error.strerror}") from None
        sock.listen(64)
        self._sockets.append(sock)
        self.ports[address] = sock.getsockname()[1]
        threading.Thread(target=self._accept, args=(sock, netdev), daemon=True).start()

    def _accept(self, listening: socket.socket, netdev: str) -> None:
        while True:
            try:
                sock, _ = listening.accept()
            except OSError:
                if listening.fileno() < 0:
                    return
                continue
            # One that says nothing for a while, on a busy machine, keeps no other waiting.
            threading.Thread(target=self._greet, args=(sock, netdev), daemon=True).start()

    def _greet(self, sock: socket.socket, netdev: str) -> None:
        """Keep a connection that says who it is."""
        sock.settimeout(GREETING)
        try:
            hello = receive_message(sock)
        except (OSError, WireError, ValueError):
            sock.close()
            return
        with self._news:
            came_by = _incoming(sock)
            if netdev and came_by and came_by != netdev:
                self.strays.append(f"{hello} came in by {came_by}, not {netdev}")
            self.arrived[hello] = sock
            self._news.notify_all()

    def wait(self, hello: str, seconds: float) -> socket.socket:
        """The connection that announced itself so."""
        with self._news:
            if not self._news.wait_for(lambda: hello in self.arrived, seconds):
                raise WireError(f"no connection {hello!r} within {seconds:g} s")
            return self.arrived[hello]

    def close(self) -> None:
        """Stop accepting; connections stay."""
        for sock in self._sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()


def _incoming(sock: socket.socket) -> str:
    """Interface by which a connection's first packet came in, where the kernel tells."""
    try:
        options = sock.getsockopt(socket.IPPROTO_IP, IP_PKTOPTIONS, 128)
        index = struct.unpack_from("I", options, struct.calcsize("@Nii"))[0]
        return socket.if_indextoname(index)
    except (OSError, struct.error):
        return ""


def connect(
    local: tuple[str, str], remote: tuple[str, int], hello: str, seconds: float, fabric: bool = True
) -> socket.socket:
    """Connect from one device's address to a listener, and announce oneself."""
    netdev, address = local
    deadline = time.monotonic() + seconds
    while True:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            _confine(sock, netdev, fabric)
            sock.settimeout(max(0.1, deadline - time.monotonic()))
            if address:
                sock.bind((address, 0))
            sock.connect(remote)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            send_message(sock, hello)
            return sock
        except OSError as error:
            sock.close()
            if not isinstance(error, ConnectionRefusedError) or time.monotonic() > deadline:
                raise WireError(str(error.strerror or error)) from None
            time.sleep(0.1)


def _part(sock: socket.socket, most: int) -> bytes:
    part = sock.recv(min(BUFFER, most))
    if not part:
        raise WireError("connection closed by the other end")
    return part


def exchange(out: socket.socket, data: bytes, source: socket.socket, count: int, seconds: float) -> bytes:
    """Send and receive at the same time."""
    deadline = time.monotonic() + seconds
    pending, received = memoryview(data), bytearray()
    out.setblocking(False)
    source.setblocking(False)
    with selectors.DefaultSelector() as selector:
        while pending or len(received) < count:
            wanted: dict[socket.socket, int] = {}
            if len(received) < count:
                wanted[source] = selectors.EVENT_READ
            if pending:
                wanted[out] = wanted.get(out, 0) | selectors.EVENT_WRITE
            for key in list(selector.get_map().values()):
                selector.unregister(key.fileobj)
            for sock, events in wanted.items():
                selector.register(sock, events)
            left = deadline - time.monotonic()
            ready = selector.select(min(max(0.0, left), 60))
            if not ready and left <= 0:
                raise WireError(f"nothing moved for {seconds:g} s")
            for key, events in ready:
                try:
                    if events & selectors.EVENT_READ:
                        received += _part(source, count - len(received))
                    if events & selectors.EVENT_WRITE and key.fileobj is out:
                        pending = pending[out.send(pending[:BUFFER]) :]
                except BlockingIOError:
                    continue
                except OSError as error:
                    raise WireError(str(error.strerror)) from None
    return bytes(received)
