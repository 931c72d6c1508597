"""What a killed Pulumi leaves in a file backend: its lock, and operations that will never be finished."""

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from toolchain import processes
from toolchain.errors import note

_SECONDS = 60


class Stack(NamedTuple):
    """One stack of a project in a file backend; ``backend`` is the backend's ``.pulumi`` folder."""

    backend: Path
    project: str
    name: str

    @property
    def file(self) -> Path:
        """The state."""
        return self.backend / "stacks" / self.project / f"{self.name}.json"

    @property
    def locks(self) -> Path:
        """The folder that holds one file for each run that has the stack locked."""
        return self.backend / "locks" / "organization" / self.project / self.name

    def exists(self) -> bool:
        """Whether the stack has been made; its state may be compressed."""
        return self.file.exists() or self.file.with_suffix(".json.gz").exists()


def clear_dead_locks(stack: Stack) -> bool:
    """Remove the locks whose holder is gone, and say so. Returns whether the stack is free of locks."""
    free = True
    for path in sorted(stack.locks.glob("*.json")):
        try:
            lock = json.loads(path.read_text("utf-8"))
            pid, host, user = int(lock["pid"]), str(lock["hostname"]), str(lock["username"])
        except (OSError, ValueError, KeyError, TypeError):
            free = False  # Unknown, so it may be alive.
            continue
        if host != os.uname().nodename or _is_pulumi(pid):
            free = False
            continue
        # The backend keeps a file of attributes beside each object.
        for left in (path, path.with_name(f"{path.name}.attrs")):
            with suppress(FileNotFoundError):
                left.unlink()
        note(
            f"cleared a dead lock of stack {stack.name}: {user}@{host} (pid {pid}), "
            f"since {lock.get('timestamp', 'an unknown time')}; that process is gone"
        )
    return free


def _is_pulumi(pid: int) -> bool:
    """Whether a process may be the holder of a lock: what cannot be told is taken for alive."""
    if not processes.exists(pid):
        return False
    return processes.executable(pid) in {"", "pulumi"}


def pending(stack: Stack) -> list[str]:
    """The operations that state holds as begun and not ended, as ``creating <name>``."""
    try:
        text = stack.file.read_bytes()
        if b'"pending_operations"' not in text:
            return []
        operations: list[dict[str, Any]] = json.loads(text)["checkpoint"]["latest"].get("pending_operations") or []
        return [f"{each['type']} {each['resource']['urn'].rsplit('::', 1)[-1]}" for each in operations]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def clear_pending(stack: Stack, cli: Path, project: Path, environment: Mapping[str, str]) -> None:
    """Drop the operations that a killed run left in state; to be called only when nobody has the stack locked.

    ``pulumi stack import`` drops them by itself and touches nothing else, so state goes out and in again, with secrets
    encrypted all the way. Unlike ``pulumi refresh --clear-pending-creates`` this asks no plugin about any resource.
    """
    left = pending(stack)
    if not left:
        return
    handle, name = tempfile.mkstemp(prefix="export-", suffix=".json", dir=stack.backend)
    os.close(handle)
    try:
        for verb in (["export"], ["import"]):
            subprocess.run(
                [cli, "stack", *verb, "--stack", stack.name, "--file", name, "--non-interactive"],
                cwd=project,
                env=dict(environment),
                capture_output=True,
                text=True,
                check=True,
                timeout=_SECONDS,
            )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        said = error.stderr.decode() if isinstance(error.stderr, bytes) else error.stderr or str(error)
        note(f"unfinished operations of stack {stack.name} ({', '.join(left)}) could not be cleared: {said.strip()}")
    else:
        note(f"cleared what a killed run had begun in stack {stack.name} and never ended: {', '.join(left)}")
    finally:
        Path(name).unlink(missing_ok=True)
