"""The engine's environment, rank by rank, with where each value comes from."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fleet.addressing import SUBNET_PREFIX
from fleet.mesh.settings import Mesh
from fleet.nccl_settings import LIBRARY_FOLDER
from fleet.node_settings import Node
from fleet.scalars import LibraryMode
from fleet.settings import Settings
from fleet.told import Flag, Source, ep_size, resolved, told
from fleet.topology import Kind
from fleet.weights_settings import MODEL, TOLD

__all__ = ["Devices", "Flag", "Source", "environment", "ep_size", "exact"]


@dataclass(frozen=True)
class Devices:
    """What a rank has: names with where they come from, and everything else of that kind on its node.

    `hcas` are the RDMA devices of its planned ports, plane 0 first; `management` is the network device that holds its
    management address; `gid` is the GID index of all `hcas`. `peer_maps` says which of them lead to which rank where
    there is a mesh.
    """

    hcas: Sequence[str]
    management: Flag
    gid: Flag
    all_hcas: Collection[str] = ()
    all_netdevs: Collection[str] = ()
    peer_maps: str | None = None


def environment(settings: Settings, rank: int, devices: Devices) -> Mapping[str, Flag]:
    """The variables of one rank, by name.

    Names and fixed values are those of the DeepSeek-V4.1-Flash images (paths and identity); what the profile tells
    beside devices and interfaces is in `profiles.toml`.
    """
    flags = dict(_identity(settings, settings.ranks[rank], rank))
    flags |= dict(_weights(settings))
    for name, value in _fixed(head=rank == 0):
        flags[name] = Flag(value, Source.DEFAULT)
    flags["NCCL_IB_HCA"] = Flag(exact(devices.hcas, devices.all_hcas), Source.TOPOLOGY)
    flags["NCCL_IB_GID_INDEX"] = devices.gid
    if settings.fabric.topology is Kind.RING:
        flags["NCCL_IB_SUBNET_PREFIX_LEN"] = Flag(str(SUBNET_PREFIX), Source.TOPOLOGY)
    if devices.peer_maps is not None:
        flags |= _rocenante(settings.mesh, devices.hcas, devices.peer_maps)
    management = devices.management
    flags["GLOO_SOCKET_IFNAME"] = management  # takes one plain name
    listing = exact([management.value], devices.all_netdevs)
    flags["NCCL_SOCKET_IFNAME"] = Flag(listing, management.source, management.detail)
    if settings.library_mode is LibraryMode.DIRECTORY:
        flags["LD_LIBRARY_PATH"] = Flag(LIBRARY_FOLDER, Source.SETTING, "nccl.mode")
    flags |= told(settings, head=rank == 0)
    for name in settings.engine.without:
        flags.pop(name, None)
    names = {"HCAS": Flag(",".join(devices.hcas), Source.TOPOLOGY)}
    return dict(sorted(resolved(flags, names).items()))


def _rocenante(mesh: Mesh, hcas: Sequence[str], peer_maps: str) -> Mapping[str, Flag]:
    """What RoCEnante is told of the mesh. The queues are those that are in effect when the engine starts."""

    def size(given: int | None, setting: str) -> Flag:
        if given is not None:
            return Flag(str(given), Source.SETTING, setting)
        chosen = "hairpin_queue_size" in mesh.model_fields_set
        return Flag(str(mesh.cap), Source.SETTING if chosen else Source.DEFAULT, "mesh.hairpinQueueSize")

    return {
        "B12X_ROCE_HCA": Flag(",".join(hcas), Source.TOPOLOGY),
        "B12X_ROCE_PEER_HCA_MAPS": Flag(peer_maps, Source.TOPOLOGY),
        "SGLANG_ROCE_MAX_SIZE": size(mesh.max_size, "mesh.maxSize"),
        "DSV41_ROCE_GATHER": size(mesh.gather_size, "mesh.gatherSize"),
    }


def exact(names: Sequence[str], there: Collection[str]) -> str:
    """A list of devices as NCCL takes it: names are beginnings of names, unless the list begins with `=`.

    The plain list is given as long as it selects nothing else of what is there.
    """
    others = set(there) - set(names)
    more = any(other.startswith(name) for name in names for other in others)
    return f"{'=' if more else ''}{','.join(names)}"


def _identity(settings: Settings, node: Node, rank: int) -> Iterator[tuple[str, Flag]]:
    engine, size = settings.engine, str(len(settings.ranks))

    def of(key: str, attribute: str, setting: str, value: object) -> tuple[str, Flag]:
        given = attribute in engine.model_fields_set
        return key, Flag(str(value), Source.SETTING, setting) if given else Flag(str(value), Source.DEFAULT)

    yield "NNODES", Flag(size, Source.TOPOLOGY)
    yield "TP_SIZE", Flag(size, Source.TOPOLOGY)
    yield "NODE_RANK", Flag(str(rank), Source.TOPOLOGY)
    yield "DIST_INIT_ADDR", Flag(f"{settings.ranks[0].address}:{engine.dist_port}", Source.TOPOLOGY)
    for name in ("VLLM_HOST_IP", "HOST_IP"):
        yield name, Flag(str(node.address), Source.TOPOLOGY)
    yield of("EP_SIZE", "ep_size", "engine.epSize", ep_size(settings))
    yield of("HOST", "listen", "engine.listen", engine.listen)
    yield of("SERVER_PORT", "port", "engine.port", engine.port)
    yield of("SERVED_MODEL_NAME", "served_model_name", "engine.servedModelName", engine.served_model_name)


def _weights(settings: Settings) -> Iterator[tuple[str, Flag]]:
    weights = settings.engine.weights
    for name in TOLD:
        if weights and "mount" in weights.model_fields_set:
            yield name, Flag(weights.mount, Source.SETTING, "engine.weights.mount")
        else:
            yield name, Flag(MODEL, Source.DEFAULT)


def _fixed(*, head: bool) -> Iterator[tuple[str, str]]:
    yield "STATE_PATH", "/state"
    yield "DSV41_PACKED_DIR", "/engram"
    yield "DSPARK_SPS_TABLE", "/state/dspark_sps.json"
    yield "DSPARK_STS_TABLE", "/state/dspark_sts.json"
    yield "SKIP_PREPARE", "1"
    yield "SKIP_VERIFY", "1"
    yield "SKIP_SMOKE", "0" if head else "1"
    if head:
        yield "WARMUP", "1"
        yield "SMOKE_QUICK", "1"
    yield "CUDA_DEVICE_ORDER", "PCI_BUS_ID"
