"""The copy of this program that stays on the node, for a `revert` without us."""

import stat
from pathlib import Path

from .journal import Journal
from .system import Meta, System

NAME = "spark-node.pyz"


def own_bytes() -> bytes | None:
    """The zip that this program runs from, or None where it runs from a folder."""
    place = Path(__file__).parent.parent
    try:
        return None if stat.S_ISDIR(place.stat().st_mode) else place.read_bytes()
    except OSError:
        return None


def store(system: System, journal: Journal) -> None:
    """Put the copy beside the journal where the one there differs."""
    data = own_bytes()
    path = f"{journal.folder}/{NAME}"
    if data is not None and system.read(path) != data:
        system.write(path, data, Meta(0o700, 0, 0, 0))
