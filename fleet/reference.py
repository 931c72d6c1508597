"""The config reference, from the models. `python -m fleet.reference > docs/config.md` renews it."""

import types
from collections.abc import Iterator, Sequence
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network
from typing import Any, Union, get_args, get_origin

from annotated_types import Ge, Le
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fleet import profiles, scalars
from fleet.catalogue import inner_model
from fleet.engine_settings import OWNED_ENV
from fleet.problems import NAMESPACE
from fleet.profiles import Profile
from fleet.settings import Settings
from fleet.topology import Kind

INTRODUCTION = f"""\
<!-- Generated: python -m fleet.reference > docs/config.md -->

# Configuration

One stack file, `Pulumi.<stack>.yaml`, describes one fleet. All keys are in the namespace `{NAMESPACE}`. A ring needs
nodes, a login name, an image and a library; everything else has a default:

```yaml
config:
  {NAMESPACE}:nodes: # tensor-parallel rank order, head first
    - {{name: spark1, address: 192.168.1.11}}
    - {{name: spark2, address: 192.168.1.12}}
    - {{name: spark3, address: 192.168.1.13}}
    - {{name: spark4, address: 192.168.1.14}}
  {NAMESPACE}:ssh: {{user: nvidia}}
  {NAMESPACE}:engine: {{image: "dsv41-4x-spark:local"}}
  {NAMESPACE}:nccl: {{library: libnccl.so.2.30.7}}
```

All mistakes are reported at once, before any node is contacted, with the key as `pulumi config set --path` takes it:
`pulumi config set --path '{NAMESPACE}:fabric.mtu' 9000`. Numbers may be quoted or not; switches take `on`, `off`,
`true`, `false`. A plane is the set of all ports in one PCI domain: plane 0 is domain 0000, plane 1 is domain 0002. A
socket is a QSFP port: f0 and f1 are its PCI function numbers.
"""

GROUNDS = {
    "Ring, one plane": (Kind.RING, 1, False),
    "Ring, both planes": (Kind.RING, 2, False),
    "Ring with mesh": (Kind.RING, 2, True),
    "Switched": (Kind.SWITCHED, 2, False),  # the same with one plane
}

PROFILES = """\
## Variables of NCCL

With `engine.profile: auto` the containers are also told this, and with those of the launcher this and everything in
[docs/settings.md](settings.md). `python -m fleet status --env` and the stack output
`environment` show every rank's variables, each with where it comes from.
"""

WORDS: dict[Any, str] = {
    bool: "`on`, `off`",
    int: "number",
    IPv4Address: "IPv4 address",
    IPv4Network: "IPv4 network",
    str: "text",
}


def reference() -> str:
    """The whole page, in Markdown."""
    parts = [INTRODUCTION]
    for name, field in Settings.model_fields.items():
        parts.append(f"## {name}\n\n{field.description}{'' if field.is_required() else ' Optional.'}\n")
        rows = [("Key", "Takes", "Default", "Meaning"), ("---", "---", "---", "---"), *_rows(name, field)]
        parts.append("".join(f"| {' | '.join(row)} |\n" for row in rows))
    rules = "".join(f"| `{name}` | {source} |\n" for name, source in sorted(OWNED_ENV.items()))
    parts.append(
        "## Container variables that follow from other keys\n\n"
        "`engine.env` and `engine.headEnv` refuse these:\n\n"
        f"| Variable | Follows from |\n| --- | --- |\n{rules}"
    )
    parts.append(_profiles())
    return "\n".join(parts)


def _profiles() -> str:
    """What the engine's profile is made of, from its data."""
    grounds = [profiles.values(kind, planes, mesh=mesh) for kind, planes, mesh in GROUNDS.values()]
    named = sorted({name for values in grounds for name in values})
    values = [
        (f"`{name}`", *(f"`{values[name][0]}`" if name in values else "" for values in grounds)) for name in named
    ]
    rules = [
        (f"`{rule.name}`", _where(rule.place), _takes_of(rule), rule.why)
        for rule in sorted(profiles.RULES, key=lambda rule: rule.name)
    ]
    left_out: dict[tuple[str, str], list[str]] = {}
    for one in profiles.LEFT_OUT:
        left_out.setdefault((_where(one.place), one.why), []).append(f"`{one.name}`")
    return "\n".join(
        (
            PROFILES,
            _table(("Variable", *GROUNDS), values),
            "Where the values come from:\n",
            *(f"- {layer.name}: {layer.source}." for layer in profiles.LAYERS if Profile.AUTO in layer.place.profiles),
            *(f"- {name.capitalize()}: {what}." for name, what in profiles.SOURCES.items()),
            "\n`engine.env` replaces single values. What cannot work on a fabric is refused:\n",
            _table(("Variable", "Fabric, profile", "Takes", "Why"), rules),
            "What the launcher sets and this program leaves out:\n",
            _table(
                ("Fabric, profile", "Variables", "Why"),
                [(at, ", ".join(names), why) for (at, why), names in left_out.items()],
            ),
        )
    )


