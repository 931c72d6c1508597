"""What does not go together among the engine's variables: refused, or warned of."""

from typing import Any

import pytest

from fleet.container import ContainerPlan
from fleet.loading import SettingsError, load
from fleet.plan import Plan, PlanError
from fleet.planner import make
from fleet.stack import StackName
from tests.unit.stacks import NO_PROFILE, changed, mesh, ring, switched

STACK = StackName("spark-fabric", "test")
BASE, CANARY, ROCE = ({"engine.profile": name} for name in ("base", "canary", "canary-roce"))
PRODUCTION = {"engine.profile": "production-v2.2"}


def planned(config: dict[str, Any]) -> Plan:
    return make(load(config), None, STACK)


def refused(config: dict[str, Any]) -> list[tuple[str, str]]:
    with pytest.raises(SettingsError) as raised:
        load(config)
    return [(one.code, one.path.removeprefix("spark-fabric:engine.")) for one in raised.value.problems]


def warned(config: dict[str, Any]) -> list[tuple[str, str]]:
    plan = planned(config)
    return [(one.code, one.path.removeprefix("spark-fabric:engine.")) for one in plan.warnings]


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({**BASE, "engine.env.SGLANG_ROCE_ALLREDUCE": 1}, "capability", "env.SGLANG_ROCE_ALLREDUCE"),
    ({**CANARY, "engine.env.SGLANG_ROCE_ALLREDUCE": 1}, "capability", "env.SGLANG_ROCE_ALLREDUCE"),
    ({**CANARY, "engine.env.DSV41_ROCE_GATHER": 2097152}, "capability", "env.DSV41_ROCE_GATHER"),
    ({**BASE, "engine.env.SPARK_PREFILL_TP_SPLIT": 1}, "capability", "env.SPARK_PREFILL_TP_SPLIT"),
    ({**CANARY, "engine.env.DSV41_MOE_B12X_NEXT": 1}, "capability", "env.DSV41_MOE_B12X_NEXT"),
    ({**BASE, "engine.headEnv.DSV41_MOE_B12X_NEXT": 1}, "capability", "headEnv.DSV41_MOE_B12X_NEXT"),
    ({**PRODUCTION, "engine.env.DSV41_INDEXER_CHUNKED": 0, "engine.serving.chunkedPrefillSize": 2048},
     "split-indexer", "profile"),
    ({**CANARY, "engine.env.SPARK_PREFILL_TP_SPLIT": 1, "engine.without": ["DSV41_INDEXER_CHUNKED"],
      "engine.serving.chunkedPrefillSize": 2048}, "split-indexer", "env.SPARK_PREFILL_TP_SPLIT"),
    ({**PRODUCTION, "engine.env.SPARK_PREFILL_TP_MIN_CONTEXT": 16384},
     "split-floor", "env.SPARK_PREFILL_TP_MIN_CONTEXT"),
    ({**PRODUCTION, "engine.env.SPARK_PREFILL_TP_MIN_ROWS": 1023}, "split-floor", "env.SPARK_PREFILL_TP_MIN_ROWS"),
    ({"engine.env": {"SPARK_PREFILL_TP_SPLIT": 1, "SPARK_PREFILL_TP_MIN_ROWS": 512}},
     "split-floor", "env.SPARK_PREFILL_TP_MIN_ROWS"),
    ({**BASE, "engine.env.DSV41_INDEXER_CHUNKED": 0}, "chunk-size", "profile"),
    ({**BASE, "engine.env.DSV41_INDEXER_CHUNKED": 0, "engine.serving.chunkedPrefillSize": 8192},
     "chunk-size", "serving.chunkedPrefillSize"),
    ({"engine.env": {"DSV41_INDEXER_CHUNKED": 0, "CHUNKED_PREFILL_SIZE": 4096}},
     "chunk-size", "env.CHUNKED_PREFILL_SIZE"),
    ({**ROCE, "engine.env.B12X_ROCE_HCA": "rocep1s0f0,rocep1s0f1,roceP2p1s0f0"}, "roce-devices", "env.B12X_ROCE_HCA"),
    ({**BASE, "engine.env.OFFLOAD_MODE": "ram"}, "offload-ram", "env.OFFLOAD_MODE"),
    ({"engine.env.PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64,expandable_segments:true"},
     "expandable-segments", "env.PYTORCH_CUDA_ALLOC_CONF"),
    ({**CANARY, "engine.env.SGLANG_RUST_BUILD_MODE": "auto"}, "env-forbidden", "env.SGLANG_RUST_BUILD_MODE"),
    ({**ROCE, "engine.without": ["SGLANG_RUST_BUILD_MODE"]}, "without-needed", "without[0]"),
    ({"engine.env.API_KEY": "x"}, "env-forbidden", "env.API_KEY"),
    ({**PRODUCTION, "engine.env.API_KEY": "x"}, "env-forbidden", "env.API_KEY"),
    ({**BASE, "engine.epSize": 1}, "ep-share", "epSize"),
    ({**PRODUCTION, "engine.env.DSV41_MOE_B12X_NEXT": 0, "engine.epSize": 1}, "ep-share", "epSize"),
    ({**PRODUCTION, "engine.without": ["DSV41_MOE_B12X_NEXT"], "engine.epSize": 1}, "ep-share", "epSize"),
    ({"engine.without": ["DSV41_FAST_LOAD"]}, "without-unknown", "without[0]"),
    ({**PRODUCTION, "engine.without": ["DSV41_FAST_LOAD"], "engine.env.DSV41_FAST_LOAD": 1},
     "without-set", "without[0]"),
    ({**PRODUCTION, "engine.without": ["CONTEXT_LENGTH"], "engine.serving.contextLength": 8192},
     "without-set", "without[0]"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "code", "path"), REFUSED, ids=[str(case[0]) for case in REFUSED])
