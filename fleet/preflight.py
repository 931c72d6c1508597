"""Before anything is registered: what stands in the way, on all nodes, all at once.

`before_plan` looks at what planning relies on, `check` at what the plan meets on the nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fleet.facts import parse
from fleet.plan import Plan, StackName
from fleet.probe import Probe
from fleet.problems import Problem, config_path
from fleet.settings import Settings

Found = tuple[list[Problem], list[Problem]]  # problems, warnings


def before_plan(settings: Settings, stack: StackName, seen: Probe) -> Found:
    """Nodes that cannot be read, belong to somebody else, or remember a member that the settings lack."""
    problems = [
        Problem("unreachable", name, why.removeprefix(f"{name}").strip(" :"), "an answer", "")
        for name, why in seen.unreachable.items()
    ]
    warnings: list[Problem] = []
    named = {node.name for node in settings.nodes}
    vanished: dict[str, str] = {}
    for name, observed in seen.observed.items():
        problems += _ownership(name, observed, stack, settings.fleet.id)
        node_stage = ((observed.get("journal") or {}).get("stages") or {}).get("node") or {}
        for member in (node_stage.get("desired") or {}).get("members") or []:
            if member not in named:
                vanished.setdefault(member, name)
        hostname = observed.get("hostname")
        if hostname and hostname != name:
            warnings.append(
                Problem(
                    "hostname", name, f'calls itself "{hostname}"', "the name in the settings", "Is it the right node?"
                )
            )
        if observed.get("lock"):
            lock = observed["lock"]
            warnings.append(
                Problem(
                    "busy",
                    name,
                    f"is being changed by {lock.get('holder')}",
                    "a node at rest",
                    "What follows may change.",
                )
            )
    problems += [
        Problem(
            "member-vanished",
            config_path(("nodes",)),
            f"has no {member} any more, which {witness} knows as a member",
            "a node to leave in two steps",
            f"Put it back as `state: leaving`, run `up`, then remove it. If it is dead: python -m fleet forget {member}",
        )
        for member, witness in vanished.items()
    ]
    return problems, warnings


def _ownership(name: str, observed: Mapping[str, Any], stack: StackName, fleet_id: str) -> Iterator[Problem]:
    owner = observed.get("owner")
    if not owner:
        return
    seen = f"{owner['project']}/{owner['stack']}/{owner['fleet_id']}"
    if seen != stack.label(fleet_id):
        yield Problem(
            "other-owner",
            name,
            f"belongs to {seen}",
            stack.label(fleet_id),
            "Destroy that stack first, choose other nodes, or set fleet.id if it is the same fleet.",
        )


def check(plan: Plan, seen: Probe) -> Found:
    """Images, container names and ports in the way of the plan."""
    problems: list[Problem] = []
    image = plan.settings.engine.image
    ids: dict[str, list[str]] = {}
    for node in plan.ranks:
        observed = seen.observed[node.name]
        docker = observed.get("docker")
        if docker is None:
            problems.append(
                Problem(
                    "docker", node.name, "docker does not answer", "a running daemon", "sudo systemctl start docker"
                )
            )
            continue
        found = parse(observed).images.get(image.ref)
        if found:
            ids.setdefault(found, []).append(node.name)
        elif image.archive is None:
            problems.append(
                Problem(
                    "image-missing",
                    node.name,
                    f"has no image {image.ref}",
                    "the same image as on the other nodes",
                    "Load it with `docker load` from one archive on every node, or set engine.image.archive.",
                )
            )
        for container in docker["containers"]:
            ours = container["labels"].get("spark-fabric.stack") == plan.label
            if node.container and container["name"] == node.container.name and not ours:
                problems.append(
                    Problem(
                        "container-name",
                        node.name,
                        f"has a container {container['name']} that is not this stack's",
                        "the name free",
                        "Remove or rename it, or set engine.name.",
                    )
                )
    if image.archive is None and len(ids) > 1:
        listing = "; ".join(f"{identity[7:19]} on {', '.join(names)}" for identity, names in ids.items())
        problems.append(
            Problem(
                "image-ids",
                config_path(("engine", "image")),
                f"{image.ref} is not the same image everywhere: {listing}",
                "one image id",
                "Load the same archive on every node: images built or imported per node differ.",
            )
        )
    return problems, []
