"""What each deviation and each finding means: the one table that decides.

`docs/checks.md` is made of it (`python -m fleet.checklist`), preview and `up` go by it, and so does
`python -m fleet doctor`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from fleet.problems import Problem
from node.deviation import Deviation
from node.mesh import STAGES as MESH


class Verdict(StrEnum):
    """What follows from something that was seen."""

    IN_PLACE = "drift in place"  # repaired by `up`, under a running engine
    DISRUPTIVE = "drift disruptive"  # repaired by `up`, behind a standstill: all ranks stop first
    OK = "ok"  # nothing
    NOTE = "note"  # good to know
    WARNING = "warning"  # told, and the run goes on
    PROBLEM = "problem"  # told, and nothing is changed


class About(StrEnum):
    """What not every stack has."""

    RING = "a ring"
    SWITCHED = "a switch"
    MESH = "a mesh"
    GPUS = "GPUs"
    ARCHIVE = "an archive of the image"
    BUILD = "an image that is built"
    PRESENT = "an image that is on the nodes"
    BY_NAME = "an image that is there or pulled"
    VOLUMES = "folders for the engine"
    ENGRAM = "a folder for the packed engram"
    WEIGHTS = "engine.weights"
    REVISION = "engine.weights.revision"
    MANIFEST = "engine.weights.manifest"
    NFS = "engine.weights.nfs"
    GID = "engine.gidIndex"
    PROFILE = "NCCL's variables by profile"
    LAUNCHER = "a profile of the launcher"
    LIBRARY = "a library in place of the image's"


DRIFT = (Verdict.IN_PLACE, Verdict.DISRUPTIVE)


@dataclass(frozen=True)
class Row:
    """One line of the table.

    `what` is the deviation in words or, of a check, what holds when it passes. `idle` counts while no engine of this
    stack runs on the node (of something that is no single node's: on any node), `running` while one does.
    `safety`: cannot be ignored, because the plan would be wrong, or what was found would be harmed. `foreign`: the
    object of a deviation is somebody else's, whom no apply overrules. `stages`: a deviation in these only; empty means
    in all others. `about`: the check says something only where the stack has that.
    `losses`: packets were lost, so that the fleet stops its engines where the node alone would not have to.
    """

    code: str
    what: str
    idle: Verdict
    running: Verdict
    safety: bool = False
    foreign: bool = False
    stages: tuple[str, ...] = ()
    about: About | None = None
    losses: bool = False

    @property
    def is_drift(self) -> bool:
        """Whether `up` repairs it."""
        return self.idle in DRIFT

    def verdict(self, *, running: bool) -> Verdict:
        """What follows, with or without a running engine."""
        return self.running if running else self.idle


def _in_place(code: str, what: str, *stages: str) -> Row:
    return Row(code, what, Verdict.IN_PLACE, Verdict.IN_PLACE, stages=stages)


def _disruptive(code: str, what: str, *stages: str) -> Row:
    return Row(code, what, Verdict.DISRUPTIVE, Verdict.DISRUPTIVE, stages=stages)


def _lost(code: str, what: str) -> Row:
    """What a node may repair under an engine, but the fleet does not: packets were lost meanwhile.

    RoCEnante, which writes without asking, waits for them for ever. An engine that looks well has only not used that
    path yet.
    """
    return Row(code, what, Verdict.DISRUPTIVE, Verdict.DISRUPTIVE, losses=True)


def _foreign(code: str, what: str) -> Row:
    return Row(code, what, Verdict.PROBLEM, Verdict.PROBLEM, safety=True, foreign=True)


def _refused(code: str, what: str, about: About | None = None) -> Row:
    return Row(code, what, Verdict.PROBLEM, Verdict.PROBLEM, safety=True, about=about)


def _problem(code: str, what: str, about: About | None = None) -> Row:
    return Row(code, what, Verdict.PROBLEM, Verdict.PROBLEM, about=about)


def _start(code: str, what: str, about: About | None = None) -> Row:
    """What stands in the way of a start, and does not bring down what has started."""
    return Row(code, what, Verdict.PROBLEM, Verdict.WARNING, about=about)


def _warning(code: str, what: str, about: About | None = None) -> Row:
    return Row(code, what, Verdict.WARNING, Verdict.WARNING, about=about)


def _note(code: str, what: str, about: About | None = None) -> Row:
    return Row(code, what, Verdict.NOTE, Verdict.NOTE, about=about)


DEVIATIONS: tuple[Row, ...] = (
    # The journal
    _disruptive("journal.absent", "the stage was never applied", "plane0", "plane1", "nccl", *MESH),
    _in_place("journal.absent", "the stage was never applied"),
    _disruptive("journal.unfinished", "an earlier change was not finished"),
    _disruptive("journal.digest", "another desired state was applied", "plane0", "plane1", "nccl", *MESH),
    _in_place("journal.digest", "another desired state was applied"),
    # Files of ours
    _disruptive("file.missing", "a file of ours is gone", "nccl", "markers"),
    _in_place("file.missing", "a file of ours is gone"),
    _disruptive("file.text", "a file of ours has another content than planned", "markers"),
    _in_place("file.text", "a file of ours has another content than planned"),
    _in_place("file.edited", "a file of ours was edited by somebody"),
    _disruptive("file.content", "the library that was sent is another file by now"),
    _disruptive("file.mode", "a file of ours has another mode or owner", "nccl"),
    _in_place("file.mode", "a file of ours has another mode or owner"),
    _disruptive(
        "file.leftover", "a file of ours is there, although the stage is off and the journal knows nothing of it"
    ),
    # A port
    _disruptive("link.missing", "the port is gone"),
    _disruptive("link.mtu", "the port has another MTU"),
    _disruptive("link.address", "the port lacks its address"),
    _in_place("link.extra-address", "the port has one more address"),
    _disruptive("link.local", "the port has not exactly one EUI-64 link-local address"),
    _in_place("link.arp", "the port answers or asks ARP for its twin"),
    _in_place("link.neighbour", "a neighbour is entered with another port's MAC"),
    _disruptive("nm.profile", "NetworkManager does not hold the port with our profile"),
    _in_place("nm.rival", "another profile of NetworkManager starts on the port by itself"),
    _in_place("route.missing", "a route is missing, or leads elsewhere"),
    _in_place("route.extra", "the port has one more static route"),
    _disruptive("hca.missing", "the RDMA device is gone"),
    _disruptive("hca.gid", "the RDMA device has no RoCE v2 GID of the port's address"),
    _foreign("hca.netdev", "the RDMA device belongs to another port"),
    # Other netplan files
    _in_place(
        "netplan.stanza", "a stanza that NetworkManager wrote, or a file in fabric.setAside, speaks for the port"
    ),
    _foreign("netplan.foreign", "somebody else's netplan file configures the port"),
    # Stages
    _disruptive("plane.on", "the plane is on, and shall be off"),
    _disruptive("relay.on", "the relay is on, and shall be off"),
    _in_place("relay.forward", "the kernel does not forward"),
    _in_place("relay.rule", "a firewall rule that lets the relay through is missing"),
    _in_place("relay.enabled", "the relay's unit does not start at boot"),
    _in_place("relay.active", "the relay's unit is stopped"),
    _disruptive("nccl.on", "a library was sent, and the image's shall be used"),
    # The mesh
    _foreign("mesh.unseen", "the state of the mesh cannot be read"),
    _disruptive("nic.on", "the driver's values are ours, and shall be as before"),
    _disruptive("nic.missing", "the RDMA function is gone"),
    _foreign("nic.other", "the PCI function belongs to other devices than planned"),
    _disruptive("nic.queues", "the hairpin queues have another number or size"),
    _disruptive("nic.pending", "values of the driver are shown, but not in effect"),
    _disruptive("nic.offload", "hardware offload of rules is off"),
    _foreign("nic.offload", "the driver does not let hardware offload of rules be switched on"),
    _foreign("nic.failed", "the last re-initialisation of the function failed"),
    _foreign("nic.unknown", "the driver's values cannot be read"),
    _foreign("nic.steering", "the steering mode is not hmfs"),
    _foreign("nic.eswitch", "the eswitch is not in legacy mode"),
    _disruptive("nic.gid", "the GID is at another index than the mesh needs"),
    _disruptive("forwarding.on", "rules and routes are there, and shall be gone"),
    _lost("forwarding.qdisc", "the qdisc clsact is missing"),
    _foreign("forwarding.foreign-qdisc", "somebody else's qdisc is at the ingress"),
    _lost("forwarding.rule-missing", "a rule is missing"),
    _disruptive("forwarding.rule", "a rule of ours is another than planned"),
    _foreign("forwarding.foreign-rule", "somebody else's rule is where ours belongs, or takes marked frames"),
    _disruptive("forwarding.software", "a rule is not in hardware"),
    _foreign("forwarding.mac", "the port has another MAC than planned"),
    _foreign("forwarding.relay-table", "a universal relay table is on the node"),
    _lost("forwarding.route-missing", "a route to an opposite node is missing"),
    _disruptive("forwarding.route", "a route of ours leads elsewhere"),
    _foreign("forwarding.foreign-route", "somebody else's route leads to an opposite node"),
    _disruptive("markers.on", "the markers run, and shall be gone"),
    _foreign("markers.by-hand", "an installation by hand is in the way"),
    _disruptive("markers.binary", "the marker's program is missing, or another file by now"),
    _in_place("markers.binary-mode", "the marker's program cannot be run"),
    _foreign("markers.stranger", "a marker of somebody else's runs"),
    _in_place("markers.service", "the unit of the mesh is not active"),
    _in_place("markers.enabled", "the unit of the mesh does not start at boot"),
    _disruptive("markers.device", "a marker has no RDMA device"),
    _lost("markers.down", "a marker does not run"),
    _disruptive("markers.ready", "a marker runs, but is not attached and managed"),
    _disruptive("markers.outdated", "a marker runs a file that was replaced since"),
    # What the operator put on a node
    _foreign("file.missing", "the library of yours on the node is gone"),
    _foreign("file.content", "the library of yours on the node is another file by now"),
)

CHECKS: tuple[Row, ...] = (
    # The way to the nodes
    _refused("host-key-unknown", "the host key of each node is known"),
    _refused("unreachable", "each node answers in time"),
    _refused("host-key", "each node has its host key"),
    _refused("login", "ssh lets us in"),
    _refused("sudo", "sudo asks for no password"),
    _refused("python", "Python 3.10 or newer runs there"),
    _refused("unread", "everything that a plan needs could be read"),
    _warning("unread-part", "everything else could be read"),
    _refused("tool-missing", "the programs that are needed are there"),
    _warning("forgotten", "no node is skipped"),
    # Whose nodes they are
    _refused("other-owner", "no node belongs to another stack"),
    _refused("other-node", "no address leads to another node than before"),
    _refused("machine-twice", "each node is a machine of its own"),
    _refused("member-vanished", "no member vanished from the settings"),
    _warning("hostname", "each node calls itself what it is called here"),
    _refused("busy", "nobody else is changing a node"),
    _warning("at-work", "nobody is changing a node just now"),
    _problem("repair-failed", "what was repaired stays so"),
    _refused("deviation-unknown", "it is known what follows from each deviation"),
    # The platform
    _warning("clock", "all clocks agree"),
    _refused("disk-full", "there is room for the journal and for files"),
    _start("image-space", "there is room for the image where it is missing", About.ARCHIVE),
    Row("memory", "enough memory is free", Verdict.WARNING, Verdict.OK),
    _start("gpu-busy", "nobody else uses the GPU", About.GPUS),
    _warning("rdma-busy", "nobody else uses RDMA"),
    _start("port-busy", "the engine's TCP ports are free"),
    _problem("level-bad", "no version is known to fail"),
    _warning("level-differs", "all nodes have the same versions"),
    _note("level-unknown", "rings were reported at work with these versions"),
    _refused("nm-stopped", "NetworkManager runs"),
    _refused("netplan-broken", "netplan can read its files"),
    # The ports
    _refused("port-missing", "each planned port is there"),
    _refused("port-mismatch", "named ports are there"),
    _refused("port-ambiguous", "each port can be told from the others"),
    _refused("device-twice", "no device is two ports"),
    _refused("management-port", "the management port is no fabric port"),
    _refused("address-overlap", "no address overlaps the fabric"),
    _refused("route-overlap", "no route overlaps the fabric"),
    _warning("wireless", "the management address is on a cable"),
    _warning("benchmark-pool", "no pool is used by proxies"),
    # The cables
    _refused("cabling-unknown", "every node listens on its ports"),
    _refused("cabling-kind", "cables or a switch are there, as the settings say"),
    _refused("cabling-order", "the cables join the ranks in order", About.RING),
    _refused("cabling-no-ring", "the cables make one ring", About.RING),
    _refused("cabling-direction", "the cables have the direction that the settings say", About.RING),
    _refused("cable-wrong", "neighbouring ranks share a cable", About.RING),
    _warning("cables-moved", "the cables are those that the ports have addresses for", About.RING),
    _refused("cabling-port", "the port that the settings name is on the switch", About.SWITCHED),
    _refused("rail-split", "all nodes are on one switch", About.SWITCHED),
    _refused("port-down", "each port is up whose cable is to be found"),
    _warning("port-off", "each port is up"),
    _refused("port-no-carrier", "each port has a carrier"),
    _refused("port-silent", "each port is heard by another of this fleet"),
    _warning("port-unheard", "each port with an address is heard by another of this fleet"),
    _warning("rate-low", "each port runs at full rate"),
    _warning("rate-differs", "both ends of a cable run at the same rate", About.RING),
    # The mesh
    _warning("mesh-research", "no mesh is on, which is research", About.MESH),
    _refused("mesh-ranks", "the ring has as many ranks as a mesh is for", About.MESH),
    _refused("mesh-mac", "each port's MAC can be read", About.MESH),
    _refused("mesh-mac-twice", "each port has a MAC of its own", About.MESH),
    _refused("mesh-pci", "each port's PCI address can be read", About.MESH),
    _refused("mesh-card", "both ports of a plane are on one card", About.MESH),
    _refused("mesh-marker-file", "the marker is the file that the settings name", About.MESH),
    _warning("mesh-marker-unknown", "the marker is one that is known", About.MESH),
    _warning("marker-flaps", "no marker had to be started again", About.MESH),
    _warning("marker-shared", "nobody else uses RDMA on a device with a marker", About.MESH),
    _warning("mesh-left", "no rules of a lost mesh are left"),
    # GIDs
    _refused("gid-port", "ports with a GID in the plan are up"),
    _refused("gid-netdev", "each GID is its own port's"),
    _refused("gid-type", "addresses are there as RoCE v2"),
    _refused("gid-missing", "each address has a GID"),
    _refused("gid-not-common", "all ports of a node share a GID index"),
    _refused("gid-given", "engine.gidIndex fits every node", About.GID),
    # The engine
    _refused("ring-ranks", "the ring has as many ranks as its profile is for", About.RING),
    _refused("engine-ranks", "the ranks are as many as the engine's collectives are for", About.PROFILE),
    _warning("profile-ranks", "the ranks are as many as the profile's values are for", About.LAUNCHER),
    _start("memory-weights", "the weights fit into the engine's share of memory", About.LAUNCHER),
    _warning("memory-pool", "the KV pool fits beside them", About.LAUNCHER),
    _warning("memory-rest", "enough memory is left for the rest", About.LAUNCHER),
    _warning("roce-strange", "RoCEnante's devices are those of the fabric", About.PROFILE),
    _warning("folded-sampling", "sampled requests stay in the CUDA graph", About.LAUNCHER),
    _warning("serial-off", "weights are copied one after the other", About.RING),
    _warning("serial-fast", "the fast loader has its own pace", About.SWITCHED),
    _warning("fast-load-ep", "the fast loader is told the engine's expert-parallel size", About.PROFILE),
    _warning("split-idle", "a prefill split can happen", About.PROFILE),
    _warning("pool-small", "the KV pool has room for the longest request", About.PROFILE),
    _warning("indexer-untold", "what goes by chunks is told so", About.PROFILE),
    _warning("head-leaves", "the head stays"),
    _warning("channels-few", "NCCL has a channel for each device", About.PROFILE),
    _note("channels-many", "NCCL has no more channels than are of use", About.RING),
    _warning("listener-cap", "NCCL publishes all devices", About.RING),
    _warning("ring-trees", "NCCL keeps to the ring", About.RING),
    _refused("docker", "docker answers"),
    _refused("docker-rights", "the login user may use docker"),
    _refused("container-name", "the container's name is free"),
    _refused("image-archive", "the image's archive can be used", About.ARCHIVE),
    _refused("image-build", "what the image is built of can be read", About.BUILD),
    _refused("image-missing", "the image is there", About.PRESENT),
    _refused("image-ids", "the image is the same everywhere", About.BY_NAME),
    _refused("image-machine", "the image is for the nodes' machines"),
    _refused("image-look", "the image can be looked into", About.LIBRARY),
    _problem("image-module", "the image has what variables need of it", About.PROFILE),
    _warning("engine-unhealthy", "no rank fails docker's healthcheck"),
    _problem("volume-missing", "the folders that the engine gets are there", About.VOLUMES),
    _problem("volume-read-only", "the engine can write to folders that are not for reading only", About.VOLUMES),
    _problem("volume-owner", "folders have the owner and mode that the settings say", About.VOLUMES),
    _problem("spec-tables", "all ranks have the head's speculation tables", About.VOLUMES),
    _problem("volume-network", "the docker volumes that the engine gets are on the node's own disk", About.VOLUMES),
    _warning("engram-missing", "the packed engram is there", About.ENGRAM),
    _start("engram-space", "there is room to pack the engram", About.ENGRAM),
    # The weights
    _refused("weights-unread", "the folder of weights can be looked at", About.WEIGHTS),
    _refused("weights-folder", "the folder of weights is there", About.WEIGHTS),
    _problem("weights-network", "the weights are on the node's own disk", About.WEIGHTS),
    _problem("weights-config", "the checkpoint has its config", About.WEIGHTS),
    _problem("weights-index", "the checkpoint has an index that names its shards", About.WEIGHTS),
    _problem("weights-shards", "each shard of the index is there", About.WEIGHTS),
    _problem("weights-empty", "no file of the checkpoint is empty", About.WEIGHTS),
    _problem("weights-unreadable", "each file of the checkpoint can be read", About.WEIGHTS),
    _problem("weights-link", "no file of the checkpoint is a link out of the folder", About.WEIGHTS),
    _problem("weights-differ", "config and index are the same everywhere", About.WEIGHTS),
    _problem("weights-sizes", "the shards are the same everywhere, by name and size", About.WEIGHTS),
    _problem("weights-revision", "the checkpoint is of the revision that the settings name", About.REVISION),
    _refused("weights-manifest", "the manifest of the weights can be read", About.MANIFEST),
    _problem("weights-digest", "what was read of the checkpoint is as the manifest says", About.MANIFEST),
    _note("weights-unverified", "every file of the manifest was read", About.MANIFEST),
    # Weights over the network
    _refused("nfs-client", "each worker's kernel mounts NFS", About.NFS),
    _refused("nfs-kernel", "the head's kernel serves NFS", About.NFS),
    _refused("nfs-image", "the image of the server is there", About.NFS),
    _refused("nfs-name", "the name of the server's container is free", About.NFS),
    _refused("nfs-port", "nobody else serves NFS on the head", About.NFS),
    _refused("nfs-reuse", "the container that serves already runs", About.NFS),
    _problem("nfs-reach", "each worker reaches a server that is there already", About.NFS),
    _problem("nfs-acl", "a server that is there already lets each worker in", About.NFS),
    _refused("nfs-volume", "the volume's name is free, or that of just such a volume", About.NFS),
    # NCCL's library
    _refused("overlay-target", "the image has the file to lie over", About.LIBRARY),
    _refused("library-absent", "the library is there", About.LIBRARY),
    _refused("library-untrusted", "the library has the digest that you trust", About.LIBRARY),
    _refused("library-no-elf", "the library is a shared object", About.LIBRARY),
    _refused("library-machine", "the library is for this machine", About.LIBRARY),
    _refused("library-insufficient", "the library is none that is known not to do", About.LIBRARY),
    _refused("library-skip-tree", "the library is not of the older patch", About.LIBRARY),
    _refused("library-stock", "the library knows rings", About.LIBRARY),
    _refused("library-one-plane", "the library knows both planes", About.LIBRARY),
    _refused("library-ids", "the library is the same everywhere", About.LIBRARY),
    _refused("library-unloadable", "the loader finds the library", About.LIBRARY),
    _warning("library-rival", "no other library lies beside it", About.LIBRARY),
    _warning("nccl-directory", "the library reaches every program", About.LIBRARY),
    _note("library-unproven", "you trust a digest of the library", About.LIBRARY),
)

_CHECKS = {row.code: row for row in CHECKS}
CODES = frozenset(row.code for row in (*CHECKS, *DEVIATIONS))
IGNORABLE = frozenset(row.code for row in CHECKS if not row.safety)
REFUSABLE = IGNORABLE | {row.code for row in DEVIATIONS if row.is_drift}


@dataclass(frozen=True)
class Judged:
    """Findings, sorted by what follows from them. `ignored` would be problems or warnings."""

    problems: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()
    notes: tuple[Problem, ...] = ()
    ignored: tuple[Problem, ...] = ()


def row_of(deviation: Deviation, stage: str) -> Row | None:
    """The row of a deviation in a stage; None for one that the table does not have, which is a problem."""
    rows = [row for row in DEVIATIONS if row.code == deviation.code and row.foreign == deviation.foreign]
    for row in rows:
        if stage in row.stages:
            return row
    return next((row for row in rows if not row.stages), None)


def judge(
    found: Iterable[Problem], running: Mapping[str, bool], *, ignore: Collection[str] = (), refuse: Collection[str] = ()
) -> Judged:
    """Sort findings by the table. `running` tells of each node whether an engine of the stack runs there.

    What the table does not know is a problem, and so is everything in `refuse`.
    """
    piles: dict[Verdict, list[Problem]] = {verdict: [] for verdict in Verdict}
    ignored = []
    for one in found:
        row, (node, _) = _CHECKS.get(one.code), node_of(one, running)
        runs = any(running.values()) if node is None else running[node]
        verdict = row.verdict(running=runs) if row else Verdict.PROBLEM
        if one.code in refuse and verdict is not Verdict.OK:
            verdict = Verdict.PROBLEM
        if one.code in ignore and one.code in IGNORABLE:
            ignored.append(one)
        else:
            piles[verdict].append(one)
    problems, warnings, notes = (tuple(piles[one]) for one in (Verdict.PROBLEM, Verdict.WARNING, Verdict.NOTE))
    return Judged(problems, warnings, notes, tuple(ignored))


def node_of(one: Problem, names: Collection[str]) -> tuple[str | None, str]:
    """The node that a finding is about, None where it is about none alone, and the object on it, "" for all of it."""
    first, _, rest = one.path.partition(" ")
    return (first, rest) if first in names else (None, one.path)
