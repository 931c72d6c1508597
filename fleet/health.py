"""Wait until the engine serves, or say why it does not. Run as `python3 -IS fleet/health.py`.

Environment as for `on_node.py`; stdin maps each node to {"rank", "address", "port", "api", "lines", "ready_s", "name",
"grace", "smoke", "start", "ground", "rollback"}. Fails as soon as any rank has ended, with the reason and the last log
lines of every rank: a group that lost a rank never becomes ready. So does an engine that answers wrongly. One that
serves is kept, to go back to.
Where one does not, and "rollback" asks for that, the one that is kept is started again, and it fails all the same.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # -I leaves it out

from fleet import generation, lastwords, on_node
from fleet.generation import Ranks
from fleet.smoke import smoke

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0  # between two looks; loading takes seconds in a lab, an hour in a rack
PATIENCE_S = 30.0  # that a node may be out of reach
SEARCHED = 1000  # lines of each rank in which its first error is looked for
SHOWN, NEWEST = 500, 120  # characters of a line: of a log, of progress
RUNNING = ("running", "created", "restarting")


def silence(answer: on_node.Answer) -> str | None:
    """Why nothing is known of a node's containers just now; None where it is."""
    if answer.status:
        return answer.text
    error = (answer.result or {}).get("docker_error")
    return f"{answer.node}: docker does not answer: {error}" if error else None


def trouble(answer: on_node.Answer, rank: int) -> str | None:
    """What is wrong with one rank; None while it runs."""
    containers = (answer.result or {}).get("containers") or []
    if not containers:
        return f"rank {rank} on {answer.node}: there is no container"
    container = containers[0]
    if container["state"] in RUNNING:
        return None
    return f"rank {rank} on {answer.node}: {container['state']}, {lastwords.ended(container)}"


def troubles(answers: Sequence[on_node.Answer], ranks: Ranks) -> list[str]:
    """What is wrong with the ranks that can be seen: first the one that ended first."""
    seen = [answer for answer in answers if not silence(answer)]
    found = [(_end(answer), trouble(answer, ranks.desired[answer.node]["rank"])) for answer in seen]
    return [text for _, text in sorted(found, key=lambda one: one[0]) if text]


def _end(answer: on_node.Answer) -> str:
    """When a rank ended, as docker writes times; those without come last."""
    containers = (answer.result or {}).get("containers") or [{}]
    return str(containers[0].get("finished_at") or "") or "~"


def tell(ranks: Ranks, problems: Sequence[str]) -> None:
    """On stderr: the reason first, then the last lines of every rank.

    With the first error of the rank that ended first, and the cause where the lines tell a known one.
    """
    answers = on_node.on_all("status", ranks.stack, ranks.links, ranks.requests(lines=SEARCHED))
    logs = {
        answer.node: container.get("log") or []
        for answer in answers
        for container in (answer.result or {}).get("containers") or []
    }
    told = list(problems)
    for answer in sorted(answers, key=_end):
        if trouble(answer, 0) and (line := lastwords.first_error(logs.get(answer.node, ()))):
            told.append(f"first error of rank {ranks.desired[answer.node]['rank']}: {line[:SHOWN]}")
            break
    cause = lastwords.reason(line for lines in logs.values() for line in lines)
    print("\n".join([*told, *([cause] if cause else [])]), file=sys.stderr)
    for node, lines in logs.items():
        desired = ranks.desired[node]
        print(f"--- rank {desired['rank']} on {node} ---", file=sys.stderr)
        for line in lines[-desired["lines"] :] or ["(no output)"]:
            print(line[:SHOWN], file=sys.stderr)


