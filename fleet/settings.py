"""The whole stack config, and every rule between its parts.

Each part is in a file of its own, with its keys, defaults, meanings and own rules; rules about one value are in
`scalars.py`. `loading.load` is the only door.
"""

from collections.abc import Iterator
from ipaddress import IPv4Address

from pydantic import Field
from pydantic.alias_generators import to_camel

from fleet import scalars, variables
from fleet.addressing import LAST_HOST, SUBNET_PREFIX, subnets_in
from fleet.engine_rules import broken
from fleet.engine_settings import OWNED_ENV, Engine, Volume
from fleet.fabric_settings import Fabric
from fleet.mesh.conditions import unmet
from fleet.mesh.settings import Mesh
from fleet.model import Broken
from fleet.model import Model as _Model
from fleet.nccl_settings import LIBRARY_FOLDER, Nccl
from fleet.node_settings import Node, Ssh
from fleet.preflight_settings import Preflight
from fleet.problems import Loc, shown
from fleet.profiles import Profile
from fleet.proof_settings import Proof
from fleet.scalars import LibraryMode
from fleet.told import known
from fleet.topology import FIRST_HOST, RING_MINIMUM, SWITCHED_MINIMUM, Kind
from fleet.weights_settings import Nfs


class Fleet(_Model):
    """Which fleet this is."""

    id: scalars.Label = Field(
        "default",
        description="Mark on each node, beside project and stack: another fleet's stack of the same name is refused. "
        "Choose your own where several people run stacks.",
    )


