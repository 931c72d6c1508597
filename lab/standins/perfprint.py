"""What ib_write_lat and ib_write_bw print, with figures as measured on Sparks."""

from __future__ import annotations

from dataclasses import dataclass

LINE = "-" * 87
SIZE_OF_FACT = 61440  # bytes: 8.47 µs to a direct neighbour, 9.99 to 10.18 over one relay
DIRECT, PER_RELAY = 8.47, 1.6
SHORT = 2.0  # µs for a few bytes: a guess
GBITS, GBITS_BOTH = 106.4, 213.0  # one way (13.3 GB/s) and both ways, as measured


@dataclass(frozen=True)
class Test:
    """One run, as both ends know it."""

    name: str  # of the tool
    device: str
    mtu: int
    gid_index: int
    size: int  # bytes of a message
    iterations: int
    bidirectional: bool
    gbits: bool

    @property
    def measures_latency(self) -> bool:
        """Whether this is ib_write_lat."""
        return self.name == "ib_write_lat"

    @property
    def both_ways(self) -> bool:
        """Whether messages go in both directions."""
        return self.measures_latency or self.bidirectional


def _gid(address: str) -> str:
    tail = ":".join(f"{int(part):02d}" for part in address.split("."))
    return f" GID: 00:00:00:00:00:00:00:00:00:00:255:255:{tail}"


def head(test: Test, ends: dict[str, tuple[str, int]]) -> str:
    """All before the figures; `ends` are address and number of the queue pair of `local` and `remote`."""
    kind = "Latency" if test.measures_latency else "Bidirectional BW" if test.bidirectional else "BW"
    lines = [
        LINE,
        f"                    RDMA_Write {kind} Test",
        f" Dual-port       : OFF\t\tDevice         : {test.device}",
        " Number of qps   : 1\t\tTransport type : IB",
        " Connection type : RC\t\tUsing SRQ      : OFF",
        f" Mtu             : {test.mtu}[B]",
        " Link type       : Ethernet",
        f" GID index       : {test.gid_index}",
        " rdma_cm QPs\t : OFF",
        " Data ex. method : Ethernet",
        LINE,
    ]
    for side, (address, qpn) in ends.items():
        lines += [f" {side} address: LID 0000 QPN 0x{qpn:04x} PSN 0x0", _gid(address)]
    return "\n".join([*lines, LINE])


def latency(size: int, relays: int) -> float:
    """Typical µs for a message of `size` bytes, on a line through the two points that were measured."""
    slope = (DIRECT - SHORT) / SIZE_OF_FACT
    return round(SHORT + slope * size + PER_RELAY * relays, 2)


def table(test: Test, relays: int, gbits: float) -> str:
    """The figures, for a path over so many relays that carries so much."""
    names, row = _latencies(test, relays) if test.measures_latency else _bandwidths(test, gbits)
    return f"{names}\n{row}\n{LINE}"


def _latencies(test: Test, relays: int) -> tuple[str, str]:
    typical = latency(test.size, relays)
    names = (
        " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]"
        "    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] "
    )
    row = (
        f" {test.size:<7} {test.iterations:<13} {typical - 0.1:<14.2f} {typical + 0.9:<12.2f} {typical:<18.2f} "
        f"{typical + 0.02:<14.2f} {0.05:<15.2f} {typical + 0.2:<22.2f} {typical + 0.6:<.2f}"
    )
    return names, row


def _bandwidths(test: Test, gbits: float) -> tuple[str, str]:
    unit, value = ("Gb/sec", gbits) if test.gbits else ("MB/sec", gbits / 8 * 1e9 / 2**20)
    rate = gbits * 1e9 / 8 / test.size / 1e6
    names = f" #bytes     #iterations    BW peak[{unit}]    BW average[{unit}]   MsgRate[Mpps]"
    return names, f" {test.size:<10} {test.iterations:<14} {value + 0.2:<18.2f} {value:<19.2f} {rate:<.6f}"
