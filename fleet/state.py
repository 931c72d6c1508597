"""The one edit of Pulumi's state that we ever make: taking a dead node out of it."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

from fleet.on_node import ROOT
from node import meshunits, plane, relay
from node.journal import HOME
from node.mesh import STAGES as MESH
from node.sent import files

COMMAND, CONTAINER, VOLUME = "command:local:Command", "docker:index/container:Container", "docker:index/volume:Volume"
# What the resources of a node are: their type, and what follows the node's name in theirs. Without the type, the
# component of a node called spark-undo could not be told from the undo of spark.
OF_NODE = frozenset(
    {
        ("spark-fabric:components:Node", ""),
        ("spark-fabric:components:FabricPlanes", "-fabric"),
        ("pulumi:providers:docker", "-docker"),
        (CONTAINER, "-engine"),
        (CONTAINER, "-exporter"),
        (VOLUME, "-weights"),
        *((COMMAND, f"-{stage}") for stage in ("image", "undo", "node", "plane0", "plane1", "relay", "nccl", *MESH)),
    }
)
LIMIT_S = 300


class StateError(Exception):
    """Pulumi's state could not be read or written; the message is Pulumi's own."""


def pulumi() -> str:
    """The Pulumi of this checkout: the wrapper where it keeps the state, else the one on PATH."""
    if (ROOT / ".pulumi-state").exists():
        return str(ROOT / "pulumiw")
    return shutil.which("pulumi") or str(ROOT / "pulumiw")


def _run(stack: str, verb: str, stdin: str | None = None) -> str:
    done = subprocess.run(
        [pulumi(), "stack", verb, "-s", stack],
        cwd=ROOT,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode:
        raise StateError(f"pulumi stack {verb} failed: {done.stderr.strip()[-1000:]}")
    return done.stdout


def without_node(exported: dict[str, Any], node: str) -> tuple[dict[str, Any], list[str]]:
    """An exported state without a node's resources and without every reference to them; and their names."""
    deployment = exported["deployment"]
    resources = deployment.get("resources") or []
    gone = {resource["urn"] for resource in _all(exported) if _is_of(resource["urn"], node)}

    def scrub(value: Any) -> Any:
        if isinstance(value, list):
            return [scrub(one) for one in value if not (isinstance(one, str) and one in gone)]
        if isinstance(value, dict):
            return {key: scrub(one) for key, one in value.items()}
        return value

    deployment["resources"] = [scrub(resource) for resource in resources if resource["urn"] not in gone]
    pending = deployment.get("pending_operations") or []
    deployment["pending_operations"] = [one for one in pending if one["resource"]["urn"] not in gone]
    return exported, sorted(_name(urn) for urn in gone)


def _all(exported: dict[str, Any]) -> list[dict[str, Any]]:
    """Every resource of an exported state, and those of operations that were begun and not ended."""
    deployment = exported["deployment"]
    pending = [operation["resource"] for operation in deployment.get("pending_operations") or []]
    return [*(deployment.get("resources") or []), *pending]


def _name(urn: str) -> str:
    return urn.rsplit("::", 1)[-1]


def _is_of(urn: str, node: str) -> bool:
    kind = urn.split("::")[-2].rsplit("$", 1)[-1]
    return any(kind == of and _name(urn) == node + suffix for of, suffix in OF_NODE)


def left_on(exported: dict[str, Any], node: str) -> list[str]:
    """What the stack put on a node, from the desired states in an exported state: a line for each thing."""
    lines: list[str] = []
    for resource in _all(exported):
        if not _is_of(resource["urn"], node):
            continue
        inputs = resource.get("inputs") or {}
        kind, of = resource["urn"].split("::")[-2].rsplit("$", 1)[-1], _name(resource["urn"]).removeprefix(node)
        if kind == VOLUME:
            lines.append(f"docker volume {inputs.get('name')}")
        elif kind == CONTAINER:
            lines.append(f"container {inputs.get('name')} (stopped, if the node was off)")
        elif kind == COMMAND and of in LEFT:
            desired = json.loads(inputs.get("stdin") or "{}").get(node) or {}
            if desired.get("state") == "on":
                lines += LEFT[of](desired)
        elif kind == COMMAND and of == "-node":
            stack = json.loads(inputs["environment"]["FLEET_OWNER"])["stack"]
            lines.append(f"{HOME}/{stack}/: the journal, and the program that puts all of this back")
    return lines


def _of_plane(desired: dict[str, Any]) -> list[str]:
    lines = [f"file {desired['file']}", f"file {plane.sysctl_path(desired)}"]
    for port in desired["ports"]:
        lines.append(f"{port['netdev']}: address {port['address']}, MTU {port['mtu']}")
        lines += [f"{port['netdev']}: route to {route['to']} via {route['via']}" for route in port["routes"]]
    return lines


def _of_relay(desired: dict[str, Any]) -> list[str]:
    pairs = ", ".join(" and ".join(pair) for pair in desired["pairs"])
    return [f"unit {relay.UNIT}: forwarding between {pairs}"]


def _of_nccl(desired: dict[str, Any]) -> list[str]:
    return [f"file {file.path}" for file in files(desired)]


def _of_nic(desired: dict[str, Any]) -> list[str]:
    return [
        f"pci/{one['pci']}: {one['hairpin_num_queues']} hairpin queues of {one['hairpin_queue_size']}"
        for one in desired["functions"]
    ]


def _of_forwarding(desired: dict[str, Any]) -> list[str]:
    rules = [f"{rule['netdev']}: rule {rule['pref']} {rule['name']}" for rule in desired["rules"]]
    return rules + [f"{route['netdev']}: route to {route['to']} via {route['via']}" for route in desired["routes"]]


def _of_markers(desired: dict[str, Any]) -> list[str]:
    units = f"units {meshunits.SERVICE} and {meshunits.MARKER}, which bring the mesh back at each boot"
    return [units, f"file {meshunits.BINARY}", *(f"marker on {one['hca']}" for one in desired["markers"])]


LEFT = {
    "-plane0": _of_plane,
    "-plane1": _of_plane,
    "-relay": _of_relay,
    "-nccl": _of_nccl,
    "-nic": _of_nic,
    "-forwarding": _of_forwarding,
    "-markers": _of_markers,
}
"""What a stage leaves, from its desired state, by the end of its resource's name."""


def forget(stack: str, node: str) -> tuple[list[str], list[str]]:
    """Take a node's resources out of the stack's state; return their names and what stays on the node.

    Raises StateError.
    """
    exported = json.loads(_run(stack, "export"))
    left = left_on(exported, node)
    exported, names = without_node(exported, node)
    if names:
        _run(stack, "import", json.dumps(exported))
    return names, left
