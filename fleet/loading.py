"""The door to the stack config: plain values in, settings or every problem out."""

import copy
import difflib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from fleet import catalogue
from fleet.problems import Loc, Problem, ProblemsError, config_path, shown
from fleet.settings import Settings

ROUNDS = 8
"""Readings with stand-ins at most: each uncovers what lay below a value of a wrong shape."""

TYPES = {
    "model_type": ("a set of keys", "Indent its keys below it."),
    "model_attributes_type": ("a set of keys", "Indent its keys below it."),
    "dict_type": ("a set of keys", "Indent its keys below it."),
    "list_type": ("a list", "Start each entry with a dash."),
}
"""Pydantic's refusals of a shape: what was wanted, and what to do."""

LISTED = {
    "volumes": "/stand-in-{0}:/stand-in-{0}",
    "setAside": "/etc/netplan/stand-in-{0}.yaml",
    "ignore": "hostname",
    "refuse": "hostname",
}
"""What stands in for a wrong entry of a list, by the list's key and with the entry's number."""

LIMITS = {"greater_than_equal": ("at least", "ge"), "less_than_equal": ("at most", "le")}


class SettingsError(ProblemsError):
    """The stack config is wrong; `problems` has all of it."""


def load(raw: Mapping[str, object]) -> Settings:
    """Read the config of our namespace: top-level key → value, or its JSON text as Pulumi passes objects.

    Raises SettingsError with every mistake. After the first reading, stand-ins replace the wrong values so that the
    rest can be read; the rules between values are asked too, except where a stand-in takes part.
    """
    tree = {key: _decoded(value) for key, value in raw.items()}
    draft = copy.deepcopy(tree)
    problems: dict[Loc, Problem] = {}
    for _ in range(ROUNDS):
        try:
            settings = Settings.model_validate(draft)
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                loc = _loc(draft, detail["loc"])
                if not any(loc[: len(known)] == known for known in problems):
                    problems[loc] = _problem(tree, loc, detail)
                _stand_in(draft, loc, detail["type"])
        else:
            broken = [rule for rule in settings.rules() if not _spoiled((rule.loc, *rule.also), problems)]
            if not problems and not broken:
                return settings
            raise SettingsError([*_without_echoes(problems), *(rule.problem() for rule in broken)])
    raise SettingsError(_without_echoes(problems))


def _decoded(value: object) -> object:
    if isinstance(value, str) and value.strip()[:1] in ("{", "["):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _spoiled(locs: tuple[Loc, ...], problems: Mapping[Loc, Problem]) -> bool:
    """Whether a value at one of these places, or above or below it, was replaced by a stand-in."""
    wrong = [loc for loc, problem in problems.items() if problem.code != "unknown-key"]
    return any(a[: len(b)] == b or b[: len(a)] == a for a in locs for b in wrong)


def _without_echoes(problems: Mapping[Loc, Problem]) -> list[Problem]:
    """Without the keys that are only missing because their name is misspelt beside it."""
    meant = {(*loc[:-1], _nearest(loc)) for loc, problem in problems.items() if problem.code == "unknown-key"}
    return [problem for loc, problem in problems.items() if problem.code != "missing" or loc not in meant]


def _loc(draft: object, loc: tuple[int | str, ...]) -> Loc:
    """Pydantic's place without what is not in the config: marks of dictionary keys and parts of shorthands."""
    found: list[str | int] = []
    here = draft
    for part in loc:
        if part == "[key]" or not isinstance(here, (dict, list)):
            break
        found.append(part)
        here = _value(here, (part,))
    return tuple(found)


def _value(tree: object, loc: Loc) -> object:
    for part in loc:
        listed = isinstance(tree, list) and isinstance(part, int) and part < len(tree)
        if not listed and not (isinstance(tree, dict) and part in tree):
            return None
        tree = tree[part]  # type: ignore[index]
    return tree


def _problem(tree: object, loc: Loc, detail: ErrorDetails) -> Problem:
    kind, context = detail["type"], detail.get("ctx", {})
    path, seen = config_path(loc), f"is {shown(_value(tree, loc))}"
    if kind == "extra_forbidden":
        known = ", ".join(str(field.alias) for field in catalogue.model_at(loc[:-1]).model_fields.values())
        problem = Problem("unknown-key", path, "is not a known key", f"one of {known}", _suggestion(loc))
    elif kind == "missing":
        problem = Problem("missing", path, "is missing", _meaning(loc), "Add it to the stack file.")
    elif "wanted" in context:
        seen = "is no variable's name" if detail["loc"][-1] == "[key]" else seen
        problem = Problem(kind.replace("_", "-"), path, seen, str(context["wanted"]), str(context["hint"]))
    elif kind in LIMITS:
        word, key = LIMITS[kind]
        problem = Problem("out-of-range", path, seen, f"{word} {context[key]}", "")
    elif kind in TYPES:
        wanted, hint = TYPES[kind]
        problem = Problem("wrong-shape", path, seen, wanted, hint)
    else:
        problem = Problem("not-text", path, seen, "a text without spaces", "Put the value in quotes.")
    return problem


def _nearest(loc: Loc) -> str | None:
    """The known key beside an unknown one that is spelt most like it."""
    known = {str(field.alias).lower(): str(field.alias) for field in catalogue.model_at(loc[:-1]).model_fields.values()}
    near = difflib.get_close_matches(str(loc[-1]).lower(), known, n=1)
    return known[near[0]] if near else None


def _suggestion(loc: Loc) -> str:
    beside = _nearest(loc)
    if beside:
        return f"Did you mean {beside}?"
    name = str(loc[-1]).lower()
    elsewhere = [path for path, _ in catalogue.every_key() if path.rpartition(".")[2].lower() == name]
    return f"Did you mean {elsewhere[0]}?" if elsewhere else "Remove it."


def _meaning(loc: Loc) -> str:
    fields = catalogue.model_at(loc[:-1]).model_fields.values()
    text = next(field.description or "" for field in fields if field.alias == loc[-1]).split(". ")[0].rstrip(".")
    return text[:1].lower() + text[1:]


def _stand_in(draft: dict[str, Any], loc: Loc, kind: str) -> None:
    """Put something acceptable where a wrong or missing value was, or take it away where there is a default."""
    holder: Any = _value(draft, loc[:-1])
    if kind == "extra_forbidden":
        del holder[loc[-1]]
        return
    stand_in: object
    match loc:
        case ("nodes",):
            stand_in = []
        case ("nodes", int(index)):
            stand_in = {"name": f"stand-in-{index}", "address": f"192.0.2.{index % 250 + 1}"}
        case ("nodes", int(index), "name"):
            stand_in = f"stand-in-{index}"
        case ("nodes", int(index), "address"):
            stand_in = f"192.0.2.{index % 250 + 1}"
        case ("ssh",):
            stand_in = {"user": "stand-in"}
        case ("engine",):
            stand_in = {"image": "stand-in"}
        case ("ssh", "user") | ("engine", "image") | ("engine", "image", "ref"):
            stand_in = "stand-in"
        case ("mesh", "marker", "sha256"):
            stand_in = "0" * 64
        case (_, key, int(index)) if key in LISTED:
            stand_in = LISTED[str(key)].format(index)
        case _:
            holder.pop(loc[-1], None)
            return
    holder[loc[-1]] = stand_in
