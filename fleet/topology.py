"""Which ports share a wire: rings without a switch, and switched rails.

A *segment* is what gets one subnet in each plane: a cable of a ring, or the rail that a switch makes of one port of
every node. Both planes of a socket (QSFP port) share its cable, so segments are the same in every plane.
"""

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

PLANES = (0, 1)
PCI_DOMAIN = {0: 0, 1: 2}
"""PCI domain of each plane (ConnectX-7 of a DGX Spark, two Socket Direct functions for each port)."""

RING_MINIMUM = 3
SWITCHED_MINIMUM = 2
FIRST_HOST = 10
"""Host part of a segment's first address."""


class Kind(StrEnum):
    """How the nodes are connected."""

    RING = "ring"
    SWITCHED = "switched"


class Socket(StrEnum):
    """A QSFP port of a node, named after its PCI function number."""

    F0 = "f0"
    F1 = "f1"

    @property
    def function(self) -> int:
        """The PCI function number of this port's netdevs."""
        return int(self.value[1])


class Cabling(StrEnum):
    """The cables of a ring: rank k's f0 leads to rank k+1 (`ring`) or to rank k-1 (`reversed`), or as it is found."""

    DISCOVER = "discover"
    RING = "ring"
    REVERSED = "reversed"


@dataclass(frozen=True, order=True)
class End:
    """One socket of one rank."""

    rank: int
    socket: Socket


@dataclass(frozen=True)
class Member:
    """An end on a segment, with the host part of its address there."""

    end: End
    host: int


@dataclass(frozen=True)
class Segment:
    """What shares one subnet in each plane. `index` is the cable's number on a ring and 0 for a rail."""

    index: int
    members: tuple[Member, ...]

    def others(self, end: End) -> tuple[Member, ...]:
        """Everyone on the segment but `end`."""
        return tuple(member for member in self.members if member.end != end)


@dataclass(frozen=True)
class Hop:
    """The way from a rank to a segment that it does not sit on: leave by `out`, to the neighbour's port `via`."""

    out: End
    via: End


@dataclass(frozen=True)
class Topology:
    """Ranks `0 … size-1` and the segments that join them."""

    kind: Kind
    size: int
    segments: tuple[Segment, ...]

    @cached_property
    def _of_end(self) -> Mapping[End, Segment]:
        return {member.end: segment for segment in self.segments for member in segment.members}

    @cached_property
    def _of_rank(self) -> Mapping[int, tuple[End, ...]]:
        ends: dict[int, list[End]] = {rank: [] for rank in range(self.size)}
        for end in sorted(self._of_end):
            ends[end.rank].append(end)
        return {rank: tuple(found) for rank, found in ends.items()}

    @property
    def sockets(self) -> tuple[Socket, ...]:
        """The sockets in use, f0 first."""
        return tuple(sorted({end.socket for end in self._of_end}))

    def ends(self, rank: int) -> tuple[End, ...]:
        """The ends of a rank, f0 first."""
        return self._of_rank[rank]

    def segment(self, end: End) -> Segment:
        """The segment that an end sits on."""
        return self._of_end[end]

    def neighbours(self, rank: int) -> Iterator[tuple[End, End]]:
        """`(own end, other end)` for everything that a rank reaches without a router."""
        for end in self.ends(rank):
            for member in self.segment(end).others(end):
                yield end, member.end

    def _distances(self, segment: Segment) -> Mapping[int, int]:
        """Hops from each rank to the nearest rank that sits on `segment`."""
        distance = {member.end.rank: 0 for member in segment.members}
        queue = deque(distance)
        while queue:
            rank = queue.popleft()
            for _, other in self.neighbours(rank):
                if other.rank not in distance:
                    distance[other.rank] = distance[rank] + 1
                    queue.append(other.rank)
        return distance

    @cached_property
    def hops(self) -> Mapping[int, Mapping[int, Hop]]:
        """For each rank: far segment index → the first hop there. A tie between two ways goes out of f0."""
        table: dict[int, dict[int, Hop]] = {rank: {} for rank in range(self.size)}
        for segment in self.segments:
            distance = self._distances(segment)
            for rank, own in distance.items():
                if own == 0:
                    continue
                out, via = min(
                    self.neighbours(rank), key=lambda pair: (distance[pair[1].rank], pair[0].socket, pair[1])
                )
                table[rank][segment.index] = Hop(out, via)
        return table


