"""What the engine that serves has to answer. Standard library only, as `health.py`."""

from __future__ import annotations

import time

from fleet import on_node
from fleet.generation import Ranks

PAUSE_S = 2.0  # between two calls of a head that is out of reach


def smoke(ranks: Ranks, patience: float = 0.0) -> list[str]:
    """Ask the head what the settings want of it; what is wrong, nothing where all is right or nothing is asked.

    A head that is out of reach is asked again, for `patience` seconds after the first call that failed.
    """
    asked, head = ranks.desired[ranks.head].get("smoke"), ranks.head
    if not asked:
        return []
    links = [link for link in ranks.links if link.name == head]
    since: float | None = None
    while True:
        (answer,) = on_node.on_all("smoke", ranks.stack, links, ranks.requests(**asked))
        now = time.monotonic()
        since = now if since is None else since
        if answer.reached or now - since >= patience:
            break
        time.sleep(PAUSE_S)
    if answer.status or answer.result is None:
        return [f"{head}: the smoke test could not be made: {answer.text}"]
    found = answer.result
    if found["refused"]:
        print(f"{head}: no smoke test, since the API wants a key, and its container was told no API_KEY")
    if found["passed"]:
        print(f"{head}: smoke test passed in {found['seconds']:.1f} s: {', '.join(found['passed'])}")
    return [f"{head}: smoke test {check}: {why}" for check, why in found["failed"]]
