"""HTTP with sockets only: `http.client` takes longer to load than everything that we ask of it."""

import socket

_LIMIT = 16_000_000  # bytes of an answer


def call(address: str | tuple[str, int], method: str, path: str, timeout: float) -> tuple[int, bytes]:
    """Status and body of one HTTP/1.0 request to a Unix socket or a host and port.

    Raises `OSError` where nobody answers, or nothing that is HTTP, or not in `timeout` seconds.
    """
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        connection.connect(address)
        connection.sendall(f"{method} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".encode())
        answer = bytearray()
        while len(answer) < _LIMIT and (part := connection.recv(65536)):
            answer += part
    head, _, body = bytes(answer).partition(b"\r\n\r\n")
    words = head.split(maxsplit=2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        message = f"{address} does not answer in HTTP: {head[:80]!r}"
        raise OSError(message)
    return int(words[1]), body
