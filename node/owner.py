"""Which stack a node belongs to. The file lies outside the stack's folder, so that another stack finds it."""

import json
from typing import Any

from .journal import HOME
from .request import OTHER_OWNER, Failure, Owner
from .system import Meta, System

PATH = f"{HOME}/owner.json"


def read(system: System) -> dict[str, Any] | None:
    """The owner with "adoptable", or None where the node belongs to nobody."""
    data = system.read(PATH)
    if data is None:
        return None
    try:
        value = json.loads(data)
        found = {key: str(value[key]) for key in ("project", "stack", "fleet_id", "state_id")}
    except (ValueError, KeyError, TypeError):
        raise Failure(OTHER_OWNER, f"{PATH} cannot be read: it was changed by hand; put it back or remove it") from None
    return {**found, "adoptable": value.get("adoptable") is True}


def problem(asking: Owner, held: dict[str, Any] | None) -> str | None:
    """Why a stack may not change a node that belongs to `held`; None where it may. Pure."""
    if held is None or _same(asking, held):
        return None
    if _same_stack(asking, held):
        if held.get("adoptable"):
            return None
        return (
            f"held by the same stack {held['stack']} from another state ({held['state_id'][:12]}): use the checkout "
            "that has that state, or `fleet adopt` if the state is lost"
        )
    return (
        f"belongs to stack {held['stack']} of project {held['project']} (fleet {held['fleet_id']}): destroy that stack "
        "first, or take the node out of one of the two"
    )


def take(system: System, asking: Owner) -> bool:
    """Make the node ours where it belongs to nobody or may be adopted; whether something changed."""
    held = read(system)
    if held is not None and _same(asking, held) and not held["adoptable"]:
        return False
    write(system, asking, adoptable=False)
    return True


def write(system: System, owner: Owner, *, adoptable: bool) -> None:
    """Write the owner file."""
    system.make_folder(HOME)
    value = {**owner.to_json(), "adoptable": adoptable}
    system.write(PATH, json.dumps(value, indent=1).encode() + b"\n", Meta(0o644, 0, 0, 0))


def ours(system: System, asking: Owner) -> bool:
    """Whether the node belongs to nobody else. A node without owner counts: it may hold leftovers of ours."""
    held = read(system)
    return held is None or _same(asking, held)


def _same(asking: Owner, held: dict[str, Any]) -> bool:
    return asking.to_json() == {key: held[key] for key in asking.to_json()}


def _same_stack(asking: Owner, held: dict[str, Any]) -> bool:
    return (asking.project, asking.stack, asking.fleet_id) == (held["project"], held["stack"], held["fleet_id"])
