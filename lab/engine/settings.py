"""What the container's environment says, checked as boot program and engine would check it."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ALL_HOSTS = "0.0.0.0"  # noqa: S104 - the API is for the whole network, as the real one
NO_KEY = frozenset({"", "empty", "none", "off", "dummy", "0"})
EXPERT_WIDTH = 2304
PIP_LIBRARY = "/opt/sglang/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2"

SHARED_PREFIXES = ("NCCL_", "DSV41_", "SGLANG_", "B12X_", "SPARK_", "DSPARK_")
SHARED_NAMES = frozenset(
    """NNODES TP_SIZE EP_SIZE DIST_INIT_ADDR SERVED_MODEL_NAME CONTEXT_LENGTH MAX_RUNNING_REQUESTS
    CHUNKED_PREFILL_SIZE MAX_TOTAL_TOKENS SPEC_ALGO CUDA_GRAPH_MAX_BS_DECODE EXTRA_SGLANG_ARGS
    OFFLOAD_MODE""".split()
)
PER_RANK = frozenset(
    """NCCL_IB_GID_INDEX NCCL_IB_HCA NCCL_SOCKET_IFNAME NCCL_DEBUG NCCL_DEBUG_SUBSYS NCCL_DEBUG_FILE
    NCCL_PIP_SO NCCL_IB_PEER_HCA B12X_ROCE_PEER_HCA_MAP B12X_ROCE_GID_INDEX B12X_ROCE_CACHE_DIR
    B12X_COMPILE_CACHE_DIR DSV41_SOURCE DSV41_PACKED_DIR DSPARK_SPS_TABLE
    DSPARK_STS_TABLE""".split()
)


class BadSettings(Exception):
    """The environment cannot work; the message holds every problem found."""


@dataclass(frozen=True)
class Settings:
    """One rank's environment, parsed."""

    env: Mapping[str, str]
    rank: int
    nodes: int
    tp: int
    ep: int
    rendezvous: tuple[str, int]
    host: str
    port: int
    api_key: str
    model_name: str
    model_path: Path
    state: Path

    def flag(self, name: str) -> bool:
        """Whether a 0/1 variable is on."""
        return self.env.get(name, "0") not in ("", "0")

    def number(self, name: str, default: float) -> float:
        """A numeric variable; whole numbers of the environment were checked before."""
        return float(self.env.get(name) or default)

    @property
    def watchdog(self) -> float:
        """Seconds that a request may hang: ENGINE_WATCHDOG_S, else the engine's own argument."""
        words = shlex.split(self.env.get("EXTRA_SGLANG_ARGS", ""))
        default = 300.0
        for word, value in itertools.pairwise(words):
            if word == "--watchdog-timeout":
                default = float(value)
        return self.number("ENGINE_WATCHDOG_S", default)


def _whole(env: Mapping[str, str], name: str, default: int, problems: list[str]) -> int:
    text = env.get(name) or str(default)
    try:
        return int(text)
    except ValueError:
        problems.append(f"{name}={text!r} is not a whole number")
        return default


def _check_experts(env: Mapping[str, str], tp: int, ep: int, problems: list[str]) -> None:
    if ep < 1 or tp % ep:
        problems.append(f"EP_SIZE={ep} does not divide TP_SIZE={tp}")
    else:
        width = EXPERT_WIDTH * ep // tp
        unit = 64 if env.get("DSV41_MOE_B12X_NEXT", "0") == "1" else 128
        if width % unit:
            problems.append(
                f"EP_SIZE={ep} at TP_SIZE={tp}: expert width {width} is not a multiple of {unit}"
                + ("" if unit == 64 else " (EP_SIZE=1 needs DSV41_MOE_B12X_NEXT=1)")
            )


