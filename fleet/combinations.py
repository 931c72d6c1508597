"""What the engine's variables have to do with each other and with the image, once it is known what a rank is told.

`mistakes` cannot work; `remarks` work, but hardly as meant. Under a profile that tells only some variables, what is not
told may be in the image: then its absence is no mistake.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from fleet.problems import shown
from fleet.profiles import BUILDS, CAPABILITIES, NEEDS, WHOLE, Profile
from fleet.topology import Kind
from fleet.variables import Ground, Remark

INDEXER, CHUNK, CONTEXT = "DSV41_INDEXER_CHUNKED", "CHUNKED_PREFILL_SIZE", "CONTEXT_LENGTH"
SPLIT = "SPARK_PREFILL_TP_SPLIT"
SPLIT_FLOORS = {"SPARK_PREFILL_TP_MIN_CONTEXT": 32768, "SPARK_PREFILL_TP_MIN_ROWS": 1024}
"""The least thresholds that the prefill split takes: its helper ends the engine at lower ones."""

ONE_SHOT = "SGLANG_ROCE_ALLREDUCE"
DEVICES, MOST_DEVICES = "B12X_ROCE_HCA", 2
MAPS = {"B12X_ROCE_PEER_HCA_MAPS", "B12X_ROCE_PEER_HCA_MAP"}
WORLDS = ("4", "8")
"""Numbers of ranks that RoCEnante's overlay and the prefill split are written for."""

RANKS = "4"
"""Ranks that the profiles of the launcher are for."""

MOST_UNCHUNKED = 2048
"""Tokens of a prefill chunk that the plain indexer is known to take; 4096 is for the chunked one only."""

OFFLOAD, ALLOW_RAM = "OFFLOAD_MODE", "ALLOW_RAM_OFFLOAD"
ALLOCATOR, EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"
FOLDED, SERIAL, FAST = "SGLANG_DSPARK_FOLDED_SAMPLING", "DSV41_SERIAL_WEIGHT_LOAD", "DSV41_FAST_LOAD"
FAST_EP, POOL = "DSV41_FAST_LOAD_EP_SIZE", "MAX_TOTAL_TOKENS"
PATHS = frozenset({"rocenante", "roce-ring"})
"""What an image with `roceRing` has."""


class Image(Protocol):
    """What the operator says that the image has."""

    @property
    def roce_ring(self) -> bool:
        """The path-aware RoCEnante."""


@dataclass(frozen=True)
class Mistake:
    """Something that cannot work; the texts complete those of a problem about the variable."""

    code: str
    name: str
    seen: str
    wanted: str
    hint: str


def capabilities(ground: Ground, image: Image) -> frozenset[str] | None:
    """What the image has, as its profile declares it and the operator says; None where nobody knows."""
    whole = WHOLE.get(ground.profile)
    return None if whole is None else whole.build.has | (PATHS if image.roce_ring else frozenset())


def mistakes(ground: Ground, has: frozenset[str] | None, env: Mapping[str, str]) -> Iterator[Mistake]:
    """What cannot work in a rank that is told `env`, on an image with these capabilities."""
    if has is not None:
        yield from _needs(has | PATHS if ground.mesh else has, env)  # the mesh asks for its own
    if _on(env, SPLIT):
        yield from _split(ground, env)
    listed = env.get(DEVICES, "").split(",")
    if _on(env, ONE_SHOT) and len(listed) > MOST_DEVICES and not MAPS & env.keys():
        seen, wanted = f"lists {len(listed)} devices", f"at most {MOST_DEVICES} without a map of paths"
        yield Mistake("roce-devices", DEVICES, seen, wanted, "RoCEnante takes more with a mesh only.")
    chunk = _number(env, CHUNK)
    if chunk and chunk > MOST_UNCHUNKED and _is_off(ground, env, INDEXER):
        wanted, hint = f"at most {MOST_UNCHUNKED}, or {INDEXER}=1", "The plain indexer scores a chunk all at once."
        yield Mistake("chunk-size", CHUNK, f"is {chunk} without {INDEXER}=1", wanted, hint)
    if env.get(OFFLOAD) == "ram" and _is_off(ground, env, ALLOW_RAM):
        hint = "GPU and CPU share one memory: a table in RAM is taken from the model."
        yield Mistake("offload-ram", OFFLOAD, "is ram", f"nvme, or {ALLOW_RAM}=1 beside it", hint)
    if EXPANDABLE.lower() in env.get(ALLOCATOR, "").lower():
        hint = "Prefills of more than 64 tokens then give NaN."
        yield Mistake(
            "expandable-segments", ALLOCATOR, f"is {shown(env[ALLOCATOR])}", "expandable_segments:False", hint
        )


def for_some_sizes(env: Mapping[str, str]) -> Iterator[str]:
    """Variables that are on and cannot be with this number of ranks. A fleet that has lost a node must still be shown:
    so it is for the plan to ask."""
    return (name for name in (ONE_SHOT, SPLIT) if _on(env, name) and env["TP_SIZE"] not in WORLDS)


def _needs(has: frozenset[str], env: Mapping[str, str]) -> Iterator[Mistake]:
    for need in NEEDS:
        if need.asked(env) and need.capability not in has:
            recipes = " or ".join(build.recipe for build in BUILDS.values() if need.capability in build.has)
            yield Mistake(
                "capability",
                need.name,
                f"is {shown(env[need.name])}, and the profile's image has no {need.capability}",
                f"an image with it: {CAPABILITIES[need.capability].what}",
                f"{recipes} makes one; choose its profile.",
            )


