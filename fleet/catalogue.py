"""All keys of the stack config, from the models: for messages and for the reference."""

import types
from collections.abc import Iterator
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fleet.engine_settings import Volume
from fleet.problems import Loc
from fleet.settings import Settings


def models() -> Iterator[tuple[Loc, type[BaseModel]]]:
    """Every model that the config is made of, with its place; entries of a list have `0` there."""
    todo: list[tuple[Loc, type[BaseModel]]] = [((), Settings)]
    while todo:
        loc, model = todo.pop(0)
        yield loc, model
        for field in model.model_fields.values():
            inner = inner_model(field)
            if inner is not None:
                listed: Loc = (0,) if get_origin(field.annotation) is list else ()
                todo.append(((*loc, str(field.alias), *listed), inner))


def inner_model(field: FieldInfo) -> type[BaseModel] | None:
    """The model below a key, or below the entries of its list. A volume is written as one text and has none."""
    inner: Any = field.annotation
    if get_origin(inner) in (Union, types.UnionType):  # a model that may be left out
        inner = next(part for part in get_args(inner) if part is not type(None))
    if get_origin(inner) is list:
        inner = get_args(inner)[0]
    return inner if isinstance(inner, type) and issubclass(inner, BaseModel) and inner is not Volume else None


def model_at(loc: Loc) -> type[BaseModel]:
    """The model at a place of the config; Settings where there is none."""
    place = tuple(0 if isinstance(part, int) else part for part in loc)
    return next((model for at, model in models() if at == place), Settings)


def every_key() -> Iterator[tuple[str, FieldInfo]]:
    """Every key as it is written below the namespace, `nodes[].ssh.user`, parents before children."""
    for name, field in Settings.model_fields.items():
        yield from _below(str(field.alias or name), field)


def _below(path: str, field: FieldInfo) -> Iterator[tuple[str, FieldInfo]]:
    yield path, field
    inner = inner_model(field)
    if inner is not None:
        prefix = f"{path}[]" if get_origin(field.annotation) is list else path
        for below in inner.model_fields.values():
            yield from _below(f"{prefix}.{below.alias}", below)
