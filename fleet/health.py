"""Wait until the engine serves, or say why it does not. Run as `python3 -IS fleet/health.py`.

Environment as for `on_node.py`; stdin maps each node to {"rank", "address", "port", "api", "lines", "ready_s"}. Fails
as soon as any rank has ended, with the last log lines of every rank and the cause that they tell: a group that lost a
rank never becomes ready.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # -I leaves it out

from fleet import lastwords, on_node

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0  # between two looks; loading takes seconds in a lab, an hour in a rack
PATIENCE_S = 30.0  # that a node may be out of reach


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
    if container["state"] in ("running", "created", "restarting"):
        return None
    why = "out of memory" if container.get("oom_killed") else f"exit code {container.get('exit_code')}"
    return f"rank {rank} on {answer.node}: {container['state']}, {why}"


def cause(answers: list[on_node.Answer]) -> list[str]:
    """What the last lines of all ranks tell of the cause, if anything."""
    containers = [container for answer in answers for container in (answer.result or {}).get("containers") or []]
    found = lastwords.reason(line for container in containers for line in container.get("log") or [])
    return [found] if found else []


def show_logs(answers: list[on_node.Answer], desired: dict[str, Any]) -> None:
    """The last lines of every rank, on stderr."""
    for answer in answers:
        for container in (answer.result or {}).get("containers") or []:
            print(f"--- rank {desired[answer.node]['rank']} on {answer.node} ---", file=sys.stderr)
            for line in container.get("log") or ["(no output)"]:
                print(line[:500], file=sys.stderr)


def main() -> int:
    """Entry point: 0 when the API answers, 1 with the reason on stderr otherwise."""
    owner = json.loads(os.environ["FLEET_OWNER"])
    desired: dict[str, dict[str, Any]] = json.load(sys.stdin)
    links = [link for link in on_node.links_of_command(owner["stack"]) if link.name in desired]
    requests = {
        link.name: {"owner": owner, "node": link.name, "desired": desired[link.name], "holder": on_node.holder()}
        for link in links
    }
    head = next(link.name for link in links if desired[link.name]["api"])
    began = heard = time.monotonic()
    limit, pause = desired[head]["ready_s"], FIRST_PAUSE_S
    while True:
        answers = on_node.on_all("status", owner["stack"], links, requests)
        now = time.monotonic()
        unreachable = [text for answer in answers if (text := silence(answer))]
        if not unreachable:
            heard = now
        problems = [
            text
            for answer in answers
            if not silence(answer) and (text := trouble(answer, desired[answer.node]["rank"]))
        ]
        if now - heard > PATIENCE_S:
            problems += unreachable
        api = next((answer.result or {} for answer in answers if answer.node == head), {}).get("api") or {}
        served = ", ".join(api.get("models") or ()) or (
            "models that it lists only for a key" if api.get("key_needed") else ""
        )
        if not problems and not unreachable and api.get("health") == 200 and served:
            print(f"{head}: serves {served} after {now - began:.1f} s; {len(links)} ranks run")
            return 0
        if not problems and now - began > limit:
            problems = [f"{head}: the API is not ready after {limit:g} s (health: {api.get('health')})"]
        if problems:
            show_logs(answers, desired)
            print("\n".join([*problems, *cause(answers)]), file=sys.stderr)
            return 1
        print(f"{head}: {now - began:.0f} s, health {api.get('health') or 'not answering yet'}", flush=True)
        time.sleep(pause)
        pause = min(pause * 1.5, LONGEST_PAUSE_S)


if __name__ == "__main__":
    sys.exit(main())
