"""The pinned versions, read from ``versions.toml``."""

import tomllib
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent


class Versions(NamedTuple):
    """Versions without a leading ``v``.

    ``cli`` is what is built, ``oldest_cli`` the oldest ``pulumi`` on PATH that is used instead of a build,
    ``go`` the oldest Go that can build. ``sdk``, ``command`` and ``docker`` are distributions on PyPI.
    """

    cli: str
    oldest_cli: str
    sdk: str
    command: str
    docker: str
    go: str


def load() -> Versions:
    """Read the pinned versions; raises KeyError when one is missing."""
    data = tomllib.loads((HERE / "versions.toml").read_text("utf-8"))
    return Versions(
        cli=data["cli"]["build"],
        oldest_cli=data["cli"]["oldest"],
        sdk=data["python"]["pulumi"],
        command=data["python"]["pulumi-command"],
        docker=data["python"]["pulumi-docker"],
        go=data["go"]["oldest"],
    )


def as_numbers(version: str) -> tuple[int, ...]:
    """``"3.229.0"`` or ``"v3.229.0-beta"`` as ``(3, 229, 0)``; what is no number ends it."""
    numbers: list[int] = []
    for part in version.removeprefix("v").split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    return tuple(numbers)
