"""The whole stack config: every key, its default, its meaning, and every rule about it.

Rules about one value are in `scalars.py`; rules between values stand here, in the `rules` method of the model that
holds them. `loading.load` is the only door.
"""

import difflib
from collections.abc import Iterator, Mapping
from ipaddress import IPv4Address
from typing import Annotated

from pydantic import BeforeValidator, Field
from pydantic.alias_generators import to_camel

from fleet import scalars, variables, verdicts
from fleet.addressing import LAST_HOST, SUBNET_PREFIX, subnets_in
from fleet.engine_rules import broken
from fleet.mesh.conditions import unmet
from fleet.mesh.settings import Mesh
from fleet.model import Broken
from fleet.model import Model as _Model
from fleet.problems import Loc, shown
from fleet.profiles import Profile
from fleet.scalars import GpuChoice, Gpus, LibraryMode, State, choice
from fleet.serving import Serving
from fleet.told import known
from fleet.topology import FIRST_HOST, RING_MINIMUM, SWITCHED_MINIMUM, Cabling, Kind, Socket


class PortNames(_Model):
    """The devices of one port in one plane."""

    netdev: scalars.Netdev | None = Field(None, description="Network device, such as `enp1s0f0np0`.")
    hca: scalars.Word | None = Field(None, description="RDMA device, such as `rocep1s0f0`.")


class PlanePorts(_Model):
    """The ports of one plane."""

    f0: PortNames = Field(PortNames(), description="The port with PCI function 0.")
    f1: PortNames = Field(PortNames(), description="The port with PCI function 1.")


class NodePorts(_Model):
    """Device names of one node, where they cannot be found by PCI domain and function."""

    plane0: PlanePorts = Field(PlanePorts(), description="Plane 0, PCI domain 0000.")
    plane1: PlanePorts = Field(PlanePorts(), description="Plane 1, PCI domain 0002.")

    def names(self, plane: int, socket: Socket) -> PortNames:
        """What the operator says about one port."""
        of_plane = self.plane0 if plane == 0 else self.plane1
        return of_plane.f0 if socket is Socket.F0 else of_plane.f1

    def rules(self) -> Iterator[Broken]:
        """No device belongs to two ports."""
        seen: dict[str, Loc] = {}
        for plane in (0, 1):
            for socket in Socket:
                names = self.names(plane, socket)
                for kind, name in (("netdev", names.netdev), ("hca", names.hca)):
                    loc: Loc = (f"plane{plane}", socket.value, kind)
                    if name is None:
                        continue
                    if name in seen:
                        yield Broken(
                            "device-twice",
                            loc,
                            f'is "{name}" as at {".".join(map(str, seen[name]))}',
                            "another device for each port",
                            "Correct one of the two.",
                            (seen[name],),
                        )
                    seen.setdefault(name, loc)


class NodeSsh(_Model):
    """SSH of one node, where it differs from the others."""

    user: scalars.User | None = Field(None, description="Login name; as `ssh.user` where left out.")
    port: Annotated[scalars.Whole, Field(ge=1, le=65535)] | None = Field(
        None, description="TCP port; as `ssh.port` where left out."
    )
    identity: scalars.Path | None = Field(None, description="Private key file; as `ssh.identity` where left out.")


class NodeNccl(_Model):
    """The NCCL library of one node, where its place differs."""

    on_node: scalars.NodePath | None = Field(
        None, description="Path on this node; as `nccl.library.onNode` where left out."
    )


class Node(_Model):
    """One DGX Spark."""

    name: scalars.Label = Field(description="Name of the node in resources, messages and `ssh`. Unique.")
    address: scalars.Address = Field(description="Address of the management port; not a fabric address. Unique.")
    state: Annotated[State, choice(State)] = Field(
        State.ACTIVE,
        description="`leaving` takes the node out of the fleet: `up` with it, then remove the entry and `up` again.",
    )
    host_key: scalars.HostKey | None = Field(
        None, description="Public SSH host key, `ssh-ed25519 AAAA…`. Without it the key comes from `ssh.knownHosts`."
    )
    ssh: NodeSsh = Field(NodeSsh(), description="What differs from `ssh` on this node.")
    ports: NodePorts = Field(
        NodePorts(), description="Device names, where they cannot be read from PCI domain and function number."
    )

    nccl: NodeNccl = Field(NodeNccl(), description="Where the library lies on this node.")

    @property
    def active(self) -> bool:
        """Whether the node has a rank."""
        return self.state is State.ACTIVE


