"""Checks of the model's size against the memory of the nodes, for profiles that tell everything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fleet.engine_rules import where
from fleet.look import Planned
from fleet.problems import Problem, config_path
from fleet.profiles import WHOLE
from fleet.scalars import Gpus
from fleet.sizing import FRACTION, GIB, Room, room

POOL = "MAX_TOTAL_TOKENS"

Env = Mapping[str, str]


def weights(look: Planned) -> Iterator[Problem]:
    """Nodes that the weights do not fit into."""
    for name, env, found in _rooms(look):
        if found.tokens <= 0:
            seen = f"has {_gib(found.total)} of memory, of which {FRACTION} {env[FRACTION]} is {_gib(found.static)}"
            wanted = f"more than {_gib(found.weights)} for the weights of a rank"
            hint = "Raise engine.serving.memFractionStatic, or have more nodes."
            yield Problem("memory-weights", name, seen, wanted, hint)


def pool(look: Planned) -> Iterator[Problem]:
    """A KV pool that does not fit into the node with least room for it."""
    rooms = [(found, env) for _, env, found in _rooms(look) if found.tokens > 0]
    if not rooms:
        return
    found, env = min(rooms, key=lambda one: one[0].tokens)
    asked = env.get(POOL, "")
    if asked.isdecimal() and int(asked) > found.tokens:
        seen = (
            f"{POOL} is {asked}, and {FRACTION} {env[FRACTION]} of {_gib(found.total)} leaves room for {found.tokens}"
        )
        hint = "The engine makes it smaller without a word, or ends with `no room`."
        yield Problem("memory-pool", config_path(where(look.settings, POOL)), seen, "no more than that", hint)


def rest(look: Planned) -> Iterator[Problem]:
    """Too little memory beside what the engine sets aside, on the node with least to spare."""
    rooms = [(found, env) for _, env, found in _rooms(look)]
    if not rooms:
        return
    found, env = min(rooms, key=lambda one: one[0].rest - one[0].beside)
    if found.rest < found.beside:
        seen = f"{FRACTION} is {env[FRACTION]}, which leaves {_gib(found.rest)} of {_gib(found.total)}"
        wanted = f"{_gib(found.beside)} for cache, NCCL and prefill"
        hint = "A Spark hangs when it runs out of memory."
        yield Problem("memory-rest", config_path(where(look.settings, FRACTION)), seen, wanted, hint)


def _rooms(look: Planned) -> Iterator[tuple[str, Env, Room]]:
    """Every rank's node with what the rank is told; none where nobody knows what the engine puts into memory."""
    engine = look.settings.engine
    if engine.profile not in WHOLE or engine.gpus is Gpus.OFF:  # simulated engines put nothing
        return
    for node, observed in look.ranks:
        assert node.container  # of a rank
        env = {name: flag.value for name, flag in node.container.env.items()}
        found = room(env, len(look.settings.ranks), (observed.get("memory") or {}).get("total"))
        if found:
            yield node.name, env, found


def _gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB"
