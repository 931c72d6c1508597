"""A ring with its mesh as recorded of a planner that is not ours, typed in by hand from its table.

Rank r: MACs 02:<rank>:<port>:<domain>:00:01; nothing here is computed.
"""

# ruff: noqa: E501

from typing import NamedTuple


class MeshPath(NamedTuple):
    """One directed path between opposite ranks; its name is the preference of its rule."""

    source: int
    netdev: str
    device: str  # that has the marker
    src: str
    dst: str
    middle: int
    ingress: str
    egress: str
    pref: int
    destination: int
    arrival: str


PATHS = [
    MeshPath(0, "enp1s0f0np0", "rocep1s0f0", "198.18.1.1", "198.18.2.2", 1, "enp1s0f1np1", "enp1s0f0np0", 49152, 2, "enp1s0f1np1"),
    MeshPath(0, "enP2p1s0f1np1", "roceP2p1s0f1", "198.18.104.2", "198.18.103.1", 3, "enP2p1s0f0np0", "enP2p1s0f1np1", 49155, 2, "enP2p1s0f0np0"),
    MeshPath(1, "enp1s0f0np0", "rocep1s0f0", "198.18.2.1", "198.18.3.2", 2, "enp1s0f1np1", "enp1s0f0np0", 49156, 3, "enp1s0f1np1"),
    MeshPath(1, "enP2p1s0f1np1", "roceP2p1s0f1", "198.18.101.2", "198.18.104.1", 0, "enP2p1s0f0np0", "enP2p1s0f1np1", 49159, 3, "enP2p1s0f0np0"),
    MeshPath(2, "enP2p1s0f0np0", "roceP2p1s0f0", "198.18.103.1", "198.18.104.2", 3, "enP2p1s0f1np1", "enP2p1s0f0np0", 49161, 0, "enP2p1s0f1np1"),
    MeshPath(2, "enp1s0f1np1", "rocep1s0f1", "198.18.2.2", "198.18.1.1", 1, "enp1s0f0np0", "enp1s0f1np1", 49162, 0, "enp1s0f0np0"),
    MeshPath(3, "enP2p1s0f0np0", "roceP2p1s0f0", "198.18.104.1", "198.18.101.2", 0, "enP2p1s0f1np1", "enP2p1s0f0np0", 49165, 1, "enP2p1s0f1np1"),
    MeshPath(3, "enp1s0f1np1", "rocep1s0f1", "198.18.3.2", "198.18.2.1", 2, "enp1s0f0np0", "enp1s0f1np1", 49166, 1, "enp1s0f0np0"),
]  # fmt: skip

ADDRESSES = [
    {"enp1s0f0np0": "198.18.1.1", "enp1s0f1np1": "198.18.4.2", "enP2p1s0f0np0": "198.18.101.1", "enP2p1s0f1np1": "198.18.104.2"},
    {"enp1s0f0np0": "198.18.2.1", "enp1s0f1np1": "198.18.1.2", "enP2p1s0f0np0": "198.18.102.1", "enP2p1s0f1np1": "198.18.101.2"},
    {"enp1s0f0np0": "198.18.3.1", "enp1s0f1np1": "198.18.2.2", "enP2p1s0f0np0": "198.18.103.1", "enP2p1s0f1np1": "198.18.102.2"},
    {"enp1s0f0np0": "198.18.4.1", "enp1s0f1np1": "198.18.3.2", "enP2p1s0f0np0": "198.18.104.1", "enP2p1s0f1np1": "198.18.103.2"},
]  # fmt: skip

MACS = [
    {"enp1s0f0np0": "02:00:00:00:00:01", "enp1s0f1np1": "02:00:01:00:00:01", "enP2p1s0f0np0": "02:00:00:01:00:01", "enP2p1s0f1np1": "02:00:01:01:00:01"},
    {"enp1s0f0np0": "02:01:00:00:00:01", "enp1s0f1np1": "02:01:01:00:00:01", "enP2p1s0f0np0": "02:01:00:01:00:01", "enP2p1s0f1np1": "02:01:01:01:00:01"},
    {"enp1s0f0np0": "02:02:00:00:00:01", "enp1s0f1np1": "02:02:01:00:00:01", "enP2p1s0f0np0": "02:02:00:01:00:01", "enP2p1s0f1np1": "02:02:01:01:00:01"},
    {"enp1s0f0np0": "02:03:00:00:00:01", "enp1s0f1np1": "02:03:01:00:00:01", "enP2p1s0f0np0": "02:03:00:01:00:01", "enP2p1s0f1np1": "02:03:01:01:00:01"},
]  # fmt: skip