class Ssh(_Model):
    """How to reach the nodes. The system's `ssh` is used, with a config that is generated from this."""

    user: scalars.User = Field(description="Login name on the nodes; needs `sudo` without a password, or is root.")
    port: scalars.Whole = Field(22, ge=1, le=65535, description="TCP port of sshd.")
    identity: scalars.Path | None = Field(
        None,
        description="Private key file; `~` is your home, relative paths start at the stack file. "
        "Without it: the agent's keys and ssh's own.",
    )
    known_hosts: scalars.Path = Field(
        "~/.ssh/known_hosts",
        description="Known-hosts file with the nodes' keys, by address or name. Keys are always checked.",
    )
    connect_timeout: scalars.Whole = Field(
        5, ge=1, le=60, description="How long a node may take to answer.", json_schema_extra={"unit": "s"}
    )


class Fleet(_Model):
    """Which fleet this is."""

    id: scalars.Label = Field(
        "default",
        description="Mark on each node, beside project and stack: another fleet's stack of the same name is refused. "
        "Choose your own where several people run stacks.",
    )


class Plane(_Model):
    """One plane of the fabric: the functions of all ports in one PCI domain."""

    enabled: scalars.Switch = Field(True, description="Off takes addresses and routes of this plane away.")
    pool: scalars.Pool = Field(description=f"Network that is cut into one /{SUBNET_PREFIX} for each cable or rail.")


def _plane(pool: str) -> BeforeValidator:
    return BeforeValidator(lambda value: {"pool": pool, **value} if isinstance(value, Mapping) else value)


class Fabric(_Model):
    """Cabling and addresses."""

    topology: Annotated[Kind, choice(Kind)] = Field(
        Kind.RING,
        description="`ring`: a cable from each node to the next. `switched`: one port of each node on a switch.",
    )
    cabling: Annotated[Cabling, choice(Cabling)] = Field(
        Cabling.DISCOVER,
        description="Ring only. `discover`: the cables are found by listening on the ports; neighbouring ranks must "
        "share one, in either direction. `ring`: rank k's f0 must lead to rank k+1's f1. `reversed`: to rank k-1's f1.",
    )
    port: Annotated[Socket, choice(Socket)] = Field(
        Socket.F0, description="Switched only. The QSFP port that is on the switch; `f0` is PCI function 0."
    )
    mtu: scalars.Whole = Field(
        9000, ge=1500, le=9978, description="MTU of every fabric port.", json_schema_extra={"unit": "bytes"}
    )
    plane0: Annotated[Plane, _plane("10.10.0.0/16")] = Field(
        default_factory=lambda: Plane.model_validate({"pool": "10.10.0.0/16"}), description="Plane 0, PCI domain 0000."
    )
    plane1: Annotated[Plane, _plane("10.20.0.0/16")] = Field(
        default_factory=lambda: Plane.model_validate({"pool": "10.20.0.0/16"}), description="Plane 1, PCI domain 0002."
    )
    ip_relay: scalars.Switch = Field(
        True,
        description="Ring only. Plain IP between nodes that share no cable: routes, `ip_forward`, firewall accepts. "
        "Neither RoCE nor the mesh uses this path.",
    )

    set_aside: list[scalars.NetplanFile] = Field(
        [],
        description="Netplan files of the nodes, not ours, that configure fabric ports: moved out of the way while the "
        "stack is up and put back at destroy. Without it such a file is refused.",
    )

    @property
    def planes(self) -> Mapping[int, Plane]:
        """Both planes, by number."""
        return {0: self.plane0, 1: self.plane1}

    @property
    def on(self) -> tuple[int, ...]:
        """Numbers of the enabled planes."""
        return tuple(number for number, plane in self.planes.items() if plane.enabled)

    def rules(self) -> Iterator[Broken]:
        """Planes are disjoint and at least one is on; no key of the other topology is set."""
        if not self.on:
            yield Broken(
                "no-plane",
                ("plane0", "enabled"),
                "is off as plane1.enabled is",
                "at least one plane on",
                "Use `pulumi destroy` to take the fabric away.",
                (("plane1", "enabled"),),
            )
        if self.plane0.pool.overlaps(self.plane1.pool):
            yield Broken(
                "pools-overlap",
                ("plane1", "pool"),
                f"is {self.plane1.pool} and overlaps plane0.pool {self.plane0.pool}",
                "a pool of its own for each plane",
                "Choose another network for one of the two.",
                (("plane0", "pool"),),
            )
        foreign = {"cabling": Kind.RING, "ip_relay": Kind.RING, "port": Kind.SWITCHED}
        for name in sorted(self.model_fields_set & set(foreign)):
            harmless = name == "ip_relay" and not self.ip_relay
            if self.topology is not foreign[name] and not harmless:
                yield Broken(
                    "wrong-topology",
                    (to_camel(name),),
                    f"is set on a {self.topology} fabric",
                    f"it on a {foreign[name]} only",
                    "Remove the key, or correct fabric.topology.",
                    (("topology",),),
                )