def test_what_cannot_work_is_one_mistake(change: dict[str, Any], code: str, path: str) -> None:
    assert refused(changed(switched(), change)) == [(code, path)]


@pytest.mark.parametrize("key", [None, "", "none", "OFF", "dummy", "0"])
@pytest.mark.parametrize("profile", ["auto", "production-v2.3"])
def test_an_api_for_everybody_has_to_be_said(key: str | None, profile: str) -> None:
    env = {} if key is None else {"API_KEY": key}
    config = changed(switched(), {"engine.profile": profile, "engine.headEnv": env, "engine.allowAnonymous": "off"})
    with pytest.raises(SettingsError) as raised:
        load(config)
    (problem,) = raised.value.problems
    assert (problem.code, problem.path) == ("api-key", "spark-fabric:engine.headEnv.API_KEY")
    assert "config set --secret --path 'spark-fabric:engine.headEnv.API_KEY'" in problem.hint
    load(changed(config, {"engine.allowAnonymous": "on"}))
    load(changed(config, {"engine.allowAnonymous": "off", "engine.headEnv.API_KEY": "hunter2"}))


def test_how_an_engine_that_is_told_nothing_guards_its_api_is_its_own_affair() -> None:
    load(changed(switched(), {**NO_PROFILE, "engine.allowAnonymous": "off"}))


def test_a_ring_keeps_what_it_needs() -> None:
    for name in ("NCCL_SWITCHLESS_RING_ONLY", "NCCL_ALGO", "NCCL_IB_EXTENDED_IPV4_GIDS", "SGLANG_ROCE_ALLREDUCE"):
        assert refused(changed(ring(), {"engine.without": [name]})) == [("without-needed", "without[0]")]
    assert refused(changed(mesh(), {"engine.without": ["DSV41_ROCE_RING"]})) == [("without-needed", "without[0]")]


@pytest.mark.parametrize("profile", ["canary-roce", "production-v2.2", "production-v2.3"])
def test_a_ring_without_mesh_takes_no_rocenante_whatever_the_profile(profile: str) -> None:
    config = changed(ring(), {"engine.profile": profile, "engine.env.SGLANG_ROCE_ALLREDUCE": 1})
    assert refused(config) == [("env-forbidden", "env.SGLANG_ROCE_ALLREDUCE")]


