"""What a lab consists of and what its parts are called. Names on the machine are unique to the lab."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from .cabling import Cable, Function, Topology, factory, parse_port
from .shell import LabError

PACKAGE = Path(__file__).resolve().parent
DEFAULT_NAME = "demo"
USER = "spark"  # with passwordless sudo, on every node
MANAGEMENT_PORT = "enP7s7"
MAX_NODES = 16
MAX_CARDS = 14  # that a node can have one after the other, beside its first
POOL = IPv4Network("198.18.0.0/15")  # RFC 2544: for tests of network devices
NETWORKS = tuple(POOL.subnets(new_prefix=24))  # a lab's slot is its index here
NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")


@dataclass(frozen=True)
class Node:
    """One simulated Spark, and its names on the machine that simulates it."""

    lab: str
    slot: int
    index: int

    @property
    def name(self) -> str:
        """Its hostname."""
        return f"spark{self.index}"

    @property
    def unique(self) -> str:
        """Name of its network namespace, and of the machine for systemd-nspawn."""
        return f"{self.lab}-{self.name}"

    @property
    def address(self) -> str:
        """Management address."""
        return str(NETWORKS[self.slot][10 + self.index])

    @property
    def management_link(self) -> str:
        """Fabric end of the management link; at most 15 characters, as all names of links."""
        return f"n{self.index}m"

    def mac(self, offset: int = 0, card: int = 0) -> str:
        """Address of the management port, or of a function by its offset; `card`: which one it has."""
        last = 0x10 * (card + 1) + offset
        return f"02:5a:{0xAA + (self.slot >> 8):02x}:{self.slot & 255:02x}:{self.index:02x}:{last:02x}"

    def fabric_link(self, function: Function) -> str:
        """Fabric end of the link behind one of the node's functions."""
        return f"n{self.index}f{function.socket}d{function.domain}"


def host_link(slot: int) -> str:
    """The machine's link to the management network of the lab in a slot."""
    return f"sparklab{slot}"


@dataclass
class State:
    """What must survive between two commands; on disk from `up` to `down`."""

    topology: Topology
    nodes: int
    slot: int
    trace: bool = False
    plugged: list[list[str]] = field(default_factory=list)  # the two ends of each cable
    cards: dict[str, int] = field(default_factory=dict)  # node: number of its card, where that is not the first

    @property
    def cables(self) -> list[Cable]:
        """The cables that are plugged now."""
        ends = ([parse_port(end, self.nodes) for end in pair] for pair in self.plugged)
        return [Cable(near, far) for near, far in ends if near]

    @cables.setter
    def cables(self, cables: list[Cable]) -> None:
        self.plugged = [[str(cable.near), str(cable.far or "switch")] for cable in cables]

    @classmethod
    def new(cls, topology: Topology, nodes: int, slot: int, trace: bool) -> State:
        """A lab cabled as it leaves the factory."""
        state = cls(topology, nodes, slot, trace)
        state.cables = factory(topology, nodes)
        return state


@dataclass(frozen=True)
class Lab:
    """One lab, known by its name on the machine, rooted in a state folder."""

    name: str
    directory: Path

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise LabError(f"{self.name!r}: a lab's name is made of a-z, 0-9 and '-', and begins with a letter")
        if set(str(self.directory)) & set(',:\\"'):
            raise LabError(f"{self.directory}: overlay mounts allow no comma, colon, quote or backslash in it")

    @property
    def fabric(self) -> str:
        """The network namespace in which all cables lie."""
        return f"{self.name}-fabric"

    @property
    def state_file(self) -> Path:
        """Present from `up` to `down`."""
        return self.directory / "state.json"

    @property
    def state(self) -> State:
        """Of the lab that is up; a LabError otherwise."""
        try:
            return State(**json.loads(self.state_file.read_text()))
        except FileNotFoundError:
            raise LabError(f"the lab {self.name!r} is not up ({self.directory}); start it with: lab up") from None

    def save(self, state: State) -> None:
        """Replace the state at once, for its readers never to see half of it."""
        replace(self.state_file, json.dumps(asdict(state), indent=1) + "\n")

    @property
    def nodes(self) -> list[Node]:
        """In ring order."""
        state = self.state
        return [Node(self.name, state.slot, index + 1) for index in range(state.nodes)]

    def node(self, name: str) -> Node:
        """Look up by hostname or number."""
        nodes = self.nodes
        for node in nodes:
            if name in (node.name, str(node.index)):
                return node
        raise LabError(f"no node {name!r}; there are {', '.join(n.name for n in nodes)}")

    def node_directory(self, node: Node) -> Path:
        """Everything that one node has written."""
        return self.directory / "nodes" / node.name

    def prepare(self) -> None:
        """Make the state folder, hidden from git."""
        for part in ("log", "nodes", "keys"):
            (self.directory / part).mkdir(parents=True, exist_ok=True)
        (self.directory / "keys").chmod(0o700)
        (self.directory / ".gitignore").write_text("*\n")


def host_address(slot: int) -> IPv4Address:
    """Address of the machine on the management network of the lab in a slot."""
    return NETWORKS[slot][254]


def replace(path: Path, text: str) -> None:
    """Write a file so that it is never seen half-written."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    partial.replace(path)
