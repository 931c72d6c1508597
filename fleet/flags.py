"""The engine's environment, rank by rank, with where each value comes from."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from fleet.settings import Node, Settings

MODEL = "/models/DeepSeek-V4.1-Flash"


class Source(StrEnum):
    """Where a value comes from; a later one in this list wins."""

    DEFAULT = "default"
    SETTING = "setting"
    TOPOLOGY = "topology"
    OVERRIDE = "override"


@dataclass(frozen=True)
class Flag:
    """A variable of the container."""

    value: str
    source: Source


def ep_size(settings: Settings) -> int:
    """Expert-parallel size: as set, else 2 where that divides the ranks, else their number."""
    size = len(settings.ranks)
    return settings.engine.ep_size or (2 if size % 2 == 0 else size)


def environment(settings: Settings, rank: int, hcas: Sequence[str], management: str) -> Mapping[str, Flag]:
    """The variables of one rank, by name.

    `hcas` are the RDMA devices of its planned ports, plane 0 first; `management` is the network device that holds its
    management address. Names and fixed values are those of the DeepSeek-V4.1-Flash images (paths and identity).
    """
    engine = settings.engine
    flags = dict(_identity(settings, settings.ranks[rank], rank))
    for name, value in _fixed(head=rank == 0):
        flags[name] = Flag(value, Source.DEFAULT)
    flags["NCCL_IB_HCA"] = Flag(",".join(hcas), Source.TOPOLOGY)
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        flags[name] = Flag(management, Source.TOPOLOGY)
    for name, value in {**engine.env, **(engine.head_env if rank == 0 else {})}.items():
        flags[name] = Flag(value, Source.OVERRIDE)
    return dict(sorted(flags.items()))


def _identity(settings: Settings, node: Node, rank: int) -> Iterator[tuple[str, Flag]]:
    engine, size = settings.engine, str(len(settings.ranks))

    def of(key: str, value: object, *, given: bool) -> tuple[str, Flag]:
        return key, Flag(str(value), Source.SETTING if given else Source.DEFAULT)

    yield "NNODES", Flag(size, Source.TOPOLOGY)
    yield "TP_SIZE", Flag(size, Source.TOPOLOGY)
    yield "NODE_RANK", Flag(str(rank), Source.TOPOLOGY)
    yield "DIST_INIT_ADDR", Flag(f"{settings.ranks[0].address}:{engine.dist_port}", Source.TOPOLOGY)
    for name in ("VLLM_HOST_IP", "HOST_IP"):
        yield name, Flag(str(node.address), Source.TOPOLOGY)
    given = engine.model_fields_set
    yield of("EP_SIZE", ep_size(settings), given="ep_size" in given)
    yield of("HOST", engine.listen, given="listen" in given)
    yield of("SERVER_PORT", engine.port, given="port" in given)
    yield of("SERVED_MODEL_NAME", engine.served_model_name, given="served_model_name" in given)


def _fixed(*, head: bool) -> Iterator[tuple[str, str]]:
    yield "MODEL_PATH", MODEL
    yield "DSV41_SOURCE", MODEL
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
