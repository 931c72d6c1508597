"""The verbs that change a node, and `check`, which tells beforehand what speaks against it."""

from typing import Any

from . import lock, observe, owner
from .archive import store
from .engines import engines
from .journal import Journal
from .mesh import STAGES as MESH
from .request import BAD_REQUEST, OTHER_OWNER, Failure, Owner, Request, say
from .stages import STAGES
from .steps import Report
from .system import System
from .transaction import Run, apply, refuse_unknown, revert, undo

Json = dict[str, Any]

ONCE = ("tables", "pack-engram")

RESTING = {
    "plane0": MESH,
    "plane1": MESH,
    **{stage: MESH[place:] for place, stage in enumerate(MESH, 1)},
}
"""By stage: those of the mesh that must be gone before it goes, in the order in which they are applied."""


def change(system: System, verb: str, request: Request) -> Json:
    """Change something, under the node's lock; the answer. Raises `Failure`."""
    with lock.held(system, request.holder):
        return _change(system, verb, request)


def _change(system: System, verb: str, request: Request) -> Json:
    report = Report()
    held = owner.read(system)
    problem = owner.problem(request.owner, held)
    if verb == "adopt":
        _adopt(system, request, report)
    elif problem is not None:
        if verb != "revert":
            raise Failure(OTHER_OWNER, f"{request.node or 'this node'} {problem}")
        report.note(f"not ours: left as it is ({problem})")
    else:
        run = Run(system, request, Journal.load(system, request.owner), report)
        refuse_unknown(run.journal)
        if verb in ("apply", "install"):
            _apply(run)
        elif verb == "revert":
            _revert(run)
        elif verb == "retry":
            _retry(run)
        elif verb == "unshare":
            _unshare(run)
        elif verb == "weigh":
            return _weigh(run)
        elif verb in ONCE:
            return _once(run, verb)
        else:
            engines(run)
        return {"changed": report.changed, "notes": report.notes, "generation": run.journal.generation}
    return {"changed": report.changed, "notes": report.notes, "generation": 0}


def _apply(run: Run) -> None:
    stage = STAGES.get(run.request.stage)
    if stage is None:
        raise Failure(BAD_REQUEST, f"{run.request.stage!r} is no stage: {', '.join(STAGES)}")
    if stage.name == "node":
        if owner.take(run.system, run.request.owner):
            run.report.did(f"{run.node}: belongs to {run.request.owner.label()}")
    else:
        _refuse_nobodys(run)
    before = run.journal.generation
    apply(run, stage, run.request.desired)
    if run.journal.generation != before:
        store(run.system, run.journal)


def _revert(run: Run) -> None:
    if run.request.stage in ("undo", ""):
        undo(run)
        return
    if run.request.stage not in run.journal.stages:
        run.report.note(f"nothing to revert: {run.request.stage} is not in the journal of this node")
    # A run that was killed may have begun what rests on this stage, and no state knows of it: nobody else reverts it.
    for name in reversed(RESTING.get(run.request.stage, ())):
        revert(run, name)
    revert(run, run.request.stage)


def _weigh(run: Run) -> Json:
    """Receipts lie beside the journal, so that they go with it: on a node of nobody's there is none yet."""
    _refuse_nobodys(run)
    from .receipts import weigh  # noqa: PLC0415

    return weigh(run.system, run.request.owner.stack, run.request.desired)


def _once(run: Run, verb: str) -> Json:
    """Change something in a folder of the operator's, for whom no stage does it."""
    _refuse_nobodys(run)
    if verb == "tables":
        from .tables import tables  # noqa: PLC0415

        return tables(run)
    from .engram import engram  # noqa: PLC0415

    return engram(run)


def _refuse_nobodys(run: Run) -> None:
    held = owner.read(run.system)
    if held is None or held["adoptable"]:
        raise Failure(OTHER_OWNER, f"{run.node} belongs to nobody yet: apply the stage node first")


def _unshare(run: Run) -> None:
    from .nfs import unshare  # noqa: PLC0415 - few need it, and compiling it costs time

    unshare(run.system, run.request.owner.label(), run.request.desired, run.report)


def _retry(run: Run) -> None:
    """Forget that changes did not last: whatever undid them is gone, as the operator says."""
    failed = [name for name, entry in run.journal.stages.items() if entry.failures]
    for name in failed:
        run.journal.stages[name].failures = 0
        run.report.did(f"{name}: may be tried again")
    if failed:
        run.journal.save()
    else:
        run.report.note("nothing has failed to last here")


def check(system: System, request: Request) -> Json:
    """What speaks against applying stages, all of it, without changing anything.

    The stage is one of those with a check, or "all" with desired {"plane0": {…}, "plane1": {…}, …}.
    """
    wanted = request.desired if request.stage == "all" else {request.stage: request.desired}
    unknown = wanted.keys() - STAGES.keys()
    if unknown:
        raise Failure(BAD_REQUEST, f"{', '.join(sorted(unknown))}: no such stage")
    held = owner.problem(request.owner, owner.read(system))
    problems = [held] if held else []
    parts = tuple({part for name in wanted for part in STAGES[name].parts})
    observed = observe.observe(system, request.owner, parts, observe.libraries_of(*wanted.values()))
    for name, desired in wanted.items():
        problems += STAGES[name].validate(system, desired, observed)
    node = request.node or "this node"
    for problem in dict.fromkeys(problems):
        say(f"{node}: {problem}")
    deviations = {
        name: [deviation.to_json() for deviation in STAGES[name].deviations(desired, observed)]
        for name, desired in wanted.items()
    }
    return {"ok": not problems, "problems": list(dict.fromkeys(problems)), "deviations": deviations}


def _adopt(system: System, request: Request, report: Report) -> None:
    held = owner.read(system)
    asking = request.owner
    if held is None:
        report.note("belongs to nobody: there is nothing to adopt")
        return
    same = (held["project"], held["stack"], held["fleet_id"]) == (asking.project, asking.stack, asking.fleet_id)
    if not same and not request.force:
        raise Failure(OTHER_OWNER, f"{request.node or 'this node'} {owner.problem(asking, held)}")
    former = {key: held[key] for key in asking.to_json()}
    owner.write(system, Owner(**former), adoptable=True)
    report.did("may be taken over by the same stack from another state")
