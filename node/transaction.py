"""Applying and reverting a stage, so that a crash between any two steps can be repaired by either.

Apply: what differs → steps → how everything was and what we will put there, on disk → the steps → read back → done.
Revert: every operation of the journal, last first, each by itself a no-op where its work is done already.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from . import alive, files, guard, kept, leftover, limits, lock, management, nfs, observe, owner, sent, verify
from .deviation import Deviation
from .digest import digest, sha256
from .docker import KEPT, PACKS, connect
from .journal import APPLIED, APPLYING, HOME, REVERTING, Entry, Journal, Undo
from .request import ENGINE_ALIVE, FAILED, NEWER_SCHEMA, READ_BACK, Failure, Request
from .stages import STAGES, UNDO, Stage
from .steps import Report, Step, Work, undo_order
from .system import System

PATIENCE = 8.0  # seconds until the machine must look as wanted
_STEP = 0.05


@dataclass
class Run:
    """One run on a node: who asks, and what was done so far."""

    system: System
    request: Request
    journal: Journal
    report: Report

    @property
    def work(self) -> Work:
        """What the steps work with."""
        return Work(self.system, self.journal, self.report, self.request.content)

    @property
    def node(self) -> str:
        """The node's name for messages."""
        return self.request.node or "this node"

    def look(self, parts: tuple[str, ...]) -> dict[str, Any]:
        """What a stage wants to know of the machine."""
        return observe.observe(self.system, self.request.owner, parts, observe.libraries_of(self.request.desired))


def refuse_unknown(journal: Journal) -> None:
    """Raise `Failure` where the journal holds stages or operations that only a newer program can undo."""
    kinds = {operation["kind"] for entry in journal.stages.values() for operation in entry.undo}
    unknown = [*(journal.stages.keys() - STAGES.keys()), *(kinds - UNDO.keys())]
    if unknown:
        names = ", ".join(sorted(unknown))
        raise Failure(NEWER_SCHEMA, f"the journal holds {names}, unknown here: use the newer checkout that wrote it")


def apply(run: Run, stage: Stage, desired: dict[str, Any]) -> None:
    """Bring a stage to its desired state; write nothing where it is there already. Raises `Failure`."""
    observed = run.look(stage.parts)
    found = stage.deviations(desired, observed)
    if not found:
        return
    if desired.get("state") == "off":
        _switch_off(run, stage, desired, observed)
        return
    problems = stage.validate(run.system, desired, observed)
    if problems:
        raise Failure(FAILED, *(f"{run.node}: {line}" for line in problems))
    steps = stage.plan(desired, observed)
    disruptive = [deviation for deviation in found if deviation.disruptive]
    if disruptive:
        what = f"{stage.name} ({disruptive[0].text()}): the change"
        alive.refuse(run.system, run.node, what, stage.users(run.system))
    steps = _with_folders(run.system, steps)
    first = stage.name not in run.journal.stages
    stale = _begin(run, stage, desired, steps)
    with _watched(run, stage) as before:
        try:
            # A file that was sent stays until the one that takes its place is there: the way here may be cut.
            early = [operation for operation in stale if operation["kind"] != sent.KIND]
            late = [operation for operation in stale if operation["kind"] == sent.KIND]
            for operation in undo_order(early):
                UNDO[operation["kind"]](run.work, operation)
            for step in steps:
                if step.needed:
                    step.do(run.work)
            for operation in undo_order(late):
                UNDO[operation["kind"]](run.work, operation)
        except Failure as failure:
            # A step may well have failed because the node is lost: nobody would look for that once the guard is told.
            if (first and stage.whole) or (before is not None and before.lost(run.system)):
                _undo_all(run, stage.name)
                raise Failure(failure.code, *failure.lines, f"{stage.name} was taken back at once") from None
            raise
        left = _read_back(run, stage, desired, before)
    _finish(run, stage, steps, left)


def _switch_off(run: Run, stage: Stage, desired: dict[str, Any], observed: dict[str, Any]) -> None:
    if stage.name not in run.journal.stages:
        # Files of ours of which the journal knows nothing: it was lost. What they replaced is not known either.
        entry = Entry(APPLYING, digest(desired), desired)
        for deviation in stage.deviations(desired, observed):
            data = run.system.read(deviation.subject) or b""
            ours = [run.journal.keep(data)]
            entry.undo.append({"kind": "file", "key": f"file:{deviation.subject}", "before": None, "ours": ours})
        entry.undo += stage.lost(observed)
        run.journal.stages[stage.name] = entry
        run.journal.save()
    ports = {port["netdev"] for port in run.journal.stages[stage.name].desired.get("ports", [])}
    revert(run, stage.name)
    # The node of a rank that leaves is not verified any more, and an engine may start as soon as this is done.
    verify.unsettled(run.system, ports)


