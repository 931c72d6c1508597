"""What the proof asks of each rank, from the plan: its ports, its library, the lines of its flags, the limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fleet import profiles
from fleet.causes import LISTENER
from fleet.plan import NodePlan, Plan
from fleet.topology import Kind
from fleet.variables import COUNT, EXTENDED, MOST, STOCK_CAP
from node import elf

PRESERVE = "NCCL_IB_PRESERVE_PCI_DOMAIN"
KNOWN_BY = {EXTENDED: elf.EXTENDED, PRESERVE: "PRESERVE_PCI_DOMAIN"}
"""By variable of the patched NCCL: the string in a library that knows it (sparkring, the built library)."""

WORDS, TOKENS = 1000, 4
"""Of a completion. Ranks sum a prompt's activations, `SUMMED` a token and layer: a thousand words move about a GiB."""

SUMMED = 10240  # bytes: 5120 activations of 2 bytes (the launcher's model, DeepSeek-V4.1-Flash)
UNSAID = 10  # tokens of a prompt besides its words: the template's, and what tells it from the others


def asked(plan: Plan, start: str) -> dict[str, dict[str, Any]]:
    """By node, in rank order: what `prove.py` takes. `start` names the start of the engines that is proven."""
    proof = plan.settings.proof
    limits = {
        "minimum": proof.minimum,
        "plane_share": proof.plane_share,
        "edge_share": proof.edge_share,
        "arrival": proof.arrival,
        "requests": proof.requests,
    }
    return {node.name: {"start": start, "limits": limits, **_of_rank(plan, node)} for node in plan.ranks}


def _of_rank(plan: Plan, node: NodePlan) -> dict[str, Any]:
    assert node.container  # of a node with a rank
    assert node.verify
    env = {name: flag.value for name, flag in node.container.env.items()}
    engine, ports = plan.settings.engine, list(_ports(plan, node))
    most = env.get(MOST, "")
    several = plan.topology.kind is Kind.RING and len(ports) > STOCK_CAP
    return {
        "rank": node.rank,
        "ports": ports,
        "gid_index": int(env["NCCL_IB_GID_INDEX"]),
        "load": {
            "address": engine.own_address,
            "port": engine.port,
            "model": engine.served_model_name,
            "words": _words(plan),
            "tokens": TOKENS,
            "timeout": plan.settings.proof.timeout,
        }
        if node.rank == 0
        else None,
        "library": node.stages.get("nccl", {}).get("sha256"),
        "strings": [text for name, text in KNOWN_BY.items() if env.get(name) == "1"],
        "left_out": [name for name in (EXTENDED, PRESERVE) if several and env.get(name) != "1"],
        "channels": int(most) if COUNT.fullmatch(most) else None,
        "lines": list(_lines(plan, node, env, len(ports))) if plan.settings.proof.logs else None,
        "witness": {LISTENER: "NET/IB ListenerRouting "},
        "level": ", ".join(f"{name}={env.get(name, '')}" for name in ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS")),
        "verify": node.verify,
        "mesh": _mesh(plan, node),
    }


def _words(plan: Plan) -> list[int]:
    """Of the prompts, which take turns. Sums of long ones are NCCL's; with a mesh every other prompt is so short that
    RoCEnante sums it, with messages near the largest that it takes."""
    return [WORDS, max(1, plan.mesh.max_size // SUMMED - UNSAID)] if plan.mesh else [WORDS]


def _mesh(plan: Plan, node: NodePlan) -> dict[str, Any] | None:
    """The rules of a node, its devices at which paths end, and what sizes the queues and the messages have."""
    if plan.mesh is None:
        return None
    names = [one.name for one in plan.ranks]
    paths = [path for path in plan.mesh.ring.taken() if path.source == node.rank]
    return {
        "forward": node.stages["forwarding"]["rules"],
        "ends": [
            {
                "hca": plan.mesh.ports[path.plane, path.origin].hca,
                "peer": names[path.destination],
                "via": names[path.via],
            }
            for path in paths
        ],
        "queue": plan.mesh.settings.hairpin_queue_size,
        "cap": plan.mesh.settings.cap,
        "largest": max(plan.mesh.max_size, plan.mesh.gather_size),
    }


def _ports(plan: Plan, node: NodePlan) -> Iterator[dict[str, Any]]:
    assert node.rank is not None
    for plane, addresses in plan.planes.items():
        for end in plan.topology.ends(node.rank):
            device, segment = node.devices[plane, end.socket], plan.topology.segment(end)
            if plan.topology.kind is Kind.RING:
                ends = " - ".join(f"{plan.ranks[one.end.rank].name} {one.end.socket}" for one in segment.members)
                name, edge = f"cable {segment.index}", f"cable {segment.index} ({ends})"
                if plan.mesh:  # the card of a node between passes bytes on, past the counters of its functions
                    name = "the ring"
            else:
                name, edge = "the switch", f"{node.name} {end.socket} to the switch"
            yield {
                "plane": plane,
                "hca": device.hca,
                "netdev": device.netdev,
                "address": str(addresses.at(end)),
                "edge": edge,
                "segment": name,
            }


def _lines(plan: Plan, node: NodePlan, env: Mapping[str, str], hcas: int) -> Iterator[dict[str, Any]]:
    for line in profiles.lines_for(plan.topology.kind, len(plan.planes)):
        if line.in_force(env, head=node.rank == 0):
            text, pattern = line.expected(env, hcas)
            yield {
                "name": line.name,
                "text": text,
                "pattern": pattern,
                "never": line.never,
                "printed": line.printed(env),
            }
