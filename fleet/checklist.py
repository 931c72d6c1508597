"""The page about checks, from the table. `python -m fleet.checklist > docs/checks.md` renews it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fleet.verdicts import CHECKS, DEVIATIONS, IGNORABLE, Row, Verdict

INTRODUCTION = """\
<!-- Generated: python -m fleet.checklist > docs/checks.md -->

# Checks

Preview, `up` and `python -m fleet doctor` look at every node once and make every check on each, before anything is
registered. One table decides what follows from what they find; this page is that table.

| Word | What follows |
| --- | --- |
"""

WORDS = {
    Verdict.OK: "Nothing.",
    Verdict.NOTE: "It is told.",
    Verdict.WARNING: "It is told as a warning, and the run goes on.",
    Verdict.PROBLEM: "It is told with all other problems, and the run ends before anything is changed. The drift of "
    "all nodes that answered is told all the same.",
    Verdict.IN_PLACE: "The preview shows it at the resource that repairs it; `up` repairs it under a running engine.",
    Verdict.DISRUPTIVE: "The same, but an engine would feel the repair: all ranks stop first.",
}

CHECKED = """\
## What is checked

`preflight.ignore` in the stack file takes the codes of checks that you know better about; only `python -m fleet doctor`
tells of them then. Those without a mark in the last column cannot be ignored: the plan would be wrong without them, or
what they found would come to harm. `preflight.refuse` makes a problem of a warning or a note.

"Engine" is an engine of this stack that runs on the node, or on any node where a check is about the whole fleet. What
its own containers use is never in the way.
"""

DEVIATES = """\
## What deviates

Ours is what this program put there, or has to put there; somebody else's is never overruled. `preflight.refuse` makes a
problem of drift: with `file.edited` in it, an edit of one of our files is not repaired until you take the code out
again. A deviation that is there again right after its repair is `repair-failed`: the next `up` refuses to try once more
and names it, until `python -m fleet retry`.
"""


def page() -> str:
    """The whole page, in Markdown."""
    words = "".join(f"| {word} | {meaning} |\n" for word, meaning in WORDS.items())
    checks = _table(("Code", "Holds when it passes", "Only with", "No engine", "Engine", "Can be ignored"), _checks())
    deviations = _table(("Code", "What was seen", "Whose", "Stages", "Verdict"), _deviations())
    return "\n".join((f"{INTRODUCTION}{words}", CHECKED, checks, DEVIATES, deviations))


def _checks() -> Iterator[tuple[str, ...]]:
    for row in CHECKS:
        about, ignorable = row.about or "", "✓" if row.code in IGNORABLE else ""
        yield f"`{row.code}`", row.what, about, row.idle, row.running, ignorable


def _deviations() -> Iterator[tuple[str, ...]]:
    for row in DEVIATIONS:
        whose = "somebody else's" if row.foreign else "ours"
        yield f"`{row.code}`", row.what, whose, ", ".join(row.stages) or _rest(row), row.idle


def _rest(row: Row) -> str:
    """The stages of a row that names none: those that no other row of the code names."""
    return "others" if any(one.code == row.code and one.stages for one in DEVIATIONS if not one.foreign) else "all"


def _table(head: Sequence[str], rows: Iterator[tuple[str, ...]]) -> str:
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, ("---",) * len(head), *rows))


if __name__ == "__main__":
    print(page(), end="")
