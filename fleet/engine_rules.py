"""What the settings say about the engine's variables, held against their types, each other, image and fabric."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fleet import combinations, variables
from fleet.model import Broken
from fleet.problems import Loc, shown
from fleet.profiles import CAPABILITIES, NEEDS, Profile
from fleet.told import known
from fleet.typed import KEYS, TYPES

if TYPE_CHECKING:
    from fleet.settings import Settings

ALSO: tuple[Loc, ...] = (
    ("engine", "profile"),
    ("engine", "env"),
    ("engine", "headEnv"),
    ("engine", "serving"),
    ("engine", "without"),
    ("engine", "epSize"),
    ("engine", "image"),
    ("fabric", "topology"),
    ("mesh", "enabled"),
    ("nodes",),
)
"""What takes part in rules between variables."""


def broken(settings: Settings) -> Iterator[Broken]:
    """The rules that do not hold. Of an engine that is told nothing (profile none) only what contradicts itself."""
    yield from _twice(settings)
    yield from _left_out(settings)
    if settings.engine.profile is not Profile.NONE:
        yield from _values(settings)
        yield from _between(settings)


def where(settings: Settings, name: str) -> Loc:
    """The key that decides a variable's value."""
    engine = settings.engine
    if name in engine.head_env:
        return "engine", "headEnv", name
    if name in engine.env:
        return "engine", "env", name
    keys = [key for of, _, key in engine.serving.told(head=True) if of == name]
    return ("engine", "serving", keys[-1]) if keys else ("engine", "profile")


def modules(settings: Settings) -> dict[str, str]:
    """By variable that is on for any rank: the module that it needs of an image which nobody knows.

    Images of the launcher's profiles declare what they have, and an engine that is told nothing asks for nothing.
    """
    if settings.engine.profile is not Profile.AUTO:
        return {}
    declared = combinations.PATHS if settings.engine.image.roce_ring else frozenset[str]()
    ranks = [known(settings, head=head) for head in (False, True)]
    return {
        need.name: CAPABILITIES[need.capability].module
        for need in NEEDS
        if need.capability not in declared and any(need.asked(env) for env in ranks)
    }


def _twice(settings: Settings) -> Iterator[Broken]:
    """A variable by its name and by its key."""
    engine = settings.engine
    for name, _, key in engine.serving.told(head=True):
        other = "headEnv" if KEYS[key].head_only else "env"
        if name in (engine.head_env if KEYS[key].head_only else engine.env):
            yield Broken(
                "variable-twice",
                ("engine", other, name),
                f"is set beside engine.serving.{key}",
                "one of the two",
                "They are the same.",
                (("engine", "serving", key),),
            )


def _left_out(settings: Settings) -> Iterator[Broken]:
    """Variables that nobody tells anyway, that are set as well, or that the fabric or the image needs."""
    engine, ground = settings.engine, settings.ground
    profile, env = ground.profile_values(), {**engine.env, **engine.head_env}
    needed = {
        rule.name: rule.why
        for rule in ground.rules()
        if rule.only and ground.applies(rule, engine.env) and (rule.place.on != "any" or rule.place.group)
    }
    for index, name in enumerate(engine.without):
        loc: Loc = ("engine", "without", index)
        set_too = where(settings, name)
        if name in env or set_too[1] == "serving":
            yield Broken(
                "without-set", loc, f"is {name}, which is set too", "one of the two", "Remove one.", (set_too,)
            )
        elif name in needed:
            also = (("engine", "profile"), ("fabric", "topology"))
            yield Broken("without-needed", loc, f"is {name}", "it to be told", needed[name], also)
        elif name not in profile:
            seen, hint = f"is {name}, which the profile does not tell", "Remove it."
            yield Broken("without-unknown", loc, seen, "a variable of the profile", hint, ALSO[:1])


def _values(settings: Settings) -> Iterator[Broken]:
    """Values that are none of their type; what other rules refuse already is not told twice."""
    engine, ground = settings.engine, settings.ground
    said = {one.name for one in variables.objections(ground, engine.env)}
    said |= {one.name for one in variables.objections_of_head(ground, engine.env, engine.head_env)}
    for key, env in (("env", engine.env), ("headEnv", engine.head_env)):
        for name, value in env.items():
            if name in TYPES and value and name not in said and not TYPES[name].fits(value):
                yield Broken("env-type", ("engine", key, name), f"is {shown(value)}", TYPES[name].values, "")


def _between(settings: Settings) -> Iterator[Broken]:
    """What does not go together, on rank 0 or on the others."""
    ground, image = settings.ground, settings.engine.image
    seen: set[combinations.Mistake] = set()
    for head in (False, True):
        env = {name: value for name, value in known(settings, head=head).items() if _fits(name, value)}
        for mistake in combinations.mistakes(ground, combinations.capabilities(ground, image), env):
            if mistake not in seen:
                seen.add(mistake)
                yield _as_broken(settings, mistake)


def _fits(name: str, value: str) -> bool:
    return name not in TYPES or not value or TYPES[name].fits(value)


def _as_broken(settings: Settings, mistake: combinations.Mistake) -> Broken:
    loc = where(settings, mistake.name)
    seen = mistake.seen if loc[-1] == mistake.name else f"has {mistake.name}, which {mistake.seen}"
    if loc[1] == "serving":
        seen = mistake.seen
    return Broken(mistake.code, loc, seen, mistake.wanted, mistake.hint, ALSO)
