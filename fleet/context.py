"""A docker build context of the operator's, on this machine: what is in it, and what it comes down to.

Packed here and not by docker, since what decides about a build must be known without one: names, modes, links and
contents, as far as `.dockerignore` lets them in, and without `.git`. Times and owners do not count, as they do not for
docker's own cache.
Standard library only.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

IGNORE = ".dockerignore"
NEVER_BUILT_OF = ("**/.git",)  # it changes with every fetch; a line of the listing may let it in again
SHOWN = 12  # digits of a digest in a tag
KEPT_OF_TAG = 100  # characters; docker's limit for a tag is 128


class ContextError(Exception):
    """The context cannot be used; the message says what is wrong with it."""


@dataclass(frozen=True)
class Pattern:
    """A line of `.dockerignore`: what it takes out, or lets in again."""

    matches: re.Pattern[str]
    lets_in: bool


class Ignored:
    """The files that `.dockerignore` keeps out. The last line that fits a path or a folder above it decides."""

    def __init__(self, lines: Iterable[str], kept: Iterable[str]) -> None:
        self._patterns = [one for line in lines if (one := _pattern(line))]
        self._kept = frozenset(kept)  # docker needs these, whatever the lines say

    def __call__(self, name: str) -> bool:
        """Whether a path, relative and with slashes, stays out."""
        if name in self._kept:
            return False
        parts = name.split("/")
        paths = ["/".join(parts[:count]) for count in range(len(parts), 0, -1)]
        for pattern in reversed(self._patterns):
            if any(pattern.matches.fullmatch(path) for path in paths):
                return not pattern.lets_in
        return False

    def prunes(self, folder: str) -> bool:
        """Whether nothing below a folder can be in."""
        within = any(name.startswith(f"{folder}/") for name in self._kept)
        return self(folder) and not within and not any(one.lets_in for one in self._patterns)


def _pattern(line: str) -> Pattern | None:
    """Docker's rules for one line; None for a comment or an empty one."""
    text = line.strip()
    if not text or line.startswith("#"):
        return None
    lets_in = text.startswith("!")
    path = os.path.normpath(text.removeprefix("!").strip()).strip("/")
    return None if path in ("", ".") else Pattern(re.compile(_expression(path), re.DOTALL), lets_in)


def _expression(path: str) -> str:
    """`**` is any number of folders, `*` and `?` stay within one, `[…]` is a set, `\\` takes the next one as it is."""
    found, at = "", 0
    while at < len(path):
        one, rest = path[at], path[at + 1 :]
        if path.startswith("**", at):
            at += 2
            at += path.startswith("/", at)
            found += ".*" if at >= len(path) else "(?:.*/)?"
            continue
        closing = rest.find("]", 1)
        if one == "*":
            found += "[^/]*"
        elif one == "?":
            found += "[^/]"
        elif one == "[" and closing > 0:
            found += f"[{rest[:closing]}]"
            at += closing + 1
        elif one == "\\" and rest:
            found += re.escape(rest[0])
            at += 1
        else:
            found += re.escape(one)
        at += 1
    return found