def _with_folders(system: System, steps: list[Step]) -> list[Step]:
    paths = [
        step.path
        for step in steps
        if isinstance(step, files.Copy) or (isinstance(step, files.File) and step.data is not None)
    ]
    folders = {folder.path: folder for path in paths for folder in files.missing_folders(system, path)}
    return [*folders.values(), *steps]


def _begin(run: Run, stage: Stage, desired: dict[str, Any], steps: list[Step]) -> list[dict[str, Any]]:
    """Put on disk what we are about to change; return the operations that the new state does not need any more."""
    journal = run.journal
    entry = journal.stages.setdefault(stage.name, Entry(APPLYING, "", {}))
    if entry.status != APPLIED:
        for operation in entry.undo:
            if operation["kind"] in ("file", sent.KIND):
                run.system.clean(operation["key"].partition(":")[2])
    if entry.digest != digest(desired):
        entry.failures = 0  # of another desired state
    entry.status, entry.digest, entry.desired = APPLYING, digest(desired), desired
    for step in steps:
        if not step.key:
            continue
        known = entry.find(step.key)
        if known is None:
            kind, before, ours = step.key.split(":")[0], step.before(run.work), step.ours(run.work)
            entry.undo.append({"kind": kind, "key": step.key, "before": before, "ours": ours})
        elif step.needed or step.key.startswith("port:"):
            known["ours"] = list(dict.fromkeys([*known["ours"], *step.ours(run.work)]))
    entry.written = dict(_written(run.system, steps))
    journal.save()
    run.system.checkpoint(f"journal {stage.name}")
    keys = {step.key for step in steps}
    return [operation for operation in entry.undo if operation["key"] not in keys and not _kept(operation)]


def _written(system: System, steps: list[Step]) -> Iterator[tuple[str, str]]:
    """What each file of ours will hold: a file that is left alone may be of an earlier rendering of the same."""
    for step in steps:
        if isinstance(step, files.Copy):
            yield step.path, step.sha256
        elif isinstance(step, files.File) and step.data is not None:
            there = None if step.needed else system.read(step.path)
            yield step.path, sha256(step.data if there is None else there)


def _kept(operation: dict[str, Any]) -> bool:
    """Whether an operation is kept although no step of the new plan mentions it.

    What was set aside is not seen any more by the plan; folders and unmanaged ports only before the first change.
    """
    if operation["kind"] == "file":
        return operation["before"] is not None
    return operation["kind"] in ("folder", "managed")


@contextmanager
def _watched(run: Run, stage: Stage) -> Iterator[management.Management | None]:
    """The management address to look for afterwards, with a guard that looks for it meanwhile."""
    if not stage.guarded:
        yield None
        return
    desired = run.journal.stages[stage.name].desired
    ours = {port["netdev"] for name in ("ports", "functions") for port in desired.get(name, [])}
    before = management.remember(run.system, ours)

    def undo() -> None:
        with lock.held(run.system, f"guard of {run.request.holder}"):
            again = Run(run.system, run.request, Journal.load(run.system, run.request.owner), Report())
            _undo_all(again, stage.name, anyhow=True)

    with guard.armed(run.system, before, undo, limits.seconds(stage.name, desired)):
        yield before


def _read_back(
    run: Run, stage: Stage, desired: dict[str, Any], before: management.Management | None
) -> list[Deviation]:
    """The deviations that are left once the machine had time to settle. Undoes the stage if the node would be lost."""
    if before is not None and (lost := before.lost(run.system)):
        _undo_all(run, stage.name)
        raise Failure(READ_BACK, *(f"{run.node}: {line}" for line in lost), f"{stage.name} was taken back at once")
    end = run.system.clock() + PATIENCE
    while True:
        left = [
            d
            for d in stage.deviations(desired, run.look(stage.read_back or stage.parts))
            if not d.code.startswith("journal.")
        ]
        if not left or run.system.clock() > end:
            return left
        run.system.sleep(_STEP)


