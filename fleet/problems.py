"""What is wrong, where it was seen, what was wanted and what to do: one shape for settings, plan and preflight."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

NAMESPACE = "spark-fabric"

Loc = tuple[str | int, ...]
"""Where a value sits in the configuration: `("nodes", 2, "address")`."""


@dataclass(frozen=True)
class Problem:
    """One mistake.

    `code` is stable and for programs; `path` is the config path as the operator writes it, or the node and object;
    `seen` completes "PATH …" ("is 1500"), `wanted` completes "wanted …", `hint` is the next step as a sentence.
    """

    code: str
    path: str
    seen: str
    wanted: str
    hint: str

    def text(self) -> str:
        """The problem as one line."""
        return f"{self.path}: {self.seen}, wanted {self.wanted}. {self.hint}".rstrip()


class ProblemsError(Exception):
    """Raised with every problem that was found, never with only the first."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(problem.text() for problem in self.problems))

    def report(self) -> str:
        """All of it for the operator, a line each."""
        return "\n".join(
            (f"{len(self.problems)} problem(s); nothing was changed:", *(f"  {one.text()}" for one in self.problems))
        )


def config_path(loc: Loc) -> str:
    """`("nodes", 2, "address")` as it is written for `pulumi config set --path`: `spark-fabric:nodes[2].address`."""
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return f"{NAMESPACE}:{text.lstrip('.')}"


def shown(value: object) -> str:
    """A value of the config in a message: as JSON, cut where it is long."""
    if isinstance(value, (list, tuple)):
        return "a list"
    if isinstance(value, Mapping):
        return "a set of keys"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + '…"'
