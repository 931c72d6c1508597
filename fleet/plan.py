"""The plan: everything that the fleet shall be, as plain values, from settings and facts.

Preview, `up`, `doctor` and tests use this one object. Desired states are the JSON values that the node program takes.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from typing import Any

from fleet import combinations, flags, gid, netplan, ports, refusals, topology, variables
from fleet.addressing import BENCHMARK_NETWORK, PlaneAddresses, PortAddress, assign
from fleet.container import CAPABILITIES, DEVICES, ULIMITS, ContainerPlan
from fleet.engine_rules import modules, where
from fleet.facts import Facts
from fleet.flags import Devices, Flag, Source
from fleet.library import Choice
from fleet.mesh import refusals as mesh_refusals
from fleet.mesh.check import checks
from fleet.mesh.desired import GID_INDEX, OFF
from fleet.mesh.desired import Port as MeshPort
from fleet.mesh.marker import on_nodes
from fleet.mesh.paths import Ring
from fleet.mesh.plan import MeshPlan
from fleet.mesh.plan import remarks as mesh_remarks
from fleet.nccl import Libraries
from fleet.node_settings import Node
from fleet.ports import Device
from fleet.problems import Problem, ProblemsError, config_path
from fleet.profiles import Profile
from fleet.settings import Settings
from fleet.told import known
from fleet.topology import PLANES, Cabling, End, Kind, Socket, Topology
from node.digest import digest
from node.files import MARK
from node.mesh import STAGES as MESH

STAGES = ("node", "plane0", "plane1", "relay", "nccl", *MESH)
"""In this order. Their desired states change only while no engine runs."""

LATER = ("nccl", *MESH)
"""Stages that are left out of digests while they are off: a version that brings them stops no engine, and to an engine
a mesh that is off is as one that never was."""


class PlanError(ProblemsError):
    """The settings do not fit the nodes; `problems` has all of it.

    `draft` is the plan as it would be without them: good for telling the drift of the nodes, never to be applied.
    """

    def __init__(self, problems: Iterable[Problem], draft: "Plan") -> None:
        super().__init__(problems)
        self.draft = draft


@dataclass(frozen=True)
class StackName:
    """Which stack: the marks that nodes, files and containers carry."""

    project: str
    stack: str

    def label(self, fleet_id: str) -> str:
        """The value of the label `spark-fabric.stack`."""
        return f"{self.project}/{self.stack}/{fleet_id}"

    def container(self, settings: Settings) -> str:
        """The container's name, the same on every node."""
        return settings.engine.name or f"spark-fabric-{self.stack}"

    def owns(self, owner: Mapping[str, Any], fleet_id: str) -> bool:
        """Whether a node with this owner (as `observe` has it) belongs to the stack, from whatever state."""
        return StackName(owner["project"], owner["stack"]).label(owner["fleet_id"]) == self.label(fleet_id)


@dataclass(frozen=True)
class NodePlan:
    """One node, with its desired state for each stage.

    A leaving node has no rank, nothing to verify and no container, and its stages are off. Those of the mesh are there
    only where the settings say something about one, or a node still has one.
    """

    name: str
    address: str
    rank: int | None
    management: str
    devices: Mapping[tuple[int, Socket], Device]
    stages: Mapping[str, dict[str, Any]]
    verify: dict[str, Any] | None = None
    container: ContainerPlan | None = None

    @property
    def active(self) -> bool:
        """Whether the node has a rank."""
        return self.rank is not None


