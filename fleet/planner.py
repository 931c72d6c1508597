"""Settings and facts in, the plan out; pure."""

from collections.abc import Iterator, Mapping
from ipaddress import IPv4Network
from typing import Any

from fleet import cautions, combinations, flags, gid, ports, refusals, topology
from fleet.addressing import assign
from fleet.container import CAPABILITIES, DEVICES, ULIMITS, ContainerPlan
from fleet.container_settings import Driver
from fleet.desired import Fabric
from fleet.engine_rules import where
from fleet.facts import Facts
from fleet.flags import Devices, Flag, Source
from fleet.library import Choice
from fleet.mesh import refusals as mesh_refusals
from fleet.mesh.desired import GID_INDEX, OFF
from fleet.mesh.desired import Port as MeshPort
from fleet.mesh.marker import on_nodes
from fleet.mesh.paths import Ring
from fleet.mesh.plan import MeshPlan
from fleet.nccl import Libraries
from fleet.node_settings import Node
from fleet.plan import STAGES, NodePlan, Plan, PlanError, bare
from fleet.ports import Device
from fleet.problems import Problem, config_path
from fleet.profiles import Profile
from fleet.settings import Settings
from fleet.share import Sharing
from fleet.stack import StackName
from fleet.told import known
from fleet.topology import PLANES, Cabling, End, Kind, Socket, Topology
from node.digest import digest
from node.mesh import STAGES as MESH

LATER = ("nccl", *MESH)
"""Stages that are left out of digests while they are off: a version that brings them stops no engine, and to an engine
a mesh that is off is as one that never was."""


def make(
    settings: Settings,
    facts: Mapping[str, Facts] | None,
    stack: StackName,
    *,
    image_id: str | None = None,
    image_ref: str | None = None,
    library: Choice | None = None,
    marker_size: int | None = None,
    found: Topology | None = None,
) -> Plan:
    """Plan the fleet. `facts` by node name; None plans without nodes, with the usual device names.

    `image_id` is the image id that every rank shall run; where it is not given, the id that all nodes agree on.
    `image_ref` is the image's name, where it is not that of the settings: of one that is built.
    `library` is the operator's local NCCL library, as far as the settings name one; `marker_size` is that of the mesh's
    marker in bytes, where it is a file to be sent. `found` is the ring that was found, for cables that are to be
    discovered. Raises PlanError with every problem of every node.
    """
    return _Planner(settings, facts, stack, image_id, image_ref, library, marker_size, found).plan()


def agreed_image(settings: Settings, facts: Mapping[str, Facts], ref: str | None = None) -> str | None:
    """The id of the image on the active nodes that have it; None when they differ or none has it.

    Of one that is built, what the node that builds has is the right one. `ref` as in `make`.
    """
    ref = ref or settings.engine.image.ref
    seen = {node.name: facts[node.name].images for node in settings.ranks if node.name in facts}
    ids = {name: images[ref] for name, images in seen.items() if ref in images}
    if settings.engine.image.build and settings.builder in ids:
        return ids[settings.builder]
    return next(iter(ids.values())) if len(set(ids.values())) == 1 else None


def shape(settings: Settings, found: Topology | None = None) -> Topology:
    """The topology of the active nodes; `found` is that of cables which are to be discovered, once it is known."""
    if settings.fabric.topology is Kind.RING:
        if found and settings.fabric.cabling is Cabling.DISCOVER:
            return found
        return topology.ring(len(settings.ranks), settings.fabric.cabling)
    return topology.switched(len(settings.ranks), settings.fabric.port)


