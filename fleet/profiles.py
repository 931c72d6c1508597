"""The engine's profiles: what `profiles.toml` says, as frozen values."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from fleet.scalars import LibraryMode
from fleet.topology import PLANES, Kind

ANY = "any"


class Profile(StrEnum):
    """Whether the containers are told about NCCL: what fits the fabric, or nothing."""

    AUTO = "auto"
    NONE = "none"


@dataclass(frozen=True)
class Place:
    """Where an entry counts: on one kind of fabric or on any, with so many planes or any number, for one source of the
    library or any, with mesh or without or either."""

    on: str
    planes: int | None = None
    nccl: LibraryMode | None = None
    mesh: bool | None = None

    def covers(self, kind: Kind, planes: int, library: LibraryMode | None = None, *, mesh: bool = False) -> bool:
        """Whether a fabric of this kind with so many planes, and a library from there, is such a place."""
        fitting = self.on in (ANY, kind.value) and self.planes in (None, planes)
        return fitting and self.nccl in (None, library) and self.mesh in (None, mesh)


@dataclass(frozen=True)
class Layer:
    """Variables with one provenance."""

    name: str
    place: Place
    source: str
    values: Mapping[str, str]


@dataclass(frozen=True)
class Rule:
    """Which values of a variable work at a place; none of them where `only` is empty."""

    name: str
    place: Place
    only: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class LeftOut:
    """A variable that the launcher sets at a place and this program does not."""

    name: str
    place: Place
    why: str


def layers_for(kind: Kind, planes: int, *, mesh: bool = False) -> Iterator[Layer]:
    """The layers of a fabric, the winning ones last."""
    return (layer for layer in LAYERS if layer.place.covers(kind, planes, mesh=mesh))


def values(kind: Kind, planes: int, *, mesh: bool = False) -> Mapping[str, tuple[str, str]]:
    """Variable -> value and the name of the layer that it is from."""
    layers = layers_for(kind, planes, mesh=mesh)
    return {name: (value, layer.name) for layer in layers for name, value in layer.values.items()}


def rules_for(kind: Kind, planes: int, library: LibraryMode | None = None, *, mesh: bool = False) -> Iterator[Rule]:
    """The rules of a fabric, and of an engine that has its library from there."""
    return (rule for rule in RULES if rule.place.covers(kind, planes, library, mesh=mesh))


def _read(path: Path) -> tuple[tuple[Layer, ...], tuple[Rule, ...], tuple[LeftOut, ...], Mapping[str, str]]:
    raw = tomllib.loads(path.read_text())
    return (
        tuple(Layer(one["name"], _place(one), one["from"], one["values"]) for one in raw["layers"]),
        tuple(
            Rule(name, _place(one), tuple(one.get("only", ())), one["why"])
            for one in raw["rules"]
            for name in one["names"]
        ),
        tuple(LeftOut(name, _place(one), one["why"]) for one in raw["left-out"] for name in one["names"]),
        raw["sources"],
    )


def _place(raw: Mapping[str, Any]) -> Place:
    library = LibraryMode(raw["nccl"]) if "nccl" in raw else None
    place = Place(raw.get("on", ANY), raw.get("planes"), library, raw.get("mesh"))
    assert place.on in (ANY, *Kind)
    assert place.planes in (None, *range(1, len(PLANES) + 1))
    return place


LAYERS, RULES, LEFT_OUT, SOURCES = _read(Path(__file__).with_name("profiles.toml"))
