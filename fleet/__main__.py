"""`python -m fleet`: what Pulumi has no verb for.

    doctor [--json]     every check on every node, and what deviates, a line each; read-only
    doctor --bandwidth [GBITS]   with the engines stopped: what each cable carries each way in each plane; read-only
    status [--env]      which stage of which node is as planned; --env: what every rank is told, and where it comes from
    picture [--svg F]   nodes, ports, cables, planes, paths of the mesh, with what is wrong where; --svg: as a drawing
    moving-in           what is there of a set-up by hand, and what becomes of each part; read-only
    cabling             which port is wired to which, found by listening; read-only, needs no address
    forget NODE         go on without a dead node: out of the state, skipped by every command
    remember NODE       the node is back: the next `up` takes it in again
    retry [NODE …]      try again what was repaired and did not stay so
    adopt [NODE …]      the state is lost, the nodes are not: the next `up` may take them over
    rollback            start the engine that served last again, on all nodes
    tables              the head's speculation tables on all workers, or none where the head has none
    pack                the packed engram of every rank, once; the engine needs it, or packs it in its first start
    smoke               ask the engine that serves what engine.smoke wants to have answered
    revert [NODE …]     the state is lost: stop the engines and put the nodes back as they were
    import-env FILE     a stack file from the launcher's .env.tp4, which is read and never executed

Exit status: 0 all is well; 1 something failed; 2 wrong usage or settings; 3 `doctor` has a FAIL, `status` or `cabling`
is not all `ok`, `moving-in` found what you have to see to, or `import-env` wrote a stack file that needs correction.
Warnings alone are 0, but of `doctor --bandwidth`: 1 where the fabric is in use, or one way could not be measured.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from fleet import asking, bandwidth, doctor, marks, stackfile, state
from fleet.awaited import awaited
from fleet.brought import brought
from fleet.cabling import around, judge
from fleet.discover import listen
from fleet.engram import pack
from fleet.environment import listing
from fleet.generation import Ranks
from fleet.import_env import import_env
from fleet.inherited import inherited
from fleet.on_node import Answer, Link, folder, holder, lost_nodes, on_all
from fleet.picture import picture
from fleet.probe import Question, probe
from fleet.problems import Problem, ProblemsError
from fleet.rollback import rollback
from fleet.settings import Settings
from fleet.smoke import smoke
from fleet.ssh import links as links_of
from fleet.stack import StackName
from fleet.survey import Survey, look
from fleet.svg import svg
from fleet.tables import tables
from fleet.topology import Kind

OK, FAILED, USAGE, NOT_OK = 0, 1, 2, 3


def _looked(name: StackName, settings: Settings, links: Sequence[Link]) -> tuple[Survey, list[Problem]]:
    """A look at the fleet, with the problems of what the operator brings."""
    own = brought(settings)
    found, problems = look(settings, name, asking.ask(settings, name, links, own))
    return found, [*own.problems, *problems]


def diagnose(name: StackName, settings: Settings, links: Sequence[Link], *, as_json: bool = False) -> int:
    """One line for each check, stage and the engine: PASS, NOTE, WARN or FAIL."""
    found, problems = _looked(name, settings, links)
    told = doctor.lines(found, problems)
    code = NOT_OK if doctor.worst(told) is doctor.Word.FAIL else OK
    return _told(found, told, code, as_json=as_json)


def _told(found: Survey, told: Sequence[doctor.Line], code: int, *, as_json: bool) -> int:
    """Print lines; the exit status."""
    print(json.dumps(doctor.as_json(found, told, code), indent=1) if as_json else doctor.text(told))
    return code


def weigh(name: StackName, settings: Settings, links: Sequence[Link], least: float, *, as_json: bool = False) -> int:
    """One line for each cable, plane and direction: PASS from `least` Gb/s on, FAIL, or WARN where none could tell."""
    found, _ = _looked(name, settings, links)
    used = bandwidth.in_use(found)
    if used:
        return _told(found, used, FAILED, as_json=as_json)
    told = bandwidth.measure(found, links, least)
    codes = {doctor.Word.FAIL: NOT_OK, doctor.Word.WARN: FAILED}
    return _told(found, told, codes.get(doctor.worst(told), OK), as_json=as_json)


def _rate(text: str) -> float:
    """A rate in Gb/s of the command line."""
    rate = float(text)
    if not 0 < rate < math.inf:
        raise ValueError
    return rate


def draw(name: StackName, settings: Settings, links: Sequence[Link], *, file: Path | None = None) -> int:
    """The picture with what is wrong where; into a file as a drawing."""
    found, problems = _looked(name, settings, links)
    wrong = marks.of(found, problems)
    if file:
        file.write_text(svg(found.plan, wrong))
        print(f"{file}: {len(wrong.marks)} marks")
    else:
        text = picture(found.plan, wrong.at, partial(wrong.over, found.plan))
        print("\n".join([text, *([""] if wrong.marks else []), *wrong.lines()]))
    return OK


def status(name: StackName, settings: Settings, links: Sequence[Link], *, env: bool = False) -> int:
    """One line per node and stage: `ok`, `drift`, `missing`, `foreign`, `unreachable` or `unknown`.

    With `env`, the ranks' resolved environments follow, secrets left out.
    """
    found, problems = _looked(name, settings, links)
    words = {**dict.fromkeys(("unreachable", "host-key", "login"), "unreachable"), "other-owner": "foreign"}
    lines = [(words.get(one.code, "unknown"), one.path, one.text()) for one in problems]
    for node in found.plan.nodes:
        observed = found.seen.observed.get(node.name)
        if observed is None:
            continue
        held = (observed.get("journal") or {}).get("stages") or {}
        for stage in node.stages:
            deviates = found.drift.stages.get((node.name, stage))
            word = "ok" if not deviates else "drift" if stage in held else "missing"
            lines.append((word, f"{node.name} {stage}", deviates.text() if deviates else ""))
    group = found.group
    lines.append(("drift" if group.broken else "ok", "engine", "; ".join(group.reasons) or f"start {group.start}"))
    for word, subject, text in lines:
        print(f"{word:<12} {subject:<20} {text}".rstrip())
    for warning in found.warnings:
        print(f"{'warning':<12} {warning.text()}")
    for note in found.notes:
        print(f"{'note':<12} {note.text()}")
    if env:
        print("\n".join(("", *listing(found.plan))))
    return OK if all(word == "ok" for word, _, _ in lines) else NOT_OK


def cables(name: StackName, settings: Settings, links: Sequence[Link]) -> int:
    """Every wire that the nodes find by listening, and what the settings say to it."""
    began = time.monotonic()
    found = listen(name, settings, links)
    print(f"{len(found.nodes)} of {len(links)} nodes heard in {time.monotonic() - began:.1f} s")
    judged = judge(settings, {}, found)
    print("\n".join(found.listing()))
    if settings.fabric.topology is Kind.RING:
        order = around(settings, found)
        print(f"ring: {' '.join(order)} (out of f0 of the head)" if order else "no ring of all nodes")
    for one in judged.problems:
        print(f"{'wrong':<12} {one.text()}")
    for one in judged.warnings:
        print(f"{'warning':<12} {one.text()}")
    return NOT_OK if judged.problems else OK


def moving_in(name: StackName, settings: Settings, links: Sequence[Link]) -> int:
    """One line for each part of a set-up that was made by hand: adopt, take over, stop by hand, leave."""
    found, _ = _looked(name, settings, links)
    reached = [link for link in links if link.name in found.seen.observed]
    owner = name.reader(settings.fleet.id)
    requests = {link.name: {"owner": owner, "node": link.name, "desired": {}, "holder": holder()} for link in reached}
    answers = on_all("by-hand", name.stack, reached, requests)
    silent = [answer.text for answer in answers if answer.status]
    silent += [f"{one.node}: {why}" for one in answers if (why := (one.result or {}).get("docker_error"))]
    parts = inherited(found.plan, found.seen.observed, {answer.node: answer.result or {} for answer in answers})
    print("\n".join([one.text() for one in parts] or ["Nothing of a set-up by hand was found."]))
    for text in (*found.seen.unreachable.values(), *silent):
        print(text, file=sys.stderr)
    if silent or found.seen.unreachable:
        return FAILED
    return NOT_OK if any(one.open for one in parts) else OK


def forget(stack: str, node: str) -> int:
    """Take a dead node out of the state and have every command skip it."""
    names, left = state.forget(stack, node)
    if not names and node not in {one.name for one in stackfile.read(stack)[1].nodes}:
        print(f"{node}: neither in the state nor in Pulumi.{stack}.yaml, nothing was done", file=sys.stderr)
        return USAGE
    lost = lost_nodes(stack) | {node}
    listing = folder(stack) / "lost"
    listing.parent.mkdir(parents=True, exist_ok=True)
    listing.write_text("".join(f"{name}\n" for name in sorted(lost)))
    print(f"{node}: {len(names)} resources forgotten: {', '.join(names) or 'none was in the state'}")
    if left:
        print("\n".join([f"What stays on {node}, as far as the state knew:", *(f"  {line}" for line in left)]))
    print(
        f"When {node} is back, either\n"
        f"  on the node: sudo docker rm -f $(sudo docker ps -aq --filter label=spark-fabric.stack)\n"
        f"               sudo python3 /var/lib/spark-fabric/{stack}/spark-node.pyz revert\n"
        f"  or from here, to take it in again: python -m fleet remember {node} -s {stack}, then up"
    )
    return OK


def remember(stack: str, node: str) -> int:
    """Take a node off the list of lost ones."""
    lost = lost_nodes(stack)
    if node in lost:
        (folder(stack) / "lost").write_text("".join(f"{name}\n" for name in sorted(lost - {node})))
    print(f"{node}: {'no longer skipped; run up' if node in lost else 'was not forgotten'}")
    return OK


def _each(
    name: StackName,
    settings: Settings,
    links: Sequence[Link],
    steps: Sequence[tuple[str, str, dict[str, object]]],
) -> int:
    """Run steps (verb, stage, desired) on the nodes that carry this stack's mark, each step on all before the next."""
    seen = probe(Question(name, settings.fleet.id, links))
    for why in seen.unreachable.values():
        print(why, file=sys.stderr)
    owners = {node: observed.get("owner") or {} for node, observed in seen.observed.items()}
    label = name.label(settings.fleet.id)
    ours: list[Link] = []
    for link in links:
        owner = owners.get(link.name)
        if owner and name.owns(owner, settings.fleet.id):
            ours.append(link)
        elif link.name in owners:
            print(f"{link.name}: does not carry the mark of {label}; left as it is")
    worst = 1 if seen.unreachable else 0
    for verb, stage, desired in steps:
        requests = {
            link.name: {
                "owner": {key: owners[link.name][key] for key in ("project", "stack", "fleet_id", "state_id")},
                "node": link.name,
                "stage": stage,
                "desired": desired,
                "holder": holder(),
            }
            for link in ours
        }
        answers: list[Answer] = on_all(verb, name.stack, ours, requests)
        for answer in answers:
            told = answer.text.splitlines()[-10:] if answer.status else []
            told += (answer.result or {}).get("changed") or []
            print("\n".join(f"{answer.node}: {line}" for line in told or [f"{verb} done"]))
        worst = max([worst, *(answer.status for answer in answers)])
        ours = [link for link, answer in zip(ours, answers, strict=True) if not answer.status]
    return OK if worst == 0 else FAILED