class Image(_Model):
    """The engine's image."""

    ref: scalars.ImageRef = Field(description="Image reference. A digest pins it; a tag is resolved on the nodes.")
    archive: scalars.Path | None = Field(
        None,
        description="`docker save` archive that is loaded where the image is missing. "
        "Without it every node has the image already, with one id.",
    )
    roce_ring: scalars.Switch = Field(
        False,
        description="The image has the path-aware RoCEnante, `b12x.comm.roce_ring`, as those of "
        "`Dockerfile.canary-roce` have. The mesh needs it; nothing else asks.",
    )


class Volume(_Model):
    """A folder or docker volume of the node in the container. Written as `SOURCE:/TARGET[:ro]`."""

    source: str
    target: str
    read_only: bool


def _volume(value: object) -> object:
    wanted = "/FOLDER:/TARGET, optionally with :ro"
    if not isinstance(value, str):
        raise scalars.wrong("not-a-volume", wanted, "Write it as one text.")
    source, _, rest = value.partition(":")
    target, _, mode = rest.partition(":")
    named = scalars.CONTAINER_NAME.fullmatch(source) is not None
    if not (source.startswith("/") or named) or not target.startswith("/") or mode not in ("", "ro", "rw"):
        raise scalars.wrong(
            "not-a-volume", wanted, "Both paths are absolute; the source may be a docker volume's name."
        )
    return {"source": source, "target": target.rstrip("/") or "/", "readOnly": mode == "ro"}


PIP_LIBRARY = "/opt/sglang/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2"
"""Where torch finds NCCL in the DeepSeek-V4.1-Flash images (the launcher's NCCL_PIP_SO)."""

LIBRARY_FOLDER = "/nccl"
"""Where a folder with the library is in the container (the launcher's NCCL_CONTAINER_DIR)."""


class LibrarySource(_Model):
    """The operator's NCCL library. Written as the path of a local file, or as `{onNode: PATH}`."""

    file: scalars.Path | None = Field(
        None,
        description="Local file, or a folder with `libnccl.so.2.30.7` or `libnccl.so.2`; relative paths start at the "
        "stack file. It is sent to each node once, and removed at destroy.",
    )
    on_node: scalars.NodePath | None = Field(
        None,
        description="The same on the nodes: a file that is there already. It is only read, and has to be the same "
        "everywhere.",
    )


class Nccl(_Model):
    """The NCCL library of the engine."""

    mode: Annotated[LibraryMode, choice(LibraryMode)] | None = Field(
        None,
        description="`image`: that of the image. `overlay`: yours, read-only over that of the image; the only one on a "
        f"ring. `directory`: your folder at `{LIBRARY_FOLDER}` with `LD_LIBRARY_PATH`, which programs that load NCCL "
        "with ctypes find, and torch does not. Without it: `overlay` on a ring, `image` on a switched fabric.",
    )
    library: Annotated[
        LibrarySource, BeforeValidator(lambda value: {"file": value} if isinstance(value, str) else value)
    ] = Field(LibrarySource(), description="Your library: the path of a local file, or `{onNode: PATH}`.")
    sha256: scalars.Sha256 | None = Field(
        None,
        description="Digest of the library that you trust; every other file is refused. Nothing else is trusted: the "
        "strings that are looked for, size and BuildID are hints that a file fits.",
    )
    target: scalars.NodePath = Field(
        PIP_LIBRARY, description="`overlay` only. The image's file that yours lies over; it has to be there."
    )


