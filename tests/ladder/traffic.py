"""What the RDMA ports of all nodes have carried, and what the engines have said, as an operator would look."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from lab import api

WORD = 4  # bytes that one unit of a port's data counters stands for
MIB = 1 << 20
LOUD = {  # engine.env: the library tells all that it chooses, and the first sums outweigh every check of the fabric
    "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET", "ENGINE_ALLREDUCE_BYTES": 8 * MIB,
}  # fmt: skip
CARRIED, IDLE = (
    8 * MIB,
    2 * MIB,
)  # at least so much is the engine's; checks, ARP and acknowledgements stay below the other
LOOK = """
    sleep 1.5  # the counters of the lab are a second old at most
    cd /sys/class/infiniband
    for hca in *; do
        echo $hca $(cat $hca/ports/1/counters/port_xmit_data) $(cat $hca/ports/1/counters/port_rcv_data)
    done
"""


@dataclass(frozen=True)
class Counters:
    """Bytes sent and received, by node and HCA."""

    sent: Mapping[tuple[str, str], int]
    received: Mapping[tuple[str, str], int]

    @classmethod
    def read(cls, lab: api.Handle) -> Counters:
        """The counters of all nodes."""
        sent, received = {}, {}
        for node, text in lab.everywhere(LOOK).items():
            for line in text.splitlines():
                hca, out, into = line.split()
                sent[node, hca], received[node, hca] = int(out) * WORD, int(into) * WORD
        return cls(sent, received)

    def since(self, before: Counters) -> dict[str, tuple[set[str], set[str]]]:
        """By node the HCAs that have sent and received an engine's share meanwhile; no other moved to speak of."""
        found = {}
        for node in {node for node, _ in self.sent}:
            found[node] = _moved(node, before.sent, self.sent), _moved(node, before.received, self.received)
        return found


def _moved(node: str, before: Mapping[tuple[str, str], int], after: Mapping[tuple[str, str], int]) -> set[str]:
    moved = {hca: count - before[at, hca] for (at, hca), count in after.items() if at == node}
    unclear = {hca: count for hca, count in moved.items() if IDLE <= count < CARRIED}
    assert not unclear, f"{node}: neither idle nor in use, {moved}"
    return {hca for hca, count in moved.items() if count >= CARRIED}


def logs(lab: api.Handle, container: str) -> dict[str, str]:
    """What the engine of each node has printed."""
    return lab.everywhere(f"docker logs {container} 2>&1")


def library_says(log: str) -> list[str]:
    """The library's lines, without who says them."""
    return re.findall(r"NCCL (?:INFO|WARN) (.*)", log)
