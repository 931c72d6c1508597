"""What is known of the things that the operator brings: what `known.toml` says, as frozen values.

A digest that is known recognizes a file, and says what others saw of it. It is no proof of anything: rebuilds are not
byte-identical, so that a good library may be unknown here, and what is trusted is the operator's own sha256.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from fleet.topology import PLANES

SHA256_DIGITS = 64
FEWEST_DIGITS = 8  # that can stand for a digest: 2^-32 for a file to look like another by chance


class Status(StrEnum):
    """What is recorded about a thing."""

    GOOD = "good"
    INSUFFICIENT = "insufficient"
    UNPROVEN = "unproven"


@dataclass(frozen=True)
class Nccl:
    """What a library for rings is built from, and the strings in it by which it is told from others.

    `ring_string` is in a library that can run a ring, `planes_string` in one that can use both planes of it.
    """

    commit: str
    version_code: int
    generate: str
    library: str
    ring_string: str
    planes_string: str
    source: str


@dataclass(frozen=True)
class Library:
    """An NCCL library that somebody recorded.

    `sha256` may be only the beginning of the digest, or missing. `planes` is how many planes of a ring carry traffic
    with it, 0 where it cannot run a ring as this program asks for it. `size` is in bytes. `why` is a sentence.
    """

    name: str
    status: Status
    planes: int
    why: str
    source: str
    sha256: str | None = None
    size: int | None = None
    md5: str | None = None
    build_id: str | None = None

    @property
    def certain(self) -> bool:
        """Whether the whole digest is known. A file found by a shorter one only looks like this library."""
        return self.sha256 is not None and len(self.sha256) == SHA256_DIGITS

    def recognized(self) -> str:
        """What a file found by its digest is, completing "the library …", with what is recorded about it."""
        seen = f"is {self.name}" if self.certain else f"looks like {self.name} (its sha256 begins with {self.sha256})"
        return f"{seen}, known as {self.status}: {self.why}"


@dataclass(frozen=True)
class Patch:
    """A patch of NCCL, by its path in sparkring. `blob` is git's name for the content."""

    path: str
    status: Status
    why: str
    source: str
    sha256: str
    size: int | None = None
    blob: str | None = None
    commit: str | None = None


@dataclass(frozen=True)
class Marker:
    """A binary that marks packets for the mesh, and the source that it is from."""

    name: str
    status: Status
    why: str
    source: str
    sha256: str
    source_sha256: str


@dataclass(frozen=True)
class Image:
    """A base image of engines: what a registry calls it, and the id that docker lists on arm64."""

    ref: str
    status: Status
    why: str
    source: str
    digest: str
    id: str


@dataclass(frozen=True)
class Weights:
    """A checkpoint: `size` of all its shards in bytes, and the sha256 of its config.json."""

    repository: str
    revision: str
    shards: int
    size: int
    config_sha256: str
    source: str


@dataclass(frozen=True)
class Levels:
    """Versions of one part of the platform that people reported at work."""

    what: str
    levels: tuple[str, ...]
    source: str
    note: str = ""


@dataclass(frozen=True)
class Fault:
    """Versions of one part of the platform that are known to fail: those that begin like one of `levels`.

    `unless` is a word on the kernel's command line that cures it; `why` and `cure` are sentences.
    """

    what: str
    levels: tuple[str, ...]
    why: str
    cure: str
    source: str
    unless: str = ""


def fault(what: str, level: str, boot_options: str = "") -> Fault | None:
    """What is known to fail with a version of a part of the platform on a kernel that was booted with these options."""
    cured = boot_options.split()
    fitting = (one for one in FAULTS if one.what == what and one.unless not in cured)
    return next((one for one in fitting if level.startswith(one.levels)), None)


def library(sha256: str) -> Library | None:
    """The library that has this digest (64 hex digits), or looks like it; None where nothing is known about it.

    Whether it only looks like it is in `Library.certain`. A whole digest goes before a beginning.
    """
    digest = sha256.lower()
    fitting = [one for one in LIBRARIES if one.sha256 is not None and digest.startswith(one.sha256)]
    return next((one for one in fitting if one.certain), fitting[0] if fitting else None)


def _values(raw: Mapping[str, Any]) -> dict[str, Any]:
    """An entry as keyword arguments."""
    values = {("source" if key == "from" else key): value for key, value in raw.items()}
    for key in values.keys() & {"sha256", "source_sha256", "config_sha256", "digest", "id"}:
        assert re.fullmatch(rf"[0-9a-f]{{{FEWEST_DIGITS},{SHA256_DIGITS}}}", values[key]), values[key]
    if "status" in values:
        values["status"] = Status(values["status"])
    if "levels" in values:
        values["levels"] = tuple(values["levels"])
    return values


_RAW = tomllib.loads(Path(__file__).with_name("known.toml").read_text())
SOURCES: Mapping[str, str] = _RAW["sources"]
NCCL = Nccl(**_values(_RAW["nccl"]))
PATCHES = tuple(Patch(**_values(one)) for one in _RAW["patches"])
LIBRARIES = tuple(Library(**_values(one)) for one in _RAW["libraries"])
MARKERS = tuple(Marker(**_values(one)) for one in _RAW["markers"])
IMAGES = tuple(Image(**_values(one)) for one in _RAW["images"])
WEIGHTS = Weights(**_values(_RAW["weights"]))
FAULTS = tuple(Fault(**_values(one)) for one in _RAW["faults"])
LEVELS = tuple(Levels(**_values(one)) for one in _RAW["levels"])
assert all(one.planes in range(len(PLANES) + 1) for one in LIBRARIES)