def _split(ground: Ground, env: Mapping[str, str]) -> Iterator[Mistake]:
    if _is_off(ground, env, INDEXER):
        hint = "It is the chunked indexer that calls the split."
        yield Mistake("split-indexer", SPLIT, f"is on without {INDEXER}=1", f"{INDEXER}=1 beside it", hint)
    for name, floor in SPLIT_FLOORS.items():
        value = _number(env, name)
        if value is not None and value < floor:
            hint = "The engine ends with lower ones, and they gave nothing."
            yield Mistake("split-floor", name, f"is {value}", f"at least {floor}", hint)


def remarks(ground: Ground, env: Mapping[str, str]) -> Iterator[Remark]:
    """What to know about a rank that is told `env`."""
    whole = WHOLE.get(ground.profile)
    if whole and whole.build.name != "base" and env.get(FOLDED) != "2":
        hint = "Sampled requests then leave the CUDA graph, and decode about 9 % slower than greedy ones."
        yield Remark("folded-sampling", FOLDED, _is(env, FOLDED), "2 on an image of the branch", hint, warning=True)
    if whole and env["TP_SIZE"] != RANKS:
        seen, wanted = f"is {env['TP_SIZE']}", f"{RANKS}, which the profile's values are for"
        yield Remark("profile-ranks", "TP_SIZE", seen, wanted, "Set those of engine.serving.", warning=True)
    strange = set(env.get(DEVICES, "").split(",")) - {"", *env.get("NCCL_IB_HCA", "").lstrip("=").split(",")}
    if _on(env, ONE_SHOT) and strange and "NCCL_IB_HCA" in env:
        seen, wanted = f"lists {', '.join(sorted(strange))}", f"devices of the fabric: {env['NCCL_IB_HCA']}"
        yield Remark("roce-strange", DEVICES, seen, wanted, "No other has a checked GID.", warning=True)
    yield from _loading(ground, env)
    chunk, context, pool = (_number(env, name) for name in (CHUNK, CONTEXT, POOL))
    if _on(env, SPLIT):
        limits = {"SPARK_PREFILL_TP_MIN_CONTEXT": (context, CONTEXT), "SPARK_PREFILL_TP_MIN_ROWS": (chunk, CHUNK)}
        for name, (reached, of) in limits.items():
            least = _number(env, name) or SPLIT_FLOORS[name]
            if reached is not None and reached < least:
                seen, hint = f"is on with {of} {reached}", "It never splits."
                yield Remark("split-idle", SPLIT, seen, f"{of} of at least {least}", hint, warning=True)
    if pool is not None and context is not None and pool < context:
        seen, wanted = f"is {pool} with {CONTEXT} {context}", f"at least {CONTEXT}"
        yield Remark("pool-small", POOL, seen, wanted, "No request can be that long.", warning=True)
    if whole is None and ground.profile is not Profile.NONE:
        yield from _maybe(env, chunk)


def _loading(ground: Ground, env: Mapping[str, str]) -> Iterator[Remark]:
    """How weights are loaded: one after the other on a ring, also beside the fast loader; else at its own pace.

    Source: the ring block of the launcher's .env.tp4.example v2.2, which the production line on a ring is set up with
    (its page TP4: optional setups), and its docs/tp4.md: the switched line was measured with the default loader and the
    fast loader's own pacing.
    """
    serial = env.get(SERIAL, "0") not in ("", "0")
    if ground.kind is Kind.RING and not serial and ground.profile in WHOLE:
        hint = "Copies that wait keep pages of the checkpoint in the memory that CPU and GPU share."
        yield Remark("serial-off", SERIAL, _is(env, SERIAL), "1 on a ring", hint, warning=True)
    if ground.kind is Kind.SWITCHED and serial and _on(env, FAST):
        hint = "The fast loader has its own pacing; the production line on a switch runs without this."
        yield Remark("serial-fast", SERIAL, f"is 1 with {FAST}=1", "0 on a switch", hint, warning=True)
    ep = env.get(FAST_EP)
    if _on(env, FAST) and ep is not None and ep != env.get("EP_SIZE"):
        hint = "It is what the fast loader takes where the engine does not tell."
        yield Remark(
            "fast-load-ep", FAST_EP, f"is {ep} with EP_SIZE {env.get('EP_SIZE')}", "the same", hint, warning=True
        )


def _maybe(env: Mapping[str, str], chunk: int | None) -> Iterator[Remark]:
    """What would be a mistake if the image does not bring it along."""
    users = [f"{CHUNK} is {chunk}"] if chunk and chunk > MOST_UNCHUNKED else []
    users += [f"{SPLIT} is on"] if _on(env, SPLIT) else []
    if users and INDEXER not in env:
        seen = f"is not told, and {' and '.join(users)}"
        yield Remark("indexer-untold", INDEXER, seen, "1", "Without it in the image this cannot work.", warning=True)


def _is_off(ground: Ground, env: Mapping[str, str], name: str) -> bool:
    """Whether a switch is off for certain."""
    return env.get(name) != "1" if ground.profile in WHOLE else env.get(name, "1") != "1"


def _on(env: Mapping[str, str], name: str) -> bool:
    return env.get(name, "0") not in ("", "0")


def _number(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name, "")
    return int(text) if text.isdecimal() else None


def _is(env: Mapping[str, str], name: str) -> str:
    return f"is {shown(env[name])}" if name in env else "is not told"