@pytest.mark.parametrize("profile", ["base", "canary", "canary-roce", "production-v2.2", "production-v2.3"])
def test_a_switch_is_told_nothing_of_rings(profile: str) -> None:
    env = planned(changed(switched(), {"engine.profile": profile})).containers[0].env
    rings = {"NCCL_ALGO", "NCCL_MIN_NCHANNELS", "NCCL_P2P_LEVEL", "NCCL_SKIP_TREE_CONNECT", "DSV41_ROCE_RING",
             "NCCL_SWITCHLESS_RING_ONLY", "NCCL_IB_EXTENDED_IPV4_GIDS", "B12X_ROCE_PEER_HCA_MAPS"}  # fmt: skip
    assert not rings & env.keys()
    assert env["DSV41_SERIAL_WEIGHT_LOAD"].value == "0"
    assert refused(changed(switched(), {"engine.profile": profile, "engine.env.NCCL_SWITCHLESS_RING_ONLY": 1})) == [
        ("env-forbidden", "env.NCCL_SWITCHLESS_RING_ONLY")
    ]


@pytest.mark.parametrize("profile", ["base", "canary"])
def test_the_mesh_is_one_mistake_with_an_image_that_cannot(profile: str) -> None:
    config = changed(mesh(), {"engine.image": "engine:1", "engine.profile": profile})
    assert refused(config) == [("mesh-image", "image.roceRing")]
    own = changed(config, {"engine.image": {"ref": "engine:1", "roceRing": True}})
    assert planned(own).containers[0].env["DSV41_ROCE_RING"].value == "1"


def test_nothing_is_asked_of_an_engine_that_is_told_nothing() -> None:
    env = {"SPARK_PREFILL_TP_SPLIT": 1, "SPARK_PREFILL_TP_MIN_ROWS": 1, "OFFLOAD_MODE": "ram", "API_KEY": "x"}
    load(changed(switched(), {**NO_PROFILE, "engine.env": env}))


def test_an_own_image_may_bring_what_it_is_not_told() -> None:
    """Of an image that nobody knows, only what is told can be wrong."""
    env = {"SPARK_PREFILL_TP_SPLIT": 1, "CHUNKED_PREFILL_SIZE": 4096}
    assert warned(changed(switched(), {"engine.env": env})) == [("indexer-untold", "profile")]
    assert warned(changed(switched(), {"engine.env": {**env, "DSV41_INDEXER_CHUNKED": 1}})) == []
    assert warned(changed(switched(), {"engine.env": {"OFFLOAD_MODE": "ram"}})) == []


WARNED: list[tuple[dict[str, Any], str, str]] = [
    ({**CANARY, "engine.without": ["SGLANG_DSPARK_FOLDED_SAMPLING"]}, "folded-sampling", "profile"),
    ({**ROCE, "engine.env.SGLANG_DSPARK_FOLDED_SAMPLING": 1}, "folded-sampling", "env.SGLANG_DSPARK_FOLDED_SAMPLING"),
    ({**PRODUCTION, "engine.env.DSV41_SERIAL_WEIGHT_LOAD": 1}, "serial-fast", "env.DSV41_SERIAL_WEIGHT_LOAD"),
    ({**PRODUCTION, "engine.env.DSV41_FAST_LOAD_EP_SIZE": 2}, "fast-load-ep", "env.DSV41_FAST_LOAD_EP_SIZE"),
    ({**PRODUCTION, "engine.serving.contextLength": 16384}, "split-idle", "profile"),
    ({**PRODUCTION, "engine.serving.chunkedPrefillSize": 512}, "split-idle", "profile"),
    ({**ROCE, "engine.env.B12X_ROCE_HCA": "rocep1s0f1,roceP2p1s0f0"}, "roce-strange", "env.B12X_ROCE_HCA"),
    ({**BASE, "engine.serving.maxTotalTokens": 500000}, "pool-small", "serving.maxTotalTokens"),
]


@pytest.mark.parametrize(("change", "code", "path"), WARNED, ids=[str(case[0]) for case in WARNED])
def test_what_hardly_works_as_meant_is_one_warning(change: dict[str, Any], code: str, path: str) -> None:
    assert warned(changed(switched(), change)) == [(code, path)]


