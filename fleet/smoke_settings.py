"""The part of the settings that is about the questions which an engine has to answer before it counts as ready."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from fleet import scalars
from fleet.model import Model as _Model


class Smoke(_Model):
    """Asked on the head itself as soon as the API is healthy; a wrong answer is an engine that is not ready."""

    enabled: scalars.Switch = Field(
        True,
        description="The API lists `engine.servedModelName`, and 19 + 23 is 42. Off: a healthy API is enough, and "
        "nothing of this section is asked.",
    )
    json_schema: scalars.Switch = Field(False, description="An answer in the form of a JSON schema, with the sum.")
    tool_call: scalars.Switch = Field(
        False, description="A tool is called with the sum, and what it returns gets into the answer."
    )
    thinking: scalars.Switch = Field(False, description="With thinking on, a reasoning and the right answer after it.")
    streams: Annotated[scalars.Whole, Field(ge=0, le=64)] = Field(
        0, description="So many streamed answers at once, each to a sum of its own."
    )
    cached_tokens: scalars.Switch = Field(
        False,
        description="A long prompt is told as cached the second time. The engine tells that only with "
        "`--enable-cache-report`, which the launcher's profiles have.",
    )
    timeout: Annotated[scalars.Whole, Field(ge=10, le=600)] = Field(
        300,
        description="How long all of it may take. The launcher's images warm up at that time, and their first requests "
        "compile.",
        json_schema_extra={"unit": "s"},
    )

    @property
    def checks(self) -> dict[str, Any]:
        """What the node program is told of it, by the names that it knows; empty where nothing is to be asked."""
        if not self.enabled:
            return {}
        chosen = self.model_dump(by_alias=True, exclude={"enabled", "timeout"})
        return {"models": True, "arithmetic": True, **{name: wanted for name, wanted in chosen.items() if wanted}}
