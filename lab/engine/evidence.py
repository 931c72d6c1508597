"""The library's lines by which its work is judged, each made from what really was chosen. Pure."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence

from .fabric import Device
from .library import Library
from .routing import Advert, Policy, Route

KNOWN = """NCCL_ALGO NCCL_PROTO NCCL_NET NCCL_IB_DISABLE NCCL_IB_HCA NCCL_IB_GID_INDEX
    NCCL_SOCKET_IFNAME NCCL_P2P_DISABLE NCCL_P2P_LEVEL NCCL_SHM_DISABLE NCCL_CROSS_NIC
    NCCL_IB_MERGE_NICS NCCL_IB_SUBNET_AWARE_ROUTING NCCL_IB_SUBNET_PREFIX_LEN NCCL_CUMEM_ENABLE
    NCCL_BUFFSIZE NCCL_LL128_BUFFSIZE NCCL_MIN_NCHANNELS NCCL_MAX_NCHANNELS
    NCCL_IB_QPS_PER_CONNECTION""".split()


def names(library: Library) -> list[str]:
    """The variables that a library reads; a patched one reads its own too."""
    own = {
        "NCCL_SWITCHLESS_RING_ONLY": library.ring_only,
        "NCCL_SKIP_TREE_CONNECT": library.skip_tree,
        "NCCL_IB_EXTENDED_IPV4_GIDS": library.extended_gids,
        "NCCL_IB_PRESERVE_PCI_DOMAIN": library.preserve_domain,
        "NCCL_IB_ROUTE_DIAGNOSTICS": library.diagnostics,
    }
    return KNOWN + [name for name, read in own.items() if read]


def environment(env: Mapping[str, str], library: Library) -> list[str]:
    """What was set, of what the library reads."""
    return [f"{name} set by environment to {env[name]}." for name in names(library) if name in env]


def listener(advert: Advert) -> str:
    """How many GIDs a listener's handle carries, of how many there were."""
    return (
        f"NET/IB ListenerRouting format={advert.format} advertised={len(advert.addresses)} observed={advert.observed}"
    )


def overriding(route: Route, policy: Policy) -> str:
    """Another device than the nominal one carries a connection, since the subnets want it so."""
    kept = policy.preserve_domain and route.device.domain == route.nominal.domain
    return f"NET/IB: Subnet-aware routing: overriding dev {route.nominal.index} with dev {route.device.index}" + (
        f" preserving PCI root {route.device.pci_root}" if kept else ""
    )


def final(side: str, channel: int, sock: socket.socket, device: Device) -> str:
    """One end of a connection as it came to be. A TCP port stands for the number of a queue pair."""
    local, remote = sock.getsockname(), sock.getpeername()
    return (
        f"NET/IB RouteFinal side={side} comm={channel} mergedDev={device.index} qpIndex=0 qpNum={local[1]} "
        f"devIndex={device.index} ibDev={device.index} hca={device.name} port={device.port} "
        f"localGid=::ffff:{local[0]} remoteGid=::ffff:{remote[0]} remoteQpNum={remote[1]}"
    )


def differing(digests: Sequence[str]) -> str:
    """Which ranks have which library, where not all have the same; else nothing."""
    holders: dict[str, list[str]] = {}
    for rank, digest in enumerate(digests):
        holders.setdefault(digest, []).append(str(rank))
    if len(holders) == 1:
        return ""
    return "not the same libnccl everywhere: " + "; ".join(
        f"{digest[:12]} on {','.join(ranks)}" for digest, ranks in holders.items()
    )
