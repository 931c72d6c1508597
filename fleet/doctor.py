"""What `python -m fleet doctor` says: one line for each check, each stage and the engine, for people or as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fleet.checkpoint import INSIDE, looked_into
from fleet.containers import ENGRAM
from fleet.drift import NEIGHBOURS, StageDrift
from fleet.plan import STAGES
from fleet.problems import Problem
from fleet.profiles import WHOLE, Profile
from fleet.scalars import Gpus, LibraryMode
from fleet.settings import Settings
from fleet.survey import Survey
from fleet.topology import Kind
from fleet.verdicts import CHECKS, About, Verdict, node_of

SCHEMA = 1  # of the JSON


class Word(StrEnum):
    """How a line begins."""

    PASS = "PASS"  # noqa: S105
    NOTE = "NOTE"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True)
class Line:
    """One line. `node` is None where it is about none alone; `seen`, `wanted` and `hint` are those of a finding."""

    word: Word
    code: str
    text: str
    node: str | None = None
    subject: str = ""
    seen: str = ""
    wanted: str = ""
    hint: str = ""
    verdict: str = ""  # of drift: in place or disruptive


def applies(settings: Settings) -> frozenset[About]:
    """What a stack has of what not every stack has."""
    engine = settings.engine
    has = {
        About.RING: settings.fabric.topology is Kind.RING,
        About.SWITCHED: settings.fabric.topology is Kind.SWITCHED,
        About.MESH: settings.mesh.enabled,
        About.GPUS: engine.gpus is not Gpus.OFF,
        About.ARCHIVE: engine.image.archive is not None,
        About.BUILD: engine.image.build is not None,
        About.PRESENT: engine.image.archive is None and not engine.image.by_name,
        About.BY_NAME: engine.image.archive is None and engine.image.build is None,
        About.VOLUMES: bool(engine.volumes),
        About.ENGRAM: any(volume.target == ENGRAM for volume in engine.volumes),
        About.WEIGHTS: engine.weights is not None,
        About.REVISION: engine.weights is not None and engine.weights.revision is not None,
        About.MANIFEST: engine.weights is not None and engine.weights.manifest is not None,
        About.NFS: settings.nfs is not None,
        About.GID: engine.gid_index is not None,
        About.PROFILE: engine.profile is not Profile.NONE,
        About.LAUNCHER: engine.profile in WHOLE,
        About.LIBRARY: settings.library_mode is not LibraryMode.IMAGE,
    }
    return frozenset(about for about, there in has.items() if there)


def lines(found: Survey, problems: Sequence[Problem]) -> list[Line]:
    """All lines: checks in the order of the table, then deviations that are refused, stages, engine."""
    return [*_checks(found, problems), *_stages(found), *_engine(found)]


def worst(told: Sequence[Line]) -> Word:
    """The worst word of all lines: a note is as good as a pass."""
    words = {line.word for line in told}
    return next((word for word in (Word.FAIL, Word.WARN) if word in words), Word.PASS)


def _checks(found: Survey, problems: Sequence[Problem]) -> Iterator[Line]:
    piles = ((Word.FAIL, problems), (Word.WARN, found.warnings), (Word.NOTE, found.notes))
    told = [_line(found, word, one) for word, pile in piles for one in pile]
    told += [_line(found, Word.NOTE, one, " Ignored, as preflight.ignore says.") for one in found.ignored]
    settings = found.plan.settings
    has, answers, all_ = applies(settings), found.seen.observed, len(settings.nodes)
    inside = sum(map(looked_into, answers.values()))
    for row in CHECKS:
        of_row = [line for line in told if line.code == row.code]
        yield from of_row
        if row.code in INSIDE and not inside:
            continue  # nobody could look
        seen = inside if row.code in INSIDE else len(answers)
        if not of_row and (row.about is None or row.about in has):
            where = "" if seen == all_ else f" ({seen} of {all_} nodes)"
            yield Line(Word.PASS, row.code, f"{row.what}{where}")
    codes = {row.code for row in CHECKS}
    yield from (line for line in told if line.code not in codes)


def _line(found: Survey, word: Word, one: Problem, more: str = "") -> Line:
    node, subject = node_of(one, [each.name for each in found.plan.settings.nodes])
    return Line(word, one.code, f"{one.text()}{more}", node, subject, one.seen, one.wanted, one.hint)


def _stages(found: Survey) -> Iterator[Line]:
    if not found.ours:
        yield Line(Word.NOTE, "drift", "this stack is on none of these nodes yet")
        return
    mine = [node for node in found.plan.nodes if node.name in found.seen.observed.keys() - found.others]
    for stage in (*STAGES, NEIGHBOURS, "image"):
        having = [node.name for node in mine if stage in (NEIGHBOURS, "image") or stage in node.stages]
        yield from (_drift(one) for name in having if (one := found.drift.stages.get((name, stage))))
        fine = [name for name in having if (name, stage) not in found.drift.stages]
        if fine:
            yield Line(Word.PASS, f"drift {stage}", f"as planned on {', '.join(fine)}")


def _drift(one: StageDrift) -> Line:
    verdict = Verdict.DISRUPTIVE if one.disruptive else Verdict.IN_PLACE
    text = f"{one.node}: {one.text()} ({verdict}: `up` repairs it)"
    return Line(Word.FAIL, f"drift {one.stage}", text, one.node, one.stage, one.text(), verdict=verdict)


def _engine(found: Survey) -> Iterator[Line]:
    if not found.ours:
        return
    if not found.group.reasons:
        ranks = len([node for node in found.plan.ranks if node.name in found.seen.observed])
        yield Line(Word.PASS, "engine", f"{ranks} ranks run as one group, start {found.group.start}")
    for reason in found.group.reasons:
        yield Line(Word.FAIL, "engine", f"{reason}: `up` starts all ranks anew", seen=reason)


def text(told: Sequence[Line]) -> str:
    """For people: the worst last, so that it is on the screen."""
    counts = {word: sum(line.word is word for line in told) for word in Word}
    summary = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    rows = [f"{line.word}  {line.code:<18} {' '.join(line.text.split())}" for line in told]
    return "\n".join((*rows, "", summary))


def as_json(found: Survey, told: Sequence[Line], code: int) -> dict[str, Any]:
    """For programs; `code` is the exit status."""
    return {
        "schema": SCHEMA,
        "stack": found.plan.stack.stack,
        "fleet": found.plan.settings.fleet.id,
        "result": worst(told).lower(),
        "exit": code,
        "nodes": {node.name: node.name in found.seen.observed for node in found.plan.settings.nodes},
        "lines": [{**vars(line), "word": line.word.lower()} for line in told],
    }
