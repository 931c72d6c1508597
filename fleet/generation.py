"""The engine that served last, kept on the nodes, and the way back to it. Standard library only, as `health.py`.

What is kept of it are its containers (`node/kept.py`), so it can be started again only on what it rested on: the
"ground", a digest of fabric, libraries and rank table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fleet import on_node


@dataclass(frozen=True)
class Ranks:
    """All nodes with a rank: how they are reached, whose they are, and what is wanted of each (see `health.py`)."""

    owner: dict[str, Any]
    links: list[on_node.Link]
    desired: dict[str, dict[str, Any]]

    @property
    def stack(self) -> str:
        """The name of the stack."""
        return str(self.owner["stack"])

    @property
    def head(self) -> str:
        """The node with the API."""
        return next(link.name for link in self.links if self.desired[link.name]["api"])

    def requests(self, stage: str = "", **more: object) -> dict[str, dict[str, Any]]:
        """A request for each node, with `more` in what is desired."""
        return {
            link.name: {
                "owner": self.owner,
                "node": link.name,
                "stage": stage,
                "desired": {**self.desired[link.name], **more},
                "holder": on_node.holder(),
            }
            for link in self.links
        }

    def act(self, links: list[on_node.Link], **more: object) -> list[str]:
        """Have the containers of some of the nodes changed, on all of them at once; what failed."""
        answers = on_node.on_all("engines", self.stack, links, self.requests("engines", **more)) if links else []
        return [f"{answer.node}: {answer.text}" for answer in answers if answer.status]


def keep(ranks: Ranks) -> list[str]:
    """Keep the engine that serves, in place of the one kept before; what a person should know of it."""
    failed = ranks.act(ranks.links, action="keep")
    return [f"It cannot be kept to go back to: {line}" for line in failed]


def to_go_back_to(ranks: Ranks, answers: Sequence[on_node.Answer]) -> tuple[str | None, str]:
    """The start that all nodes have kept, else None and why it is not one to go back to: "" where none ever served."""
    found = {answer.node: (answer.result or {}).get("kept") for answer in answers}
    if not any(found.values()):
        return None, ""
    if without := sorted(node for node, kept in found.items() if not kept):
        return None, f"nothing is kept on {', '.join(without)}"
    starts = {kept["start"] for kept in found.values() if kept}
    if len(starts) > 1:
        return None, f"the nodes have kept different starts, {', '.join(sorted(starts))}"
    if any(kept["ground"] != ranks.desired[node]["ground"] for node, kept in found.items() if kept):
        return None, "the fabric, a library or the ranks have changed since. Put the settings back and run `up`"
    return starts.pop(), ""


def go_back(ranks: Ranks, start: str, cause: str) -> list[str]:
    """Remove the engine that is there, and start the one that is kept: workers, then the head. What failed."""
    workers = [link for link in ranks.links if link.name != ranks.head]
    head = [link for link in ranks.links if link.name == ranks.head]
    return (
        ranks.act(ranks.links, action="remove")
        or ranks.act(workers, action="back", start=start, cause=cause)
        or ranks.act(head, action="back", start=start, cause=cause)
    )
