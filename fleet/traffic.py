"""What planned RDMA ports have carried, and whether every plane and cable has had its share. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from fleet.proof import Json, Part, Verdict

KIB = 1024
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, order=True)
class Port:
    """One planned RDMA port. `edge` is its cable, or on a switch its own link; `segment` what it shares with others."""

    rank: int
    plane: int
    node: str
    hca: str
    netdev: str
    address: str  # without prefix length
    edge: str
    segment: str


@dataclass(frozen=True)
class Moved:
    """Bytes that a port has sent and received meanwhile."""

    sent: int
    received: int

    @property
    def both(self) -> int:
        """What went over the port, either way."""
        return self.sent + self.received


@dataclass(frozen=True)
class Limits:
    """From when on it is a failure: bytes, and percents."""

    minimum: int
    plane_share: int
    edge_share: int
    arrival: int


@dataclass(frozen=True)
class Load:
    """What was asked of the engine. `error` is about the completion that ended it."""

    answered: int
    error: str = ""
    refused: bool = False  # for want of a key
    ended: bool = False  # nothing more can be asked for: one has failed, or the time is up


def ports_of(desired: Mapping[str, Json]) -> tuple[Port, ...]:
    """The planned ports of all nodes, by rank and plane."""
    names = ("plane", "hca", "netdev", "address", "edge", "segment")
    return tuple(
        sorted(
            Port(rank=one["rank"], node=node, **{name: port[name] for name in names})
            for node, one in desired.items()
            for port in one["ports"]
        )
    )


def moved_between(ports: Iterable[Port], before: Mapping[str, Json], after: Mapping[str, Json]) -> dict[Port, Moved]:
    """What each port has carried between two readings, by node and HCA. Raises ValueError, with the port, where that
    cannot be said: there is no counter, or it has begun anew."""
    found = {}
    for port in ports:
        first, second = before[port.node][port.hca], after[port.node][port.hca]
        if None in (first["sent"], first["received"], second["sent"], second["received"]):
            raise ValueError(f"{port.node} {port.hca} has no byte counters: is its driver loaded?")
        one = Moved(second["sent"] - first["sent"], second["received"] - first["received"])
        if one.sent < 0 or one.received < 0:
            raise ValueError(f"{port.node} {port.hca} has begun to count anew: it was re-initialised meanwhile")
        found[port] = one
    return found


def plane_shares(moved: Mapping[Port, Moved]) -> dict[tuple[int, int], float]:
    """(rank, plane) -> share of the rank's bytes, 0 to 1; those of a rank add up to 1, or to 0 where none moved."""
    return _shares(moved, lambda port: (port.rank, port.plane), lambda port: port.rank)


def edge_shares(moved: Mapping[Port, Moved]) -> dict[tuple[int, str], float]:
    """(plane, edge) -> bytes in terms of the mean of all edges of that plane: 1 where all carry the same."""
    shares = _shares(moved, lambda port: (port.plane, port.edge), lambda port: port.plane)
    edges = [plane for plane, _ in shares]
    return {key: share * edges.count(key[0]) for key, share in shares.items()}


def arrivals(moved: Mapping[Port, Moved]) -> dict[tuple[int, str], tuple[int, int]]:
    """(plane, segment) -> bytes that its ports have sent, and received."""
    found: dict[tuple[int, str], tuple[int, int]] = {}
    for port, one in moved.items():
        sent, received = found.get((port.plane, port.segment), (0, 0))
        found[port.plane, port.segment] = sent + one.sent, received + one.received
    return found


def _shares(moved: Mapping[Port, Moved], key: Callable[[Port], K], whole: Callable[[Port], Hashable]) -> dict[K, float]:
    """The share of each key's bytes in those of its whole."""
    parts: dict[K, int] = {}
    wholes: dict[Hashable, int] = {}
    of: dict[K, Hashable] = {}
    for port, one in moved.items():
        parts[key(port)] = parts.get(key(port), 0) + one.both
        wholes[whole(port)] = wholes.get(whole(port), 0) + one.both
        of[key(port)] = whole(port)
    return {one: part / wholes[of[one]] if wholes[of[one]] else 0.0 for one, part in parts.items()}