def _takes_of(rule: profiles.Rule) -> str:
    refused = "refused for all ranks" if rule.shared else "refused"
    return ", ".join(f"`{value}`" for value in rule.only) or refused


def _where(place: profiles.Place) -> str:
    mesh = {None: "", True: ", with mesh", False: ", without mesh"}[place.mesh]
    library = f", `{place.nccl}`" if place.nccl else ""
    chosen = [f", `{profile}`" for profile in Profile if profile in place.profiles and profile is not Profile.NONE]
    few = "".join(chosen) if len(chosen) < len(Profile) - 1 else ""
    return f"{place.on}{', both planes' if place.planes == 2 else ''}{mesh}{library}{few}"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, tuple("---" for _ in head), *rows))


def _rows(name: str, field: FieldInfo) -> Iterator[tuple[str, str, str, str]]:
    model = inner_model(field)
    if model is None:
        return
    prefix = f"{name}[]" if get_origin(field.annotation) is list else name
    standard = None if field.is_required() else field.get_default(call_default_factory=True)
    yield from _below(prefix, model, standard if isinstance(standard, BaseModel) else None)


def _below(prefix: str, model: type[BaseModel], standard: BaseModel | None) -> Iterator[tuple[str, str, str, str]]:
    """The keys of a model; `standard` is what it is where the operator says nothing, if that is allowed."""
    for attribute, field in model.model_fields.items():
        path = f"{prefix}.{field.alias}"
        default = getattr(standard, attribute) if standard else _default(field)
        inner = inner_model(field)
        if inner is None:
            yield f"`{path}`", _takes(field), _shown(default, field), str(field.description)
            continue
        shorthand = "text or " if attribute in ("image", "library") else ""
        yield f"`{path}`", f"{shorthand}keys", "required" if field.is_required() else "", str(field.description)
        yield from _below(path, inner, default if isinstance(default, BaseModel) else None)


def _default(field: FieldInfo) -> Any:
    return ... if field.is_required() else field.get_default(call_default_factory=True)


def _takes(field: FieldInfo) -> str:
    kind = field.annotation
    limits: list[Any] = list(field.metadata)
    if get_origin(kind) in (Union, types.UnionType):
        kind = next(part for part in get_args(kind) if part is not type(None))
        if get_args(kind):
            kind, *limits = get_args(kind)
            limits = [one for limit in limits for one in (limit.metadata if isinstance(limit, FieldInfo) else [limit])]
    if get_origin(kind) is dict:
        return "keys and values"
    if get_origin(kind) is list:
        return "list of texts"
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return ", ".join(f"`{word}`" for word in kind)
    extra = field.json_schema_extra
    if isinstance(extra, dict) and "takes" in extra:
        return str(extra["takes"])
    unit = str(extra["unit"]) if isinstance(extra, dict) else ""
    low = next((limit.ge for limit in limits if isinstance(limit, Ge)), None)
    high = next((limit.le for limit in limits if isinstance(limit, Le)), None)
    words = "size in" if "," in unit else WORDS.get(kind, "text")
    if low is not None:
        words += f" {low}–{high}" if high is not None else f" ≥ {low}"
    return f"{words} {unit}".rstrip()


def _shown(default: Any, field: FieldInfo) -> str:
    if default is ...:
        return "required"
    if default is None or default in ({}, []):
        return ""
    if isinstance(default, bool):
        return "`on`" if default else "`off`"
    extra = field.json_schema_extra
    if isinstance(extra, dict) and "," in str(extra["unit"]):
        return f"`{scalars.megabytes(default)}`"
    return f"`{default}`"


if __name__ == "__main__":
    print(reference(), end="")
