"""The section `engine.serving`: capacity and scheduling, a key for each variable that `typed.toml` has one for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field, create_model

from fleet.model import Model
from fleet.scalars import wrong
from fleet.typed import KEYS, Key


class _Keys(Model):
    """Keys with the container's values, None where the operator says nothing."""

    def told(self, *, head: bool) -> Iterator[tuple[str, str, str]]:
        """Variable, value and key of what is set for rank 0, or for the other ranks. A later one wins."""
        for key in KEYS.values():
            value = getattr(self, _attribute(key))
            if value is not None and (head or not key.head_only):
                yield key.name, value, key.key


@cache
def _attribute(key: Key) -> str:
    return re.sub(r"[A-Z]", lambda found: f"_{found[0].lower()}", key.key)


def _reader(key: Key) -> BeforeValidator:
    def read(value: object) -> str:
        text = key.type.read(value)
        if text is None:
            raise wrong("not-a-value", key.type.wanted)
        return text

    return BeforeValidator(read)


def _field(key: Key) -> tuple[Any, Any]:
    kind = Annotated[str, _reader(key)] | None
    return kind, Field(None, description=key.what, json_schema_extra={"takes": key.type.wanted})


if TYPE_CHECKING:

    class Serving(_Keys):
        """Capacity and scheduling of the engine."""

else:
    Serving = create_model(
        "Serving",
        __base__=_Keys,
        __doc__="Capacity and scheduling of the engine.",
        **{_attribute(key): _field(key) for key in KEYS.values()},
    )
