"""Ports, and the cables between them. Pure: nothing here touches the machine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .shell import LabError

if TYPE_CHECKING:
    from collections.abc import Sequence

Topology = Literal["ring", "switched"]
SWITCH = "switch"


@dataclass(frozen=True)
class Function:
    """One PCI function of a node's card: each QSFP port has one in both PCI domains."""

    netdev: str
    socket: int
    domain: int
    mac_offset: int  # from the management port's address, as captured on a Spark


FUNCTIONS = (
    Function("enp1s0f0np0", socket=0, domain=0, mac_offset=1),
    Function("enp1s0f1np1", socket=1, domain=0, mac_offset=2),
    Function("enP2p1s0f0np0", socket=0, domain=2, mac_offset=5),
    Function("enP2p1s0f1np1", socket=1, domain=2, mac_offset=6),
)


@dataclass(frozen=True, order=True)
class Port:
    """One QSFP port of one node; written `spark1:f0`. Its two functions (twins) share the wire."""

    node: int
    socket: int

    def __str__(self) -> str:
        return f"spark{self.node}:f{self.socket}"

    @property
    def functions(self) -> tuple[Function, ...]:
        """The PCI functions that share this port, domain 0 first."""
        return tuple(f for f in FUNCTIONS if f.socket == self.socket)


@dataclass(frozen=True)
class Cable:
    """A plugged cable between two ports, or, with no `far` end, between a port and the switch."""

    near: Port
    far: Port | None

    def __str__(self) -> str:
        return f"{self.near} - {self.far or SWITCH}"

    @property
    def ports(self) -> tuple[Port, ...]:
        """The ports that it occupies."""
        return (self.near, self.far) if self.far else (self.near,)

    @property
    def segment(self) -> str:
        """Name of the bridge that is this cable, or the switch."""
        return f"c{self.near.node}f{self.near.socket}" if self.far else SWITCH

    @property
    def name(self) -> str:
        """`2-3` where a ring has this cable between 2 and 3, `2-switch` for the first port, else the ends."""
        if not self.far:
            return f"{self.near.node}-{SWITCH}" if self.near.socket == 0 else str(self)
        usual = (self.near.socket, self.far.socket) == (0, 1)
        return f"{self.near.node}-{self.far.node}" if usual else str(self)

    @classmethod
    def between(cls, one: Port, other: Port | None) -> Cable:
        """The cable between two ports, however they are given; a LabError if they are the same."""
        if one == other:
            raise LabError(f"{one}: a cable has two ends")
        if other and (other.socket, other) < (one.socket, one):
            one, other = other, one
        return cls(one, other)


def factory(topology: Topology, nodes: int) -> list[Cable]:
    """Ring: node k's f0 to node k+1's f1. Switched: every node's f0 to the switch."""
    if topology == "switched":
        return [Cable(Port(k, 0), None) for k in range(1, nodes + 1)]
    if nodes == 1:
        return []
    return [Cable(Port(k, 0), Port(k % nodes + 1, 1)) for k in range(1, nodes + 1)]


def parse_port(text: str, nodes: int) -> Port | None:
    """Read `spark1:f0` (or `1:f0`), or `switch` as None."""
    if text == SWITCH:
        return None
    match = re.fullmatch(r"(?:spark)?(\d+):f([01])", text)
    if not match or not 1 <= int(match[1]) <= nodes:
        raise LabError(f"no port {text!r}; ports are spark1:f0 to spark{nodes}:f1, and {SWITCH}")
    return Port(int(match[1]), int(match[2]))


def parse_cable(words: Sequence[str], topology: Topology, nodes: int) -> Cable:
    """Read `2-3` or `2-switch` (a cable of the factory's cabling, either way round), or two ports."""
    if len(words) == 2:
        first, second = (parse_port(word, nodes) for word in words)
        if first is None:
            first, second = second, first
        if first is None:
            raise LabError("the switch is not cabled to itself")
        return Cable.between(first, second)
    if len(words) != 1:
        raise LabError("give a cable such as 2-3, or two ports such as spark1:f0 spark3:f1")
    usual = {cable.name: cable for cable in factory(topology, nodes)}
    for name in (words[0], "-".join(reversed(words[0].split("-")))):
        if name in usual:
            return usual[name]
    raise LabError(f"no cable {words[0]!r}; there are {', '.join(usual)}, or give two ports")


def pull(cables: Sequence[Cable], words: Sequence[str], topology: Topology, nodes: int) -> list[Cable]:
    """Take out one cable, named by itself, by one port or by two; nothing changes if it is out already."""
    if len(words) == 1 and ":" in words[0]:
        port = parse_port(words[0], nodes)
        return [cable for cable in cables if port not in cable.ports]
    gone = parse_cable(words, topology, nodes)
    return [cable for cable in cables if cable != gone]


def plug(cables: Sequence[Cable], words: Sequence[str], topology: Topology, nodes: int) -> list[Cable]:
    """Plug a cable in; what else was in its ports comes out first."""
    new = parse_cable(words, topology, nodes)
    if new in cables:
        return list(cables)
    return [*(cable for cable in cables if not set(cable.ports) & set(new.ports)), new]