class _Planner:
    def __init__(
        self,
        settings: Settings,
        facts: Mapping[str, Facts] | None,
        stack: StackName,
        image_id: str | None,
        image_ref: str | None,
        library: Choice | None,
        marker_size: int | None,
        found: Topology | None,
    ) -> None:
        self.settings, self.facts, self.stack = settings, facts or {}, stack
        self.probed = facts is not None
        self.image_ref = image_ref or settings.engine.image.ref
        self.image_id = image_id or agreed_image(settings, self.facts, self.image_ref)
        self.marker_size = marker_size
        self.problems: list[Problem] = []
        self.ranks = settings.ranks
        self.topology = shape(settings, found)
        fabric = settings.fabric
        self.planes = {
            plane: assign(self.topology, plane, fabric.planes[plane].pool, far_routes=fabric.ip_relay)
            for plane in fabric.on
        }
        self.rank = {node.name: rank for rank, node in enumerate(self.ranks)}
        self.ring = self._ring()
        self.mesh: MeshPlan | None = None
        self.devices = {node.name: self._devices(index, node) for index, node in enumerate(settings.nodes)}
        self.fabric = Fabric(settings, stack, self.topology, self.planes, self.devices)
        self.gids = {node.name: self._gid(node) for node in self.ranks}
        self.libraries = Libraries(settings, library, self.facts)
        label = stack.label(settings.fleet.id)
        self.share = Sharing(settings, self.facts, label, self.topology, self.planes).plan()

    def _ring(self) -> Ring | None:
        """The ring that the mesh runs over; None where it is off, or impossible."""
        if not self.settings.mesh.enabled:
            return None
        wrong = list(mesh_refusals.size(len(self.ranks)))
        self.problems.extend(wrong)
        return None if wrong else Ring.of(self.topology)

    def plan(self) -> Plan:
        self.problems.extend(refusals.ring_profile(self.settings))
        self.problems.extend(self._size())
        if self.probed:
            self._check()
        if self.problems:
            self._stand_in()
            raise PlanError(self.problems, self._made())
        return self._made()

    def _size(self) -> Iterator[Problem]:
        """What the engine's variables cannot do with so many ranks."""
        settings = self.settings
        if settings.engine.profile is Profile.NONE or settings.mesh.enabled:  # which asks for its size itself
            return
        for name in combinations.for_some_sizes(known(settings)):
            seen = f"{name} is on with {len(self.ranks)} ranks"
            yield Problem("engine-ranks", config_path(where(settings, name)), seen, "4 or 8 ranks", "Set it to 0.")

    def _stand_in(self) -> None:
        """Put the usual device where a planned one was not found, for a draft."""
        for node in self.ranks:
            for plane, end in self.fabric.ends(node.name):
                self.devices[node.name].setdefault((plane, end.socket), ports.usual(node, plane, end.socket))

    def _mesh(self) -> MeshPlan | None:
        settings = self.settings.mesh
        if self.ring is None or settings.marker is None:
            return None
        marker = on_nodes(settings.marker, self.stack.stack, self.marker_size)
        return MeshPlan(self.ring, dict(self._mesh_ports()), settings, marker, self.settings.fabric.mtu)

    def _mesh_ports(self) -> Iterator[tuple[tuple[int, End], MeshPort]]:
        """The ranks' ports in all planes that are on, as far as their devices were found."""
        for node in self.ranks:
            for plane, end in self.fabric.ends(node.name):
                device = self.devices[node.name].get((plane, end.socket))
                if device:
                    interface = self.planes[plane].ports[end].interface
                    mac = device.mac.lower() if device.mac else None
                    yield (plane, end), MeshPort(device.netdev, device.hca, device.pci, mac, interface)

    @property
    def _mesh_is_off(self) -> bool:
        """Whether the mesh is off where it may have been on: then its stages are there to take it away.

        A fleet that never had one has no such stages. That they were reverted is in no journal, so the settings keep
        them: a section `mesh` that says something, if only that it is off. Where a journal was lost, files tell.
        """
        held = any(facts.has_mesh or not facts.stages.keys().isdisjoint(MESH) for facts in self.facts.values())
        return not self.settings.mesh.enabled and (held or bool(self.settings.mesh.model_fields_set))

    def _made(self) -> Plan:
        self.mesh = self._mesh()
        nodes = tuple(self._node(node) for node in self.settings.nodes)
        ranks = [node for node in nodes if node.active]
        table = [[node.name, node.address, self._machine(node.name)] for node in ranks]
        desired = {node.name: dict(_felt(node.stages)) for node in ranks}
        containers = [node.container.arguments() for node in ranks if node.container]
        management = {node.name: node.management for node in ranks}
        shared = {"share": self.share.arguments()} if self.share else {}
        remarks = list(self._remarks(ranks[0]))
        return Plan(
            settings=self.settings,
            stack=self.stack,
            topology=self.topology,
            planes=self.planes,
            nodes=nodes,
            standstill=digest(
                {"ranks": table, "desired": {name: bare(stages) for name, stages in desired.items()}, **shared}
            ),
            group=digest({"ranks": table, "containers": containers}),
            mesh=self.mesh,
            share=self.share,
            warnings=(
                *self.libraries.warnings(self.ranks),
                *cautions.warnings(self.settings, management),
                *(problem for problem, is_warning in remarks if is_warning),
            ),
            notes=(
                *self.libraries.notes(self.ranks),
                *(problem for problem, is_warning in remarks if not is_warning),
            ),
        )

    def _remarks(self, head: NodePlan) -> Iterator[tuple[Problem, bool]]:
        assert head.container  # of a node with a rank
        env = {name: flag.value for name, flag in head.container.env.items()}
        return cautions.remarks(self.settings, env, len(list(self.fabric.ends(head.name))), self.mesh)

    def _machine(self, name: str) -> str | None:
        facts = self.facts.get(name)
        return facts.machine_id if facts else None

    def _devices(self, index: int, node: Node) -> dict[tuple[int, Socket], Device]:
        """The node's ports of both planes. Only those of planes that are on must be there."""
        facts = self.facts.get(node.name)
        found: dict[tuple[int, Socket], Device] = {}
        for plane in PLANES:
            for socket in self.topology.sockets:
                if facts is None:
                    found[plane, socket] = ports.usual(node, plane, socket)
                    continue
                device = ports.find(node, index, facts, plane, socket)
                if isinstance(device, Device):
                    found[plane, socket] = device
                elif node.active and plane in self.planes:
                    self.problems.append(device)
        named = ((f"plane {plane} {socket}", device) for (plane, socket), device in found.items())
        self.problems.extend(ports.clashes(node, named))
        return found

    def _check(self) -> None:
        self.problems.extend(refusals.not_probed(self.ranks, self.facts))
        self.problems.extend(refusals.copies(self.ranks, self.facts))
        subnets = {subnet: plane for plane, addresses in self.planes.items() for subnet in addresses.subnets}
        for node in self.ranks:
            if node.name in self.facts:
                layout = refusals.Layout(subnets, self.fabric.here(node.name), set(self._detours(node.name)))
                self.problems.extend(refusals.overlaps(node, self.facts[node.name], layout))
        self.problems.extend(self.libraries.problems(self.ranks))
        if self.ring and all(node.name in self.facts for node in self.ranks):
            self.problems.extend(mesh_refusals.cards([node.name for node in self.ranks], dict(self._mesh_ports())))

    def _detours(self, name: str) -> Iterator[tuple[str, IPv4Network]]:
        """The mesh's routes on a node, as far as its devices were found."""
        for path in self.ring.taken() if self.ring else ():
            device = self.devices[name].get((path.plane, path.origin.socket))
            if path.source == self.rank[name] and device:
                yield device.netdev, IPv4Network(self.planes[path.plane].at(path.arrival))

    def _management(self, node: Node) -> Flag:
        """The network device that holds the management address, or that ssh comes in by where it is translated."""
        facts = self.facts.get(node.name)
        found = (facts.holding(node.address) or facts.ssh_netdev) if facts else None
        return Flag(found, Source.FOUND) if found else Flag(ports.USUAL_MANAGEMENT, Source.EXPECTED)

    def _gid(self, node: Node) -> Flag:
        """The GID index of a rank. Where nothing is right, the problems are kept and the usual one stands in."""
        planned = [
            gid.Port(plane, device, self.planes[plane].ports[end].interface)
            for plane, end in self.fabric.ends(node.name)
            if (device := self.devices[node.name].get((plane, end.socket)))
        ]
        facts = self.facts.get(node.name)
        if self.ring:
            found = gid.pinned(node.name, facts, planned, GID_INDEX)
        else:
            found = gid.index_for(node.name, facts, planned, self.settings.engine.gid_index)
        if isinstance(found, Flag):
            return found
        self.problems.extend(found)
        return Flag(str(gid.USUAL), Source.EXPECTED)

    def _node(self, node: Node) -> NodePlan:
        rank = self.rank.get(node.name)
        stages: dict[str, dict[str, Any]] = {
            "node": {"name": node.name, "rank": rank, "members": [each.name for each in self.ranks]}
        }
        for plane in PLANES:
            on = rank is not None and plane in self.planes
            stages[f"plane{plane}"] = self.fabric.plane(node, plane) if on else self.fabric.off(node, plane)
        stages["relay"] = self.fabric.relay(node)
        stages["nccl"] = self.libraries.desired(node, self.stack.stack)
        if self.mesh:
            stages |= self.mesh.stages(rank) if rank is not None else {stage: dict(OFF) for stage in MESH}
        elif self._mesh_is_off:
            stages |= {stage: dict(OFF) for stage in MESH}
        return NodePlan(
            name=node.name,
            address=str(node.address),
            rank=rank,
            management=self._management(node).value,
            devices=self.devices[node.name],
            stages=stages,
            verify=self._verify(node) if rank is not None else None,
            container=self._container(node, rank, stages["nccl"]) if rank is not None else None,
        )

    def _verify(self, node: Node) -> dict[str, Any]:
        # Where a GID has moved away from the index that the mesh needs, a stage after this check brings it back.
        return self.fabric.verify(node, None if self.ring else int(self.gids[node.name].value))

    def _container(self, node: Node, rank: int, library: Mapping[str, Any]) -> ContainerPlan:
        engine, facts = self.settings.engine, self.facts.get(node.name)
        devices = Devices(
            hcas=[self.fabric.device(plane, end)[1].hca for plane, end in self.fabric.ends(node.name)],
            management=self._management(node),
            gid=self.gids[node.name],
            all_hcas=facts.hcas if facts else (),
            all_netdevs=facts.links if facts else (),
            peer_maps=self.mesh.peer_maps if self.mesh else None,
        )
        return ContainerPlan(
            node=node.name,
            rank=rank,
            name=self.stack.container(self.settings),
            image=self.image_ref,
            image_id=self.image_id,
            by_name=engine.image.by_name,
            env=flags.environment(self.settings, rank, devices),
            devices=DEVICES,
            capabilities=CAPABILITIES,
            ulimits=ULIMITS,
            shm_size=engine.shm_size,
            privileged=engine.privileged,
            gpus=engine.gpus,
            volumes=(*self.settings.volumes_on(node), *self.libraries.mounts(library)),
            labels={"spark-fabric.stack": self.stack.label(self.settings.fleet.id), "spark-fabric.rank": str(rank)},
            stop_timeout=engine.stop_grace,
            log_driver=None if engine.log.driver is Driver.DAEMON else engine.log.driver.value,
            log_options=engine.log.options,
            healthcheck=engine.healthcheck.told,
            weights=facts.weights.content if engine.weights and facts and facts.weights else None,
        )


def _felt(stages: Mapping[str, dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The desired states whose change an engine would feel."""
    for stage in STAGES:
        if stage in stages and (stage not in LATER or stages[stage]["state"] != "off"):
            yield stage, stages[stage]
