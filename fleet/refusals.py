"""What makes a plan impossible on the nodes as they are: overlaps, ports with other duties, copied machines.

An address or route on the planned port that equals the plan is adoption, and what our own journal put on a node, by
whatever older plan, is ours to change; all else that overlaps is refused.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network

from fleet.addressing import PortAddress
from fleet.facts import Facts
from fleet.node_settings import Node
from fleet.problems import Problem, config_path
from fleet.profiles import Profile
from fleet.settings import Settings
from fleet.topology import Kind

RING_RANKS = 4
"""What the ring profile is made for: the launcher refuses a ring with other NNODES and TP_SIZE."""


@dataclass(frozen=True)
class Layout:
    """All subnets of the fabric with their plane, and what the plan puts on each network device of one node.

    `detours` are the mesh's routes there, as (network device, address).
    """

    subnets: Mapping[IPv4Network, int]
    here: Mapping[str, PortAddress]
    detours: Collection[tuple[str, IPv4Network]] = ()

    def overlapping(self, network: IPv4Network) -> str | None:
        """The first planned subnet that a network overlaps, with its plane. A default route overlaps nothing."""
        if network.prefixlen == 0:
            return None
        return next(
            (f"{subnet} of plane {plane}" for subnet, plane in self.subnets.items() if subnet.overlaps(network)), None
        )

    def planned(self, netdev: str, network: IPv4Network) -> bool:
        """Whether the plan itself wants a route to this network on this device."""
        port = self.here.get(netdev)
        return (netdev, network) in self.detours or (
            port is not None
            and (network == port.interface.network or any(network == route.to for route in port.routes))
        )


def ring_profile(settings: Settings) -> Iterator[Problem]:
    """A ring of another size than the engine's variables are for.

    Not a rule of the settings: a ring that has lost a node must still be shown, and put back as it was.
    """
    size = len(settings.ranks)
    if settings.fabric.topology is Kind.RING and settings.engine.profile is not Profile.NONE and size != RING_RANKS:
        yield Problem(
            "ring-ranks",
            config_path(("nodes",)),
            f"makes a ring of {size}",
            f"{RING_RANKS} active nodes for the engine's ring profile",
            "Set engine.profile: none and bring the variables of NCCL in engine.env if your engine can do this.",
        )


def not_probed(ranks: Iterable[Node], facts: Mapping[str, Facts]) -> Iterator[Problem]:
    """Active nodes that nobody looked at."""
    for node in ranks:
        if node.name not in facts:
            yield Problem("not-probed", node.name, "was not looked at", "facts of every active node", "Try again.")


def copies(ranks: Iterable[Node], facts: Mapping[str, Facts]) -> Iterator[Problem]:
    """Two entries that are one machine, or a machine and a copy of its disk."""
    machines: dict[str, str] = {}
    for node in ranks:
        machine = facts[node.name].machine_id if node.name in facts else None
        if machine is None:
            continue
        if machine in machines:
            yield Problem(
                "machine-twice",
                node.name,
                f"has the machine id of {machines[machine]}",
                "another machine for each entry",
                "Correct nodes[].address; on a copied disk run `rm /etc/machine-id && systemd-machine-id-setup`.",
            )
        machines.setdefault(machine, node.name)


def overlaps(node: Node, facts: Facts, layout: Layout) -> Iterator[Problem]:
    """What stands in the way on one node."""
    yield from _duties(node, facts, layout.here)
    reported: set[tuple[str, IPv4Network]] = set()
    for link in facts.links.values():
        port = layout.here.get(link.name)
        for found in link.addresses:
            reported.add((link.name, found.network))
            taken = layout.overlapping(found.network)
            adopted = port is not None and port.interface == found
            if taken is None or adopted or facts.ours(link.name, found.network):
                continue
            yield Problem(
                "address-overlap",
                f"{node.name} {link.name}",
                f"has {found}, which overlaps {taken}",
                f"only {port.interface} there" if port else f"the fabric's subnets on no other {_kind(link.name)}",
                "Choose another pool for that plane, or remove the address.",
            )
    for route in facts.routes:
        netdev, taken = route.netdev or "-", layout.overlapping(route.to)
        ours = layout.planned(netdev, route.to) or facts.ours(netdev, route.to)
        if taken is None or ours or (netdev, route.to) in reported:
            continue
        yield Problem(
            "route-overlap",
            f"{node.name} {netdev}",
            f"has a route to {route.to}, which overlaps {taken}",
            "no other route into the fabric's subnets",
            "Choose another pool for that plane, or remove the route.",
        )


def _kind(netdev: str) -> str:
    return "docker network" if netdev.startswith(("docker", "br-")) else "port"


def _duties(node: Node, facts: Facts, here: Iterable[str]) -> Iterator[Problem]:
    """The fabric never takes the port that the operator comes in by."""
    for netdev in sorted(here):
        duties = {
            "the SSH connection": netdev == facts.ssh_netdev,
            "the default route": netdev in facts.default_netdevs,
            f"the management address {node.address}": netdev == facts.holding(node.address),
        }
        carried = [duty for duty, carries in duties.items() if carries]
        if carried:
            yield Problem(
                "management-port",
                f"{node.name} {netdev}",
                f"carries {' and '.join(carried)}",
                "a port for the fabric alone",
                "Correct nodes[].ports, or give the node a management port of its own.",
            )
