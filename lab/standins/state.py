"""What the simulated card of a node knows, and the faults and settings it works under.

The card's memory is on a tmpfs: a boot loses it, like the real one. Faults and settings outlive a boot.
"""

from __future__ import annotations

import contextlib
import copy
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .dialect import Dialect

MEMORY = "/run/lab/standins"
LASTING = "/var/local/lab"


@dataclass(frozen=True)
class State:
    """One node's; the places are others in tests."""

    root: Path = field(default_factory=lambda: Path(os.environ.get("STANDINS_STATE", MEMORY)))
    sys: Path = field(default_factory=lambda: Path(os.environ.get("STANDINS_SYS", "/sys")))
    lasting: Path = field(default_factory=lambda: Path(os.environ.get("STANDINS_LASTING", LASTING)))

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep two tools from changing the state at once."""
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def load(self, name: str, default: Any) -> Any:
        """Read one document; a copy of the default where there is none."""
        try:
            return json.loads((self.root / f"{name}.json").read_text())
        except FileNotFoundError:
            return copy.deepcopy(default)

    def save(self, name: str, value: Any) -> None:
        """Replace one document at once."""
        path = self.root / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(value, indent=1) + "\n")
        partial.replace(path)

    def fault(self, name: str, *scopes: str) -> str | None:
        """Value of the fault for one of these scopes, or for all; None when it is not set."""
        for file in (*(f"{name}.{scope}" for scope in scopes), name):
            if (text := self._lasting(f"faults/{file}")) is not None:
                return text
        return None

    def setting(self, name: str, default: str) -> str:
        """From the environment (STANDINS_NAME), else from the node's settings."""
        if (value := os.environ.get(f"STANDINS_{name.upper()}")) is not None:
            return value
        found = self._lasting(f"settings/{name}")
        return default if found is None else found

    def _lasting(self, name: str) -> str | None:
        try:
            return (self.lasting / name).read_text().strip()
        except FileNotFoundError:
            return None

    @property
    def dialect(self) -> Dialect:
        """How tools spell what they show."""
        return Dialect.parse(self.setting("dialect", ""))

    def net(self, netdev: str, name: str) -> str:
        """A file of /sys/class/net; an empty word where it is missing."""
        return _text(self.sys / "class/net" / netdev / name)

    def port(self, rdma: str, name: str) -> str:
        """A file of an RDMA device's port 1; an empty word where it is missing."""
        return _text(self.sys / "class/infiniband" / rdma / "ports/1" / name)

    def netdev_exists(self, netdev: str) -> bool:
        """Whether the netdev is there."""
        return (self.sys / "class/net" / netdev).exists()

    def device_exists(self, rdma: str) -> bool:
        """Whether the RDMA device is there."""
        return (self.sys / "class/infiniband" / rdma).exists()


def try_lock(file: int, kind: int) -> bool:
    """Take a lock of a file that is open; False if somebody has it."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