class Context:
    """A folder with a recipe in it."""

    def __init__(self, folder: Path, dockerfile: str) -> None:
        """Raises ContextError where there is no such folder or recipe."""
        self.folder, self.dockerfile = folder, dockerfile
        if not folder.is_dir():
            raise ContextError(f"{folder} is no folder")
        if not (folder / dockerfile).is_file():
            raise ContextError(f"{folder} holds no {dockerfile}")
        own = f"{dockerfile}{IGNORE}"  # goes before the other one
        listing = next((name for name in (own, IGNORE) if (folder / name).is_file()), None)
        try:
            lines = (folder / listing).read_text().splitlines() if listing else []
            self._ignored = Ignored([*NEVER_BUILT_OF, *lines], [dockerfile, *([listing] if listing else [])])
        except (OSError, UnicodeDecodeError, re.error) as error:
            raise ContextError(f"{folder}/{listing} cannot be read: {error}") from error

    def pack(self, out: IO[bytes] | None = None) -> str:
        """Digest of all that docker gets; written to `out` as a tar, if there is one.

        Raises ContextError for what cannot be read, and BrokenPipeError where nobody reads `out` any more.
        """
        total = hashlib.sha256()
        with ExitStack() as stack:
            tar = stack.enter_context(tarfile.open(fileobj=out, mode="w|")) if out else None
            path = self.folder
            try:
                for name, path, state in self._files():
                    entry, content = _entry(name, path, state)
                    total.update(json.dumps([name, entry.mode, entry.type.decode(), entry.linkname]).encode())
                    if content is None:
                        if tar:
                            tar.addfile(entry)
                        continue
                    with content:
                        reader = _Hashed(content)
                        if tar:
                            tar.addfile(entry, reader)
                        else:
                            while reader.read(tarfile.RECORDSIZE * 100):
                                pass
                    total.update(reader.total.digest())
            except BrokenPipeError:
                raise  # of `out`
            except OSError as error:
                raise ContextError(f"{error.filename or path} cannot be read: {error.strerror or error}") from error
        return total.hexdigest()

    def _files(self) -> Iterator[tuple[str, Path, os.stat_result]]:
        """Everything that is let in, in one order everywhere. Sockets and devices are nothing that can be built of."""
        for place, folders, files in os.walk(self.folder, onerror=_unreadable):
            below = Path(place).relative_to(self.folder)
            named = {one: (below / one).as_posix() for one in (*folders, *files)}
            folders[:] = sorted(one for one in folders if not self._ignored.prunes(named[one]))
            for one in sorted(named):
                path = Path(place, one)
                if self._ignored(named[one]):
                    continue
                state = path.lstat()
                if stat.S_ISREG(state.st_mode) or stat.S_ISDIR(state.st_mode) or stat.S_ISLNK(state.st_mode):
                    yield named[one], path, state


def _unreadable(error: OSError) -> None:
    raise ContextError(f"{error.filename} cannot be read: {error.strerror}") from error


class _Hashed:
    """A file that is hashed as it is read."""

    def __init__(self, content: IO[bytes]) -> None:
        self._content, self.total = content, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        piece = self._content.read(size)
        self.total.update(piece)
        return piece


def _entry(name: str, path: Path, state: os.stat_result) -> tuple[tarfile.TarInfo, IO[bytes] | None]:
    entry = tarfile.TarInfo(name)
    entry.mode, entry.mtime = stat.S_IMODE(state.st_mode), int(state.st_mtime)
    if stat.S_ISLNK(state.st_mode):
        entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, str(path.readlink()), 0o777
        return entry, None
    if stat.S_ISDIR(state.st_mode):
        entry.type = tarfile.DIRTYPE
        return entry, None
    content = path.open("rb")
    entry.size = os.fstat(content.fileno()).st_size
    return entry, content


def built_of(ref: str) -> re.Pattern[str]:
    """The names that `built_ref` gives to what is built under a ref."""
    name, _, tag = ref.rpartition(":")
    return re.compile(rf"{re.escape(f'{name}:{tag[:KEPT_OF_TAG]}')}-[0-9a-f]{{{SHOWN}}}")


def built_ref(ref: str, context: str, build: Mapping[str, Any]) -> str:
    """The name of what is built: its tag ends with a digest of everything that decides about it.

    `context` is the context's digest. What secrets are is not in it, only which there are: they are no part of an
    image, and a token that was renewed is no reason to restart a fleet.
    """
    decides = [context, build["dockerfile"], sorted(build["args"].items()), sorted(build["secrets"])]
    digest = hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:SHOWN]
    name, _, tag = ref.rpartition(":")
    return f"{name}:{tag[:KEPT_OF_TAG]}-{digest}"