def wait(ranks: Ranks) -> tuple[list[str], list[on_node.Answer]]:
    """Until the engine serves, or does not: what is wrong, nothing where it serves, and how all ranks were last."""
    desired, head = ranks.desired, ranks.head
    began = heard = time.monotonic()
    limit, pause = desired[head]["ready_s"], FIRST_PAUSE_S
    while True:
        answers = on_node.on_all("status", ranks.stack, ranks.links, ranks.requests())
        now = time.monotonic()
        unreachable = [text for answer in answers if (text := silence(answer))]
        if not unreachable:
            heard = now
        problems = troubles(answers, ranks)
        if now - heard > PATIENCE_S:
            problems += unreachable
        api = next((answer.result or {} for answer in answers if answer.node == head), {}).get("api") or {}
        served = ", ".join(api.get("models") or ()) or (
            "models that it lists only for a key" if api.get("key_needed") else ""
        )
        if not problems and not unreachable and api.get("health") == 200 and served:
            print(f"{head}: serves {served} after {now - began:.1f} s; {len(ranks.links)} ranks run")
            return [], answers
        if not problems and now - began > limit:
            problems = [f"{head}: the API is not ready after {limit:g} s (health: {api.get('health')})"]
        if problems:
            return problems, answers
        print(f"{head}: {now - began:.0f} s, health {api.get('health') or 'not answering yet'}{_last(answers, head)}")
        sys.stdout.flush()
        time.sleep(pause)
        pause = min(pause * 1.5, LONGEST_PAUSE_S)


def _last(answers: Sequence[on_node.Answer], head: str) -> str:
    """The newest line of the head: how far it is."""
    log = [
        line
        for answer in answers
        if answer.node == head
        for container in (answer.result or {}).get("containers") or []
        for line in container.get("log") or []
    ]
    return f": {log[-1].strip()[:NEWEST]}" if log else ""


def ready(ranks: Ranks) -> tuple[list[str], list[on_node.Answer]]:
    """The same as `wait`, and what the engine has to answer. A rank that ended over it is the first that is wrong."""
    problems, answers = wait(ranks)
    if problems or not (problems := smoke(ranks, PATIENCE_S)):
        return problems, answers
    answers = on_node.on_all("status", ranks.stack, ranks.links, ranks.requests())
    return [*troubles(answers, ranks), *problems], answers


def way_back(ranks: Ranks, problems: Sequence[str], answers: Sequence[on_node.Answer]) -> list[str]:
    """Go back to the engine that served last where that is asked for; what came of it, or how to go back."""
    start, why_not = generation.to_go_back_to(ranks, answers)
    if start is None:
        return [f"There is no way back: {why_not}."] if why_not else []
    if not ranks.desired[ranks.head]["rollback"]:
        kept = f"The engine that served last is kept on the nodes (start {start})"
        command, by_settings = (f"`{text} -s {ranks.stack}`" for text in ("python -m fleet rollback", "./pulumiw up"))
        return [
            f"{kept}. To go back to it: {command}, or put the settings back and run {by_settings}.",
            "With engine.onFailure: rollback, `up` goes back by itself.",
        ]
    print(f"not ready: {'; '.join(problems)}. Going back to start {start}", flush=True)
    failed = generation.go_back(ranks, start, "; ".join(problems))
    if not failed:
        failed, _ = wait(ranks)
        if failed:
            tell(ranks, failed)
    if failed:
        return ["The engine that served last could not be brought back:", *failed]
    return [f"The engine that served last serves again (start {start}). The settings are not those of it: see preview."]


def main() -> int:
    """Entry point: 0 when the API answers, 1 with the reason on stderr otherwise."""
    owner = json.loads(os.environ["FLEET_OWNER"])
    desired: dict[str, dict[str, Any]] = json.load(sys.stdin)
    links = [link for link in on_node.links_of_command(owner["stack"]) if link.name in desired]
    ranks = Ranks(owner, links, desired)
    problems, answers = ready(ranks)
    if not problems:
        for line in generation.keep(ranks):
            print(line)
        return 0
    tell(ranks, problems)
    print("\n".join(way_back(ranks, problems, answers)), file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
