"""What the operator's own container variables may say: rules of the profiles, and relations between variables.

`objections` are mistakes, found before any node is asked. `remarks` are about what works, but hardly as meant.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fleet import profiles
from fleet.problems import shown
from fleet.profiles import Profile, Rule
from fleet.scalars import LibraryMode
from fleet.topology import Kind

RING_ONLY = "NCCL_SWITCHLESS_RING_ONLY"
EXTENDED = "NCCL_IB_EXTENDED_IPV4_GIDS"
LEAST, MOST = "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"
COUNT = re.compile(r"[1-9][0-9]{0,2}")
OF_ONE_RANK = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE")
"""Variables of NCCL that may differ between ranks; all others have to be equal."""

STOCK_CAP = 2
"""GIDs that a listener of NCCL publishes without NCCL_IB_EXTENDED_IPV4_GIDS: devices after these carry nothing."""

ENOUGH_CHANNELS = 4
"""More channels gave nothing on a ring of four (sparkring #193), and cost 0.14 GiB of pinned memory."""

EXPERT_WIDTH = 2304
"""Of DeepSeek-V4.1-Flash. A rank's share, width × EP / TP, has to be a multiple of what its kernels take."""

KERNEL_UNITS = {"0": 128, "1": 64}
"""By DSV41_MOE_B12X_NEXT: FlashInfer's MXFP4, and b12x."""


@dataclass(frozen=True)
class Ground:
    """What the variables stand on: the fabric, whether a profile says what it needs, whence the library comes, and
    whether there is a mesh."""

    kind: Kind
    planes: int
    profile: Profile
    library: LibraryMode
    mesh: bool = False

    def profile_values(self) -> Mapping[str, tuple[str, str]]:
        """Variable -> value and layer of the profile."""
        if self.profile is Profile.NONE:
            return {}
        return profiles.values(self.kind, self.planes, mesh=self.mesh, profile=self.profile)

    def rules(self) -> Iterator[Rule]:
        """What the operator's own variables may say."""
        return profiles.rules_for(self.kind, self.planes, self.library, mesh=self.mesh, profile=self.profile)

    def applies(self, rule: Rule, env: Mapping[str, str]) -> bool:
        """Whether a rule counts with these variables: those of rings do where NCCL is to keep to the ring."""
        return rule.place.on != Kind.RING or self.ring_mode(env)

    def ring_mode(self, env: Mapping[str, str]) -> bool:
        """Whether NCCL will keep to the ring: by profile, or by the operator's own variables."""
        return self.kind is Kind.RING and (self.profile is not Profile.NONE or env.get(RING_ONLY, "0") not in ("", "0"))


@dataclass(frozen=True)
class Objection:
    """What is wrong about one variable; the texts complete those of a problem."""

    code: str
    name: str
    seen: str
    wanted: str
    hint: str


def objections(ground: Ground, env: Mapping[str, str]) -> Iterator[Objection]:
    """What is wrong about variables that are set for all ranks."""
    yield from _empty(env)
    yield from _forbidden(ground, env, head=False)
    yield from _channels(ground, env)


def objections_of_head(ground: Ground, env: Mapping[str, str], head: Mapping[str, str]) -> Iterator[Objection]:
    """What is wrong about variables that are set for rank 0 only, where `env` is set for all."""
    shared = [name for name in head if name.startswith("NCCL_") and name not in OF_ONE_RANK]
    for name in shared:
        yield Objection(
            "env-of-one-rank",
            name,
            "is set for rank 0 only",
            "the same on all ranks",
            "NCCL's ranks have to agree: set it in engine.env.",
        )
    own = {name: value for name, value in head.items() if name not in shared}
    yield from _empty(own)
    yield from (one for one in _forbidden(ground, {**env, **own}, head=True) if one.name in own)


def _empty(env: Mapping[str, str]) -> Iterator[Objection]:
    for name, value in env.items():
        if name.startswith("NCCL_") and not value:
            yield Objection(
                "env-empty", name, "is empty, which NCCL reads as 0", "a value", "Remove the line to leave it out."
            )


def _forbidden(ground: Ground, env: Mapping[str, str], *, head: bool) -> Iterator[Objection]:
    for rule in ground.rules():
        value = env.get(rule.name)
        if not value or value in rule.only or not ground.applies(rule, env) or (rule.shared and head):
            continue
        where = "" if rule.place.on == profiles.ANY else f" on a {ground.kind} fabric"
        where += f" with nccl.mode {rule.place.nccl}" if rule.place.nccl else ""
        if rule.place.mesh is not None:
            where += f" {'with' if rule.place.mesh else 'without'} mesh"
        where += " for all ranks" if rule.shared else ""
        wanted = f"{' or '.join(rule.only) or 'no such variable'}{where}"
        yield Objection("env-forbidden", rule.name, f"is {shown(value)}", wanted, rule.why)


def _channels(ground: Ground, env: Mapping[str, str]) -> Iterator[Objection]:
    given = [name for name in (LEAST, MOST) if env.get(name)]
    wrong = [name for name in given if not COUNT.fullmatch(env[name])]
    for name in wrong:
        yield Objection("env-channels", name, f"is {shown(env[name])}", "a number from 1 to 999", "")
    resolved = {**{name: value for name, (value, _) in ground.profile_values().items()}, **env}
    least, most = resolved.get(LEAST), resolved.get(MOST)
    if given and not wrong and least and most and int(least) > int(most):
        name = given[0]
        yield Objection(
            "env-channels",
            name,
            f"is {env[name]}, so that {LEAST} is {least} and {MOST} is {most}",
            "the least not above the most",
            "Set both.",
        )


def expert_share(size: int, ep_size: int, env: Mapping[str, str]) -> tuple[int, int] | None:
    """A rank's share of an expert and the unit that it has to be a multiple of; None where it is one."""
    share, unit = EXPERT_WIDTH * ep_size // size, KERNEL_UNITS.get(env.get("DSV41_MOE_B12X_NEXT", "0"), 128)
    return (share, unit) if share % unit or EXPERT_WIDTH * ep_size % size else None


@dataclass(frozen=True)
class Remark:
    """Something to know about the resolved variables."""

    code: str
    name: str
    seen: str
    wanted: str
    hint: str
    warning: bool  # else a note


def remarks(ground: Ground, env: Mapping[str, str], hcas: int) -> Iterator[Remark]:
    """What to know about the resolved variables of a rank that lists so many RDMA devices."""
    most = int(env[MOST]) if COUNT.fullmatch(env.get(MOST, "")) else None
    if most is not None and most < hcas:
        yield Remark(
            "channels-few",
            MOST,
            f"is {most} with {hcas} RDMA devices",
            "one for each",
            "A device without a channel carries nothing.",
            warning=True,
        )
    if most is not None and most > ENOUGH_CHANNELS and ground.kind is Kind.RING:
        yield Remark(
            "channels-many",
            MOST,
            f"is {most}",
            f"{ENOUGH_CHANNELS} on a ring",
            "More have cost pinned memory and gave nothing.",
            warning=False,
        )
    if ground.kind is Kind.RING and not ground.ring_mode(env):
        yield Remark(
            "ring-trees",
            RING_ONLY,
            "is not set, and engine.profile is none",
            "1 on a ring",
            "NCCL connects trees too, and opposite ranks of a ring share no cable. Does the image set it?",
            warning=True,
        )
    if hcas > STOCK_CAP and ground.ring_mode(env) and env.get(EXTENDED, "0") != "1":
        yield Remark(
            "listener-cap",
            EXTENDED,
            f"is not 1 with {hcas} RDMA devices",
            f"it, or {STOCK_CAP} devices",
            f"NCCL publishes {STOCK_CAP} of them, the others carry nothing.",
            warning=True,
        )
