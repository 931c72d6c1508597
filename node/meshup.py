"""`mesh-up`: what the boot unit runs. Queue sizes, rules and routes as the journal has them, then the markers.

The same way serves a boot and an `up`, which starts the unit when everything but the markers is in place: then there is
nothing to change, and the node's lock, which that `up` holds, is not asked for. At a boot the lock keeps everybody else
from starting an engine before this is done. How it ended, and why, is left where `observe` finds it.
"""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from . import lock, marking, meshunits, observe, reinit
from .deviation import Deviation
from .journal import REVERTING, Journal
from .request import FAILED, Failure, Request, say
from .stages import STAGES
from .steps import Report, Work
from .system import Meta, System
from .transaction import Run, apply, refuse_unknown

WAIT = 120.0  # seconds for the fabric's ports to come up, at a boot of all nodes
HURRY = 30.0  # the same under a run that holds the node's lock: its ports were up, and it waits no longer for us
_STEP = 1.0
BEFORE = ("nic", "forwarding")  # the stages that come before any marker, in order

Json = dict[str, Any]


def up(system: System, request: Request) -> Json:
    """Bring the mesh up; {"changed": …, "notes": …}. Raises `Failure` with the reason why it cannot."""
    report = Report()
    try:
        _up(system, request, report)
    except Failure as failure:
        _tell(system, "\n".join(failure.lines))
        raise
    _tell(system, "")
    return {"changed": report.changed, "notes": report.notes}


def _tell(system: System, error: str) -> None:
    with contextlib.suppress(OSError):
        system.write(meshunits.WHY, json.dumps({"error": error}).encode() + b"\n", Meta(0o644, 0, 0, 0))


def _up(system: System, request: Request, report: Report) -> None:
    journal = _journal(system, request)
    _wait(system, journal.stages["nic"].desired["functions"])
    differing = _differing(system, request, journal)
    if not differing:
        _start(system, journal, report)
        return
    with _held(system, request, differing):
        journal = _journal(system, request)  # the mesh may have been taken away while we waited
        run = Run(system, request, journal, report)
        for name in BEFORE:
            apply(run, STAGES[name], journal.stages[name].desired)
        left = _differing(system, request, journal)
        if left:
            raise Failure(FAILED, *(deviation.text() for deviation in left), "no marker was started")
        _start(system, journal, report)


def _journal(system: System, request: Request) -> Journal:
    """The journal of a node that shall have a mesh. Raises `Failure` where it shall not, or is in the middle of it."""
    journal = Journal.load(system, request.owner)
    refuse_unknown(journal)
    for name in (*BEFORE, "markers"):
        entry = journal.stages.get(name)
        if entry is None or entry.status == REVERTING:
            state = "is not in the journal" if entry is None else "was being reverted"
            raise Failure(FAILED, f"{name} {state}: the mesh stays down; run pulumi up or pulumi destroy")
    return journal


def _start(system: System, journal: Journal, report: Report) -> None:
    for marker in journal.stages["markers"].desired["markers"]:
        marking.start(Work(system, journal, report), marker)


@contextlib.contextmanager
def _held(system: System, request: Request, why: list[Deviation]) -> Iterator[None]:
    """The node's lock; where it is not free, the failure says for what it was wanted."""
    taken = False
    try:
        with lock.held(system, request.holder):
            taken = True
            yield
    except Failure as failure:
        if taken:
            raise
        raise Failure(failure.code, *(deviation.text() for deviation in why), *failure.lines) from None


def _wait(system: System, functions: list[Json]) -> None:
    """Wait for every port to be complete; a GID that moved is put right later."""
    began, told = system.clock(), False
    while True:
        observed = observe.observe(system, None, ("links", "hcas"))
        lacking = {reinit.name(function): reinit.absent(function, observed, anywhere=True) for function in functions}
        lines = [f"{name}: {', '.join(texts)}" for name, texts in lacking.items() if texts]
        if not lines:
            return
        patience = HURRY if lock.observe(system) else WAIT
        if system.clock() - began > patience:
            hint = f"waited {patience:g} s: is the cable in, the far end on?"
            raise Failure(FAILED, *lines, hint)
        if not told:
            say(f"waiting for {'; '.join(lines)}")
            told = True
        system.sleep(_STEP)


def _differing(system: System, request: Request, journal: Journal) -> list[Deviation]:
    """What must be put right before a marker may start."""
    parts = tuple({part for name in BEFORE for part in STAGES[name].read_back or STAGES[name].parts})
    observed = observe.observe(system, request.owner, parts)
    return [
        deviation for name in BEFORE for deviation in STAGES[name].deviations(journal.stages[name].desired, observed)
    ]