def adopt(name: StackName, settings: Settings, links: Sequence[Link]) -> int:
    """Let the next `up` of a state that does not know these nodes take them over."""
    return _each(name, settings, links, [("adopt", "node", {})])


def retry(name: StackName, settings: Settings, links: Sequence[Link]) -> int:
    """Let the next `up` try once more what was repaired and did not stay so."""
    return _each(name, settings, links, [("retry", "node", {})])


def go_back(name: StackName, settings: Settings, links: Sequence[Link]) -> int:
    """Start the engine that served last again. The state knows nothing of that: the next preview shows it."""
    found, _ = _looked(name, settings, links)
    failed = rollback(found)
    if failed:
        print("\n".join(failed), file=sys.stderr)
        return FAILED
    print(f"The next preview shows what differs; `./pulumiw up -s {name.stack}` starts by the settings again.")
    return OK


def once(name: StackName, settings: Settings, links: Sequence[Link], work: Callable[[Survey], list[str]]) -> int:
    """Look at the fleet, and do some work in the engine's folders that says what failed."""
    found, _ = _looked(name, settings, links)
    failed = work(found)
    print("\n".join(failed), end="\n" if failed else "", file=sys.stderr)
    return FAILED if failed else OK


def ask(name: StackName, settings: Settings, links: Sequence[Link]) -> int:
    """What `up` asks of an engine that has become ready, of the one that runs now. Nothing is changed."""
    found, _ = _looked(name, settings, links)
    head = found.plan.head.name
    if head not in found.ours:
        print(f"{head}: does not answer, or is not of this stack", file=sys.stderr)
        return FAILED
    if not settings.engine.smoke.enabled:
        print("engine.smoke.enabled is off: nothing is asked")
        return OK
    ranks = [found.links[node.name] for node in found.plan.ranks]
    failed = smoke(Ranks(name.reader(settings.fleet.id), ranks, awaited(found.plan, found.group.start)))
    print("\n".join(failed), end="\n" if failed else "", file=sys.stderr)
    return FAILED if failed else OK