@dataclass(frozen=True)
class Plan:
    """The fleet. `nodes` are in the order of the config, without those that the operator has given up."""

    settings: Settings
    stack: StackName
    topology: Topology
    planes: Mapping[int, PlaneAddresses]
    nodes: tuple[NodePlan, ...]
    standstill: str
    group: str
    mesh: MeshPlan | None = None
    warnings: tuple[Problem, ...] = field(default=())
    notes: tuple[Problem, ...] = field(default=())

    @property
    def ranks(self) -> tuple[NodePlan, ...]:
        """The active nodes in rank order."""
        return tuple(node for node in self.nodes if node.active)

    @property
    def head(self) -> NodePlan:
        """Rank 0."""
        return self.ranks[0]

    @property
    def label(self) -> str:
        """The value of the label `spark-fabric.stack`."""
        return self.stack.label(self.settings.fleet.id)

    @property
    def container_name(self) -> str:
        """The container's name, the same on every node."""
        return self.stack.container(self.settings)

    @property
    def containers(self) -> tuple[ContainerPlan, ...]:
        """The ranks' containers, head first."""
        return tuple(node.container for node in self.ranks if node.container)

    @property
    def image(self) -> dict[str, Any]:
        """What every rank's node must have: reference, id and the operator's archive, and what has to be in it."""
        image, target = self.settings.engine.image, self.settings.overlay_target
        needed = {} if "image-module" in self.settings.preflight.ignore else modules(self.settings)
        wanted = {"ref": image.ref, "id": self.image_id, "archive": image.archive}
        return {**wanted, **({"target": target} if target else {}), **({"modules": needed} if needed else {})}

    @property
    def image_id(self) -> str | None:
        """The id of the image of all ranks, where it is known."""
        return self.containers[0].image_id

    @property
    def staged(self) -> dict[str, dict[str, Any]]:
        """By node: both planes' desired states, to be tried together before anything is written."""
        return {node.name: {stage: node.stages[stage] for stage in ("plane0", "plane1")} for node in self.nodes}

    @property
    def verify(self) -> dict[str, dict[str, Any]]:
        """By node: what is checked once all planes are applied."""
        return {node.name: node.verify for node in self.ranks if node.verify}

    def below(self, stages: Iterable[str]) -> str:
        """Digest of stages of all ranks, for what has to be done again when one of them changes."""
        names = list(stages)
        return digest({node.name: _bare({name: node.stages[name] for name in names}) for node in self.ranks})

    @property
    def mesh_checks(self) -> dict[str, dict[str, Any]]:
        """By node: what is written over the mesh once all its stages are applied; nothing without one."""
        if self.mesh is None:
            return {}
        names, addresses = [node.name for node in self.ranks], [node.address for node in self.ranks]
        return checks(self.mesh, names, addresses, self.containers[0].runs)

    @property
    def api_url(self) -> str:
        """Where the OpenAI-compatible API answers."""
        return f"http://{self.head.address}:{self.settings.engine.port}"


def make(
    settings: Settings,
    facts: Mapping[str, Facts] | None,
    stack: StackName,
    *,
    image_id: str | None = None,
    library: Choice | None = None,
    marker_size: int | None = None,
    found: Topology | None = None,
) -> Plan:
    """Plan the fleet. `facts` by node name; None plans without nodes, with the usual device names.

    `image_id` is the image id that every rank shall run; where it is not given, the id that all nodes agree on.
    `library` is the operator's local NCCL library, as far as the settings name one; `marker_size` is that of the mesh's
    marker in bytes, where it is a file to be sent. `found` is the ring that was found, for cables that are to be
    discovered. Raises PlanError with every problem of every node.
    """
    return _Planner(settings, facts, stack, image_id, library, marker_size, found).plan()


