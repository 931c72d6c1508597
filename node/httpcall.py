"""HTTP with sockets only: `http.client` takes longer to load than everything that we ask of it."""

import socket
import time

_LIMIT = 16_000_000  # bytes of an answer
_SHORTEST = 0.001  # seconds; a socket takes zero for "do not wait"


def call(
    address: str | tuple[str, int], method: str, path: str, timeout: float, body: bytes = b"", headers: str = ""
) -> tuple[int, bytes]:
    """Status and body of one HTTP/1.0 request to a Unix socket or a host and port.

    `headers` are whole lines, each with its CRLF. Raises `OSError` where nobody answers, or nothing that is HTTP,
    or not all of it in `timeout` seconds, however steadily it comes.
    """
    status, _, content = _exchange(address, f"{method} {path}", timeout, body, headers)
    return status, content


def server(address: str, path: str, timeout: float) -> str:
    """What answers a GET by its own word, the header `Server`; "" without one. Raises `OSError` as `call` does."""
    _, head, _ = _exchange(address, f"GET {path}", timeout)
    lines = (line.partition(b":") for line in head.splitlines())
    return next((value.strip().decode(errors="replace") for name, _, value in lines if name.lower() == b"server"), "")


def _exchange(
    address: str | tuple[str, int], request: str, timeout: float, body: bytes = b"", headers: str = ""
) -> tuple[int, bytes, bytes]:
    """Status, headers and body of the answer."""
    end = time.monotonic() + timeout
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        connection.connect(address)
        head = f"{request} HTTP/1.0\r\nHost: localhost\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
        connection.settimeout(max(_SHORTEST, end - time.monotonic()))
        connection.sendall(head.encode() + body)
        answer = bytearray()
        while len(answer) < _LIMIT and (part := _receive(connection, end - time.monotonic())):
            answer += part
    first, _, content = bytes(answer).partition(b"\r\n\r\n")
    words = first.split(maxsplit=2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        message = f"{address} does not answer in HTTP: {first[:80]!r}"
        raise OSError(message)
    return int(words[1]), first, content


def _receive(connection: socket.socket, left: float) -> bytes:
    if left <= 0:
        raise TimeoutError("timed out")
    connection.settimeout(max(_SHORTEST, left))
    return connection.recv(65536)
