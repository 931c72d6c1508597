"""The library in the plan: what each node shall have, where the container gets it, and what is wrong on the nodes."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleet.engine_settings import Volume
from fleet.facts import Facts
from fleet.library import Choice, choose, misfit, objections, rivalry
from fleet.nccl_settings import LIBRARY_FOLDER
from fleet.node_settings import Node
from fleet.problems import Problem, config_path
from fleet.scalars import LibraryMode
from fleet.settings import Settings
from node.nccl import NAME, STAGE, THEIRS
from node.sent import SENT, place

UNSEEN = "unseen"  # stands for the digest in a path while nobody has seen the file
LIBRARY = ("nccl", "library")


@dataclass(frozen=True)
class Libraries:
    """The library of every rank: the operator's local file, or what lies on the nodes."""

    settings: Settings
    local: Choice | None
    facts: Mapping[str, Facts]

    @property
    def used(self) -> bool:
        """Whether the image's library is replaced at all."""
        return self.settings.library_mode is not LibraryMode.IMAGE

    @property
    def sent(self) -> bool:
        """Whether the library is a local file that is sent to the nodes."""
        return self.settings.nccl.library.file is not None

    def of(self, node: Node) -> Choice | None:
        """What a node gets, or has; None where nobody has seen it."""
        named, facts = self.settings.library_on(node), self.facts.get(node.name)
        if self.sent:
            return self.local
        return choose(named, facts.libraries) if named and facts else None

    def desired(self, node: Node, stack: str) -> dict[str, Any]:
        """The desired state of the stage. Its digest is None where nobody has seen the file: in drafts."""
        if not self.used or not node.active:
            return {"state": "off"}
        choice = self.of(node)
        sha256 = choice.library.sha256 if choice else None
        if self.sent:
            size = choice.library.size if choice else None
            path = place(stack, STAGE, sha256 or UNSEEN, NAME)
            return {"state": "on", "sha256": sha256, "size": size, "source": SENT, "path": path}
        path = choice.library.path if choice else str(self.settings.library_on(node))
        return {"state": "on", "sha256": sha256, "source": THEIRS, "path": path}

    def mounts(self, desired: Mapping[str, Any]) -> tuple[Volume, ...]:
        """How the container gets what the stage provides."""
        if desired["state"] == "off":
            return ()
        if self.settings.library_mode is LibraryMode.OVERLAY:
            source, target = desired["path"], self.settings.nccl.target
        else:
            source, target = posixpath.dirname(desired["path"]), LIBRARY_FOLDER
        return (Volume.model_validate({"source": source, "target": target, "readOnly": True}),)

    # what is wrong, and what to know

    def problems(self, ranks: Sequence[Node]) -> Iterator[Problem]:
        """What speaks against the library on the nodes that were looked at. The local file alone: `of_local`."""
        if not self.used:
            return
        seen: dict[str, list[str]] = {}
        for node in ranks:
            facts, choice = self.facts.get(node.name), self.of(node)
            if facts is None:
                continue  # said already
            if choice is None:
                yield from self._absent(node, facts)
                continue
            where = self._where(node, choice)
            yield from misfit(choice.library, where, facts.arch)
            if not self.sent:
                seen.setdefault(choice.library.sha256, []).append(node.name)
                yield from objections(choice.library, where, self.settings.ground, self.settings.nccl.sha256)
                yield from self._unloadable(choice, where, facts)
        if len(seen) > 1:
            listing = "; ".join(f"{sha256[:12]} on {', '.join(names)}" for sha256, names in seen.items())
            yield Problem(
                "library-ids",
                config_path((*LIBRARY, "onNode")),
                f"is not the same file everywhere: {listing}",
                "one sha256 on all nodes",
                "The ranks have to agree: copy one file to every node, or set nccl.library to a local file.",
            )

    def _absent(self, node: Node, facts: Facts) -> Iterator[Problem]:
        named = self.settings.library_on(node)
        if named in facts.silent:
            yield Problem(
                "library-absent",
                f"{node.name} {named}",
                "is on a file system of the network that does not answer",
                "the library, or a folder with it",
                "See to its server, copy it to the node's own disk, or set nccl.library to a local file: that is sent.",
            )
        elif named:  # else the local file is missing, which is said already
            yield Problem(
                "library-absent",
                f"{node.name} {named}",
                "is not there, and holds no library",
                "the library, or a folder with it",
                "Copy it there, correct the path, or set nccl.library to a local file: that one is sent.",
            )

    def _unloadable(self, choice: Choice, where: str, facts: Facts) -> Iterator[Problem]:
        """In a folder the loader takes the file with the one name that it is asked for."""
        if self.settings.library_mode is not LibraryMode.DIRECTORY:
            return
        loaded = facts.libraries.get(posixpath.join(posixpath.dirname(choice.library.path), NAME))
        if loaded is None or loaded.sha256 != choice.library.sha256:
            yield Problem(
                "library-unloadable",
                where,
                f"has {'another' if loaded else 'no'} {NAME} beside it",
                "the same file under that name",
                f"In a folder the loader takes {NAME}: make it a link to the library.",
            )

    def _where(self, node: Node, choice: Choice) -> str:
        return f"{node.name} {config_path(LIBRARY) if self.sent else choice.library.path}"

    def warnings(self, ranks: Sequence[Node]) -> Iterator[Problem]:
        """The mode that reaches few programs, and folders with two different libraries."""
        if self.settings.library_mode is LibraryMode.DIRECTORY:
            yield Problem(
                "nccl-directory",
                config_path(("nccl", "mode")),
                "is directory, which reaches only programs that load NCCL with ctypes",
                "overlay for torch, which finds NCCL by its own path",
                "A second library beside the image's may end the engine.",
            )
        if not self.used:
            return
        if self.sent:
            if self.local and self.local.rival:
                yield rivalry(self.local, config_path(LIBRARY))
            return
        for node in ranks:
            choice = self.of(node)
            if choice and choice.rival:
                yield rivalry(choice, self._where(node, choice))

    def notes(self, ranks: Sequence[Node]) -> Iterator[Problem]:
        """Which library it is, as long as the operator trusts no digest."""
        choice = next((choice for node in ranks if (choice := self.of(node))), None)
        if self.used and choice and self.settings.nccl.sha256 is None:
            library = choice.library
            recognized = f", which {library.recognized}" if library.recognized else ""
            yield Problem(
                "library-unproven",
                config_path(("nccl", "sha256")),
                f"is not set, and the library has {library.sha256} ({library.hints}){recognized}",
                "the digest that you trust",
                "Strings, size and BuildID are hints that a file fits; they prove nothing.",
            )


def of_local(settings: Settings, choice: Choice | None) -> Iterator[Problem]:
    """What speaks against the operator's local file, known without any node; `choice` is None where there is none."""
    named = settings.nccl.library.file
    if settings.library_mode is LibraryMode.IMAGE or named is None:
        return
    if choice is None:
        yield Problem(
            "library-absent",
            config_path(LIBRARY),
            f"is {named}: there is no such file, and no folder with a library",
            "the library, or a folder with it",
            "docs/prerequisites.md says which one a ring needs.",
        )
        return
    yield from objections(choice.library, config_path(LIBRARY), settings.ground, settings.nccl.sha256)
