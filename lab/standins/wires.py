"""Which ports hear which: found on the real wires, or laid out by hand."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from .access import AccessError, Node
from .model import FUNCTIONS

Port = tuple[str, str]  # node, netdev


class Wires:
    """Sets of ports that share a wire; a port does not hear itself."""

    def __init__(self, heard: dict[Port, set[Port]]) -> None:
        self._heard = heard

    def hearers(self, sender: Port) -> list[Port]:
        """Ports at which a frame from this one arrives."""
        return sorted(self._heard.get(sender, set()))

    def neighbours(self, node: str) -> set[str]:
        """Nodes that hear any port of a node."""
        return {other for (name, _), ports in self._heard.items() if name == node for other, _ in ports} - {node}

    @classmethod
    def ring(cls, nodes: list[str]) -> Wires:
        """Cables from each node's port 0 to the next one's port 1; two functions at each end."""
        heard: dict[Port, set[Port]] = {}
        for place, name in enumerate(nodes):
            after = nodes[(place + 1) % len(nodes)]
            wire = {(name, function.netdev) for function in FUNCTIONS if function.port == 0}
            wire |= {(after, function.netdev) for function in FUNCTIONS if function.port == 1}
            heard |= {port: wire - {port} for port in wire}
        return cls(heard)


def discover(nodes: Iterable[Node]) -> tuple[list[Node], Wires]:
    """The nodes that answer, and the wires that they hear each other on."""
    nodes = list(nodes)
    with ThreadPoolExecutor(len(nodes)) as pool:
        reports = list(pool.map(_listen, nodes))
    heard: dict[Port, set[Port]] = {}
    for node, report in zip(nodes, reports, strict=True):
        for netdev, other, port in report or ():
            heard.setdefault((other, port), set()).add((node.name, netdev))
    return [node for node, report in zip(nodes, reports, strict=True) if report is not None], Wires(heard)


def _listen(node: Node) -> list[list[str]] | None:
    try:
        report: list[list[str]] = node.call("wires", node=node.name)
    except AccessError:  # off, or not a node of this lab any more
        return None
    return report