def _check_limits(env: Mapping[str, str], problems: list[str]) -> None:
    if env.get("OFFLOAD_MODE", "nvme") not in ("nvme", "ram"):
        problems.append(f"OFFLOAD_MODE={env['OFFLOAD_MODE']!r} is neither nvme nor ram")
    if env.get("OFFLOAD_MODE") == "ram" and env.get("ALLOW_RAM_OFFLOAD") != "1":
        problems.append("OFFLOAD_MODE=ram needs ALLOW_RAM_OFFLOAD=1")
    context = _whole(env, "CONTEXT_LENGTH", 409600, problems)
    if not 4096 <= context <= 1048576:
        problems.append(f"CONTEXT_LENGTH={context} is not between 4096 and 1048576")
    least = _whole(env, "NCCL_MIN_NCHANNELS", 1, problems)
    most = _whole(env, "NCCL_MAX_NCHANNELS", 64, problems)
    if not 1 <= least <= most:
        problems.append(f"NCCL_MIN_NCHANNELS={least} and NCCL_MAX_NCHANNELS={most} do not fit")
    for name in ("MAX_RUNNING_REQUESTS", "MAX_TOTAL_TOKENS", "CHUNKED_PREFILL_SIZE"):
        if _whole(env, name, 1, problems) < 1:
            problems.append(f"{name}={env[name]} is not positive")
    if env.get("SGLANG_ROCE_ALLREDUCE", "0") == "1" and env.get("DSV41_ROCE_RING", "0") != "1":
        problems.append(
            "SGLANG_ROCE_ALLREDUCE=1 without DSV41_ROCE_RING=1: this simulator's RoCEnante is that of a ring"
        )


def parse(env: Mapping[str, str]) -> Settings:
    """Read the environment; BadSettings names all that is wrong with it at once."""
    problems: list[str] = []
    nodes = _whole(env, "NNODES", 1, problems)
    rank = _whole(env, "NODE_RANK", 0, problems)
    tp = _whole(env, "TP_SIZE", nodes, problems)
    ep = _whole(env, "EP_SIZE", tp, problems)
    if nodes < 1:
        problems.append(f"NNODES={nodes} is not positive")
    if not 0 <= rank < max(nodes, 1):
        problems.append(f"NODE_RANK={rank} is not below NNODES={nodes}")
    if tp != nodes:
        problems.append(f"TP_SIZE={tp} differs from NNODES={nodes}: every node has one GPU")
    _check_experts(env, tp, ep, problems)
    address = env.get("DIST_INIT_ADDR", "127.0.0.1:20000" if nodes == 1 else "")
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        problems.append(f"DIST_INIT_ADDR={address!r} is not HOST:PORT")
        port = "0"
    _check_limits(env, problems)
    server_port = _whole(env, "SERVER_PORT", 8888, problems)
    if problems:
        raise BadSettings("; ".join(problems))
    key = env.get("API_KEY", "")
    return Settings(
        env=env,
        rank=rank,
        nodes=nodes,
        tp=tp,
        ep=ep,
        rendezvous=(host, int(port)),
        host=env.get("HOST") or ALL_HOSTS,
        port=server_port,
        api_key="" if key.lower() in NO_KEY else key,
        model_name=env.get("SERVED_MODEL_NAME") or "deepseek-v4.1-flash",
        model_path=Path(env.get("MODEL_PATH") or "/models/DeepSeek-V4.1-Flash"),
        state=Path(env.get("STATE_PATH") or "/state"),
    )


def shared(env: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that must be the same on every rank."""
    return {
        key: value
        for key, value in env.items()
        if key not in PER_RANK and (key in SHARED_NAMES or key.startswith(SHARED_PREFIXES))
    }


def disagreements(environments: Sequence[Mapping[str, str]]) -> list[str]:
    """One line for each key whose value is not the same on all ranks."""
    lines = []
    for key in sorted({key for env in environments for key in env}):
        holders: dict[str | None, list[int]] = {}
        for rank, env in enumerate(environments):
            holders.setdefault(env.get(key), []).append(rank)
        if len(holders) > 1:
            parts = (
                f"{'rank' if len(ranks) == 1 else 'ranks'} {','.join(map(str, ranks))} "
                + ("unset" if value is None else repr(value))
                for value, ranks in holders.items()
            )
            lines.append(f"{key}: {'; '.join(parts)}")
    return lines
