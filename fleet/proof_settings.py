"""The part of the settings that is about the proof, once the engine serves."""

from typing import Annotated

from pydantic import Field

from fleet import scalars
from fleet.model import Model as _Model


class Proof(_Model):
    """What is measured once the engine serves, and from when on it is a failure."""

    enabled: scalars.Switch = Field(
        True, description="Off leaves the proof out: an engine that answers may then run on half of its links."
    )
    logs: scalars.Switch = Field(
        False,
        description="Have every rank tell what NCCL chooses (`NCCL_DEBUG=INFO`, `NCCL_DEBUG_SUBSYS=INIT,ENV,NET`), and "
        "check the lines. Switching it starts the engines anew. Without it the lines are `unknown`.",
    )
    minimum: scalars.Size = Field(
        64 << 20,
        description="What the busiest rank has to send while completions are answered: below that the verdict is "
        "`unknown`. With unit.",
        json_schema_extra={"unit": "k, m, g or t"},
    )
    plane_share: Annotated[scalars.Whole, Field(ge=0, le=50)] = Field(
        20, description="What each plane carries at least of a rank's bytes.", json_schema_extra={"unit": "%"}
    )
    edge_share: Annotated[scalars.Whole, Field(ge=0, le=100)] = Field(
        25,
        description="What each cable (on a switch: each rank's link) carries at least in each plane, of their mean.",
        json_schema_extra={"unit": "%"},
    )
    arrival: Annotated[scalars.Whole, Field(ge=0, le=100)] = Field(
        90,
        description="What arrives at least at the planned far ends, of the bytes that are sent.",
        json_schema_extra={"unit": "%"},
    )
    requests: Annotated[scalars.Whole, Field(ge=1, le=1000)] = Field(
        64, description="How many completions are asked for at most, until `minimum` is reached."
    )
    timeout: Annotated[scalars.Whole, Field(ge=10, le=600)] = Field(
        300, description="How long the completions of one round may take.", json_schema_extra={"unit": "s"}
    )
