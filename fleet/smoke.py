"""What the engine that serves has to answer. Standard library only, as `health.py`."""

from __future__ import annotations

from fleet import on_node
from fleet.generation import Ranks


def smoke(ranks: Ranks) -> list[str]:
    """Ask the head what the settings want of it; what is wrong, nothing where all is right or nothing is asked."""
    asked, head = ranks.desired[ranks.head].get("smoke"), ranks.head
    if not asked:
        return []
    links = [link for link in ranks.links if link.name == head]
    (answer,) = on_node.on_all("smoke", ranks.stack, links, ranks.requests(**asked))
    if answer.status or answer.result is None:
        return [f"{head}: the smoke test could not be made: {answer.text}"]
    found = answer.result
    if found["refused"]:
        print(f"{head}: no smoke test, since the API wants another key than API_KEY of its container")
    if found["passed"]:
        print(f"{head}: smoke test passed in {found['seconds']:.1f} s: {', '.join(found['passed'])}")
    return [f"{head}: smoke test {check}: {why}" for check, why in found["failed"]]
