"""What single variables take, by their names and by the keys of `engine.serving`."""

from typing import Any

import pytest

from fleet import launcher, profiles
from fleet.loading import SettingsError, load
from fleet.planner import make
from fleet.stack import StackName
from fleet.typed import KEYS, TYPES
from tests.unit.stacks import NO_PROFILE, changed, ring

STACK = StackName("spark-fabric", "test")
NOT_OF_THE_LAUNCHER = {"B12X_ROCE_GID_INDEX"}


def values(config: dict[str, Any], rank: int) -> dict[str, str]:
    return {name: flag.value for name, flag in make(load(config), None, STACK).containers[rank].env.items()}


def refused(config: dict[str, Any]) -> list[tuple[str, str]]:
    with pytest.raises(SettingsError) as raised:
        load(config)
    return [(one.code, one.path.removeprefix("spark-fabric:")) for one in raised.value.problems]


def test_types_are_of_variables_that_the_launcher_has() -> None:
    assert {name for name in TYPES if launcher.setting(name) is None} == NOT_OF_THE_LAUNCHER


def test_what_profiles_tell_is_of_its_type() -> None:
    for layer in profiles.LAYERS:
        for name, value in layer.values.items():
            assert value.startswith("$") or name not in TYPES or TYPES[name].fits(value), name


def test_the_launchers_own_defaults_are_of_their_type() -> None:
    for one in launcher.SETTINGS.values():
        assert (
            one.name not in TYPES or one.default.startswith("$") or not one.default or TYPES[one.name].fits(one.default)
        )


KEYED: list[tuple[str, Any, str, str]] = [
    ("contextLength", 131072, "CONTEXT_LENGTH", "131072"),
    ("contextLength", "131072", "CONTEXT_LENGTH", "131072"),
    ("maxRunningRequests", 8.0, "MAX_RUNNING_REQUESTS", "8"),
    ("memFractionStatic", 0.75, "MEM_FRACTION_STATIC", "0.75"),
    ("memFractionStatic", "0.80", "MEM_FRACTION_STATIC", "0.80"),
    ("memFractionStatic", 1, "MEM_FRACTION_STATIC", "1"),
    ("speculative", False, "SPEC_ALGO", "off"),
    ("speculative", "off", "SPEC_ALGO", "off"),
    ("speculative", "on", "SPEC_ALGO", "DSPARK"),
    ("loopAbort", False, "DSV41_LOOP_ABORT", "0"),
    ("reasoningEffort", "max", "SGLANG_DSV41_REASONING_EFFORT", "max"),
    ("reasoningEffort", 60, "SGLANG_DSV41_REASONING_EFFORT", "60"),
    ("extraArgs", "--sleep-on-idle --log-level info", "EXTRA_SGLANG_ARGS", "--sleep-on-idle --log-level info"),
]


@pytest.mark.parametrize(("key", "value", "name", "told"), KEYED, ids=str)
def test_a_key_is_told_to_every_rank_as_the_engine_takes_it(key: str, value: object, name: str, told: str) -> None:
    for profile in ("auto", "none", "base"):
        config = changed(ring(), {"engine.profile": profile, f"engine.serving.{key}": value})
        assert [values(config, rank)[name] for rank in range(4)] == [told] * 4


def test_rank_0_may_have_its_own_share_of_memory() -> None:
    config = changed(ring(), {"engine.profile": "base", "engine.serving.headMemFractionStatic": 0.7})
    assert [values(config, rank)["MEM_FRACTION_STATIC"] for rank in range(4)] == ["0.7", "0.80", "0.80", "0.80"]
    both = changed(config, {"engine.serving.memFractionStatic": 0.75})
    assert [values(both, rank)["MEM_FRACTION_STATIC"] for rank in range(2)] == ["0.7", "0.75"]


def test_graphs_are_captured_for_all_requests_that_run_unless_it_is_said() -> None:
    few = changed(ring(), {"engine.profile": "base", "engine.serving.maxRunningRequests": 4})
    assert values(few, 1)["CUDA_GRAPH_MAX_BS_DECODE"] == "4"
    own = changed(few, {"engine.serving.cudaGraphMaxBsDecode": 2})
    assert values(own, 1)["CUDA_GRAPH_MAX_BS_DECODE"] == "2"
    by_name = changed(ring(), {"engine.profile": "base", "engine.env.MAX_RUNNING_REQUESTS": 8})
    assert values(by_name, 1)["CUDA_GRAPH_MAX_BS_DECODE"] == "8"


