"""The parts of the settings that are about the engine's containers as docker keeps them: log and healthcheck."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from fleet import scalars
from fleet.model import Model as _Model
from fleet.scalars import choice


class Driver(StrEnum):
    """Where docker writes what a container prints: only drivers that it can also read back from."""

    JSON_FILE = "json-file"
    LOCAL = "local"
    JOURNALD = "journald"
    DAEMON = "daemon"


class Log(_Model):
    """What docker keeps of what the containers print."""

    driver: Annotated[Driver, choice(Driver)] = Field(
        Driver.JSON_FILE,
        description="`json-file` and `local`: files of docker, within the limits below. `journald`: the node's "
        "journal, with limits of its own. `daemon`: as the node's docker is set up, which has no limit by itself.",
    )
    max_size: scalars.Size = Field(
        100 << 20,
        description="How large a file gets before the next one is begun, with unit.",
        json_schema_extra={"unit": "k, m, g or t"},
    )
    max_files: Annotated[scalars.Whole, Field(ge=1, le=100)] = Field(5, description="How many files are kept.")

    @property
    def options(self) -> Mapping[str, str]:
        """What docker is told beside the driver's name."""
        if self.driver not in (Driver.JSON_FILE, Driver.LOCAL):
            return {}
        return {"max-file": str(self.max_files), "max-size": f"{self.max_size >> 10}k"}


class Healthcheck(_Model):
    """What docker asks of a running container. It restarts nothing: an unhealthy rank is told as a warning."""

    enabled: scalars.Switch = Field(
        True, description="Off: docker asks nothing, also not what the image says. Can be written `healthcheck: off`."
    )
    command: list[str] = Field([], description="Words of a command in the container. Without it: that of the image.")
    interval: Annotated[scalars.Whole, Field(ge=1, le=3600)] | None = Field(
        None, description="Between two of them. Without it: that of the image.", json_schema_extra={"unit": "s"}
    )
    timeout: Annotated[scalars.Whole, Field(ge=1, le=3600)] | None = Field(
        None, description="How long one may take. Without it: that of the image.", json_schema_extra={"unit": "s"}
    )
    start_period: Annotated[scalars.Whole, Field(ge=1, le=86400)] | None = Field(
        None,
        description="How long a failure means nothing, while the engine loads. Without it: that of the image.",
        json_schema_extra={"unit": "s"},
    )
    retries: Annotated[scalars.Whole, Field(ge=1, le=100)] | None = Field(
        None, description="Failures in a row until it counts as unhealthy. Without it: those of the image."
    )

    @property
    def told(self) -> Mapping[str, Any] | None:
        """What docker is told over what the image says; None where that stands."""
        if not self.enabled:
            return {"tests": ["NONE"]}
        times = {"interval": self.interval, "timeout": self.timeout, "start_period": self.start_period}
        found: dict[str, Any] = {name: f"{seconds}s" for name, seconds in times.items() if seconds is not None}
        if self.command:
            found["tests"] = ["CMD", *self.command]
        if self.retries is not None:
            found["retries"] = self.retries
        return found or None


def _switch(value: object) -> object:
    """`off` for the whole section."""
    return {"enabled": value} if isinstance(value, (bool, str)) else value


AsSwitch = BeforeValidator(_switch)