def test_serial_loading_is_on_with_the_fast_loader_on_a_ring_and_off_on_a_switch() -> None:
    for profile in ("production-v2.2", "production-v2.3"):
        for config, wanted in ((ring(), "1"), (changed(mesh(), {"engine.image": "e:1"}), "1"), (switched(), "0")):
            plan = planned(changed(config, {"engine.profile": profile}))
            told = [
                (rank.env["DSV41_SERIAL_WEIGHT_LOAD"].value, rank.env["DSV41_FAST_LOAD"].value)
                for rank in plan.containers
            ]
            assert told == [(wanted, "1")] * 4
    off = {**PRODUCTION, "engine.env.DSV41_SERIAL_WEIGHT_LOAD": 0}
    assert warned(changed(ring(), off)) == [("serial-off", "env.DSV41_SERIAL_WEIGHT_LOAD")]
    assert warned(changed(ring(), {**BASE, "engine.without": ["DSV41_SERIAL_WEIGHT_LOAD"]})) == [
        ("serial-off", "profile")
    ]


def test_experts_follow_the_profile_and_its_kernels() -> None:
    def ep(change: dict[str, Any], config: dict[str, Any] | None = None) -> tuple[str, str | None]:
        env = planned(changed(config or switched(), change)).containers[1].env
        fast = env.get("DSV41_FAST_LOAD_EP_SIZE")
        return env["EP_SIZE"].value, fast.value if fast else None

    assert ep(BASE) == ("2", None)
    assert ep(PRODUCTION) == ep(PRODUCTION, ring()) == ("1", "1")
    assert ep({**PRODUCTION, "engine.epSize": 4}) == ("4", "4")
    assert ep({**PRODUCTION, "engine.env.DSV41_MOE_B12X_NEXT": 0}) == ("2", "2")
    assert ep(PRODUCTION, switched(8)) == ("2", "2")  # 288 columns are no multiple of 64


@pytest.mark.parametrize("profile", ["canary-roce", "production-v2.3"])
def test_rocenante_is_for_four_or_eight_ranks_and_the_plan_can_still_be_shown(profile: str) -> None:
    config = changed(switched(5), {"engine.profile": profile})
    with pytest.raises(PlanError) as raised:
        planned(config)
    codes = {(one.code, one.seen.split(" ")[0]) for one in raised.value.problems}
    assert ("engine-ranks", "SGLANG_ROCE_ALLREDUCE") in codes
    assert (("engine-ranks", "SPARK_PREFILL_TP_SPLIT") in codes) == (profile == "production-v2.3")
    assert raised.value.draft.containers
    assert warned(changed(switched(8), {"engine.profile": profile})) == [("profile-ranks", "profile")]


AS_BEFORE = {
    "ring": (ring(), "db952f85"),
    "mesh": (mesh(), "a313c01b"),
    "switched": (switched(), "53107fb1"),
    "ring of three": (ring(3), "54f9f410"),
    "own variables": (
        changed(switched(), {"engine": {
            "image": "engine:1",
            "env": {"DSV41_FAST_LOAD": 1, "CONTEXT_LENGTH": 65536},
            "headEnv": {"API_KEY": "x"},
        }}),
        "ff82bdea",
    ),
}  # fmt: skip
"""Digests of groups from before there were profiles of the launcher, since when only their form changed: an image is in
them by its id or, while nobody knows that, by its tag."""


SINCE = ("stop_timeout", "log", "healthcheck")


@pytest.mark.parametrize("name", AS_BEFORE)
def test_a_stack_that_names_no_profile_is_the_group_that_it_was(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for what docker is told of every container by now."""
    config, group = AS_BEFORE[name]
    arguments = ContainerPlan.arguments

    def before(plan: ContainerPlan) -> dict[str, Any]:
        return {key: value for key, value in arguments(plan).items() if key not in SINCE}

    monkeypatch.setattr(ContainerPlan, "arguments", before)
    assert planned(config).group.startswith(group)
