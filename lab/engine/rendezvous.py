"""The store of rank 0 at DIST_INIT_ADDR, and the mesh of sockets between all ranks (Gloo)."""

from __future__ import annotations

import socket
import time
from typing import Any

from . import wire
from .fabric import interface_address
from .settings import ALL_HOSTS, Settings, disagreements, shared


class RendezvousError(Exception):
    """The ranks did not come together, or do not fit together."""


class PeerLost(Exception):
    """Another rank is gone, or has not answered within the limit."""


class Group:
    """All ranks, joined through rank 0."""

    def __init__(self, settings: Settings) -> None:
        self.rank, self.size = settings.rank, settings.nodes
        self.sockets: dict[int, socket.socket] = {}
        self.mesh: dict[int, socket.socket] = {}
        self.broken: set[int] = set()
        limit = settings.number("ENGINE_RENDEZVOUS_S", 300)
        if self.size > 1:
            if self.rank:
                self._join(settings, limit)
            else:
                self._gather(settings, limit)

    def _gather(self, settings: Settings, limit: float) -> None:
        """Rank 0: accept the others, and compare what they were given."""
        deadline = time.monotonic() + limit
        environments: dict[int, dict[str, str]] = {0: shared(settings.env)}
        problems: list[str] = []
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                server.bind((ALL_HOSTS, settings.rendezvous[1]))
            except OSError as error:
                raise RendezvousError(f"port {settings.rendezvous[1]}: {error.strerror}") from None
            server.listen(64)
            while len(environments) < self.size:
                server.settimeout(max(0.01, deadline - time.monotonic()))
                try:
                    sock, _ = server.accept()
                    sock.settimeout(10)
                    hello = wire.receive_message(sock)
                    rank = int(hello["rank"])
                except TimeoutError:
                    if time.monotonic() < deadline:
                        continue
                    missing = sorted(set(range(self.size)) - set(environments))
                    raise RendezvousError(f"ranks {missing} did not join within {limit:g} s") from None
                except (OSError, wire.WireError, ValueError, KeyError, TypeError):
                    continue
                if rank in environments or not 0 < rank < self.size:
                    problems.append(f"NODE_RANK: {rank} joined twice or is out of range")
                    wire.send_message(sock, problems)
                    break
                environments[rank], self.sockets[rank] = hello["env"], sock
        if not problems:
            problems = disagreements([environments[rank] for rank in range(self.size)])
        for sock in self.sockets.values():
            wire.send_message(sock, problems)
        if problems:
            raise RendezvousError("ranks disagree: " + " | ".join(problems))

    def _join(self, settings: Settings, limit: float) -> None:
        """Other ranks: find rank 0, and hear whether all fits."""
        deadline = time.monotonic() + limit
        host, port = settings.rendezvous
        while True:
            try:
                sock = socket.create_connection((host, port), timeout=5)
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise RendezvousError(f"rank 0 at {host}:{port} not reached within {limit:g} s: {error}") from None
                time.sleep(0.2)
        wire.send_message(sock, {"rank": self.rank, "env": shared(settings.env)})
        sock.settimeout(max(0.1, deadline - time.monotonic()))
        try:
            problems = wire.receive_message(sock)
        except (OSError, wire.WireError) as error:
            raise RendezvousError(f"rank 0 at {host}:{port}: {error}") from None
        if problems:
            raise RendezvousError("ranks disagree: " + " | ".join(problems))
        self.sockets[0] = sock

    def exchange(self, tag: str, value: Any, seconds: float, patient: bool = False) -> list[Any]:
        """Everybody's value, in rank order. Who is patient waits out a lost peer's limit."""
        deadline = time.monotonic() + seconds
        if self.rank:
            self._tell(0, [tag, value], deadline, patient)
            return list(self._hear(0, tag, deadline, patient))
        values = [value] + [self._hear(rank, tag, deadline, patient) for rank in range(1, self.size)]
        for rank in range(1, self.size):
            self._tell(rank, [tag, values], deadline, patient)
        return values

    def go(self, number: int, tokens: int, seconds: float) -> None:
        """Rank 0: have the others begin a step, for a prompt of so many tokens."""
        deadline = time.monotonic() + seconds
        for rank in range(1, self.size):
            self._tell(rank, ["go", [number, tokens]], deadline, patient=True)

    def await_go(self, seconds: float) -> tuple[int, int]:
        """Other ranks: wait for the next step; its number and the tokens of its prompt."""
        number, tokens = self._hear(0, "go", time.monotonic() + seconds, patient=True)
        return int(number), int(tokens)

    def _tell(self, rank: int, message: Any, deadline: float, patient: bool) -> None:
        try:
            self.sockets[rank].settimeout(max(0.1, deadline - time.monotonic()))
            wire.send_message(self.sockets[rank], message)
        except OSError:
            self._lost(rank, "gone", deadline, patient)

    def _hear(self, rank: int, tag: str, deadline: float, patient: bool) -> Any:
        while True:
            try:
                self.sockets[rank].settimeout(max(0.1, deadline - time.monotonic()))
                heard, value = wire.receive_message(self.sockets[rank])
            except TimeoutError:
                raise PeerLost(f"rank {rank} has not come to {tag!r} in time") from None
            except (OSError, wire.WireError):
                self._lost(rank, f"gone before {tag!r}", deadline, patient)
            if heard == tag:
                return value

    def _lost(self, rank: int, how: str, deadline: float, patient: bool) -> None:
        """A peer's end is seen at once, but whoever is patient hangs as the real engine does."""
        self.broken.add(rank)
        if patient:
            time.sleep(max(0.0, deadline - time.monotonic()))
        raise PeerLost(f"rank {rank} is {how}")

    def connect_mesh(self, settings: Settings) -> None:
        """Gloo: a connection between all pairs, over the one interface named to it."""
        name = settings.env.get("GLOO_SOCKET_IFNAME", "")
        address = interface_address(name) if name else settings.env.get("HOST_IP") or self._own_address(settings)
        if not address:
            raise RendezvousError(f"Gloo: Unable to find address for: {name}")
        limit = settings.number("ENGINE_CONNECT_S", 20)
        listener = wire.Listener()
        try:
            listener.open(address)
        except wire.WireError as error:
            raise RendezvousError(f"Gloo: {error}") from None
        table = self.exchange("gloo", [address, listener.ports[address]], limit)
        try:
            for rank, (host, port) in enumerate(table):
                if rank > self.rank:
                    self.mesh[rank] = wire.connect(
                        ("", address), (host, port), f"gloo {self.rank}", limit, fabric=False
                    )
                elif rank < self.rank:
                    self.mesh[rank] = listener.wait(f"gloo {rank}", limit)
        except wire.WireError as error:
            raise RendezvousError(f"Gloo: rank {rank} at {host}: {error}") from None
        finally:
            listener.close()

    @staticmethod
    def _own_address(settings: Settings) -> str:
        """The address that this machine has towards rank 0."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(settings.rendezvous)
            return str(probe.getsockname()[0])

    def close(self) -> None:
        """End all connections."""
        for sock in [*self.sockets.values(), *self.mesh.values()]:
            sock.close()
