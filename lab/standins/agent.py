"""lab-agent: answers other nodes' walks, and programs on this one, by TCP. Started by its socket."""

from __future__ import annotations

import json
import os
import socket
import socketserver
import traceback
from typing import Any

from . import questions

FIRST_SOCKET = 3  # where systemd puts it


class Handler(socketserver.StreamRequestHandler):
    """One request, one answer, a line each."""

    def handle(self) -> None:
        """Answer a line of JSON."""
        self.wfile.write(json.dumps(reply(self.rfile.readline())).encode() + b"\n")


def reply(line: bytes) -> dict[str, Any]:
    """`answer`, or `failure`: the error that the question caused."""
    try:
        return {"answer": questions.answer(json.loads(line))}
    except Exception:  # noqa: BLE001 - whatever it was, the asker must hear of it
        return {"failure": traceback.format_exc()}


class Server(socketserver.ThreadingTCPServer):
    """A thread for each question, on the socket that systemd has opened."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("", 0), Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = socket.socket(fileno=FIRST_SOCKET)


def main(_: str, __: list[str]) -> int:
    """Serve."""
    os.umask(0o022)
    with Server() as server:
        server.serve_forever()
    return 0