def agreed_image(settings: Settings, facts: Mapping[str, Facts]) -> str | None:
    """The id of the configured image on the active nodes that have it; None when they differ or none has it."""
    ref = settings.engine.image.ref
    seen = [facts[node.name].images for node in settings.ranks if node.name in facts]
    ids = {images[ref] for images in seen if ref in images}
    return ids.pop() if len(ids) == 1 else None


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
        library: Choice | None,
        marker_size: int | None,
        found: Topology | None,
    ) -> None:
        self.settings, self.facts, self.stack = settings, facts or {}, stack
        self.probed = facts is not None
        self.image_id = image_id or agreed_image(settings, self.facts)
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
        self.gids = {node.name: self._gid(node) for node in self.ranks}
        self.libraries = Libraries(settings, library, self.facts)

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
            for plane, end in self._ends(node.name):
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
            for plane, end in self._ends(node.name):
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
        remarks = list(self._remarks(nodes))
        return Plan(
            settings=self.settings,
            stack=self.stack,
            topology=self.topology,
            planes=self.planes,
            nodes=nodes,
            standstill=digest({"ranks": table, "desired": {name: _bare(stages) for name, stages in desired.items()}}),
            group=digest({"ranks": table, "containers": containers}),
            mesh=self.mesh,
            warnings=(*self._warnings(), *(problem for problem, is_warning in remarks if is_warning)),
            notes=(
                *self.libraries.notes(self.ranks),
                *(problem for problem, is_warning in remarks if not is_warning),
            ),
        )

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
                layout = refusals.Layout(subnets, self._here(node.name), set(self._detours(node.name)))
                self.problems.extend(refusals.overlaps(node, self.facts[node.name], layout))
        self.problems.extend(self.libraries.problems(self.ranks))
        if self.ring and all(node.name in self.facts for node in self.ranks):
            self.problems.extend(mesh_refusals.cards([node.name for node in self.ranks], dict(self._mesh_ports())))

    def _here(self, name: str) -> dict[str, PortAddress]:
        """What the plan puts on each of a node's network devices, as far as these were found."""
        here = {}
        for plane, end in self._ends(name):
            device = self.devices[name].get((plane, end.socket))
            if device:
                here[device.netdev] = self.planes[plane].ports[end]
        return here

    def _detours(self, name: str) -> Iterator[tuple[str, IPv4Network]]:
        """The mesh's routes on a node, as far as its devices were found."""
        for path in self.ring.taken() if self.ring else ():
            device = self.devices[name].get((path.plane, path.origin.socket))
            if path.source == self.rank[name] and device:
                yield device.netdev, IPv4Network(self.planes[path.plane].at(path.arrival))

    def _ends(self, name: str) -> Iterator[tuple[int, End]]:
        """The planned ends of an active node in all planes that are on, plane 0 first."""
        for plane in self.planes:
            for end in self.topology.ends(self.rank[name]):
                yield plane, end

    def _device(self, plane: int, end: End) -> tuple[str, Device]:
        name = self.ranks[end.rank].name
        return name, self.devices[name][plane, end.socket]

    def _management(self, node: Node) -> Flag:
        """The network device that holds the management address, or that ssh comes in by where it is translated."""
        facts = self.facts.get(node.name)
        found = (facts.holding(node.address) or facts.ssh_netdev) if facts else None
        return Flag(found, Source.FOUND) if found else Flag(ports.USUAL_MANAGEMENT, Source.EXPECTED)

    def _gid(self, node: Node) -> Flag:
        """The GID index of a rank. Where nothing is right, the problems are kept and the usual one stands in."""
        planned = [
            gid.Port(plane, device, self.planes[plane].ports[end].interface)
            for plane, end in self._ends(node.name)
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
            stages[f"plane{plane}"] = self._plane(node, plane) if on else self._off(node, plane)
        stages["relay"] = self._relay(node)
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

    def _plane(self, node: Node, plane: int) -> dict[str, Any]:
        planned, notes = [], {}
        for end in self.topology.ends(self.rank[node.name]):
            _, device = self._device(plane, end)
            port = self.planes[plane].ports[end]
            planned.append(
                {
                    "socket": end.socket.value,
                    "netdev": device.netdev,
                    "hca": device.hca,
                    "address": str(port.interface),
                    "mtu": self.settings.fabric.mtu,
                    "routes": [{"to": str(route.to), "via": str(route.via)} for route in port.routes],
                }
            )
            notes[device.netdev] = self._wire(plane, end)
        planned.sort(key=lambda port: str(port["netdev"]))
        header = (
            f"{MARK}: plane {plane} of {node.name}, stack {self.stack.label(self.settings.fleet.id)}.",
            "A hand edit shows as drift in the preview; `pulumi destroy` takes this file away.",
        )
        desired: dict[str, Any] = {
            "state": "on",
            "plane": plane,
            "file": netplan.path(plane),
            "text": netplan.render(header, planned, notes),
            "ports": planned,
        }
        if self.settings.fabric.set_aside:
            desired["setAside"] = sorted(self.settings.fabric.set_aside)
        return desired

    def _wire(self, plane: int, end: End) -> str:
        segment = self.topology.segment(end)
        if self.topology.kind is Kind.SWITCHED:
            return f"{end.socket}, to the switch"
        (other,) = segment.others(end)
        name, device = self._device(plane, other.end)
        return f"{end.socket}, cable {segment.index} to {name} {device.netdev}"

    def _off(self, node: Node, plane: int) -> dict[str, Any]:
        return {
            "state": "off",
            "plane": plane,
            "file": netplan.path(plane),
            "ports": sorted(
                (
                    {"socket": socket.value, "netdev": device.netdev, "hca": device.hca}
                    for (of, socket), device in self.devices[node.name].items()
                    if of == plane
                ),
                key=lambda port: port["netdev"],
            ),
        }

    def _relay(self, node: Node) -> dict[str, Any]:
        if node.name not in self.rank or not self.settings.fabric.ip_relay or self.topology.kind is Kind.SWITCHED:
            return {"state": "off"}
        ends = self.topology.ends(self.rank[node.name])
        return {"state": "on", "pairs": [[self._device(plane, end)[1].netdev for end in ends] for plane in self.planes]}

    def _verify(self, node: Node) -> dict[str, Any]:
        checked = []
        for plane, end in self._ends(node.name):
            _, device = self._device(plane, end)
            addresses, segment = self.planes[plane], self.topology.segment(end)
            peers = []
            for other in segment.others(end):
                name, far = self._device(plane, other.end)
                peers.append(
                    {"node": name, "netdev": far.netdev, "address": str(addresses.at(other.end)), "mac": far.mac}
                )
            checked.append(
                {
                    "netdev": device.netdev,
                    "hca": device.hca,
                    "plane": plane,
                    "cable": segment.index if self.topology.kind is Kind.RING else None,
                    "address": str(addresses.ports[end].interface),
                    "mtu": self.settings.fabric.mtu,
                    "peers": peers,
                }
            )
        # Where a GID has moved away from the index that the mesh needs, a stage after this check brings it back.
        index = None if self.ring else int(self.gids[node.name].value)
        return {"ports": checked, "far": list(self._far(node)), "gid": True, "gid_index": index}

    def _far(self, node: Node) -> Iterator[dict[str, str]]:
        """Addresses that answer only if another node forwards: those on far subnets that the next hop does not own."""
        if not self.settings.fabric.ip_relay:
            return
        for addresses in self.planes.values():
            for index, hop in sorted(self.topology.hops[self.rank[node.name]].items()):
                for member in self.topology.segments[index].members:
                    if member.end.rank != hop.via.rank:
                        far = self.ranks[member.end.rank].name
                        yield {"address": str(addresses.at(member.end)), "node": far}

    def _container(self, node: Node, rank: int, library: Mapping[str, Any]) -> ContainerPlan:
        engine, facts = self.settings.engine, self.facts.get(node.name)
        devices = Devices(
            hcas=[self._device(plane, end)[1].hca for plane, end in self._ends(node.name)],
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
            image=engine.image.ref,
            image_id=self.image_id,
            env=flags.environment(self.settings, rank, devices),
            devices=DEVICES,
            capabilities=CAPABILITIES,
            ulimits=ULIMITS,
            shm_size=engine.shm_size,
            privileged=engine.privileged,
            gpus=engine.gpus,
            volumes=(*engine.volumes, *self.libraries.mounts(library)),
            labels={"spark-fabric.stack": self.stack.label(self.settings.fleet.id), "spark-fabric.rank": str(rank)},
        )

    def _warnings(self) -> Iterator[Problem]:
        yield from self.libraries.warnings(self.ranks)
        for plane in self.planes:
            pool = self.settings.fabric.planes[plane].pool
            if pool.overlaps(BENCHMARK_NETWORK):
                yield Problem(
                    "benchmark-pool",
                    config_path(("fabric", f"plane{plane}", "pool")),
                    f"is {pool}, inside {BENCHMARK_NETWORK}",
                    "another network",
                    "Local proxies hand out fake DNS answers from that range.",
                )
        for node in self.ranks:
            management = self._management(node).value
            if management.startswith("wl"):
                yield Problem(
                    "wireless",
                    f"{node.name} {management}",
                    "is wireless and holds the management address",
                    "a cable",
                    "The ranks meet over this port, and the API answers there.",
                )
        first = self.settings.nodes[0]
        if not first.active:
            yield Problem(
                "head-leaves",
                config_path(("nodes", 0, "state")),
                f"is leaving, so {self.ranks[0].name} becomes the head",
                "clients to follow",
                f"The API moves to {self.ranks[0].address}.",
            )

    def _remarks(self, nodes: Iterable[NodePlan]) -> Iterator[tuple[Problem, bool]]:
        """What to know about NCCL's variables and the mesh, once for all ranks; with it, whether it is a warning."""
        head = next(node for node in nodes if node.rank == 0)
        assert head.container  # of a node with a rank
        env = {name: flag.value for name, flag in head.container.env.items()}
        hcas = len(list(self._ends(head.name)))
        for one in variables.remarks(self.settings.ground, env, hcas):
            path = config_path(("engine", "env", one.name))
            yield Problem(one.code, path, one.seen, one.wanted, one.hint), one.warning
        for one in combinations.remarks(self.settings.ground, env):
            path = config_path(where(self.settings, one.name))
            seen = one.seen if path.endswith(one.name) else f"{one.name} {one.seen}"
            yield Problem(one.code, path, seen, one.wanted, one.hint), one.warning
        if self.mesh:
            yield from ((note, False) for note in mesh_remarks(self.mesh))


def _felt(stages: Mapping[str, dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The desired states whose change an engine would feel."""
    for stage in STAGES:
        if stage in stages and (stage not in LATER or stages[stage]["state"] != "off"):
            yield stage, stages[stage]


def _bare(stages: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Desired states without rendered text: a changed comment changes no digest."""
    return {stage: {key: value for key, value in desired.items() if key != "text"} for stage, desired in stages.items()}
