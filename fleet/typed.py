"""Variables of the engine whose values are known: what `typed.toml` says, and how such a value is read."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any


class Takes(StrEnum):
    """The kinds of values."""

    SWITCH = "switch"
    WHOLE = "whole"
    NUMBER = "number"
    WORDS = "words"
    TEXT = "text"


@dataclass(frozen=True)
class Type:
    """What a variable takes. Limits are inclusive, but for `above`; `off` and `on` are a switch's two values."""

    takes: Takes
    least: float | None = None
    above: float | None = None
    most: float | None = None
    unit: str = ""
    words: tuple[str, ...] = ()
    on: str = "1"
    off: str = "0"
    also: tuple[str, ...] = ()

    @property
    def values(self) -> str:
        """The variable's values in words, for a message."""
        return f"{self.on} or {self.off}" if self.takes is Takes.SWITCH else self.wanted

    @property
    def wanted(self) -> str:
        """What the operator may write as a key, in words."""
        whole = f"a whole number{self._limits()}"
        match self.takes:
            case Takes.SWITCH:
                return "on or off"
            case Takes.WHOLE:
                return whole
            case Takes.NUMBER:
                return f"a number{self._limits()}"
            case Takes.WORDS:
                return ", ".join((*self.words, whole)) if self.most else f"one of {', '.join(self.words)}"
            case Takes.TEXT:
                return "a text"

    def _limits(self) -> str:
        unit = f" of {self.unit}" if self.unit else ""
        if self.above is not None:
            return f"{unit} above {self.above}, at most {self.most}"
        if self.least is None:
            return unit
        return f"{unit} from {self.least} {'on' if self.most is None else f'to {self.most}'}"

    def fits(self, text: str) -> bool:
        """Whether the container's variable may have this value."""
        match self.takes:
            case Takes.TEXT:
                return True
            case Takes.SWITCH:
                return text in (self.on, self.off, *self.also)
            case Takes.WORDS if text in self.words:
                return True
            case Takes.WORDS if self.least is None:
                return False
        pattern = r"[0-9]*\.?[0-9]+" if self.takes is Takes.NUMBER else r"-?[0-9]+"
        return re.fullmatch(pattern, text) is not None and self._within(float(text))

    def _within(self, number: float) -> bool:
        return (
            (self.least is None or number >= self.least)
            and (self.above is None or number > self.above)
            and (self.most is None or number <= self.most)
        )

    def read(self, value: object) -> str | None:
        """The container's value for what the operator wrote as a key; None where that is no such value.

        Switches take what YAML makes of `on` and `off`; numbers may come as text and stay as they were written.
        """
        if self.takes is Takes.SWITCH:
            words = {"on": self.on, "true": self.on, "yes": self.on, "off": self.off, "false": self.off, "no": self.off}
            return words.get(str(value).lower())
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            return None
        if isinstance(value, float) and value.is_integer() and self.takes is not Takes.NUMBER:
            value = int(value)
        text = str(value).strip()
        return text if self.fits(text) and "\n" not in text else None


@dataclass(frozen=True)
class Key:
    """A key of `engine.serving`: the variable that it sets, for all ranks or for rank 0 only."""

    key: str
    name: str
    head_only: bool
    what: str
    type: Type = field(repr=False)


def _type(raw: Mapping[str, Any]) -> Type:
    plain = {name: raw[name] for name in ("least", "above", "most", "unit", "on", "off") if name in raw}
    return Type(Takes(raw["takes"]), words=tuple(raw.get("words", ())), also=tuple(raw.get("also", ())), **plain)


def _read(path: Path) -> tuple[Mapping[str, Type], Mapping[str, Key]]:
    raw = tomllib.loads(path.read_text())
    types = {name: _type(one) for one in raw["types"] for name in one["names"]}
    types |= {one["name"]: _type(one) for one in raw["variables"]}
    keys = (Key(one["key"], one["name"], "ranks" in one, one["what"], _type(one)) for one in raw["variables"])
    return types, {key.key: key for key in keys}


TYPES, KEYS = _read(Path(__file__).with_name("typed.toml"))
"""By variable, and by key of `engine.serving`."""
