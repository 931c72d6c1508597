"""The folder outside the checkout that holds what was built, shared by all checkouts of a user."""

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from toolchain.errors import ToolchainError, say


def folder() -> Path:
    """``$XDG_CACHE_HOME/spark-fabric/toolchain``, by default under ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says that a relative path is to be ignored.
    root = Path(base) if base.startswith("/") else Path.home() / ".cache"
    return root / "spark-fabric" / "toolchain"


def digest(folders: list[Path], *more: str) -> str:
    """Twelve hex digits of all files below the folders and of what else decides a build."""
    result = hashlib.sha256("\0".join(more).encode())
    for top in folders:
        for path in sorted(p for p in top.rglob("*") if p.is_file()):
            result.update(f"\0{top.name}/{path.relative_to(top)}\0".encode())
            result.update(path.read_bytes())
    return result.hexdigest()[:12]


@contextlib.contextmanager
def locked(cache: Path) -> Iterator[None]:
    """Hold the cache's lock, so that one build runs at a time; waits, and says so."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        handle = (cache / ".lock").open("a+")
    except OSError as error:
        raise ToolchainError(
            f"The toolchain cache {cache} cannot be written: {error.strerror}. "
            "Set XDG_CACHE_HOME to a folder that can be."
        ) from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another build of the toolchain to finish")
            fcntl.flock(handle, fcntl.LOCK_EX)
        _sweep(cache)
        yield


def _sweep(cache: Path) -> None:
    """Remove what a killed build left; the lock is held, so nobody is using it."""
    for left in cache.glob(".new-*"):
        shutil.rmtree(left, ignore_errors=True)


@contextlib.contextmanager
def published(target: Path) -> Iterator[Path]:
    """Give an empty folder to fill, and rename it to ``target`` in one step when the block succeeds."""
    work = Path(tempfile.mkdtemp(prefix=".new-", dir=target.parent))
    try:
        yield work
        work.chmod(0o755)
        work.rename(target)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
