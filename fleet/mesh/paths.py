"""The ways of the mesh through a ring of four: which there are, which are taken, how they are called and numbered.

A *position* is a place on the ring, counted from rank 0 along its f0: clockwise. Names say ranks; numbers come from
positions, as in the planner that this agrees with. "Function" in names is the PCI domain, which is the plane here.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import pairwise

from fleet.topology import PLANES, End, Socket, Topology

SIZE = 4
"""Ranks of the only ring that has a mesh: in a larger one an opposite node is more than one node away."""

FIRST_NUMBER = 49152
"""Preference and handle of the rule of candidate 0; the kernel gives the same preference to a rule without one."""


class NotARingError(ValueError):
    """The cables do not join four ranks in one ring; `seen` are the edges that there are, `wanted` what is needed."""

    def __init__(self, cables: Iterable[tuple[End, End]]) -> None:
        edges = ", ".join(" to ".join(f"rank {end.rank} {end.socket}" for end in cable) for cable in cables)
        self.seen = f"the cables are {edges or 'none'}"
        self.wanted = (
            "one ring: a cable each from rank 0 to 1, 1 to 2, 2 to 3 and 3 to 0, or that with the ranks in another "
            "order, by f0 and f1 of every rank"
        )
        super().__init__(f"{self.seen}, wanted {self.wanted}")


class Direction(StrEnum):
    """Which way round. Clockwise leaves rank 0 by its f0."""

    CLOCKWISE = "clockwise"
    COUNTER_CLOCKWISE = "counter_clockwise"

    @property
    def step(self) -> int:
        """What a hop adds to the position."""
        return 1 if self is Direction.CLOCKWISE else -1

    @property
    def opposite(self) -> "Direction":
        """The other way round."""
        return Direction.COUNTER_CLOCKWISE if self is Direction.CLOCKWISE else Direction.CLOCKWISE


@dataclass(frozen=True)
class Path:
    """A way from one rank to another in a plane, by the ports `origin` and `arrival`. This one leads to a neighbour."""

    source: int
    destination: int
    direction: Direction
    plane: int
    origin: End
    arrival: End

    @property
    def stops(self) -> tuple[int, ...]:
        """The ranks that it touches, in order."""
        return self.source, self.destination

    @property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """The pairs of ranks whose cables it crosses, in order; the lower rank of a pair first."""
        return tuple((min(pair), max(pair)) for pair in pairwise(self.stops))

    @property
    def name(self) -> str:
        """What it is called, by ranks."""
        return f"rank{self.source}-to-rank{self.destination}-direct-{self.direction}-function{self.plane}"


@dataclass(frozen=True)
class Diagonal(Path):
    """A way to the opposite rank, which rank `via` passes on: in by its `ingress`, out by its `egress`.

    `number` is preference and handle of its rule.
    """

    via: int
    ingress: End
    egress: End
    number: int

    @property
    def stops(self) -> tuple[int, ...]:
        return self.source, self.via, self.destination

    @property
    def name(self) -> str:
        ends = f"rank{self.source}-to-rank{self.destination}"
        return f"{ends}-diagonal-{self.direction}-via-rank{self.via}-function{self.plane}"


@dataclass(frozen=True)
class Ring:
    """Four ranks in the order in which they are cabled. `order[p]` is the rank at position p.

    `sockets[rank][direction]` is the socket that leads on in that direction: f0 clockwise, except on a node whose two
    cables are swapped.
    """

    order: tuple[int, ...]
    sockets: Mapping[int, Mapping[Direction, Socket]]

    @classmethod
    def of(cls, topology: Topology) -> "Ring":
        """The ring that a topology is. Raises NotARingError where it is none of four ranks."""
        return cls.cabled([(one.members[0].end, other.end) for one in topology.segments for other in one.members[1:]])

    @classmethod
    def cabled(cls, cables: Sequence[tuple[End, End]]) -> "Ring":
        """The ring that cables make, in whatever order they are. Raises NotARingError where they make none."""
        far = {end: other for cable in cables for end, other in (cable, cable[::-1])}
        sockets: dict[int, Mapping[Direction, Socket]] = {}
        leave: End | None = End(0, Socket.F0)
        while leave is not None and leave.rank not in sockets:
            entered = _other_end(leave)
            sockets[leave.rank] = {Direction.CLOCKWISE: leave.socket, Direction.COUNTER_CLOCKWISE: entered.socket}
            arrived = far.get(leave)
            leave = _other_end(arrived) if arrived else None
        if len(cables) != SIZE or sorted(sockets) != list(range(SIZE)) or leave != End(0, Socket.F0):
            raise NotARingError(cables)
        return cls(tuple(sockets), sockets)

    @cached_property
    def _position(self) -> Mapping[int, int]:
        return {rank: position for position, rank in enumerate(self.order)}

    def end(self, position: int, direction: Direction) -> End:
        """The end that leads on from a position."""
        rank = self.order[position % SIZE]
        return End(rank, self.sockets[rank][direction])

    def direct(self) -> Iterator[Path]:
        """The 16 ways to neighbours: each over the cable that the two share, in both planes."""
        for position, direction, plane in _candidates():
            there = position + direction.step
            yield Path(
                source=self.order[position],
                destination=self.order[there % SIZE],
                direction=direction,
                plane=plane,
                origin=self.end(position, direction),
                arrival=self.end(there, direction.opposite),
            )

    def diagonals(self) -> Iterator[Diagonal]:
        """All 16 ways to opposite ranks, of which half are taken, in the order of their numbers."""
        for ordinal, (position, direction, plane) in enumerate(_candidates()):
            between, there = position + direction.step, position + 2 * direction.step
            yield Diagonal(
                source=self.order[position],
                destination=self.order[there % SIZE],
                direction=direction,
                plane=plane,
                origin=self.end(position, direction),
                arrival=self.end(there, direction.opposite),
                via=self.order[between % SIZE],
                ingress=self.end(between, direction.opposite),
                egress=self.end(between, direction),
                number=FIRST_NUMBER + ordinal,
            )

    def taken(self) -> tuple[Diagonal, ...]:
        """The eight diagonals that RoCEnante uses: between two opposite ranks one in each plane, both ways alike.

        From the lower position of the two, the way clockwise is in plane 0 and the other one in plane 1.
        """
        return tuple(path for path in self.diagonals() if self._plane_of(path) == path.plane)

    def _plane_of(self, path: Diagonal) -> int:
        """The plane that is taken of a diagonal's way, by the node between."""
        lower = min(self._position[path.source], self._position[path.destination])
        return 0 if self._position[path.via] == lower + 1 else 1

    def paths_from(self, rank: int) -> tuple[Path, ...]:
        """The six ways that a rank uses, one to each other rank in each plane; by destination, then plane."""
        used = [path for path in (*self.direct(), *self.taken()) if path.source == rank]
        return tuple(sorted(used, key=lambda path: (path.destination, path.plane)))

    def loads(self) -> Mapping[tuple[tuple[int, int], int], int]:
        """How many diagonals cross each cable in each plane: (pair of ranks, plane) -> count, zeros included."""
        crossed = Counter((edge, path.plane) for path in self.taken() for edge in path.edges)
        cables = sorted({edge for path in self.direct() for edge in path.edges})
        return {(edge, plane): crossed[edge, plane] for edge in cables for plane in PLANES}


def _candidates() -> Iterator[tuple[int, Direction, int]]:
    """Positions, directions and planes in the order in which they are numbered."""
    for position in range(SIZE):
        for direction in Direction:
            for plane in PLANES:
                yield position, direction, plane


def _other_end(end: End) -> End:
    """The other port of the same rank."""
    return End(end.rank, Socket.F1 if end.socket is Socket.F0 else Socket.F0)
