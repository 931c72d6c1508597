"""Which port is wired to which, without an address anywhere: all nodes listen to each other, when that is needed.

What was heard stays true as long as no port has lost its carrier since: a cable cannot be moved otherwise. The kernel
counts those losses, so a fleet at rest is not made to listen in every preview.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from fleet import on_node, wires
from fleet.node_settings import Node
from fleet.on_node import Link, holder, on_all, replace
from fleet.probe import DEADLINE_S, outcomes
from fleet.settings import Settings
from fleet.stack import StackName
from fleet.topology import Socket
from fleet.wires import Port, Wires

LISTEN_S = 1.5
AGAIN_S = 4.0  # where somebody was not heard: nodes may have begun too far apart in time

KEPT = "cabling.json"  # in the stack's folder: the wires that were right last, and what the ports were then

Observed = Mapping[str, Mapping[str, Any]]


def listen(stack: StackName, settings: Settings, links: Sequence[Link]) -> Wires:
    """One round on all nodes in parallel, about two seconds; changes nothing on them. Raises nothing for their sake.

    A port that has carrier and heard nobody gets a second, longer round, if every node has answered in the first.
    """
    found = _round(stack, settings, links, LISTEN_S)
    if found.unheard and not found.silent:
        found = _round(stack, settings, links, AGAIN_S)
    return found


def _round(stack: StackName, settings: Settings, links: Sequence[Link], seconds: float) -> Wires:
    owner = stack.reader(settings.fleet.id)
    desired = {"run": uuid.uuid4().hex, "seconds": seconds}
    requests = {
        link.name: {"owner": owner, "node": link.name, "holder": holder(), "desired": desired} for link in links
    }
    reports, silent = outcomes(on_all("cabling", stack.stack, list(links), requests, DEADLINE_S))
    return wires.read(settings, reports, silent)


def remember(stack: StackName, settings: Settings, found: Wires, observed: Observed) -> None:
    """Keep wires for `remembered`. `observed` was seen before they were heard, so what moved between is not missed."""
    kept = {
        "nodes": {node.name: _grounds(node, observed.get(node.name) or {}) for node in settings.nodes},
        "wires": [[[port.node, port.socket.value] for port in wire] for wire in found.wires],
    }
    replace(on_node.folder(stack.stack) / KEPT, json.dumps(kept, indent=1, sort_keys=True) + "\n")


def remembered(stack: StackName, settings: Settings, observed: Observed) -> Wires | None:
    """The wires that were kept, if since then no port of the fleet has lost carrier or got another name, no node was
    booted and none is new.

    They say nothing of ports: all that were heard had carrier, and have it still.
    """
    try:
        kept = json.loads((on_node.folder(stack.stack) / KEPT).read_text())
        for node in settings.nodes:
            seen = _grounds(node, observed.get(node.name) or {})
            if seen is None or kept["nodes"].get(node.name) != seen:
                return None
        found = tuple(tuple(Port(node, Socket(socket)) for node, socket in wire) for wire in kept["wires"])
    except (OSError, ValueError, KeyError, TypeError):  # none yet, or of another version
        return None
    return Wires({}, found, {})


def _grounds(node: Node, observed: Mapping[str, Any]) -> dict[str, Any] | None:
    """What kept wires rest on, of one node. When a cable is moved that changes: the boot, or for a fabric port its
    device or how often carrier changed. Which device is which port is also the operator's word.

    None where a node does not tell.
    """
    links = observed.get("links") or {}
    ports: dict[str, list[int | None]] = {}
    for hca in (observed.get("hcas") or {}).values():
        link = links.get(hca["netdev"]) or {}
        ports[hca["netdev"]] = [link.get("index"), link.get("carrier_changes")]
    if not ports or any(value is None for pair in ports.values() for value in pair):
        return None
    machine = {"boot": observed.get("boot_id"), "machine": observed.get("machine_id")}
    return {**machine, "ports": ports, "named": node.ports.model_dump()}
