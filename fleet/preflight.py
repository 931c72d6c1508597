"""Before anything is registered: what stands in the way, on all nodes, all at once.

`before_plan` looks at what planning relies on, `check` at what the plan meets on the nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from fleet.drift import deviations_of
from fleet.facts import parse
from fleet.plan import Plan, StackName
from fleet.probe import Probe
from fleet.problems import Problem, config_path
from fleet.settings import Settings

Found = tuple[list[Problem], list[Problem]]  # problems, warnings


def before_plan(
    settings: Settings, stack: StackName, seen: Probe, lost: Collection[str] = (), *, changing: bool = False
) -> Found:
    """Nodes that cannot be read, belong to somebody else, are another one, or remember a member that the settings lack.

    A member that the operator has given up (`lost`) is not missed. A node that somebody else is just changing is a
    problem for a run that changes something itself (`changing`), and a warning for all others.
    """
    problems = [_unreachable(why) for why in seen.unreachable.values()]
    warnings = [
        Problem("forgotten", name, "is skipped", "every node", f"When it is back: python -m fleet remember {name}")
        for name in sorted(lost)
    ]
    named = {node.name for node in settings.nodes}
    vanished: dict[str, str] = {}
    for name, observed in seen.observed.items():
        problems += _ownership(name, observed, stack, settings.fleet.id)
        node_stage = ((observed.get("journal") or {}).get("stages") or {}).get("node") or {}
        recorded = node_stage.get("desired") or {}
        if recorded.get("name", name) != name:
            problems.append(
                Problem(
                    "other-node",
                    name,
                    f"is {recorded['name']} to this stack, as its journal says",
                    f"the machine that was {name} so far",
                    "Were addresses swapped? Correct nodes[].address.",
                )
            )
        for member in recorded.get("members") or []:
            if member not in named and member not in lost:
                vanished.setdefault(member, name)
        hostname = observed.get("hostname")
        if hostname and hostname != name:
            warnings.append(
                Problem(
                    "hostname", name, f'calls itself "{hostname}"', "the name in the settings", "Is it the right node?"
                )
            )
        if observed.get("lock"):
            (problems if changing else warnings).append(_busy(name, observed["lock"], changing))
    problems += [
        Problem(
            "member-vanished",
            config_path(("nodes",)),
            f"has no {member} any more, which {witness} knows as a member",
            "a node to leave in two steps",
            "Put it back as `state: leaving`, run `up`, then remove it. "
            f"If it is dead: python -m fleet forget {member}",
        )
        for member, witness in vanished.items()
    ]
    return problems, warnings


def _busy(name: str, lock: Mapping[str, Any], changing: bool) -> Problem:
    """Somebody is at work on a node."""
    seen = f"is being changed by {lock.get('holder')} (process {lock.get('pid')} there)"
    hint = "Wait for that run, or end that process on the node." if changing else "What follows may change."
    return Problem("busy", name, seen, "a node at rest", hint)


def _unreachable(why: str) -> Problem:
    """From "WHERE: what was seen. What to do"."""
    path, _, rest = why.partition(": ")
    said, _, hint = rest.partition(". ")
    return Problem("unreachable", path, said, "an answer", hint)


def _ownership(name: str, observed: Mapping[str, Any], stack: StackName, fleet_id: str) -> Iterator[Problem]:
    owner = observed.get("owner")
    if owner and not stack.owns(owner, fleet_id):
        yield Problem(
            "other-owner",
            name,
            f"belongs to {StackName(owner['project'], owner['stack']).label(owner['fleet_id'])}",
            stack.label(fleet_id),
            "Destroy that stack first, choose other nodes, or set fleet.id if it is the same fleet.",
        )


def _foreign(plan: Plan, seen: Probe) -> Iterator[Problem]:
    """What somebody else has put where the plan wants to be: no `up` repairs it, a person has to decide."""
    for node in plan.ranks:
        for stage in node.stages:
            for one in deviations_of(node, stage, seen.observed.get(node.name) or {}):
                if one.foreign:
                    yield Problem(one.code, f"{node.name} {one.subject}", one.seen, one.wanted, "")


def _docker_rights(node: str, user: str) -> Problem:
    """The containers are made over ssh as this user, without sudo."""
    seen, wanted = f"{user} may not use docker there", f"{user} in the group docker"
    return Problem("docker-rights", node, seen, wanted, f"On {node}: sudo usermod -aG docker {user}")


def check(plan: Plan, seen: Probe) -> Found:
    """Images, container names and files in the way of the plan, on the nodes that can be read."""
    problems = list(_foreign(plan, seen))
    image = plan.settings.engine.image
    ids: dict[str, list[str]] = {}
    for node in plan.ranks:
        observed = seen.observed.get(node.name)
        if observed is None:
            continue  # said already
        docker = observed.get("docker")
        if docker is None:
            problems.append(
                Problem(
                    "docker", node.name, "docker does not answer", "a running daemon", "sudo systemctl start docker"
                )
            )
            continue
        if docker.get("shut_out"):
            problems.append(_docker_rights(node.name, docker["shut_out"]))
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