OWNED_ENV = {
    "NNODES": "nodes",
    "NODE_RANK": "the order of nodes",
    "TP_SIZE": "nodes",
    "EP_SIZE": "engine.epSize",
    "DIST_INIT_ADDR": "nodes[0].address and engine.distPort",
    "HOST": "engine.listen",
    "SERVER_PORT": "engine.port",
    "SERVED_MODEL_NAME": "engine.servedModelName",
    "VLLM_HOST_IP": "nodes[].address",
    "HOST_IP": "nodes[].address",
    "NCCL_IB_HCA": "fabric (and nodes[].ports)",
    "NCCL_IB_GID_INDEX": "engine.gidIndex, else what each node has",
    "NCCL_IB_SUBNET_PREFIX_LEN": "fabric",
    "NCCL_SOCKET_IFNAME": "nodes[].address",
    "GLOO_SOCKET_IFNAME": "nodes[].address",
}
"""Container variables that follow from other settings, and which."""


EVERYWHERE = IPv4Address(0)


class Engine(_Model):
    """The inference engine: one container on each node."""

    image: Annotated[Image, BeforeValidator(lambda value: {"ref": value} if isinstance(value, str) else value)] = Field(
        description="Image reference, or `{ref, archive, roceRing}`."
    )
    name: scalars.ContainerName | None = Field(
        None, description="Container name on every node. Without it: `spark-fabric-<stack>`."
    )
    port: scalars.Whole = Field(8888, ge=1, le=65535, description="TCP port of the OpenAI-compatible API on the head.")
    dist_port: scalars.Whole = Field(20000, ge=1, le=65535, description="TCP port of the rendezvous on the head.")
    listen: scalars.Listen = Field(EVERYWHERE, description="Address the API listens on.")
    served_model_name: scalars.Word = Field("deepseek-v4.1-flash", description="Model name in the API.")
    ep_size: Annotated[scalars.Whole, Field(ge=1)] | None = Field(
        None,
        description="Expert-parallel size; divides the number of ranks. "
        "Without it: the smallest from 2 on that the engine's kernels can take; 2 with 4 ranks. Production: from 1.",
    )
    profile: Annotated[Profile, choice(Profile)] = Field(
        Profile.AUTO,
        description="`auto`: variables of NCCL as the fabric needs them, listed below; a ring then has 4 ranks. "
        "`none`: only those that follow from nodes and fabric, the others are yours. The others: everything that the "
        "launcher tells its containers, on this fabric and for that image ([docs/settings.md](settings.md)).",
    )
    serving: Serving = Field(
        Serving(),
        description="Capacity and scheduling. Without a key: what the profile says; `auto` and `none` say nothing, and "
        "the image has its own values.",
    )
    gid_index: Annotated[scalars.Whole, Field(ge=0, le=255)] | None = Field(
        None,
        description="GID index of all RDMA devices of every rank; checked on each. "
        "Without it each rank gets the one that its node has.",
    )
    env: dict[scalars.EnvName, scalars.EnvValue] = Field(
        {},
        description="Container variables of all ranks, added or replaced; not those that follow from other keys.",
    )
    head_env: dict[scalars.EnvName, scalars.EnvValue] = Field(
        {}, description="The same for rank 0 only; wins over `env`."
    )
    without: list[scalars.EnvName] = Field([], description="Variables of the profile that no rank is told.")
    privileged: scalars.Switch = Field(
        False, description="Run privileged. The default gives `/dev/infiniband` and CAP_IPC_LOCK."
    )
    gpus: GpuChoice = Field(
        Gpus.REQUEST, description="`request`: docker's GPU request. `cdi`: CDI devices. `off`: no GPU."
    )
    shm_size: scalars.Size = Field(
        32 << 30, description="Shared memory, with unit.", json_schema_extra={"unit": "k, m, g or t"}
    )
    stop_grace: scalars.Whole = Field(
        30, ge=1, le=600, description="Time between SIGTERM and SIGKILL.", json_schema_extra={"unit": "s"}
    )
    ready_timeout: scalars.Whole = Field(
        3600,
        ge=10,
        le=86400,
        description="How long the engine may take until the API is healthy.",
        json_schema_extra={"unit": "s"},
    )
    volumes: list[Annotated[Volume, BeforeValidator(_volume)]] = Field(
        [], description="Folders (absolute) or docker volumes of each node, `SOURCE:/TARGET[:ro]`."
    )

    @property
    def own_address(self) -> str:
        """Where the head reaches its own API."""
        return "127.0.0.1" if self.listen == EVERYWHERE else str(self.listen)

    def rules(self) -> Iterator[Broken]:
        """Ports differ, mount points differ, and no variable is set that another key decides."""
        if self.port == self.dist_port:
            yield Broken(
                "port-twice",
                ("distPort",),
                f"is {self.dist_port} as engine.port is",
                "two different ports",
                "Choose another engine.distPort.",
                (("port",),),
            )
        for where, env in (("env", self.env), ("headEnv", self.head_env)):
            for name in env:
                if name in OWNED_ENV:
                    yield Broken(
                        "env-owned",
                        (where, name),
                        "is set by hand",
                        f"it to follow from {OWNED_ENV[name]}",
                        "Remove it here and set that.",
                    )
        seen: dict[str, int] = {}
        for index, volume in enumerate(self.volumes):
            if volume.target in seen:
                yield Broken(
                    "mount-twice",
                    ("volumes", index),
                    f"mounts at {volume.target} as volumes[{seen[volume.target]}] does",
                    "one source for each target",
                    "Change one of the targets.",
                    (("volumes", seen[volume.target]),),
                )
            seen.setdefault(volume.target, index)


