"""Whether a serving engine uses all of its fabric: the parts of a proof, its library and its lines. Pure.

What the ports have carried is judged in `traffic.py`, what explains a failure in `causes.py`. Standard library only, as
`prove.py` is started without any package.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Json = Mapping[str, Any]


class Verdict(StrEnum):
    """What a part, or the whole, comes to."""

    PASSED = "passed"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Part:
    """One part of the proof: a verdict, why in a few words, what is wrong about it, and the figures."""

    name: str
    verdict: Verdict
    why: str
    faults: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()


@dataclass(frozen=True)
class Proof:
    """All parts, and the causes of what failed."""

    parts: tuple[Part, ...]
    causes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The worst of what is known. Lines that nobody prints decide nothing; too little traffic does."""
        verdicts = {part.name: part.verdict for part in self.parts}
        if Verdict.FAILED in verdicts.values():
            return Verdict.FAILED
        silent = {name for name, verdict in verdicts.items() if verdict is Verdict.UNKNOWN} - {"lines"}
        return Verdict.UNKNOWN if silent else Verdict.PASSED

    def text(self) -> str:
        """All of it for people; the first line says how it ended."""
        lines = [f"proof {self.verdict}"]
        lines += [f"  cause: {cause}" for cause in self.causes]
        for part in self.parts:
            lines.append(f"{part.name} {part.verdict}: {part.why}")
            lines += [f"  {fault}" for fault in part.faults]
            lines += [f"  {figure}" for figure in part.figures]
        return "\n".join(lines)


def library(desired: Mapping[str, Json], loaded: Mapping[str, Json]) -> Part:
    """Whether each rank has exactly one NCCL loaded, and the one that is planned, or else the same everywhere."""
    name = "library"
    silent = [f"{node}: {answer['docker_error']}" for node, answer in loaded.items() if answer["docker_error"]]
    if silent:
        return Part(name, Verdict.UNKNOWN, "docker does not answer", tuple(silent))
    faults, seen = [], {}
    for node, answer in loaded.items():
        where, found = f"rank {desired[node]['rank']} on {node}", answer["libraries"]
        if len(found) != 1:
            paths = ", ".join(one["path"] for one in found) or "none"
            faults.append(f"{where} has {len(found)} libnccl loaded, exactly one is wanted: {paths}")
            continue
        sha256, wanted = found[0]["sha256"], desired[node]["library"]
        seen[node] = sha256
        if sha256 is None:
            faults.append(f"{where} has {found[0]['path']} loaded, which is no longer there: it was replaced meanwhile")
        elif wanted and sha256 != wanted:
            faults.append(f"{where} has {found[0]['path']} loaded with sha256 {sha256}, {wanted} is planned")
    known = {sha256 for sha256 in seen.values() if sha256}
    planned = any(one["library"] for one in desired.values())
    if len(known) > 1 and not planned:
        each = ", ".join(f"{sha256[:12]} on {node}" for node, sha256 in seen.items() if sha256)
        faults.append(f"the ranks have different libraries loaded: {each}")
    if faults:
        return Part(name, Verdict.FAILED, "what the ranks have loaded is not as wanted", tuple(faults))
    (sha256,) = known
    return Part(name, Verdict.PASSED, f"one in each rank, sha256 {sha256}{', as planned' if planned else ''}")


def lines(desired: Mapping[str, Json], loaded: Mapping[str, Json]) -> Part:
    """Whether each rank has printed what its flags make it print, and nothing that speaks against them."""
    name = "lines"
    if all(one["lines"] is None for one in desired.values()):
        return Part(name, Verdict.UNKNOWN, "proof.logs is off")
    faults: list[str] = []
    unseen: list[str] = []
    checked = 0
    for node, one in desired.items():
        where, answer = f"rank {one['rank']} on {node}", loaded[node]
        if answer["docker_error"] or answer["container"] is None:
            unseen.append(f"{where}: its log cannot be read")
            continue
        for line in one["lines"]:
            found = answer["lines"].get(line["name"])
            if line["never"] and found:
                faults.append(f"{where} has printed what speaks against its flags: {found}")
            elif not line["printed"]:
                unseen.append(f"{where} prints no such line at {one['level']}: {line['text']}")
                continue
            elif not line["never"] and not found:
                error = answer["first_error"] or "none"
                faults.append(f"{where} has not printed: {line['text']} ({one['level']}; its first error: {error})")
            checked += 1
    if faults:
        return Part(name, Verdict.FAILED, f"{checked} looked for", (*faults, *unseen))
    verdict = Verdict.UNKNOWN if unseen else Verdict.PASSED
    return Part(name, verdict, f"{checked} looked for, as they should be", tuple(unseen))
