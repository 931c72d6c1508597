"""The API of rank 0."""

from __future__ import annotations

import hmac
import json
import shlex
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from . import chat, faults
from .settings import Settings

OPEN_PATHS = ("/health", "/health_generate", "/metrics")
Step = Callable[[int], str]


class Api(ThreadingHTTPServer):
    """Serves until it is shut down; every answer needs one step of all ranks."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, settings: Settings, step: Step) -> None:
        self.settings, self.step = settings, step
        wrong = faults.find(faults.parse(settings.env.get("ENGINE_FAULT", ""), settings.rank), "wrong")
        report = "--enable-cache-report" in shlex.split(settings.env.get("EXTRA_SGLANG_ARGS", ""))
        self.chat = chat.Chat(settings.model_name, slip=1 if wrong else 0, report=report)
        super().__init__((settings.host, settings.port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Api

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named so above us
        """Requests are not logged."""

    def _reply(self, status: int, value: Any = None) -> None:
        body = b"" if value is None else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _admitted(self) -> bool:
        key = self.server.settings.api_key
        given = self.headers.get("Authorization", "")
        if not key or self.path.split("?")[0] in OPEN_PATHS:
            return True
        if hmac.compare_digest(given.encode(), f"Bearer {key}".encode()):
            return True
        self._reply(401, {"error": "Unauthorized"})
        return False

    def do_GET(self) -> None:
        """Health and the list of models."""
        path = self.path.split("?")[0]
        if not self._admitted():
            return
        settings = self.server.settings
        if path == "/health":
            self._reply(200)
        elif path == "/health_generate":
            problem = self.server.step(0)
            self._reply(503 if problem else 200)
        elif path == "/v1/models":
            model = {
                "id": settings.model_name,
                "object": "model",
                "created": int(time.time()),
                "owned_by": "sglang",
                "root": settings.model_name,
                "max_model_len": int(settings.number("CONTEXT_LENGTH", 409600)),
            }
            self._reply(200, {"object": "list", "data": [model]})
        else:
            self._reply(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        """Chat completions."""
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if not self._admitted():
            return
        if self.path.split("?")[0] != "/v1/chat/completions":
            self._reply(404, {"detail": "Not Found"})
            return
        try:
            request = json.loads(body)
            reply = self.server.chat.answer(request)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            self._reply(400, {"object": "error", "message": str(error), "code": 400})
            return
        problem = self.server.step(reply["usage"]["prompt_tokens"])
        if problem:
            self._reply(500, {"object": "error", "message": problem, "code": 500})
        elif request.get("stream"):
            self._stream(reply)
        else:
            self._reply(200, reply)

    def _stream(self, reply: dict[str, Any]) -> None:
        """The same answer as server-sent events: one delta, one end."""
        choice = reply["choices"][0]
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        base = {**reply, "object": "chat.completion.chunk"}
        base.pop("usage")
        for delta, reason in ((choice["message"], None), ({}, choice["finish_reason"])):
            part = {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
            self.wfile.write(f"data: {json.dumps(part)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")
