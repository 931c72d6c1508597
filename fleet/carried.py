"""The variables of a stack file that is made from the launcher's: what is told anyway, and what has to be said."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fleet import variables
from fleet.loading import load
from fleet.planner import make
from fleet.problems import NAMESPACE, ProblemsError
from fleet.profiles import Profile
from fleet.stack import StackName
from fleet.told import Source
from fleet.typed import KEYS, Key, Takes


@dataclass(frozen=True)
class Left:
    """Something of the file that is not in the stack config. `line` is None where it is a default of the launcher.

    `value` is None where it is a secret; `why` is a sentence.
    """

    name: str
    line: int | None
    value: str | None
    why: str


@dataclass(frozen=True)
class Told:
    """What head and workers are told without any variable of the operator's; `profile`: the names of them that are
    the profile's and not for the fabric."""

    ground: variables.Ground
    head: Mapping[str, str]
    worker: Mapping[str, str]
    profile: frozenset[str]


@dataclass
class Variables:
    """What the stack file says about variables, and what is left of them."""

    serving: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    head: dict[str, str] = field(default_factory=dict)
    without: list[str] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    secrets: dict[str, int | None] = field(default_factory=dict)
    untold: set[str] = field(default_factory=set)

    @property
    def size(self) -> int:
        return len(self.serving) + len(self.env) + len(self.head) + len(self.without)

    def put(self, env: dict[str, str], head: dict[str, str], untold: set[str]) -> None:
        """Have these told, by their keys where they have one; `untold` are those that the file does not have."""
        for key in KEYS.values():
            values = head if key.head_only else env
            written = _as_key(key, values.get(key.name))
            if written is not None:
                del values[key.name]
                self.serving[key.key] = written
                self.untold |= {key.key} if key.name in untold else set()
        self.env = {name: env[name] for name in sorted(env, key=untold.__contains__)}
        self.untold |= untold & env.keys()
        self.head = head

    def sections(self) -> dict[str, Any]:
        """The keys of the section `engine`, without those that say nothing."""
        serving = {key: self.serving[key] for key in sorted(self.serving, key=self.untold.__contains__)}
        sections = {"serving": serving, "env": self.env, "headEnv": self.head, "without": self.without}
        return {key: values for key, values in sections.items() if values}


def tell(fabric: Mapping[str, Any], nccl: Mapping[str, Any] | None, ep: object, profile: Profile) -> Told:
    """What four nodes are told on this fabric with this profile, and the library that way."""
    nodes = [{"name": f"node{number}", "address": f"192.0.2.{number}"} for number in range(1, 5)]
    engine = {"image": "engine", "profile": profile.value, "allowAnonymous": True}
    config: dict[str, object] = {"nodes": nodes, "ssh": {"user": "nobody"}, "fabric": fabric, "engine": engine}
    if nccl:
        config["nccl"] = {"mode": nccl["mode"], "library": {"onNode": "/library"}}
    try:
        settings = load({**config, "engine": {**engine, "epSize": ep}})
    except ProblemsError:  # which is said of the stack file
        settings = load(config)
    ranks = make(settings, None, StackName(NAMESPACE, "none")).containers
    head, worker = ({name: flag.value for name, flag in rank.env.items()} for rank in ranks[:2])
    own = {name for name, flag in ranks[1].env.items() if flag.source is Source.PROFILE}
    of_fabric = replace(settings.ground, profile=Profile.AUTO).profile_values()
    return Told(settings.ground, head, worker, frozenset(own - of_fabric.keys()))


def _as_key(key: Key, value: str | None) -> object | None:
    """How a value is written as a key of `engine.serving`; None where it cannot be."""
    if value is None:
        return None
    written: object = value
    if key.type.takes is Takes.SWITCH:
        written = {key.type.on: True, key.type.off: False}.get(value)
    elif key.type.takes is Takes.WHOLE:
        written = as_number(value)
    return written if key.type.read(written) == value else None


def as_number(text: str) -> int | str:
    """A number where it is written as one."""
    return int(text) if re.fullmatch(r"[0-9]+", text) else text
