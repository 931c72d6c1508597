"""The part of the settings that is about checks before anything is changed."""

import difflib
from collections.abc import Iterator

from pydantic import Field

from fleet import scalars, verdicts
from fleet.model import Broken
from fleet.model import Model as _Model


class Preflight(_Model):
    """What is looked at before anything is changed."""

    ignore: list[scalars.Word] = Field(
        [],
        description="Codes of checks that shall not stop a run, nor warn. All codes, and those that cannot be ignored: "
        "[checks.md](checks.md).",
    )
    refuse: list[scalars.Word] = Field(
        [],
        description="Codes that shall stop a run: of warnings, or of drift that you want to look at before it is "
        "repaired, such as `file.edited`.",
    )
    memory: scalars.Size | None = Field(
        None,
        description="Memory that is to be free on a node before the engine starts, with unit. Without it: the share "
        "that `MEM_FRACTION_STATIC` in `engine.env` names, else 80 %, where the engine uses GPUs.",
        json_schema_extra={"unit": "k, m, g or t"},
    )

    def rules(self) -> Iterator[Broken]:
        """Only codes that there are, and none that must be heeded."""
        for key, codes in (("ignore", verdicts.CODES), ("refuse", verdicts.REFUSABLE)):
            for index, code in enumerate(getattr(self, key)):
                if code not in codes:
                    near = difflib.get_close_matches(code, codes, n=1)
                    hint = f"Did you mean {near[0]}?" if near else "docs/checks.md has all codes."
                    yield Broken("check-unknown", (key, index), f'is "{code}"', "the code of a check", hint)
        for index, code in enumerate(self.ignore):
            if code in verdicts.CODES - verdicts.IGNORABLE:
                yield Broken(
                    "check-needed",
                    ("ignore", index),
                    f'is "{code}"',
                    "a check that can be left out",
                    "This one keeps a wrong plan from the nodes, or is drift: it is repaired.",
                )
