"""Secrets of containers, kept out of what is told of their logs: engines print what they were started with."""

import re
from collections.abc import Iterable

HIDDEN = "[secret]"
NAME = re.compile(r"(.*_)?(API_?)?(KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)", re.IGNORECASE)
"""Variables that are named like secrets."""

SHORTEST = 4  # a shorter value is a word of every other line, and no secret


def hide(lines: Iterable[str], env: Iterable[str]) -> list[str]:
    """Lines of a log without the values of those variables (`NAME=value`) that are named like secrets."""
    pairs = [pair.partition("=") for pair in env]
    return hide_values(lines, [value for name, _, value in pairs if NAME.fullmatch(name)])


def hide_values(lines: Iterable[str], values: Iterable[str]) -> list[str]:
    """Lines without these values, and without each line of one that has several."""
    parts = {part for value in values for part in value.splitlines() if len(part) >= SHORTEST}
    if not parts:
        return list(lines)
    pattern = re.compile("|".join(map(re.escape, sorted(parts, key=len, reverse=True))))
    return [pattern.sub(HIDDEN, line) for line in lines]