def cabled(size: int, cables: Sequence[tuple[End, End]]) -> Topology:
    """A ring from its list of cables.

    The end that comes first in a pair gets the `.10` address; where only one end is an f0, that one does. Cable k of
    the list is segment k. Raises ValueError when the cables do not make one ring of all ranks.
    """
    if size < RING_MINIMUM:
        raise ValueError(f"a ring needs at least {RING_MINIMUM} nodes, not {size}")
    segments = []
    for index, (one, other) in enumerate(cables):
        first, second = (other, one) if (one.socket, other.socket) == (Socket.F1, Socket.F0) else (one, other)
        segments.append(Segment(index, (Member(first, FIRST_HOST), Member(second, FIRST_HOST + 1))))
    ends = [end for cable in cables for end in cable]
    every = {End(rank, socket) for rank in range(size) for socket in Socket}
    if len(ends) != len(every) or set(ends) != every:
        raise ValueError("each socket of each rank has exactly one cable")
    topology = Topology(Kind.RING, size, tuple(segments))
    if any(one.rank == other.rank for one, other in cables) or len(_reached(topology)) != size:
        raise ValueError("the cables do not join all ranks in one ring")
    return topology


def _reached(topology: Topology) -> set[int]:
    seen, todo = {0}, [0]
    while todo:
        for _, other in topology.neighbours(todo.pop()):
            if other.rank not in seen:
                seen.add(other.rank)
                todo.append(other.rank)
    return seen


def ring(size: int, cabling: Cabling = Cabling.RING) -> Topology:
    """A ring in rank order: cable k leaves rank k by f0 and enters the next (or previous) rank by f1.

    Cables that are to be discovered are taken for a `ring`, which is how they are described.
    """
    step = -1 if cabling is Cabling.REVERSED else 1
    return cabled(size, [(End(rank, Socket.F0), End((rank + step) % size, Socket.F1)) for rank in range(size)])


def ring_of(size: int, cables: Collection[frozenset[End]]) -> Topology | None:
    """The ring that these cables make, if each rank shares one with the next rank and there are no others; else None.

    It has the numbers and addresses of `ring` where it is one of those, whatever way the cables were come by. Else
    cable k joins ranks k and k+1: sockets may be flipped on any node.
    """
    found = set(cables)
    for cabling in (Cabling.RING, Cabling.REVERSED):
        usual = ring(size, cabling)
        if found == cables_of(usual):
            return usual
    joins = {frozenset(end.rank for end in cable): cable for cable in found}
    if not len(joins) == len(found) == size:
        return None
    chain = []
    for rank in range(size):
        cable = joins.get(frozenset((rank, (rank + 1) % size)), frozenset())
        chain.append((*(end for end in cable if end.rank == rank), *(end for end in cable if end.rank != rank)))
    try:
        return cabled(size, [(one, other) for one, other in chain])
    except ValueError:  # a neighbour without a cable, or a socket with two
        return None


def cables_of(topology: Topology) -> set[frozenset[End]]:
    """The cables of a ring, each as its two ends."""
    return {frozenset(member.end for member in segment.members) for segment in topology.segments}


def switched(size: int, socket: Socket = Socket.F0) -> Topology:
    """One rail: the same socket of every rank on a switch; host part 10 + rank."""
    if size < SWITCHED_MINIMUM:
        raise ValueError(f"a switched fabric needs at least {SWITCHED_MINIMUM} nodes, not {size}")
    members = tuple(Member(End(rank, socket), FIRST_HOST + rank) for rank in range(size))
    return Topology(Kind.SWITCHED, size, (Segment(0, members),))
