"""How a walk reaches the nodes: through their agents, or in a record."""

from __future__ import annotations

import ipaddress
import json
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from .words import Row

PORT = 18500  # of the agents
TIMEOUT = 10.0  # seconds


class AccessError(Exception):
    """A node did not answer."""


class Node(Protocol):
    """A node that a walk may ask."""

    @property
    def name(self) -> str:
        """What it calls itself on the wires."""

    def call(self, op: str, **words: Any) -> Any:
        """Ask one of the questions in questions.py; an AccessError if there is no answer."""


@dataclass(frozen=True)
class AgentNode:
    """A node whose agent is asked over the management network."""

    name: str
    address: str

    def call(self, op: str, **words: Any) -> Any:
        """Ask one question."""
        try:
            with socket.create_connection((self.address, PORT), timeout=TIMEOUT) as connection:
                connection.sendall(json.dumps({"op": op, **words}).encode() + b"\n")
                with connection.makefile() as answer:
                    reply = json.loads(answer.readline())
        except (OSError, ValueError) as error:
            raise AccessError(f"{self.name}: {error}") from None
        if "failure" in reply:
            raise AccessError(f"{self.name}: {reply['failure']}")
        return reply["answer"]


@dataclass
class RecordedNode:
    """A node as it was: its `view` (view.py), `routes` and `neighbours` as `ip -j` shows them."""

    name: str
    view: Row
    routes: list[Row]
    neighbours: list[Row]

    def call(self, op: str, **words: Any) -> Any:
        """Answer from the record."""
        if op == "view":
            return self.view
        answers: dict[str, Callable[..., Row]] = {"route": self._route, "neighbour": self._neighbour}
        return answers[op](**words)

    def _route(self, dst: str, src: str, dev: str) -> Row:
        """Longest prefix among the routes of the port, as the kernel does for a bound source."""
        if src not in self.view["local"]:
            return {"error": "RTNETLINK answers: Invalid argument"}
        fitting = []
        for row in self.routes:
            prefix = ipaddress.IPv4Network("0.0.0.0/0" if row["dst"] == "default" else row["dst"])
            if row.get("dev") == dev and ipaddress.IPv4Address(dst) in prefix:
                fitting.append((prefix.prefixlen, -row.get("metric", 0), row))
        if not fitting:
            return {"gateway": None, "dev": dev, "type": ""}  # taken to be on the link
        row = max(fitting, key=lambda entry: entry[:2])[2]
        return {"gateway": row.get("gateway"), "dev": dev, "type": row.get("type", "unicast")}

    def _neighbour(self, address: str, dev: str) -> Row:
        for row in self.neighbours:
            if (row["dst"], row["dev"]) == (address, dev) and "lladdr" in row:
                return {"lladdr": row["lladdr"]}
        return {"error": f"no neighbour entry for {address} on {dev}"}
