"""Command lines as iproute2's tools read them: word by word, and strict about each."""

from __future__ import annotations

import re
from typing import Any

from .model import PROTOCOLS
from .system import ToolError

Row = dict[str, Any]
MAC = re.compile(r"[0-9a-fA-F]{1,2}(:[0-9a-fA-F]{1,2}){5}")


class Words:
    """The rest of a command line."""

    def __init__(self, words: list[str]) -> None:
        self.words = words
        self.place = 0

    def __bool__(self) -> bool:
        return self.place < len(self.words)

    def peek(self) -> str:
        """The next word, or an empty one."""
        return self.words[self.place] if self else ""

    def take(self) -> str:
        """The next word, or the tools' complaint that it is missing."""
        if not self:
            raise ToolError('Command line is not complete. Try option "help"', 255)
        self.place += 1
        return self.words[self.place - 1]

    @property
    def rest(self) -> list[str]:
        """What was not taken yet."""
        return self.words[self.place :]


def matches(word: str, *commands: str) -> bool:
    """Whether a word is one of these commands, or an abbreviation that iproute2 takes for it."""
    return bool(word) and any(command.startswith(word) for command in commands)


def is_show(word: str) -> bool:
    """Whether a word asks for a list."""
    return matches(word, "show", "list", "lst")


def number(text: str, limit: int = 0xFFFFFFFF) -> int | None:
    """As C's strtoul with base 0; None where that does not take all of it."""
    try:
        value = int(text, 8) if re.fullmatch(r"0[0-7]+", text) else int(text, 0)
    except ValueError:
        return None
    return value if 0 <= value <= limit and "_" not in text else None


def protocol(text: str) -> int:
    """An EtherType by name or number."""
    value = PROTOCOLS.get(text, number(text, 0xFFFF))
    if value is None:
        raise ToolError(f'Error: argument "{text}" is wrong: invalid protocol', 255)
    return value


def mac(text: str) -> str:
    """Normal form of a hardware address."""
    if not MAC.fullmatch(text):
        raise ToolError(f'"{text}" is invalid lladdr.', 1)
    return ":".join(f"{int(octet, 16):02x}" for octet in text.split(":"))
