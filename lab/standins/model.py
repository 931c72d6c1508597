"""The four fabric functions of a Spark's ConnectX-7, and the EtherTypes that matter on its wires."""

from __future__ import annotations

from dataclasses import dataclass

IPV4 = 0x0800
ANY_PROTOCOL = 0x0003
PROTOCOLS = {"all": ANY_PROTOCOL, "ip": IPV4, "ipv4": IPV4, "ipv6": 0x86DD, "arp": 0x0806, "802.1Q": 0x8100}


@dataclass(frozen=True)
class Function:
    """One PCI function: a netdev, its RDMA device, and the cage it shares with its twin."""

    netdev: str
    rdma: str
    bdf: str
    port: int
    domain: int

    @property
    def handle(self) -> str:
        """Name that devlink knows it by."""
        return f"pci/{self.bdf}"


FUNCTIONS = (
    Function("enp1s0f0np0", "rocep1s0f0", "0000:01:00.0", port=0, domain=0),
    Function("enp1s0f1np1", "rocep1s0f1", "0000:01:00.1", port=1, domain=0),
    Function("enP2p1s0f0np0", "roceP2p1s0f0", "0002:01:00.0", port=0, domain=1),
    Function("enP2p1s0f1np1", "roceP2p1s0f1", "0002:01:00.1", port=1, domain=1),
)
BY_NETDEV = {function.netdev: function for function in FUNCTIONS}
BY_RDMA = {function.rdma: function for function in FUNCTIONS}
BY_HANDLE = {function.handle: function for function in FUNCTIONS}