class Preflight(_Model):
    """What is looked at before anything is changed."""

    ignore: list[scalars.Word] = Field(
        [],
        description="Codes of checks that shall not stop a run, nor warn. All codes, and those that cannot be ignored: "
        "[checks.md](checks.md).",
    )
    refuse: list[scalars.Word] = Field(
        [],
        description="Codes that shall stop a run: of warnings, or of drift that you want to look at before it is "
        "repaired, such as `file.edited`.",
    )
    memory: scalars.Size | None = Field(
        None,
        description="Memory that is to be free on a node before the engine starts, with unit. Without it: the share "
        "that `MEM_FRACTION_STATIC` in `engine.env` names, else 80 %, where the engine uses GPUs.",
        json_schema_extra={"unit": "k, m, g or t"},
    )

    def rules(self) -> Iterator[Broken]:
        """Only codes that there are, and none that must be heeded."""
        for key, codes in (("ignore", verdicts.CODES), ("refuse", verdicts.REFUSABLE)):
            for index, code in enumerate(getattr(self, key)):
                if code not in codes:
                    near = difflib.get_close_matches(code, codes, n=1)
                    hint = f"Did you mean {near[0]}?" if near else "docs/checks.md has all codes."
                    yield Broken("check-unknown", (key, index), f'is "{code}"', "the code of a check", hint)
        for index, code in enumerate(self.ignore):
            if code in verdicts.CODES - verdicts.IGNORABLE:
                yield Broken(
                    "check-needed",
                    ("ignore", index),
                    f'is "{code}"',
                    "a check that can be left out",
                    "This one keeps a wrong plan from the nodes, or is drift: it is repaired.",
                )


class Proof(_Model):
    """What is measured once the engine serves, and from when on it is a failure."""

    enabled: scalars.Switch = Field(
        True, description="Off leaves the proof out: an engine that answers may then run on half of its links."
    )
    logs: scalars.Switch = Field(
        False,
        description="Have every rank tell what NCCL chooses (`NCCL_DEBUG=INFO`, `NCCL_DEBUG_SUBSYS=INIT,ENV,NET`), and "
        "check the lines. Switching it starts the engines anew. Without it the lines are `unknown`.",
    )
    minimum: scalars.Size = Field(
        64 << 20,
        description="What the busiest rank has to send while completions are answered: below that the verdict is "
        "`unknown`. With unit.",
        json_schema_extra={"unit": "k, m, g or t"},
    )
    plane_share: Annotated[scalars.Whole, Field(ge=0, le=50)] = Field(
        20, description="What each plane carries at least of a rank's bytes.", json_schema_extra={"unit": "%"}
    )
    edge_share: Annotated[scalars.Whole, Field(ge=0, le=100)] = Field(
        25,
        description="What each cable (on a switch: each rank's link) carries at least in each plane, of their mean.",
        json_schema_extra={"unit": "%"},
    )
    arrival: Annotated[scalars.Whole, Field(ge=0, le=100)] = Field(
        90,
        description="What arrives at least at the planned far ends, of the bytes that are sent.",
        json_schema_extra={"unit": "%"},
    )
    requests: Annotated[scalars.Whole, Field(ge=1, le=1000)] = Field(
        64, description="How many completions are asked for at most, until `minimum` is reached."
    )
    timeout: Annotated[scalars.Whole, Field(ge=10, le=600)] = Field(
        300, description="How long the completions of one round may take.", json_schema_extra={"unit": "s"}
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
        for index, volume in enumerate(self.engine.volumes):
            if volume.target == at:
                yield Broken(
                    "mount-twice",
                    ("engine", "volumes", index),
                    f"mounts at {at}, where nccl.library goes",
                    "one source for each target",
                    "Remove it: nccl.library does this.",
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