def busiest(moved: Mapping[Port, Moved]) -> int:
    """Bytes that the busiest rank has sent."""
    sent: dict[int, int] = {}
    for port, one in moved.items():
        sent[port.rank] = sent.get(port.rank, 0) + one.sent
    return max(sent.values(), default=0)


def traffic(moved: Mapping[Port, Moved], load: Load, limits: Limits) -> Part:
    """Whether every plane and every edge carries its share, and all arrives where it should."""
    name, figures, most = "traffic", tuple(_figures(moved)), busiest(moved)
    asked = f"completions answered: {load.answered}, the busiest rank sent {size(most)}"
    if load.refused:
        why = f"the API wants another key than API_KEY of its container, or that was told none ({load.error})"
        return Part(name, Verdict.UNKNOWN, why)
    if load.error:
        return Part(name, Verdict.FAILED, asked, (f"the next completion failed: {load.error}",), figures)
    if most < limits.minimum:
        return Part(name, Verdict.UNKNOWN, f"{asked}, {size(limits.minimum)} are wanted for a verdict", (), figures)
    faults = tuple(_faults(moved, limits))
    return Part(name, Verdict.FAILED if faults else Verdict.PASSED, asked, faults, figures)


def _faults(moved: Mapping[Port, Moved], limits: Limits) -> Iterator[str]:
    """A plane that carries too little everywhere is one fault; its cables are not judged one by one."""
    node = {port.rank: port.node for port in moved}
    least = f"at least {limits.plane_share} % is wanted"
    of_all = _shares(moved, lambda port: port.plane, lambda _: None)
    idle = {plane for plane, share in of_all.items() if share * 100 < limits.plane_share}
    for plane in sorted(idle):
        yield f"plane {plane} carries {percent(of_all[plane])} of all that the ranks move, {least}"
    for (rank, plane), share in sorted(plane_shares(moved).items()):
        if plane not in idle and share * 100 < limits.plane_share:
            yield f"plane {plane} carries {percent(share)} of what rank {rank} on {node[rank]} moves, {least}"
    least = f"at least {limits.edge_share} % is wanted"
    for (plane, edge), share in sorted(edge_shares(moved).items(), key=_natural):
        if plane not in idle and share * 100 < limits.edge_share:
            yield f"{edge} carries {percent(share)} of the mean in plane {plane}, {least}"
    least = f"at least {limits.arrival} % is wanted"
    for (plane, segment), (sent, received) in sorted(arrivals(moved).items(), key=_natural):
        if plane not in idle and received * 100 < sent * limits.arrival:
            yield f"{segment}, plane {plane}: {size(received)} of {size(sent)} arrived at the far ends, {least}"


def _figures(moved: Mapping[Port, Moved]) -> Iterator[str]:
    """A line for each rank, one for each edge."""
    shares = plane_shares(moved)
    for rank in sorted({port.rank for port in moved}):
        ports = [port for port in sorted(moved) if port.rank == rank]
        shown = ", ".join(f"plane {plane} {percent(shares[rank, plane])}" for plane in sorted({p.plane for p in ports}))
        each = ", ".join(f"{p.hca} {size(moved[p].sent)} out {size(moved[p].received)} in" for p in ports)
        yield f"rank {rank} on {ports[0].node}: {shown} ({each})"
    edges: dict[str, list[str]] = {}
    for (plane, edge), share in sorted(edge_shares(moved).items(), key=_natural):
        edges.setdefault(edge, []).append(f"plane {plane} {percent(share)}")
    for edge, planes in edges.items():
        yield f"{edge}, of the mean: {', '.join(planes)}"


def _natural(item: tuple[tuple[int, str], object]) -> list[int]:
    """Planes, then cables and ranks, by number."""
    (plane, name), _ = item
    return [plane, *map(int, re.findall(r"\d+", name))]


def percent(share: float) -> str:
    """A share for people."""
    return f"{share * 100:.1f} %"


def size(count: float) -> str:
    """A number of bytes for people."""
    units = iter(("B", "KiB", "MiB", "GiB"))
    unit = next(units)
    while count >= KIB and (larger := next(units, "")):
        count, unit = count / KIB, larger
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
