"""The engine's profiles: what `profiles.toml` says, as frozen values."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from fleet.scalars import LibraryMode
from fleet.topology import PLANES, Kind

ANY = "any"


class Profile(StrEnum):
    """What the containers are told beside what follows from nodes and fabric.

    AUTO is NCCL as it fits the fabric, NONE nothing; the others are everything that the launcher tells, each for one of
    its images. What is told on which fabric follows from the fabric.
    """

    AUTO = "auto"
    NONE = "none"
    BASE = "base"
    CANARY = "canary"
    CANARY_ROCE = "canary-roce"
    PRODUCTION_V2_2 = "production-v2.2"
    PRODUCTION_V2_3 = "production-v2.3"


@dataclass(frozen=True)
class Place:
    """Where an entry counts: on one kind of fabric or on any, with so many planes or any number, for one source of the
    library or any, with mesh or without or either, for some profiles or all (where `group` is None)."""

    on: str
    planes: int | None = None
    nccl: LibraryMode | None = None
    mesh: bool | None = None
    group: str | None = None
    profiles: frozenset[Profile] = frozenset(Profile)

    def covers(
        self,
        kind: Kind,
        planes: int,
        library: LibraryMode | None = None,
        *,
        mesh: bool = False,
        profile: Profile = Profile.AUTO,
    ) -> bool:
        """Whether a fabric of this kind with so many planes, a library from there, and this profile is such a place."""
        fitting = self.on in (ANY, kind.value) and self.planes in (None, planes) and profile in self.profiles
        return fitting and self.nccl in (None, library) and self.mesh in (None, mesh)


@dataclass(frozen=True)
class Build:
    """An image of the launcher: the recipe that it is built by, and its capabilities."""

    name: str
    recipe: str
    has: frozenset[str]


@dataclass(frozen=True)
class Whole:
    """A profile that tells everything that the launcher tells, with the image that it is for.

    `least_ep` is where the search for an expert-parallel size begins; `what` completes "the profile is …".
    """

    name: Profile
    build: Build
    least_ep: int
    what: str
    source: str


@dataclass(frozen=True)
class Capability:
    """Something that an image may have. `module`: what it is recognized by, a path below a folder of PYTHONPATH,
    without `.py`."""

    what: str
    module: str


@dataclass(frozen=True)
class Need:
    """A variable that works only in an image with a capability, unless its value is one of `off`."""

    name: str
    capability: str
    off: tuple[str, ...]

    def asked(self, env: Mapping[str, str]) -> bool:
        """Whether a rank that is told `env` needs it."""
        return env.get(self.name, "") not in self.off


@dataclass(frozen=True)
class Layer:
    """Variables with one provenance."""

    name: str
    place: Place
    source: str
    values: Mapping[str, str]


@dataclass(frozen=True)
class Rule:
    """Which values of a variable work at a place; none of them where `only` is empty.

    `shared` is about variables of all ranks; rank 0 alone may have what it likes.
    """

    name: str
    place: Place
    only: tuple[str, ...]
    why: str
    shared: bool = False


@dataclass(frozen=True)
class LeftOut:
    """A variable that the launcher sets at a place and this program does not."""

    name: str
    place: Place
    why: str


@dataclass(frozen=True)
class Line:
    """What a rank prints while it starts, or must not print, where certain variables are set.

    `text` is for people and has `{NAME}` where a variable's value stands; `pattern` is a regular expression instead.
    `level` is the subsystem of NCCL that prints it, None for the engine's own lines.
    """

    name: str
    place: Place
    needs: tuple[str, ...]
    head_only: bool
    text: str | None
    pattern: str | None
    never: bool
    level: str | None
    source: str

    def in_force(self, env: Mapping[str, str], *, head: bool) -> bool:
        """Whether a rank with these variables is to be asked for it."""
        return (head or not self.head_only) and all(_has(env, need) for need in self.needs)

    def expected(self, env: Mapping[str, str], hcas: int) -> tuple[str, str]:
        """The line as it is shown, and its regular expression, for a rank with so many RDMA devices."""
        if self.pattern is not None:
            return self.pattern, self.pattern
        assert self.text is not None
        text = self.text.format_map({**env, "HCAS": str(hcas)})
        return text, re.escape(text)

    def printed(self, env: Mapping[str, str]) -> bool:
        """Whether NCCL prints it with these variables, if there is anything to print."""
        if self.level is None:
            return True
        names = env.get("NCCL_DEBUG_SUBSYS", "INIT,BOOTSTRAP,ENV").upper()
        listed = {"ALL", self.level} & set(names.lstrip("^").split(","))
        return env.get("NCCL_DEBUG", "").upper() in ("INFO", "TRACE") and bool(listed) != names.startswith("^")


def _has(env: Mapping[str, str], need: str) -> bool:
    name, wanted, value = need.partition("=")
    return env.get(name) == value if wanted else env.get(name, "0") not in ("", "0")


def lines_for(kind: Kind, planes: int) -> Iterator[Line]:
    """The lines of a fabric."""
    return (line for line in LINES if line.place.covers(kind, planes))


def layers_for(kind: Kind, planes: int, *, mesh: bool = False, profile: Profile = Profile.AUTO) -> Iterator[Layer]:
    """The layers of a fabric, the winning ones last."""
    return (layer for layer in LAYERS if layer.place.covers(kind, planes, mesh=mesh, profile=profile))


@cache
def values(
    kind: Kind, planes: int, *, mesh: bool = False, profile: Profile = Profile.AUTO
) -> Mapping[str, tuple[str, str]]:
    """Variable -> value and the name of the layer that it is from. A value may be a reference, `$NAME`."""
    layers = layers_for(kind, planes, mesh=mesh, profile=profile)
    return {name: (value, layer.name) for layer in layers for name, value in layer.values.items()}


def rules_for(
    kind: Kind,
    planes: int,
    library: LibraryMode | None = None,
    *,
    mesh: bool = False,
    profile: Profile = Profile.AUTO,
) -> Iterator[Rule]:
    """The rules of a fabric, of a profile, and of an engine that has its library from there."""
    return (rule for rule in RULES if rule.place.covers(kind, planes, library, mesh=mesh, profile=profile))


def _line(raw: Mapping[str, Any]) -> Line:
    assert raw.get("ranks", "head") == "head"
    assert len(raw.keys() & {"text", "pattern", "never"}) == 1
    return Line(
        name=raw["name"],
        place=_place(raw),
        needs=tuple(raw.get("needs", ())),
        head_only="ranks" in raw,
        text=raw.get("text"),
        pattern=raw.get("pattern", raw.get("never")),
        never="never" in raw,
        level=raw.get("level"),
        source=raw["from"],
    )


def _place(raw: Mapping[str, Any]) -> Place:
    library = LibraryMode(raw["nccl"]) if "nccl" in raw else None
    group = raw.get("for")
    members = frozenset(Profile) if group is None else frozenset(map(Profile, _RAW["groups"].get(group, [group])))
    place = Place(raw.get("on", ANY), raw.get("planes"), library, raw.get("mesh"), group, members)
    assert place.on in (ANY, *Kind)
    assert place.planes in (None, *range(1, len(PLANES) + 1))
    return place


def _wholes(builds: Mapping[str, Build]) -> Iterator[Whole]:
    for one in _RAW["profiles"]:
        yield Whole(Profile(one["name"]), builds[one["build"]], one["ep"], one["what"], one["from"])


def _entries(table: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The entries of a table that are about variables, each with one of the names that it has."""
    return ((name, one) for one in _RAW[table] for name in one["names"])


_RAW = tomllib.loads(Path(__file__).with_name("profiles.toml").read_text())

SOURCES: Mapping[str, str] = _RAW["sources"]
CAPABILITIES = {name: Capability(one["what"], one["module"]) for name, one in _RAW["capabilities"].items()}
"""What images can have, by name."""

BUILDS = {one["name"]: Build(one["name"], one["recipe"], frozenset(one["has"])) for one in _RAW["builds"]}
WHOLE = {one.name: one for one in _wholes(BUILDS)}
"""The profiles that are whole environments, each for an image of the launcher."""

NEEDS = tuple(Need(name, one["has"], tuple(one["off"])) for name, one in _entries("needs"))
LAYERS = tuple(Layer(one["name"], _place(one), one["from"], one["values"]) for one in _RAW["layers"])
RULES = tuple(
    Rule(name, _place(one), tuple(one.get("only", ())), one["why"], one.get("shared", False))
    for name, one in _entries("rules")
)
LINES = tuple(_line(one) for one in _RAW["lines"])
LEFT_OUT = tuple(LeftOut(name, _place(one), one["why"]) for name, one in _entries("left-out"))