class Settings(_Model):
    """The configuration of one stack, which is one fleet."""

    nodes: list[Node] = Field(description="The nodes in tensor-parallel rank order, head first.")
    ssh: Ssh = Field(description="How to reach the nodes.")
    engine: Engine = Field(description="The inference engine.")
    fabric: Fabric = Field(Fabric(), description="Cabling and addresses.")
    nccl: Nccl = Field(Nccl(), description="The NCCL library of the engine.")
    proof: Proof = Field(Proof(), description="Proof that the engine uses all of its fabric.")
    fleet: Fleet = Field(Fleet(), description="Which fleet this is.")
    mesh: Mesh = Field(
        Mesh(),
        description="Research-only, off by default: opposite nodes of a ring of four reach each other through the "
        "neighbours' network cards.",
    )
    preflight: Preflight = Field(Preflight(), description="What is looked at before anything is changed.")

    @property
    def ranks(self) -> tuple[Node, ...]:
        """The active nodes; the position is the rank."""
        return tuple(node for node in self.nodes if node.active)

    @property
    def leaving(self) -> tuple[Node, ...]:
        """The nodes on their way out."""
        return tuple(node for node in self.nodes if not node.active)

    @property
    def ground(self) -> variables.Ground:
        """What the variables of NCCL stand on."""
        fabric = self.fabric
        return variables.Ground(
            fabric.topology, len(fabric.on), self.engine.profile, self.library_mode, self.mesh.enabled
        )

    @property
    def library_mode(self) -> LibraryMode:
        """Where the engine's NCCL comes from."""
        standard = LibraryMode.OVERLAY if self.fabric.topology is Kind.RING else LibraryMode.IMAGE
        return self.nccl.mode or standard

    @property
    def overlay_target(self) -> str | None:
        """The file of the image that another library lies over, if one does."""
        return self.nccl.target if self.library_mode is LibraryMode.OVERLAY else None

    def library_on(self, node: Node) -> str | None:
        """Where the operator says that the library lies on a node; None where none does, or a local one is sent."""
        return node.nccl.on_node or self.nccl.library.on_node

    @property
    def nfs(self) -> Nfs | None:
        """How workers get the weights over the network; None where every node has its own, or none are named."""
        return self.engine.weights.nfs if self.engine.weights else None

    def weights_on(self, node: Node) -> str | None:
        """Where the weights lie on a node; None where the settings name no place for them on it."""
        if self.engine.weights is None or (self.nfs and node.name != self.ranks[0].name):
            return None
        return node.weights.path or self.engine.weights.path

    def weights_server(self, node: Node) -> IPv4Address | None:
        """Where a node reaches the server of the weights; None on the head, and where none is shared.

        By default that is the management network, on a ring too: what the head has no cable to would be passed on by
        the kernel of another node.
        """
        if self.nfs is None or node.name == self.ranks[0].name:
            return None
        return node.weights.server or self.nfs.server or self.ranks[0].address

    @property
    def builder(self) -> str:
        """The node that builds the image, where one is to be built."""
        build = self.engine.image.build
        return (build and build.node) or self.ranks[0].name

    def volumes_on(self, node: Node) -> tuple[Volume, ...]:
        """What the operator gives the engine on a node: the volumes, and the weights read-only."""
        if self.engine.weights is None:
            return tuple(self.engine.volumes)
        source = self.weights_on(node) or (self.nfs.volume if self.nfs else None)
        weights = {"source": source, "target": self.engine.weights.mount, "readOnly": True}
        return (*self.engine.volumes, Volume.model_validate(weights))

    def rules(self) -> Iterator[Broken]:
        """Everything that holds between the parts."""
        yield from (broken.under("fabric") for broken in self.fabric.rules())
        yield from (broken.under("engine") for broken in self.engine.rules())
        yield from (broken.under("mesh") for broken in self.mesh.rules())
        yield from (broken.under("preflight") for broken in self.preflight.rules())
        for index, node in enumerate(self.nodes):
            yield from (broken.under("nodes", index, "ports") for broken in node.ports.rules())
        yield from self._unique()
        yield from self._sizes()
        yield from self._apart()
        yield from self._variables()
        yield from self._library()
        yield from self._weights()
        yield from self._builder()
        yield from unmet(self)
        yield from broken(self)

    def _unique(self) -> Iterator[Broken]:
        for key in ("name", "address", "host_key"):
            seen: dict[object, int] = {}
            for index, node in enumerate(self.nodes):
                value = getattr(node, key)
                if value is None:
                    continue
                if value in seen:
                    first = seen[value]
                    yield Broken(
                        f"{to_camel(key)}-twice".lower(),
                        ("nodes", index, to_camel(key)),
                        f"is {shown(str(value))} as nodes[{first}].{to_camel(key)} is",
                        "a different one for each node",
                        "Correct one of the two.",
                        (("nodes", first, to_camel(key)),),
                    )
                seen.setdefault(value, index)

    def _sizes(self) -> Iterator[Broken]:
        size, kind = len(self.ranks), self.fabric.topology
        least = RING_MINIMUM if kind is Kind.RING else SWITCHED_MINIMUM
        if size < least:
            yield Broken(
                "too-few-nodes",
                ("nodes",),
                f"has {size} active",
                f"at least {least} for a {kind} fabric",
                "Add nodes, or set fabric.topology: switched." if size == 2 else "Add nodes.",
                (("fabric", "topology"),),
            )
            return
        if self.engine.ep_size is not None and size % self.engine.ep_size:
            yield Broken(
                "ep-size",
                ("engine", "epSize"),
                f"is {self.engine.ep_size} with {size} ranks",
                f"a divisor of {size}",
                "Leave it out for the default.",
                (("nodes",),),
            )
        elif self.engine.ep_size is not None and self.engine.profile is not Profile.NONE:
            wrong = variables.expert_share(size, self.engine.ep_size, known(self))
            if wrong:
                yield Broken(
                    "ep-share",
                    ("engine", "epSize"),
                    f"is {self.engine.ep_size} with {size} ranks, so each has {wrong[0]} of an expert's rows",
                    f"a multiple of {wrong[1]}",
                    "Choose another, or leave it out. DSV41_MOE_B12X_NEXT=1 in engine.env takes multiples of 64.",
                    (("nodes",), ("engine", "env"), ("engine", "profile"), ("engine", "without")),
                )
        for number, plane in self.fabric.planes.items():
            loc: Loc = ("fabric", f"plane{number}", "pool")
            if kind is Kind.RING and plane.enabled and subnets_in(plane.pool) < size:
                yield Broken(
                    "pool-too-small",
                    loc,
                    f"is {plane.pool}, {subnets_in(plane.pool)} subnets of /{SUBNET_PREFIX}",
                    f"one for each of {size} cables",
                    f"Use a /{SUBNET_PREFIX - (size - 1).bit_length()} or larger.",
                    (("nodes",),),
                )
            if (
                kind is Kind.SWITCHED
                and plane.enabled
                and (subnets_in(plane.pool) < 1 or FIRST_HOST + size - 1 > LAST_HOST)
            ):
                yield Broken(
                    "pool-too-small",
                    loc,
                    f"is {plane.pool}",
                    f"a /{SUBNET_PREFIX} with a host for each of {size} nodes",
                    f"Use a /{SUBNET_PREFIX}; a rail has room for {LAST_HOST - FIRST_HOST + 1} nodes.",
                    (("nodes",),),
                )

    def _variables(self) -> Iterator[Broken]:
        """No variable of the operator's own contradicts the fabric or another variable."""
        env, head = self.engine.env, self.engine.head_env
        found = [("env", one) for one in variables.objections(self.ground, env)]
        found += [("headEnv", one) for one in variables.objections_of_head(self.ground, env, head)]
        planes: tuple[Loc, ...] = tuple(("fabric", f"plane{plane}", "enabled") for plane in self.fabric.planes)
        also: tuple[Loc, ...] = (("fabric", "topology"), *planes, ("engine", "profile"))
        for where, one in found:
            if one.name not in OWNED_ENV:  # said already
                yield Broken(one.code, ("engine", where, one.name), one.seen, one.wanted, one.hint, also)

    def _library(self) -> Iterator[Broken]:
        """The library has one source, which the mode can use, and a place that nothing else is mounted at."""
        mode, also = self.library_mode, (("nccl", "mode"), ("fabric", "topology"))
        own = [index for index, node in enumerate(self.nodes) if node.nccl.on_node]
        if self.fabric.topology is Kind.RING and mode is not LibraryMode.OVERLAY:
            yield Broken(
                "nccl-mode",
                ("nccl", "mode"),
                f"is {mode} on a ring",
                "overlay",
                "Stock NCCL connects trees, and torch finds no other library than the one in its image.",
                also,
            )
            return
        unused = {LibraryMode.IMAGE: ("library", "sha256", "target"), LibraryMode.DIRECTORY: ("target",)}
        for key in unused.get(mode, ()):
            if key in self.nccl.model_fields_set:
                yield Broken(
                    "nccl-unused",
                    ("nccl", key),
                    f"is set with nccl.mode {mode}",
                    "it with a mode that uses it",
                    "Set nccl.mode: overlay, or remove it.",
                    also,
                )
        if mode is LibraryMode.IMAGE:
            yield from (self._unused_path(index, f"nccl.mode is {mode}") for index in own)
            return
        yield from self._source(own)
        at = self.nccl.target if mode is LibraryMode.OVERLAY else LIBRARY_FOLDER
        mounts: list[tuple[Loc, str]] = [
            (("engine", "volumes", index), volume.target) for index, volume in enumerate(self.engine.volumes)
        ]
        if self.engine.weights:
            mounts.append((("engine", "weights", "mount"), self.engine.weights.mount))
        for loc, target in mounts:
            if target == at:
                yield Broken(
                    "mount-twice",
                    loc,
                    f"mounts at {at}, where nccl.library goes",
                    "one source for each target",
                    "Remove it: nccl.library does this." if "volumes" in loc else "Choose another place.",
                    (("nccl",), ("fabric", "topology")),
                )

    def _source(self, own: list[int]) -> Iterator[Broken]:
        """The library comes from this machine, or lies on every node. `own`: the nodes that say where on them."""
        library, loc = self.nccl.library, ("nccl", "library")
        if library.file and library.on_node:
            yield Broken("library-twice", (*loc, "onNode"), "is set beside file", "one of the two", "Remove one.")
        elif library.file:
            yield from (self._unused_path(index, "nccl.library is a local file, which is sent") for index in own)
        elif not library.on_node and not own:
            yield Broken(
                "library-missing",
                loc,
                "is missing",
                "the path of a local file, or {onNode: PATH}",
                "docs/prerequisites.md says which library a ring needs.",
                (("nccl", "mode"), ("fabric", "topology"), ("nodes",)),
            )
        elif not library.on_node:
            for index, node in enumerate(self.nodes):
                if node.active and not node.nccl.on_node:
                    yield Broken(
                        "library-missing",
                        ("nodes", index, "nccl", "onNode"),
                        "is missing",
                        "the path on this node, as other nodes have one",
                        "Set it, or nccl.library.onNode for all.",
                        (loc,),
                    )

    def _unused_path(self, index: int, why: str) -> Broken:
        loc: Loc = ("nodes", index, "nccl", "onNode")
        also: tuple[Loc, ...] = (("nccl",), ("fabric", "topology"))
        return Broken("nccl-unused", loc, f"is set, and {why}", "it with nccl.library.onNode", "Remove it.", also)

    def _weights(self) -> Iterator[Broken]:
        """No node says of weights what nobody asked for."""
        head = self.ranks[0] if self.ranks else None
        for index, node in enumerate(self.nodes):
            loc: Loc = ("nodes", index, "weights")
            if node.weights.path and self.engine.weights is None:
                seen, wanted = "is set without engine.weights", "it beside engine.weights.path"
                yield Broken("weights-unused", (*loc, "path"), seen, wanted, "Set that, or remove it.", (("engine",),))
            elif node.weights.path and self.nfs and node.active and node is not head:
                seen, wanted = "is set on a worker beside engine.weights.nfs", "one place"
                hint = "Workers get the head's folder: remove it, or engine.weights.nfs."
                yield Broken("weights-unused", (*loc, "path"), seen, wanted, hint, (("engine",), ("nodes",)))
            if node.weights.server and (self.nfs is None or node is head):
                seen = "is set on the head" if self.nfs else "is set without engine.weights.nfs"
                wanted, hint = "it on a worker that reaches a server", "Remove it."
                yield Broken("weights-unused", (*loc, "server"), seen, wanted, hint, (("engine",), ("nodes",)))

    def _builder(self) -> Iterator[Broken]:
        """The image is built by a node that has a rank."""
        build, names = self.engine.image.build, [node.name for node in self.ranks]
        if build and build.node and build.node not in names:
            loc: Loc = ("engine", "image", "build", "node")
            seen, wanted = f"is {build.node}, which is no active node", f"one of {', '.join(names)}"
            yield Broken("build-node", loc, seen, wanted, "Without it the head builds.", (("nodes",),))

    def _apart(self) -> Iterator[Broken]:
        """No management address lies in a fabric pool."""
        for number, plane in self.fabric.planes.items():
            inside = [index for index, node in enumerate(self.nodes) if plane.enabled and node.address in plane.pool]
            if inside:
                named = ", ".join(f"nodes[{index}] {self.nodes[index].address}" for index in inside[:3])
                more = f" and {len(inside) - 3} more" if len(inside) > 3 else ""
                yield Broken(
                    "pool-holds-management",
                    ("fabric", f"plane{number}", "pool"),
                    f"is {plane.pool} and holds the management address of {named}{more}",
                    "a pool apart from the management network",
                    "Choose another pool.",
                    tuple(("nodes", index, "address") for index in inside),
                )
