"""Checks: can the nodes be read, are they the right ones, and is anybody else at work on them?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from fleet.look import Look
from fleet.problems import Problem, config_path
from fleet.stack import StackName

REASONS = (
    ("host-key", r"the host key is not the expected one"),
    ("login", r"Permission denied|Too many authentication failures|No supported authentication methods"),
    ("sudo", r"\bsudo: "),
    ("python", r"python3\W*: (?:not found|No such file|command not found)|SyntaxError|unsupported operand type"),
    ("unread", r"cannot be read: "),
)
"""What the texts of nodes without an answer mean; the first that fits counts, and nothing else is `unreachable`."""

PARTS = ("machine", "owner", "journal", "links", "hcas", "routes", "netplan", "nm", "files")
"""Parts of a look (`node/observe.py`) without which nothing can be planned; errors that name no part are of these."""

HINTS = {
    "sudo": "The login user needs sudo without a password (NOPASSWD in /etc/sudoers.d), or has to be root.",
    "python": "sudo apt install python3; 3.10 is the oldest that will do.",
}


def reach(look: Look) -> Iterator[Problem]:
    """Nodes without an answer, by the reason."""
    for why in look.seen.unreachable.values():
        path, _, rest = why.partition(": ")
        said, _, hint = rest.partition(". ")
        code = next((code for code, pattern in REASONS if re.search(pattern, why)), "unreachable")
        yield Problem(code, path, said, "an answer", HINTS.get(code, hint))


def unread(look: Look) -> Iterator[Problem]:
    """Nodes of which a part could not be had. What is planned without one of `PARTS` would be wrong.

    So it would be with shared weights that are not seen: a volume would count as gone, and be made anew under engines.
    """
    parts = {*PARTS, *(["nfs"] if look.settings.nfs else [])}
    for name, observed in look.nodes:
        for error in observed.get("errors") or []:
            part = re.match(r"([\w-]+): ", error)
            if part and part.group(1) in ("docker", "weights"):
                continue  # checks of their own
            code = "unread-part" if part and part.group(1) not in parts else "unread"
            yield Problem(code, name, f"cannot be read: {error}", "an answer", "")


def forgotten(look: Look) -> Iterator[Problem]:
    """Nodes that the operator has given up."""
    for name in sorted(look.lost):
        hint = f"When it is back: python -m fleet remember {name}"
        yield Problem("forgotten", name, "is skipped", "every node", hint)


def ownership(look: Look) -> Iterator[Problem]:
    """Nodes of another stack or fleet."""
    fleet_id = look.settings.fleet.id
    for name, observed in look.nodes:
        owner = observed.get("owner")
        if owner and not look.stack.owns(owner, fleet_id):
            yield Problem(
                "other-owner",
                name,
                f"belongs to {StackName(owner['project'], owner['stack']).label(owner['fleet_id'])}",
                look.stack.label(fleet_id),
                "Destroy that stack first, choose other nodes, or set fleet.id if it is the same fleet.",
            )


def identity(look: Look) -> Iterator[Problem]:
    """Machines that were another node of this stack so far, and hosts with another name."""
    for name, observed in look.nodes:
        recorded = _recorded(observed)
        if recorded.get("name", name) != name:
            yield Problem(
                "other-node",
                name,
                f"is {recorded['name']} to this stack, as its journal says",
                f"the machine that was {name} so far",
                "Were addresses swapped? Correct nodes[].address.",
            )
        hostname = observed.get("hostname")
        if hostname and hostname != name:
            seen = f'calls itself "{hostname}"'
            yield Problem("hostname", name, seen, "the name in the settings", "Is it the right node?")


def members(look: Look) -> Iterator[Problem]:
    """Members that nodes remember and the settings have no more."""
    named = {node.name for node in look.settings.nodes}
    vanished: dict[str, str] = {}
    for name, observed in look.nodes:
        for member in _recorded(observed).get("members") or []:
            if member not in named and member not in look.lost:
                vanished.setdefault(member, name)
    for member, witness in vanished.items():
        yield Problem(
            "member-vanished",
            config_path(("nodes",)),
            f"has no {member} any more, which {witness} knows as a member",
            "a node to leave in two steps",
            "Put it back as `state: leaving`, run `up`, then remove it. "
            f"If it is dead: python -m fleet forget {member}",
        )


def at_work(look: Look) -> Iterator[Problem]:
    """Nodes that somebody else is just changing: in the way of a run that changes something itself."""
    for name, observed in look.nodes:
        lock = observed.get("lock")
        if lock:
            code = "busy" if look.changing else "at-work"
            seen = f"is being changed by {lock.get('holder')} (process {lock.get('pid')} there)"
            hint = (
                "Wait for that run, or end that process on the node." if look.changing else "What follows may change."
            )
            yield Problem(code, name, seen, "a node at rest", hint)


def _recorded(observed: Any) -> dict[str, Any]:
    """What the node's journal says about the stage `node`."""
    stage = ((observed.get("journal") or {}).get("stages") or {}).get("node") or {}
    return dict(stage.get("desired") or {})
