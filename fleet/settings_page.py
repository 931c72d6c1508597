"""docs/settings.md: every setting of the launcher with our key, what is told without it, and who gets it.

`python -m fleet.settings_page > docs/settings.md` renews it. What is told is taken from plans, so the page says what a
stack does.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fleet import launcher
from fleet.flags import Flag, Source
from fleet.launcher import TO, Setting, Way
from fleet.loading import load
from fleet.planner import make
from fleet.problems import NAMESPACE
from fleet.profiles import BUILDS, CAPABILITIES, NEEDS, SOURCES, WHOLE, Profile
from fleet.stack import StackName
from fleet.typed import KEYS

INTRODUCTION = """\
<!-- Generated: python -m fleet.settings_page > docs/settings.md -->

# Settings of the launcher

People who come from the launcher (`start-tp4.sh` with its `.env.tp4`) find here what each of its settings is called,
what is told without it, and which ranks get it. What becomes of a file of theirs: [moving in](migrating.md). All keys
of a stack file: [configuration](config.md).

## Profiles

`engine.profile` says what containers are told; which of it goes to a ring, to a ring with mesh or to a switch follows
from `fabric.topology` and `mesh.enabled`. Single values are replaced with `engine.serving` and `engine.env`, and taken
away with `engine.without`. Beside the launcher's there are `auto`, which tells only what NCCL needs on the fabric and
leaves the rest to the image, and `none`, which tells nothing but what follows from nodes and fabric.
"""

CAPABILITY = """\
Each is for an image of the launcher, by the recipe that builds it. A variable that needs what the image does not have
is refused; `engine.image.roceRing` says that yours has RoCEnante all the same. With `auto` the image is yours: what a
variable needs is looked for in it, in a container without network that is gone afterwards.
"""

RULES = """\
## What does not go together

Refused before any node is asked, whoever says it:

- A prefill split without `DSV41_INDEXER_CHUNKED=1`, with a threshold below 32768 tokens of context or 1024 rows. The
  plan refuses it, and RoCEnante as well, with other than 4 or 8 ranks.
- Prefill chunks above 2048 without `DSV41_INDEXER_CHUNKED=1`.
- An `EP_SIZE` that leaves a rank a share of an expert (2304 columns × EP / TP) that is no multiple of 128, or of 64
  with `DSV41_MOE_B12X_NEXT=1`: so 1 on four ranks only with that.
