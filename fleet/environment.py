"""The ranks' resolved environments for people: each value with where it comes from, secrets left out."""

from collections.abc import Iterator, Mapping

from fleet.flags import Flag, Source
from fleet.picture import columns
from fleet.plan import Plan
from node.hide import HIDDEN, NAME

Resolved = Mapping[str, str | dict[str, str]]


def resolved(plan: Plan, *, hidden: bool = False) -> Resolved:
    """Variable -> value and origin, where all ranks have the same; else node names -> value and origin.

    `hidden` leaves out all that the operator set by hand: Pulumi tells only whether there is a secret among it.
    Variables that are named like secrets are left out in any case.
    """
    everybody = ", ".join(node.name for node in plan.ranks)
    return {
        name: texts[everybody] if texts.keys() == {everybody} else texts
        for name, values in _by_name(plan)
        for texts in [{", ".join(nodes): _text(name, flag, hidden=hidden) for flag, nodes in values.items()}]
    }


def listing(plan: Plan) -> list[str]:
    """The same as a table, a line for each variable and value."""
    rows = [("variable", "ranks", "value", "from")]
    size = len(plan.ranks)
    for name, values in _by_name(plan):
        for flag, nodes in values.items():
            value = HIDDEN if _is_secret(name, flag, hidden=False) else flag.value
            rows.append((name, "all" if len(nodes) == size else ", ".join(nodes), value, flag.origin))
    return columns(rows)


def _by_name(plan: Plan) -> Iterator[tuple[str, dict[Flag, list[str]]]]:
    """Each variable's values, and the nodes that have them, in rank order."""
    environments = {container.node: container.env for container in plan.containers}
    for name in sorted({name for env in environments.values() for name in env}):
        values: dict[Flag, list[str]] = {}
        for node, env in environments.items():
            if name in env:
                values.setdefault(env[name], []).append(node)
        yield name, values


def _text(name: str, flag: Flag, *, hidden: bool) -> str:
    return f"{HIDDEN if _is_secret(name, flag, hidden=hidden) else flag.value} ({flag.origin})"


def _is_secret(name: str, flag: Flag, *, hidden: bool) -> bool:
    by_hand = flag.source is Source.OVERRIDE or flag.detail.startswith("engine.serving.")
    return by_hand and (hidden or NAME.fullmatch(name) is not None)
