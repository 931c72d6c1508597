"""What was found on a node: the answer of `observe` as frozen values, and which devices are which port.

Every part may be absent: a tool that a node lacks leaves null there and a line in `errors`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface
from typing import Any

from fleet import library, weights
from fleet.library import Library
from fleet.topology import PCI_DOMAIN, Socket
from fleet.weights import Weights
from node import markers
from node.nfs import MADE, SHARED

SCHEMA = 1


@dataclass(frozen=True)
class Link:
    """A network device."""

    name: str
    mac: str | None = None
    addresses: tuple[IPv4Interface, ...] = ()
    up: bool = False
    local: tuple[IPv6Address, ...] = ()  # link-local


@dataclass(frozen=True)
class FoundGid:
    """An entry of an RDMA device's GID table; empty places are none."""

    index: int
    gid: IPv6Address
    kind: str
    netdev: str


@dataclass(frozen=True)
class Hca:
    """An RDMA device: its network device, PCI domain and PCI function number, the state and GIDs of its port."""

    name: str
    netdev: str | None
    domain: int | None
    function: int | None
    pci: str | None = None
    state: str = ""  # "4: ACTIVE"
    gids: tuple[FoundGid, ...] = ()


@dataclass(frozen=True)
class FoundRoute:
    """An IPv4 route of the main table; `to` is 0.0.0.0/0 for a default route."""

    to: IPv4Network
    netdev: str | None


@dataclass(frozen=True)
class Stage:
    """A stage as the node's journal has it."""

    status: str
    digest: str | None
    desired: Mapping[str, Any]


@dataclass(frozen=True)
class Facts:
    """What planning needs to know of one node."""

    machine_id: str | None = None
    arch: str | None = None  # as `uname -m` has it
    ssh_netdev: str | None = None
    links: Mapping[str, Link] = field(default_factory=dict)
    hcas: Mapping[str, Hca] = field(default_factory=dict)
    routes: tuple[FoundRoute, ...] = ()
    stages: Mapping[str, Stage] = field(default_factory=dict)
    images: Mapping[str, str] = field(default_factory=dict)
    libraries: Mapping[str, Library] = field(default_factory=dict)  # by path: ours, and those that were asked for
    volumes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of docker's, those that were asked for
    shared: Mapping[str, str] = field(default_factory=dict)  # running servers of weights, by name, and since when
    time: float = 0.0  # the node's clock
    weights: Weights | None = None  # None where nobody asked for them, or they could not be looked at
    has_mesh: bool = False  # files of a mesh of ours are there, whatever the journal says
    silent: frozenset[str] = frozenset()  # paths of libraries on a file system that does not answer

    def at(self, plane: int, socket: Socket) -> tuple[Hca, ...]:
        """The RDMA devices in the plane's PCI domain with the socket's function number; exactly one on a Spark."""
        return tuple(
            hca for hca in self.hcas.values() if hca.domain == PCI_DOMAIN[plane] and hca.function == socket.function
        )

    def holding(self, address: IPv4Address) -> str | None:
        """The network device that has an address."""
        for link in self.links.values():
            if any(found.ip == address for found in link.addresses):
                return link.name
        return None

    @cached_property
    def default_netdevs(self) -> frozenset[str]:
        """The network devices of default routes."""
        return frozenset(route.netdev for route in self.routes if route.to.prefixlen == 0 and route.netdev)

    def ours(self, netdev: str, network: IPv4Network) -> bool:
        """Whether this stack's own journal put this network on this device, however old the plan was.

        While a stage is unfinished, what an earlier plan left on its ports is not known: all of it counts as ours.
        """
        return netdev in self._unfinished or (netdev, str(network)) in self._journaled

    @cached_property
    def _journaled(self) -> frozenset[tuple[str, str]]:
        found = set()
        for stage in self.stages.values():
            for port in stage.desired.get("ports") or ():
                if "address" in port:
                    found.add((port["netdev"], str(IPv4Interface(port["address"]).network)))
                found.update((port["netdev"], route["to"]) for route in port.get("routes") or ())
            found.update((route["netdev"], route["to"]) for route in stage.desired.get("routes") or ())
        return frozenset(found)

    @cached_property
    def _unfinished(self) -> frozenset[str]:
        return frozenset(
            port["netdev"]
            for stage in self.stages.values()
            if stage.status != "applied"
            for port in (*(stage.desired.get("ports") or ()), *(stage.desired.get("routes") or ()))
        )

    def mapping(self) -> str:
        """The RDMA devices with their places, for messages."""
        found = sorted(self.hcas.values(), key=lambda hca: (hca.domain or 0, hca.function or 0, hca.name))
        return (
            ", ".join(f"{hca.netdev or '-'}/{hca.name} at {hca.pci or _place(hca)}" for hca in found)
            or "no RDMA device"
        )