- More than two devices in `B12X_ROCE_HCA`, but with a mesh.
- `SGLANG_RUST_BUILD_MODE` other than `never` on an image of the branch: its look for a Rust toolchain can hang.
- `OFFLOAD_MODE=ram` without `ALLOW_RAM_OFFLOAD=1`; expandable segments of the allocator.
- An `API_KEY` for all ranks, and none for rank 0 unless `engine.allowAnonymous` is on.
- The variables of rings on a switch, and RoCEnante on a ring without mesh:
  [configuration](config.md#variables-of-nccl).

Refused once the nodes have told what memory they have: weights (about 77 GiB a rank on four, and 2.5 GiB of draft) that
do not fit into `memFractionStatic` of it.

Warned of:

- `SGLANG_DSPARK_FOLDED_SAMPLING` other than 2 on an image of the branch.
- A KV pool that does not fit (1670.75 bytes a token on each rank), one smaller than the context, and too little memory
  beside what is set aside. Checks of this kind can be ignored or sharpened by their codes: [checks](checks.md).
- Devices in `B12X_ROCE_HCA` that are not the fabric's; without a word it lists those of `NCCL_IB_HCA`.
- A split that never happens, since context or chunks are too small for it.
- Weights that are loaded with `DSV41_SERIAL_WEIGHT_LOAD=0` on a ring, or with 1 beside the fast loader on a switch. On
  a ring it is 1 on every rank, also beside `DSV41_FAST_LOAD=1`: the ring block of the launcher's example has it, and
  the production line on a ring is set up with that block (the launcher's page TP4: optional setups). Switched
  production was measured with the default loader and the fast loader's own pacing (its docs/tp4.md).
"""

EVERY = """\
## Every setting

The second column is what `start.sh` takes without the setting; what `.env.tp4.example` has instead is what the profile
`base` tells. `–`: no container gets it. The value that most profiles or fabrics have comes first. `<n>` is a number.
"""

FABRICS: Mapping[str, dict[str, Any]] = {
    "switch": {"fabric": {"topology": "switched"}},
    "ring": {"nccl": {"library": {"onNode": "/library"}}},
    "mesh": {
        "nccl": {"library": {"onNode": "/library"}},
        "mesh": {"enabled": True, "marker": {"onNode": "/marker", "sha256": "0" * 64}},
    },
}

PRODUCTION = (Profile.PRODUCTION_V2_2, Profile.PRODUCTION_V2_3)
OTHER_NAMES = {"IB_HCA": "NCCL_IB_HCA", "PORT": "SERVER_PORT"}
"""What containers call a setting, where the launcher's file has another name."""

OWN = "the rank's own"
FOLLOWS = (Source.TOPOLOGY, Source.FOUND, Source.EXPECTED)

Ranks = Sequence[Mapping[str, Flag]]
Told = Mapping[tuple[str, Profile], Ranks]


def page() -> str:
    """The whole page, in Markdown."""
    told = dict(_samples())
    head = ("Setting", "Launcher", "Key", "Profiles of the launcher", "`auto`", "Who gets it")
    rows = [_row(one, told) for one in launcher.SETTINGS.values()]
    return "\n".join(
        (
            INTRODUCTION,
            _table(("Profile", "Image", "Fabrics", "`EP_SIZE`", "What it is", "From"), list(_profiles())),
            *(f"- {name.capitalize()}: {what}." for name, what in SOURCES.items()),
            "",
            CAPABILITY,
            _table(("Variable", "Needs", "Images that have it"), list(_needs())),
            RULES,
            EVERY,
            _table(head, rows),
        )
    )


def _samples() -> Iterator[tuple[tuple[str, Profile], Ranks]]:
    """What four ranks are told, by fabric and profile, where the two go together."""
    nodes = [{"name": f"node{number}", "address": f"192.0.2.{number}"} for number in range(1, 5)]
    for fabric, more in FABRICS.items():
        for profile in (Profile.AUTO, *WHOLE):
            if not _together(fabric, profile):
                continue
            image = {"ref": "engine", "roceRing": fabric == "mesh" and profile is Profile.AUTO}
            engine = {"image": image, "profile": profile.value, "allowAnonymous": True}
            settings = load({"nodes": nodes, "ssh": {"user": "nobody"}, "engine": engine, **more})
            plan = make(settings, None, StackName(NAMESPACE, "none"))
            yield (fabric, profile), [container.env for container in plan.containers]


def _together(fabric: str, profile: Profile) -> bool:
    return fabric != "mesh" or profile is Profile.AUTO or "roce-ring" in WHOLE[profile].build.has


def _profiles() -> Iterator[tuple[str, ...]]:
    for one in WHOLE.values():
        fabrics = ", ".join(fabric for fabric in FABRICS if _together(fabric, one.name))
        yield f"`{one.name}`", f"`{one.build.recipe}`", fabrics, f"from {one.least_ep} on", one.what, one.source


def _needs() -> Iterator[tuple[str, ...]]:
    for need in NEEDS:
        recipes = (f"`{build.recipe}`" for build in BUILDS.values() if need.capability in build.has)
        yield f"`{need.name}`", CAPABILITIES[need.capability].what, ", ".join(recipes)


def _row(one: Setting, told: Told) -> tuple[str, ...]:
    whole = {key: ranks for key, ranks in told.items() if key[1] is not Profile.AUTO}
    auto = {key: ranks for key, ranks in told.items() if key[1] is Profile.AUTO}
    default = f"`{one.default.replace('/home/$', '~$')}`" if one.default else ""
    name = OTHER_NAMES.get(one.name, one.name)
    return f"`{one.name}`", default, _key(one), _values(name, whole), _values(name, auto), _who(one, name, told)


def _key(one: Setting) -> str:
    keys = [f"`engine.serving.{key.key}`" for key in KEYS.values() if key.name == one.name and not key.head_only]
    keys = keys or [f"`{key}`" for key in one.to.split(", ") if key]
    by_hand = [TO[one.way]] if one.way in (Way.HAND, Way.FOLLOWS, Way.FIXED, Way.NEEDLESS) else []
    return ", ".join(keys + by_hand if one.way is not Way.KEY else keys) or "`engine.env`"


def _values(name: str, told: Told) -> str:
    """What is told without a word of the operator's: the usual value, then the others with where they are told."""
    values = {key: _of_ranks([ranks.get(name) for ranks in all_ranks]) for key, all_ranks in told.items()}
    if set(values.values()) == {""}:
        return ""
    for part in (1, 0):  # by profile, by fabric, else by both
        groups = {key[part]: {value for of, value in values.items() if of[part] == key[part]} for key in values}
        if all(len(group) == 1 for group in groups.values()):
            return _listed({group: value for group, (value,) in groups.items()})
    by_fabric = {fabric: {of[1]: value for of, value in values.items() if of[0] == fabric} for fabric in FABRICS}
    return " / ".join(f"{fabric} {_listed(by_profile)}" for fabric, by_profile in by_fabric.items())


def _of_ranks(flags: Sequence[Flag | None]) -> str:
    there = [flag for flag in flags if flag]
    if not there:
        return ""
    if any(flag.source in FOLLOWS for flag in there):
        return OWN if len({flag.value for flag in there}) > 1 else "follows"
    values = [f"`{flag.value}`" if flag else "nothing" for flag in flags]
    return values[0] if len(set(values)) == 1 else f"{values[0]}, others {values[1]}"


def _listed(groups: Mapping[Any, str]) -> str:
    """The value that most have, then the others with who has them."""
    counted = Counter(groups.values())
    usual = max(counted, key=lambda value: (counted[value], value != ""))
    others = [value for value in dict.fromkeys(groups.values()) if value != usual]
    texts = [f"{_names([group for group, of in groups.items() if of == value])}: {value or '–'}" for value in others]
    return "; ".join([usual or "–", *texts])


def _names(groups: Sequence[str]) -> str:
    return ", ".join(groups).replace(", ".join(PRODUCTION), "production")


def _who(one: Setting, name: str, told: Told) -> str:
    """The ranks that get it, as far as a rank gets it at all."""
    if one.name == "API_KEY":
        return "rank 0"
    if one.name == "HEAD_MEM_FRACTION_STATIC":
        return "rank 0, as `MEM_FRACTION_STATIC`"
    having = {key: [name in ranks for ranks in all_ranks] for key, all_ranks in told.items()}
    somewhere = {key for key, ranks in having.items() if any(ranks)}
    if not somewhere:
        return "all ranks, where set" if one.way in (Way.ENV, Way.RING, Way.INSIDE) else "–"
    who = "all ranks" if all(having[key] == [True] * 4 for key in somewhere) else "rank 0"
    fabrics = [fabric for fabric in FABRICS if any(key[0] == fabric for key in somewhere)]
    return who if len(fabrics) == len(FABRICS) else f"{who}: {', '.join(fabrics)}"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, tuple("---" for _ in head), *rows))


if __name__ == "__main__":
    print(page(), end="")
