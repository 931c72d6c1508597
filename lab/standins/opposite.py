"""Every ordered pair of opposite nodes, in both PCI domains: which queue pairs work, judged by frame walks alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import permutations, product

from .framewalk import Walk
from .model import BY_RDMA, FUNCTIONS
from .words import Row

SPORT = 65535  # of a queue pair with flow label 16383, which markers match


@dataclass(frozen=True)
class Path:
    """A queue pair that works: frames go there, and the answers come back to the same device."""

    source: str
    source_device: str
    destination: str
    destination_device: str
    rules: tuple[tuple[str, str, int, int], ...]  # that forwarded it there: node, netdev, preference, handle


@dataclass
class Judgement:
    """The paths that work, and why there is none where one is missing."""

    paths: list[Path]
    problems: list[str]


def pairs(walk: Walk) -> list[tuple[str, str]]:
    """Ordered pairs of nodes that share no wire."""
    near = {name: walk.wires.neighbours(name) for name in walk.nodes}
    return [(one, other) for one, other in permutations(walk.nodes, 2) if other not in near[one]]


def judge(walk: Walk, sport: int = SPORT) -> Judgement:
    """All opposite pairs, in each domain, over all devices and addresses that they have there."""
    found = Judgement([], [])
    wanted = list(product(pairs(walk), sorted({function.domain for function in FUNCTIONS})))
    with ThreadPoolExecutor(8) as pool:  # most of the time goes by in waiting for ARP
        results = list(pool.map(lambda one: _between(walk, one[0], one[1], sport), wanted))
    for ((source, destination), domain), (paths, reasons) in zip(wanted, results, strict=True):
        found.paths += paths
        if not paths:
            found.problems.append(f"{source} to {destination} in domain {domain}: {'; '.join(reasons)}")
    return found


def _between(walk: Walk, pair: tuple[str, str], domain: int, sport: int) -> tuple[list[Path], list[str]]:
    source, destination = pair
    devices = [function.rdma for function in FUNCTIONS if function.domain == domain]
    paths: list[Path] = []
    reasons = []
    for device, far_device in product(devices, devices):
        for address in _function(walk, destination, far_device)["addresses"]:
            there = walk.follow(source, device, address, sport)
            if there.receiver != (destination, BY_RDMA[far_device].netdev):
                reasons.append(there.reason or f"{address} is at {there.receiver}")
                continue
            back = walk.follow(destination, far_device, there.source_ip, sport)
            if back.receiver == (source, BY_RDMA[device].netdev):
                paths.append(Path(source, device, destination, far_device, tuple(there.rules)))
            else:
                reasons.append(f"answers: {back.reason or back.receiver}")
    return paths, reasons


def _function(walk: Walk, node: str, rdma: str) -> Row:
    row: Row = walk.view(node)["functions"][BY_RDMA[rdma].netdev]
    return row