ROUTES = [
    """
    ip route add 198.18.2.2/32 via 198.18.1.2 dev enp1s0f0np0 src 198.18.1.1
    ip route add 198.18.103.1/32 via 198.18.104.1 dev enP2p1s0f1np1 src 198.18.104.2
    """,
    """
    ip route add 198.18.3.2/32 via 198.18.2.2 dev enp1s0f0np0 src 198.18.2.1
    ip route add 198.18.104.1/32 via 198.18.101.1 dev enP2p1s0f1np1 src 198.18.101.2
    """,
    """
    ip route add 198.18.104.2/32 via 198.18.103.2 dev enP2p1s0f0np0 src 198.18.103.1
    ip route add 198.18.1.1/32 via 198.18.2.1 dev enp1s0f1np1 src 198.18.2.2
    """,
    """
    ip route add 198.18.101.2/32 via 198.18.104.2 dev enP2p1s0f0np0 src 198.18.104.1
    ip route add 198.18.2.1/32 via 198.18.3.1 dev enp1s0f1np1 src 198.18.3.2
    """,
]

TC = [
    """
    tc qdisc add dev enP2p1s0f0np0 clsact
    tc qdisc add dev enP2p1s0f1np1 clsact
    tc filter add dev enP2p1s0f0np0 ingress protocol 0x88b5 pref 49159 handle 49159 flower skip_sw src_mac 02:01:01:01:00:01 dst_mac 02:00:00:01:00:01 action pedit ex munge eth type set 0x0800 pipe action pedit ex munge eth dst set 02:03:00:01:00:01 pipe action mirred egress redirect dev enP2p1s0f1np1
    tc filter add dev enP2p1s0f1np1 ingress protocol 0x88b5 pref 49165 handle 49165 flower skip_sw src_mac 02:03:00:01:00:01 dst_mac 02:00:01:01:00:01 action pedit ex munge eth type set 0x0800 pipe action pedit ex munge eth dst set 02:01:01:01:00:01 pipe action mirred egress redirect dev enP2p1s0f0np0
    """,
    """
    tc qdisc add dev enp1s0f1np1 clsact
    tc qdisc add dev enp1s0f0np0 clsact
    tc filter add dev enp1s0f1np1 ingress protocol 0x88b5 pref 49152 handle 49152 flower skip_sw src_mac 02:00:00:00:00:01 dst_mac 02:01:01:00:00:01 action pedit ex munge eth type set 0x0800 pipe action pedit ex munge eth dst set 02:02:01:00:00:01 pipe action mirred egress redirect dev enp1s0f0np0
    tc filter add dev enp1s0f0np0 ingress protocol 0x88b5 pref 49162 handle 49162 flower skip_sw src_mac 02:02:01:00:00:01 dst_mac 02:01:00:00:00:01 action pedit ex munge eth type set 0x0800 pipe action pedit ex munge eth dst set 02:00:00:00:00:01 pipe action mirred egress redirect dev enp1s0f1np1
    """,
    """
    tc qdisc add dev enp1s0f1np1 clsact
    tc qdisc add dev enp1s0f0np0 clsact
    tc filter add dev enp1s0f1np1 ingress protocol 0x88b5 pref 49156 handle 49156 flower skip_sw src_mac 02:01:00:00:00:01 dst_mac 02:02:01:00:00:01 action pedit ex munge eth type set 0x0800 pipe action pedit ex munge eth dst set 02:03:01:00:00:01 pipe action mirred egress redirect dev enp1s0f0np0
    tc filter add dev enp1s0f0np0 ingress protocol 0x88b5 pref 49166 handle 49166 flower skip_sw src_mac 02:03:01:00:00:01 dst_mac 02:02:00:00:00:01 action pedit ex munge eth type set 0x0800 pipe action pedit ex munge eth dst set 02:01:00:00:00:01 pipe action mirred egress redirect dev enp1s0f1np1
    """,
    """
    tc qdisc add dev enP2p1s0f0np0 clsact
    tc qdisc add dev enP2p1s0f1np1 clsact
    tc filter add dev enP2p1s0f0np0 ingress protocol 0x88b5 pref 49155 handle 49155 flower skip_sw src_mac 02:00:01:01:00:01 dst_mac 02:03:00:01:00:01 action pedit ex munge eth type set 0x0800 pipe action pedit ex munge eth dst set 02:02:00:01:00:01 pipe action mirred egress redirect dev enP2p1s0f1np1
    tc filter add dev enP2p1s0f1np1 ingress protocol 0x88b5 pref 49161 handle 49161 flower skip_sw src_mac 02:02:00:01:00:01 dst_mac 02:03:01:01:00:01 action pedit ex munge eth type set 0x0800 pipe action pedit ex munge eth dst set 02:00:01:01:00:01 pipe action mirred egress redirect dev enP2p1s0f0np0
    """,
]  # fmt: skip

MARKERS = [
    ["rocep1s0f0", "roceP2p1s0f1"],
    ["rocep1s0f0", "roceP2p1s0f1"],
    ["rocep1s0f1", "roceP2p1s0f0"],
    ["rocep1s0f1", "roceP2p1s0f0"],
]


PREFS = [path.pref for path in PATHS]
RULE = TC[1].split("tc filter add ")[1].partition("\n")[0]  # of preference 49152


def commands(text: str) -> list[str]:
    """The typed lines."""
    return [line.strip() for line in text.strip().splitlines()]
