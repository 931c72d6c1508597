"""The mesh of a fleet, planned: desired states by rank, what the engine is told, and what people see of it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleet.mesh import desired, peers
from fleet.mesh.desired import GID_INDEX, SOURCE_PORT, Ports
from fleet.mesh.marker import QUALIFIED, Marker
from fleet.mesh.paths import SIZE, Diagonal, Ring
from fleet.mesh.settings import Mesh
from fleet.problems import Problem, config_path

STATUS = "research-only"


@dataclass(frozen=True)
class MeshPlan:
    """The mesh of four ranks. `ports` are all of theirs; `mtu` is in bytes."""

    ring: Ring
    ports: Ports
    settings: Mesh
    marker: Marker
    mtu: int

    @property
    def peer_maps(self) -> str:
        """What RoCEnante is told: by rank and peer the devices of both paths."""
        return peers.peer_maps(self.ring)

    @property
    def max_size(self) -> int:
        """The largest all-reduce in bytes that goes through RoCEnante."""
        return self.settings.max_size or self.settings.cap

    @property
    def gather_size(self) -> int:
        """The largest all-gather that does, in bytes for each rank."""
        return self.settings.gather_size or self.settings.cap

    def stages(self, rank: int) -> dict[str, dict[str, Any]]:
        """The desired state of a rank's node for each stage of the mesh."""
        queue = self.settings.hairpin_queue_size
        return {
            "nic": desired.nic(self.ports, rank, queue=queue, mtu=self.mtu),
            "forwarding": desired.forwarding(self.ring, self.ports, rank),
            "markers": desired.markers(self.ring, self.ports, rank, self.marker),
        }

    def rows(self, names: Sequence[str], over: Callable[[Diagonal], str]) -> list[tuple[str, ...]]:
        """The eight paths for people, a row each; `names` are the nodes' by rank, `over` says what is in its way."""
        rows: list[tuple[str, ...]] = [("path", "over", "plane", "from", "to", "rule", "")]
        for path in self.ring.taken():
            origin, arrival = self.ports[path.plane, path.origin], self.ports[path.plane, path.arrival]
            rows.append(
                (
                    f"{names[path.source]} to {names[path.destination]}",
                    names[path.via],
                    str(path.plane),
                    f"{origin.interface.ip} {origin.netdev}",
                    str(arrival.interface.ip),
                    str(path.number),
                    over(path),
                )
            )
        return rows

    def outputs(self, names: Sequence[str]) -> Mapping[str, Any]:
        """What the stack shows of it: sizes in bytes, and in `loads` how many paths cross each cable in each plane."""
        return {
            "status": STATUS,
            "peerMaps": self.peer_maps,
            "queue": self.settings.hairpin_queue_size,
            "cap": self.settings.cap,
            "maxSize": self.max_size,
            "gatherSize": self.gather_size,
            "loads": {
                f"{names[low]}-{names[high]} plane {plane}": load
                for ((low, high), plane), load in self.ring.loads().items()
            },
            "nativePaths": {names[rank]: list(self._native(rank)) for rank in range(SIZE)},
        }

    def _native(self, rank: int) -> tuple[str, ...]:
        hcas = {(plane, end.socket): port.hca for (plane, end), port in self.ports.items() if end.rank == rank}
        return peers.native_paths(self.ring, rank, hcas, GID_INDEX)


def remarks(plan: MeshPlan) -> Iterator[Problem]:
    """What to know about a mesh that is on."""
    yield Problem(
        "mesh-research",
        config_path(("mesh", "enabled")),
        f"is on, which is {STATUS}",
        "somebody who watches it",
        f"Its markers tag every RDMA packet with UDP source port {SOURCE_PORT} on their devices, whoever sends it.",
    )
    if plan.marker.sha256 != QUALIFIED:
        yield Problem(
            "mesh-marker-unknown",
            config_path(("mesh", "marker", "sha256")),
            f"is {plan.marker.sha256[:12]}…",
            f"{QUALIFIED[:12]}…, the build that the mesh was measured with",
            "Another compiler gives another file: be sure of its source.",
        )
