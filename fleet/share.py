"""The plan of weights that the head shares with the workers: a server on it, and a docker volume on each of them.

Every argument is a plain value, and all of them are in the standstill's digest: no server and no volume changes under
an engine, whose node would hang.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fleet.addressing import PlaneAddresses
from fleet.facts import Facts
from fleet.node_settings import Node
from fleet.settings import Settings
from fleet.topology import Topology
from fleet.weights_settings import Nfs
from node.nfs import MADE, SHARED

FOLDER = "/export"  # in the server's container


@dataclass(frozen=True)
class Exporter:
    """The NFS server on the head, as docker is told it. `clients` are the only addresses that it lets in.

    It is privileged, since it drives the server in the node's kernel, and comes back by itself after a boot.
    """

    node: str
    name: str
    image: str  # its id, where the head has it
    path: str
    clients: tuple[str, ...]
    options: str
    privileged: bool = True
    network_mode: str = "host"
    restart: str = "unless-stopped"

    @property
    def envs(self) -> list[str]:
        """The environment as docker takes it."""
        return [f"NFS_CLIENTS={','.join(self.clients)}", f"NFS_OPTS={self.options}"]


@dataclass(frozen=True)
class SharedVolume:
    """The volume of one worker. `adopted`: it was there before us, the same in everything, and stays."""

    node: str
    name: str
    server: str
    device: str
    options: str
    driver: str = "local"
    adopted: bool = False

    @property
    def driver_opts(self) -> dict[str, str]:
        """What docker's driver mounts."""
        return {"type": "nfs", "o": f"addr={self.server},{self.options}", "device": self.device}

    def wanted(self) -> dict[str, Any]:
        """How the node program tells it."""
        return {"name": self.name, "driver": self.driver, "options": self.driver_opts}


@dataclass(frozen=True)
class Share:
    """All of it. `exporter` is None where somebody else's server is used; `reuse` is its container, if it has one.

    `clients` has by worker the addresses from which it comes, `made` by node what tells that of ours which is there now
    from what is made anew once it has gone.
    """

    exporter: Exporter | None
    volumes: tuple[SharedVolume, ...]
    clients: Mapping[str, tuple[str, ...]]
    reuse: str | None
    label: str
    made: Mapping[str, str]

    def arguments(self) -> dict[str, Any]:
        """Everything that makes two of them different, as JSON values."""
        volumes = [{key: value for key, value in asdict(one).items() if key != "adopted"} for one in self.volumes]
        return {"exporter": asdict(self.exporter) if self.exporter else None, "volumes": volumes}

    def volume(self, node: str) -> SharedVolume | None:
        """That of a node; None on the head."""
        return next((one for one in self.volumes if one.node == node), None)

    def labels(self, node: str) -> dict[str, str]:
        """What is ours on a node, and since when."""
        return {SHARED: self.label, MADE: self.made[node]}

    def reached(self) -> dict[str, dict[str, Any]]:
        """By worker: what it has to find before it gets a volume."""
        return {one.node: {"server": one.server, "volume": one.wanted(), "label": self.label} for one in self.volumes}


class Sharing:
    """Plans it from the settings and from what is on the nodes."""

    def __init__(
        self,
        settings: Settings,
        facts: Mapping[str, Facts],
        label: str,
        topology: Topology,
        planes: Mapping[int, PlaneAddresses],
    ) -> None:
        self.settings, self.facts, self.label = settings, facts, label
        self.topology, self.planes = topology, planes

    def plan(self) -> Share | None:
        """None where every node has its own weights, or none are named."""
        nfs, (head, *workers) = self.settings.nfs, self.settings.ranks
        if nfs is None:
            return None
        clients = {node.name: tuple(self._clients(rank, node)) for rank, node in enumerate(workers, 1)}
        exporter = self._exporter(nfs, head, clients) if nfs.image else None
        volumes = tuple(self._volume(nfs, node) for node in workers)
        made = {one.node: self._since(one.node, self._volume_since(one)) for one in volumes}
        if exporter:
            made[head.name] = self._since(head.name, self.facts.get(head.name, Facts()).shared.get(nfs.name))
        return Share(exporter, volumes, clients, nfs.reuse, self.label, made)

    def _exporter(self, nfs: Nfs, head: Node, clients: Mapping[str, tuple[str, ...]]) -> Exporter:
        assert nfs.image
        return Exporter(
            node=head.name,
            name=nfs.name,
            image=self.facts.get(head.name, Facts()).images.get(nfs.image) or nfs.image,
            path=self.settings.weights_on(head) or "",
            clients=tuple(dict.fromkeys(address for addresses in clients.values() for address in addresses)),
            options=nfs.export_options,
        )

    def _volume(self, nfs: Nfs, node: Node) -> SharedVolume:
        found = self._found(node.name, nfs.volume)
        return SharedVolume(
            node=node.name,
            name=nfs.volume,
            server=str(self.settings.weights_server(node)),
            device=nfs.device,
            options=nfs.options,
            adopted=found is not None and found["labels"].get(SHARED) != self.label,
        )

    def _found(self, node: str, volume: str) -> Mapping[str, Any] | None:
        return self.facts.get(node, Facts()).volumes.get(volume)

    def _clients(self, rank: int, node: Node) -> Iterator[str]:
        """The addresses from which a worker comes: those in the network of its server, a plane or another one.

        Without any, or where the address that we reach it at is among them, that one.
        """
        server = self.settings.weights_server(node)
        for addresses in self.planes.values():
            if server in addresses.pool:
                yield from (str(addresses.at(end)) for end in self.topology.ends(rank))
                return
        links = self.facts.get(node.name, Facts()).links.values()
        near = {one.ip for link in links for one in link.addresses if server in one.network}
        yield from map(str, sorted(near) if near and node.address not in near else [node.address])

    def _volume_since(self, volume: SharedVolume) -> str | None:
        found = self._found(volume.node, volume.name)
        return found["labels"].get(MADE) if found else None

    def _since(self, node: str, present: str | None) -> str:
        """What the label of what is there says; something new where that has gone, or never was."""
        return present or f"{self.facts.get(node, Facts()).time:.0f}"