def revert(name: StackName, settings: Settings, links: Sequence[Link]) -> int:
    """Put nodes back without any state: engines first, on all of them, then everything the journals hold."""
    engines: dict[str, object] = {"action": "remove", "grace": settings.engine.stop_grace}
    return _each(name, settings, links, [("engines", "engines", engines), ("revert", "undo", {})])


def parser() -> argparse.ArgumentParser:
    """All commands and their arguments."""
    top = argparse.ArgumentParser(
        prog="python -m fleet", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = top.add_subparsers(dest="command", required=True)
    looks = (("doctor", None), ("status", None), ("picture", None), ("moving-in", None), ("cabling", None))
    acts = (
        ("forget", 1),
        ("remember", 1),
        ("retry", "*"),
        ("adopt", "*"),
        ("rollback", None),
        ("tables", None),
        ("pack", None),
        ("smoke", None),
        ("revert", "*"),
    )
    for word, nodes in (*looks, *acts):
        command = commands.add_parser(word)
        command.add_argument("-s", "--stack", required=True)
        if nodes is not None:
            command.add_argument("nodes", nargs=nodes, metavar="NODE")
        if word == "doctor":
            command.add_argument("--json", action="store_true")
            command.add_argument(
                "--bandwidth", type=_rate, nargs="?", const=bandwidth.AT_LEAST, metavar="GBITS",
                help=f"measure the cables; the least that passes one way, in Gb/s (default {bandwidth.AT_LEAST:g})",
            )  # fmt: skip
        elif word == "status":
            command.add_argument("--env", action="store_true")
        elif word == "picture":
            command.add_argument("--svg", type=Path, metavar="FILE")
    moving = commands.add_parser("import-env")
    moving.add_argument("file", type=Path, metavar="FILE")
    moving.add_argument("-s", "--stack", help="write Pulumi.STACK.yaml; without it the terminal has it")
    moving.add_argument("--home", type=Path, default=Path.home(), help="what $HOME is on the head")
    moving.add_argument("--checkout", type=Path, help="the launcher's folder on the head; without it that of FILE")
    return top


VERBS: dict[str, Callable[[StackName, Settings, Sequence[Link]], int]] = {
    "moving-in": moving_in,
    "cabling": cables,
    "retry": retry,
    "adopt": adopt,
    "rollback": go_back,
    "tables": partial(once, work=tables),
    "pack": partial(once, work=pack),
    "smoke": ask,
    "revert": revert,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point."""
    options = parser().parse_args(arguments)
    if options.command == "import-env":
        return import_env(options.file, options.stack, options.home, options.checkout)
    try:
        if options.command in ("forget", "remember"):
            return (forget if options.command == "forget" else remember)(options.stack, options.nodes[0])
        name, settings = stackfile.read(options.stack, without=lost_nodes(options.stack))
        links, problems = links_of(settings)
    except ProblemsError as error:
        print(error, file=sys.stderr)
        return USAGE
    except state.StateError as error:
        print(error, file=sys.stderr)
        return FAILED
    if problems:
        print(ProblemsError(problems), file=sys.stderr)
        return USAGE
    wanted = set(getattr(options, "nodes", [])) or {link.name for link in links}
    unknown = wanted - {link.name for link in links}
    if unknown:
        known = ", ".join(link.name for link in links)
        print(f"no node {', '.join(sorted(unknown))} in stack {options.stack}; there are {known}", file=sys.stderr)
        return USAGE
    asked = [link for link in links if link.name in wanted]
    match options.command:
        case "doctor" if options.bandwidth:
            return weigh(name, settings, asked, options.bandwidth, as_json=options.json)
        case "doctor":
            return diagnose(name, settings, asked, as_json=options.json)
        case "status":
            return status(name, settings, asked, env=options.env)
        case "picture":
            return draw(name, settings, asked, file=options.svg)
        case verb:
            return VERBS[verb](name, settings, asked)


if __name__ == "__main__":
    sys.exit(main())
