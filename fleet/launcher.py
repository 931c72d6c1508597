"""The launcher's settings and what becomes of each: what `launcher.toml` says, as frozen values.

`python -m fleet.launcher` prints the table of docs/migrating.md.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

ANY_NUMBER = "<n>"


class Way(StrEnum):
    """What becomes of a setting."""

    KEY = "key"
    ENV = "env"
    HEAD = "head"
    RING = "ring"
    INSIDE = "inside"
    FOLLOWS = "follows"
    FIXED = "fixed"
    HAND = "hand"
    NEEDLESS = "needless"


TO = {
    Way.ENV: "`engine.env`",
    Way.RING: "`engine.env`, on a ring",
    Way.HEAD: "`engine.headEnv`",
    Way.INSIDE: "`engine.env`, from `EXTRA_CONTAINER_ENV`",
    Way.FOLLOWS: "follows from nodes and fabric",
    Way.FIXED: "told the same",
    Way.HAND: "by hand",
    Way.NEEDLESS: "nothing: not needed",
}
"""Where a setting goes, where no key of the stack file is named."""


@dataclass(frozen=True)
class Setting:
    """One setting. `default` is what the launcher takes without it, `$NAME` being another one; `why` is a sentence."""

    name: str
    way: Way
    to: str
    default: str
    why: str
    secret: bool


def setting(name: str) -> Setting | None:
    """The setting of this name, also of one with a number in it such as WORKER1_IP."""
    return SETTINGS.get(name) or SETTINGS.get(re.sub(r"\d+", ANY_NUMBER, name, count=1))


def of_way(*ways: Way) -> Iterator[Setting]:
    """The settings that go these ways, in the order of the table."""
    return (one for one in SETTINGS.values() if one.way in ways)


def table() -> str:
    """All settings in Markdown, a row for each group of them."""
    rows: dict[tuple[str, str], list[str]] = {}
    for one in SETTINGS.values():
        keys = ", ".join(f"`{key}`" for key in one.to.split(", ") if key)
        by_hand = one.way is Way.HAND and keys
        to = f"{keys}, {TO[Way.HAND]}" if by_hand else keys or TO[one.way]
        rows.setdefault((to, one.why), []).append(f"`{one.name}`")
    cells = [("Setting", "Goes to", ""), ("---",) * 3, *((", ".join(names), *rest) for rest, names in rows.items())]
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)


def _read(path: Path) -> Mapping[str, Setting]:
    return {
        name: Setting(name, Way(group["way"]), group.get("to", ""), default, group["why"], group.get("secret", False))
        for group in tomllib.loads(path.read_text())["groups"]
        for name, default in group["settings"].items()
    }


SETTINGS = _read(Path(__file__).with_name("launcher.toml"))

if __name__ == "__main__":
    print(table(), end="")