def _place(hca: Hca) -> str:
    domain = "?" if hca.domain is None else f"{hca.domain:04x}"
    return f"domain {domain} function {'?' if hca.function is None else hca.function}"


def parse(raw: Mapping[str, Any]) -> Facts:
    """Read the answer of `observe`. Raises ValueError for a schema that this version does not know."""
    if raw.get("schema") != SCHEMA:
        raise ValueError(f"facts have schema {raw.get('schema')!r}, this version reads {SCHEMA}")
    return Facts(
        machine_id=raw.get("machine_id"),
        arch=raw.get("arch"),
        ssh_netdev=(raw.get("ssh") or {}).get("netdev"),
        links={name: _link(name, link or {}) for name, link in (raw.get("links") or {}).items()},
        hcas={name: _hca(name, hca) for name, hca in (raw.get("hcas") or {}).items()},
        routes=tuple(_routes(raw.get("routes") or ())),
        stages={
            name: Stage(str(stage.get("status")), stage.get("digest"), stage.get("desired") or {})
            for name, stage in ((raw.get("journal") or {}).get("stages") or {}).items()
        },
        images=dict((raw.get("docker") or {}).get("images") or {}),
        libraries={
            path: library.parse(path, file) for path, file in ((raw.get("nccl") or {}).get("files") or {}).items()
        },
        volumes={name: one for name, one in ((raw.get("nfs") or {}).get("volumes") or {}).items() if one},
        shared={
            one["name"]: one["labels"].get(MADE, "")
            for one in (raw.get("docker") or {}).get("containers") or []
            if SHARED in one["labels"] and one["state"] == "running"
        },
        time=float(raw.get("time") or 0),
        weights=weights.parse(raw["weights"]) if raw.get("weights") else None,
        has_mesh=bool(markers.ours(dict(raw))),
        silent=frozenset((raw.get("nccl") or {}).get("silent") or ()),
    )


def _link(name: str, raw: Mapping[str, Any]) -> Link:
    return Link(
        name=name,
        mac=raw.get("mac"),
        addresses=tuple(IPv4Interface(address) for address in raw.get("addresses") or ()),
        up=bool(raw.get("up")),
        local=tuple(one.ip for address in raw.get("inet6") or () if (one := IPv6Interface(address)).is_link_local),
    )


def _hca(name: str, raw: Mapping[str, Any]) -> Hca:
    return Hca(
        name=name,
        netdev=raw.get("netdev"),
        domain=raw.get("domain"),
        function=raw.get("function"),
        pci=raw.get("pci"),
        state=raw.get("state") or "",
        gids=tuple(_gids(raw.get("gids") or ())),
    )


def _gids(raw: Iterable[Mapping[str, Any]]) -> Iterable[FoundGid]:
    for entry in raw:
        gid = IPv6Address(entry["gid"])
        if int(gid) and int(gid.ipv4_mapped or gid):
            yield FoundGid(int(entry["index"]), gid, entry.get("type") or "", entry.get("netdev") or "")


def _routes(raw: Iterable[Mapping[str, Any]]) -> Iterable[FoundRoute]:
    for route in raw:
        to = "0.0.0.0/0" if route["to"] == "default" else route["to"]
        yield FoundRoute(IPv4Network(to, strict=False), route.get("netdev"))