def test_a_key_says_that_it_is_from_the_settings() -> None:
    config = changed(ring(), {"engine.profile": "base", "engine.serving.contextLength": 65536})
    env = make(load(config), None, STACK).containers[0].env
    assert env["CONTEXT_LENGTH"].origin == "setting engine.serving.contextLength"
    assert env["MAX_TOTAL_TOKENS"].origin == "profile capacity"


WRONG: list[tuple[str, Any]] = [
    ("contextLength", 4095),
    ("contextLength", 1048577),
    ("contextLength", True),
    ("contextLength", "long"),
    ("contextLength", 8192.5),
    ("maxRunningRequests", 0),
    ("memFractionStatic", 0),
    ("memFractionStatic", 1.1),
    ("memFractionStatic", "80%"),
    ("speculative", "DSPARK2"),
    ("speculative", 1),
    ("reasoningEffort", "most"),
    ("reasoningEffort", 0),
    ("reasoningEffort", 101),
    ("extraArgs", ["--a"]),
    ("extraArgs", "--a\n--b"),
]


@pytest.mark.parametrize(("key", "value"), WRONG, ids=str)
def test_a_key_that_cannot_be_is_refused(key: str, value: object) -> None:
    assert refused(changed(ring(), {f"engine.serving.{key}": value})) == [("not-a-value", f"engine.serving.{key}")]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DSV41_WO_A_W8", "yes"),
        ("DSV41_INDEXER_CHUNKED", 2),
        ("CONTEXT_LENGTH", 2048),
        ("MEM_FRACTION_STATIC", 80),
        ("DSV41_DRAFT_TAU", 0),
        ("OFFLOAD_MODE", "disk"),
        ("SGLANG_DSPARK_FOLDED_SAMPLING", 3),
        ("SPEC_ALGO", "EAGLE"),
        ("DSV41_CACHE_GIB", "4g"),
        ("NCCL_CROSS_NIC", 3),
    ],
)
def test_a_variable_that_cannot_be_is_refused_by_its_name(name: str, value: object) -> None:
    assert refused(changed(ring(), {f"engine.env.{name}": value})) == [("env-type", f"engine.env.{name}")]
    assert values(changed(ring(), {**NO_PROFILE, f"engine.env.{name}": value}), 1)[name] == str(value)


def test_what_a_fabric_refuses_is_told_once() -> None:
    assert refused(changed(ring(), {"engine.env.NCCL_IB_DISABLE": "x"})) == [
        ("env-forbidden", "engine.env.NCCL_IB_DISABLE")
    ]


@pytest.mark.parametrize("value", ["off", "none", "0", "DSPARK"])
def test_every_word_for_no_speculation_is_taken_by_its_name(value: str) -> None:
    assert values(changed(ring(), {"engine.env.SPEC_ALGO": value}), 0)["SPEC_ALGO"] == value


def test_a_misplaced_key_is_pointed_to_its_place() -> None:
    with pytest.raises(SettingsError, match=r"Did you mean engine\.serving\.contextLength\?"):
        load(changed(ring(), {"engine.contextLength": 8192}))


def test_a_variable_is_set_by_its_key_or_by_its_name() -> None:
    twice = {"engine.serving.contextLength": 8192, "engine.env.CONTEXT_LENGTH": 8192}
    assert refused(changed(ring(), twice)) == [("variable-twice", "engine.env.CONTEXT_LENGTH")]
    head = {"engine.serving.headMemFractionStatic": 0.7, "engine.headEnv.MEM_FRACTION_STATIC": 0.7}
    assert refused(changed(ring(), head)) == [("variable-twice", "engine.headEnv.MEM_FRACTION_STATIC")]
    load(changed(ring(), {"engine.serving.memFractionStatic": 0.8, "engine.headEnv.MEM_FRACTION_STATIC": 0.7}))


def test_every_key_has_a_variable_of_its_own_but_that_of_rank_0() -> None:
    names = [key.name for key in KEYS.values() if not key.head_only]
    assert len(names) == len(set(names))
    assert {key.name for key in KEYS.values() if key.head_only} <= set(names)
