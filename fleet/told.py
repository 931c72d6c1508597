"""What ranks are told as far as the settings alone decide it, each value with where it comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from fleet.profiles import WHOLE
from fleet.variables import expert_share

if TYPE_CHECKING:
    from fleet.settings import Settings

REFERENCE = "$"

LOUD = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET"}
"""What has NCCL tell which devices it uses: its lines about routing are of the subsystem NET."""

LEAST_EP = 2
"""Where the search for an expert-parallel size begins without a profile that says so."""


class Source(StrEnum):
    """Where a value comes from; an override wins over all others, and only a profile's or a default can have one."""

    DEFAULT = "default"
    SETTING = "setting"
    TOPOLOGY = "topology"
    PROFILE = "profile"
    FOUND = "found"  # on the node
    EXPECTED = "expected"  # there when the fabric is; checked before the engine starts
    OVERRIDE = "override"


@dataclass(frozen=True)
class Flag:
    """A variable of the container. `detail` names the setting or the layer of the profile."""

    value: str
    source: Source
    detail: str = ""

    @property
    def origin(self) -> str:
        """Where it comes from, in words."""
        return f"{self.source} {self.detail}".rstrip()


def told(settings: Settings, *, head: bool) -> dict[str, Flag]:
    """The profile's values, with what the operator sets over them; values may be references to other variables."""
    engine = settings.engine
    flags = {
        name: Flag(value, Source.PROFILE, layer) for name, (value, layer) in settings.ground.profile_values().items()
    }
    if settings.proof.logs:
        flags |= {name: Flag(value, Source.SETTING, "proof.logs") for name, value in LOUD.items()}
    for name, value, key in engine.serving.told(head=head):
        flags[name] = Flag(value, Source.SETTING, f"engine.serving.{key}")
    for where, env in (("engine.env", engine.env), ("engine.headEnv", engine.head_env if head else {})):
        flags |= {name: Flag(value, Source.OVERRIDE, where) for name, value in env.items()}
    return flags


def ep_size(settings: Settings) -> int:
    """Expert-parallel size: as set, else the smallest that kernels can take; from 2 on, where the profile says no
    other."""
    if settings.engine.ep_size:
        return settings.engine.ep_size
    size, whole = len(settings.ranks), WHOLE.get(settings.engine.profile)
    env = {name: flag.value for name, flag in told(settings, head=False).items()}
    least = whole.least_ep if whole else LEAST_EP
    fitting = (ep for ep in range(least, size + 1) if size % ep == 0 and expert_share(size, ep, env) is None)
    return next(fitting, 1)


def known(settings: Settings, *, head: bool = False) -> Mapping[str, str]:
    """Variable -> value of rank 0 or of the others, as far as the settings decide it."""
    flags = told(settings, head=head)
    for name in settings.engine.without:
        flags.pop(name, None)
    flags["TP_SIZE"] = Flag(str(len(settings.ranks)), Source.TOPOLOGY)
    flags["EP_SIZE"] = Flag(str(ep_size(settings)), Source.DEFAULT)
    return {name: flag.value for name, flag in resolved(flags, {}).items()}


def resolved(flags: Mapping[str, Flag], names: Mapping[str, Flag]) -> dict[str, Flag]:
    """The flags with what their references lead to, among them or in `names`. Without that, a flag is left out."""

    def lookup() -> Iterator[tuple[str, Flag]]:
        for name, flag in flags.items():
            if flag.source is not Source.PROFILE or not flag.value.startswith(REFERENCE):
                yield name, flag
                continue
            to = flag.value.removeprefix(REFERENCE)
            if to in names:
                yield name, names[to]
            elif to in flags:
                yield name, Flag(flags[to].value, Source.PROFILE, flag.detail)

    return dict(lookup())