def _finish(run: Run, stage: Stage, steps: list[Step], left: list[Deviation]) -> None:
    journal = run.journal
    entry = journal.stages[stage.name]
    journal.generation += 1
    if left:
        entry.failures += 1
        journal.save()
        lines = [f"{run.node} {deviation.text()}" for deviation in left]
        raise Failure(READ_BACK, *lines, f"{stage.name} was applied, and this still differs (try {entry.failures})")
    keys = {step.key for step in steps}
    entry.undo = [operation for operation in entry.undo if operation["key"] in keys or _kept(operation)]
    for path, name in entry.written.items():
        operation = entry.find(f"file:{path}")
        if operation is not None:
            operation["ours"] = [name]
    entry.status, entry.failures = APPLIED, 0
    journal.save()
    journal.drop_blobs()


def revert(run: Run, name: str) -> None:
    """Undo a stage; nothing happens where the journal does not know it. Raises `Failure`."""
    entry = run.journal.stages.get(name)
    if entry is None:
        return
    stage = STAGES.get(name)
    if entry.undo and not run.request.force:
        alive.refuse(run.system, run.node, f"the revert of {name}", stage.users(run.system) if stage else ())
        if stage and (held := stage.first(run.system, run.journal.stages)):
            raise Failure(ENGINE_ALIVE, *(f"{run.node}: {line}" for line in held))
    with _watched(run, stage) if stage else nullcontext() as before:
        try:
            _undo_all(run, name)
        except Failure as failure:
            # The guard is told that we are done, so nobody else looks whether the node is lost.
            if before is None or not before.lost(run.system):
                raise
            _undo_all(run, name, anyhow=True)
            run.report.note(f"{name} was reverted at the second try; at the first: {failure}")
        if before is not None and (lost := before.lost(run.system)):
            lines = (f"{run.node}: {line}" for line in lost)
            raise Failure(READ_BACK, *lines, f"{name} was reverted, and the management address stayed away")


def _undo_all(run: Run, name: str, *, anyhow: bool = False) -> None:
    """Undo what a stage did; the first operation that fails ends it, or `anyhow` does it after all others are done."""
    entry = run.journal.stages.get(name)
    if entry is None:
        return
    if entry.status != REVERTING:
        entry.status = REVERTING
        run.journal.save()
        run.system.checkpoint(f"journal revert {name}")
    failed: list[str] = []
    for operation in undo_order(entry.undo):
        if anyhow:
            failed += _tried(run, operation)
        else:
            UNDO[operation["kind"]](run.work, operation)
    if failed:
        raise Failure(FAILED, *failed, f"the rest of {name} was undone, for the management address was away")
    del run.journal.stages[name]
    run.journal.generation += 1
    run.journal.save()
    run.journal.drop_blobs()
    run.report.did(f"{name}: reverted")


def _tried(run: Run, operation: Undo) -> tuple[str, ...]:
    """Why an operation could not be undone; nothing where it was."""
    try:
        UNDO[operation["kind"]](run.work, operation)
    except Failure as failure:
        return failure.lines
    return ()


def _forget_engine(run: Run) -> None:
    """Remove what is kept of an engine, what packed for it, and the volume with its weights.

    A docker that does not answer is no reason to leave the rest as it is.
    """
    if not run.system.exists(run.system.docker_socket):
        return
    try:
        docker, label = connect(run.system), run.request.owner.label()
        kept.forget(docker, run.report, label)
        leftover.remove(docker, run.report, label)
        nfs.forget(docker, run.report, label)
    except OSError as error:
        run.report.note(f"docker does not answer ({error}): a container with the label {KEPT} or {PACKS} may be left")


def undo(run: Run) -> None:
    """Revert every stage that is left, last first, and remove everything of the stack from the node."""
    known = run.journal.system.exists(run.journal.folder)
    if not known and owner.read(run.system) is None:
        run.report.note("nothing of this stack is on the node: it was reverted already, or installed anew")
    names = [name for name in reversed(STAGES) if name in run.journal.stages]
    if any(run.journal.stages[name].undo for name in names) and not run.request.force:
        others = [line for name in names for line in STAGES[name].users(run.system)]
        alive.refuse(run.system, run.node, "the revert", others)
    for name in names:
        revert(run, name)
    _forget_engine(run)
    sent.clear(run.system, run.journal.folder)
    run.journal.remove()
    run.system.remove(owner.PATH)
    run.system.remove_folder(HOME)
