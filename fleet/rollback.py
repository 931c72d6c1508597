"""`python -m fleet rollback`: start the engine that served last again, without Pulumi."""

from __future__ import annotations

from typing import Any

from fleet import generation, health, on_node
from fleet.awaited import awaited
from fleet.generation import Ranks
from fleet.on_node import Answer, holder
from fleet.survey import Survey


def rollback(found: Survey) -> list[str]:
    """Go back to what is kept, as a group; what stands in the way or went wrong, nothing where it serves again.

    It has to stand on what it served on: not while the fabric deviates from the settings, nor with other settings of
    the fabric.
    """
    plan = found.plan
    ranks = [node.name for node in plan.ranks]
    if missing := [f"{name}: does not answer, or is not of this stack" for name in ranks if name not in found.ours]:
        return missing
    if deviates := found.drift.disruptive():
        return [f"the fabric is not as the settings have it; run `up`: {deviates}"]
    owner: dict[str, Any] = dict(found.seen.observed[ranks[0]]["owner"])
    owner.pop("adoptable", None)
    asked = Ranks(owner, [found.links[name] for name in ranks], awaited(plan, found.group.start))
    answers = on_node.on_all("status", asked.stack, asked.links, asked.requests())
    if silent := [text for answer in answers if (text := health.silence(answer))]:
        return silent
    start, why_not = generation.to_go_back_to(asked, answers)
    if start is None:
        return [f"there is no way back: {why_not or 'no engine of this stack has served yet'}"]
    if all(_runs(answer, start) for answer in answers):
        print(f"The engine that served last runs (start {start}): nothing was done.")
        return []
    failed = generation.go_back(asked, start, f"as {holder()} asked for")
    if not failed:
        failed, _ = health.wait(asked)
        if failed:
            health.tell(asked, failed)
    return failed


def _runs(answer: Answer, start: str) -> bool:
    containers = (answer.result or {}).get("containers") or []
    return [(one["state"], one["labels"].get("spark-fabric.start")) for one in containers] == [("running", start)]
