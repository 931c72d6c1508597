"""A NCCL library of the operator's: what it says of itself, and what speaks against it on a fabric.

Nobody here loads it. Strings in it, its size and its build id are hints that it may fit; anybody can put them into a
file. What is trusted is the digest that the operator gives (`nccl.sha256`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet import known
from fleet.described import describe
from fleet.problems import Problem
from fleet.topology import Kind
from fleet.variables import Ground
from node import elf
from node.nccl import NAMES, candidates

MIB = 1 << 20
ELF_CLASS = 64
PATCH = "the cumulative patch, nccl-2.30.7-dual-pci-domain"


@dataclass(frozen=True)
class Library:
    """A file as it is: here, or on a node. `elf_class` and `machine` are None where it is no ELF file."""

    path: str
    sha256: str
    size: int  # bytes
    elf_class: int | None
    machine: int | None  # ELF's e_machine
    markers: frozenset[str]  # those of `node.elf.MARKERS` that are in it
    build_id: str | None

    @property
    def hints(self) -> str:
        """What may tell a person which build it is."""
        strings = ", ".join(sorted(self.markers)) or "none that is looked for"
        return f"{self.size / MIB:.1f} MiB, BuildID {self.build_id or 'none'}, strings {strings}"

    @property
    def recognized(self) -> str | None:
        """Which build it is, where somebody has recorded its digest."""
        found = known.library(self.sha256)
        return found.recognized().rstrip(".") if found else None


@dataclass(frozen=True)
class Choice:
    """The library that somebody means, and another file that lies beside it under the other name."""

    library: Library
    rival: Library | None = None


def parse(path: str, raw: Mapping[str, Any]) -> Library:
    """Read what the node program, or `read`, says of a file."""
    return Library(
        path=path,
        sha256=raw["sha256"],
        size=raw["size"],
        elf_class=raw["elf_class"],
        machine=raw["elf_machine"],
        markers=frozenset(raw["markers"]),
        build_id=raw["build_id"],
    )


def read(named: Path) -> Choice | None:
    """The library at a path of this machine, a file or a folder; None where there is none. Raises OSError."""
    found = {}
    for path in map(Path, candidates(str(named))):
        if path.is_file():
            found[str(path)] = parse(str(path), describe(path))
    return choose(str(named), found)


def choose(named: str, found: Mapping[str, Library]) -> Choice | None:
    """The library that a path means: the file itself, else the first of both names in that folder."""
    paths = [path for path in candidates(named) if path in found]
    meant = next((path for path in paths if path == named or path.startswith(f"{named.rstrip('/')}/")), None)
    if meant is None:
        return None
    library = found[meant]
    rivals = (found[path] for path in paths if found[path].sha256 != library.sha256)
    return Choice(library, next(rivals, None))


def objections(library: Library, where: str, ground: Ground, trusted: str | None) -> Iterator[Problem]:
    """What speaks against a library on a fabric, whatever node it is for."""
    if trusted and library.sha256 != trusted:
        yield Problem(
            "library-untrusted",
            where,
            f"has the sha256 {library.sha256}",
            f"{trusted}, as nccl.sha256 says",
            "Bring that file, or set nccl.sha256 once you trust this one.",
        )
    if library.elf_class is None:
        seen = "is no ELF file" if library.size else "is empty"
        yield Problem("library-no-elf", where, seen, "a shared object", "Is it the file that the build made?")
        return
    if library.elf_class != ELF_CLASS or library.machine not in elf.MACHINES.values():
        seen = f"is ELF{library.elf_class} for {machine_name(library.machine)}"
        yield Problem("library-machine", where, seen, "ELF64 for aarch64", "Build it for the Sparks.")
    if ground.kind is Kind.RING:
        yield from _on_a_ring(library, where, ground)


def _on_a_ring(library: Library, where: str, ground: Ground) -> Iterator[Problem]:
    recorded = known.library(library.sha256)
    if recorded and recorded.certain and _too_little(recorded, ground.planes):
        planes = "a ring" if ground.planes == 1 else "both planes of a ring"
        seen, hint = str(library.recognized), f"Build with {PATCH}."
        yield Problem("library-insufficient", where, seen, f"a library for {planes}", hint)
    elif elf.RING not in library.markers and elf.SKIP_TREE in library.markers:
        yield Problem(
            "library-skip-tree",
            where,
            f"knows NCCL_{elf.SKIP_TREE} only: it is of the older patch skip-tree-pat",
            f"one with the string {elf.RING}",
            f"That patch ignores NCCL_{elf.RING}. Build with {PATCH}.",
        )
    elif elf.RING not in library.markers:
        yield Problem(
            "library-stock",
            where,
            f"does not hold the string {elf.RING}",
            "a library that is patched for rings",
            f"Stock NCCL fails in tree connect there. Build with {PATCH}.",
        )
    elif ground.planes > 1 and elf.EXTENDED not in library.markers:
        yield Problem(
            "library-one-plane",
            where,
            f"does not hold the string {elf.EXTENDED}",
            "it, for both planes of a ring",
            f"Plane 1 would carry nothing. Build with {PATCH}, or set fabric.plane1.enabled: off.",
        )


def _too_little(recorded: known.Library, planes: int) -> bool:
    return recorded.status is known.Status.INSUFFICIENT or recorded.planes < planes


def misfit(library: Library, where: str, arch: str | None) -> Iterator[Problem]:
    """A library that is for another machine than the node is, whose `uname -m` is `arch`."""
    wanted = elf.MACHINES.get(arch or "")
    if wanted and library.machine in elf.MACHINES.values() and library.machine != wanted:
        yield Problem(
            "library-machine",
            where,
            f"is for {machine_name(library.machine)}, and the node is {arch}",
            f"a library for {arch}",
            "Build it on such a machine.",
        )


def machine_name(machine: int | None) -> str:
    """ELF's machine as `uname -m` calls it, else its number."""
    return next((name for name, number in elf.MACHINES.items() if number == machine), f"machine {machine}")


def rivalry(choice: Choice, where: str) -> Problem:
    """Two different files under the two names in one folder."""
    rival = choice.rival
    assert rival  # of a choice that has one
    return Problem(
        "library-rival",
        where,
        f"has {Path(rival.path).name} with the sha256 {rival.sha256[:12]} beside {Path(choice.library.path).name} "
        f"with {choice.library.sha256[:12]}",
        "one library",
        f"{Path(choice.library.path).name} is the one that counts; {NAMES[0]} wins where only the folder is named.",
    )
