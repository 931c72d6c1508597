"""The launcher's file with the launcher's defaults under it, and what in it is better not shown."""

from __future__ import annotations

import re

from fleet import bash, launcher
from node.hide import NAME as SECRET_NAME

SECRET_TEXT = re.compile(r"(api[-_]?key|token|passw|secret)[-\w]*[= ]|://[^/\s]+@", re.IGNORECASE)
PASSWORD_NAME = re.compile(r"(.*_)?PASS", re.IGNORECASE)


class LauncherFile:
    """Values by setting. `home` and `root` are the user's home and the launcher's folder on the head.

    `unknown` are names that the file may set in a way that is not read.
    """

    def __init__(self, text: str, home: str, root: str) -> None:
        """Read the file. Raises bash.BashError where it cannot be read to its end."""
        self.home = home
        self._places = {"HOME": home, "ROOT": root}
        self.script = bash.read(text, self._places)
        self.unknown = {name for one in self.script.unread for name in one.names} - self.script.values.keys()

    def get(self, name: str) -> str:
        """What the launcher has: of the file, or its default where that is missing or empty."""
        value = self.script.values.get(name)
        known = launcher.setting(name)
        if (value and value.text) or known is None or name in self.unknown:
            return value.text if value else ""
        return re.sub(r"\$(\w+)", lambda found: self._places.get(found[1]) or self.get(found[1]), known.default)

    def line(self, name: str) -> int | None:
        """The line that has it, None where the file has it not."""
        value = self.script.values.get(name)
        return value.line if value else None


def is_secret(name: str, value: str) -> bool:
    """Whether a value is better not shown: by the setting, by its name, or by what it looks like."""
    known = launcher.setting(name)
    named = (known is not None and known.secret) or SECRET_NAME.fullmatch(name) or PASSWORD_NAME.fullmatch(name)
    return bool(value) and (bool(named) or SECRET_TEXT.search(f"{value} ") is not None)
