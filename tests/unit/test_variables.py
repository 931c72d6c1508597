"""What the operator's own variables may say, and what is remarked about them."""

from typing import Any

import pytest

from fleet.loading import SettingsError, load
from fleet.plan import Plan, PlanError
from fleet.planner import make
from fleet.stack import StackName
from tests.unit.stacks import NO_PROFILE, changed, ring, switched

STACK = StackName("spark-fabric", "test")
CHANNELS = "spark-fabric:engine.env.NCCL_MAX_NCHANNELS"


def planned(config: dict[str, Any]) -> Plan:
    return make(load(config), None, STACK)


def told(plan: Plan) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Warnings and notes."""
    return [(one.code, one.path) for one in plan.warnings], [(one.code, one.path) for one in plan.notes]


@pytest.mark.parametrize("size", [3, 5, 8])
def test_the_ring_profile_is_for_four_ranks(size: int) -> None:
    with pytest.raises(PlanError) as raised:
        planned(changed(ring(size), {"engine.profile": "auto"}))
    (problem,) = raised.value.problems
    assert problem.code == "ring-ranks"
    assert f"makes a ring of {size}" in problem.text()
    assert "engine.profile: none" in problem.text()
    assert raised.value.draft.containers  # what is on the nodes can still be shown
    assert len(planned(ring(size)).containers) == size


def test_a_ring_of_four_that_a_node_leaves_is_refused_too() -> None:
    with pytest.raises(PlanError, match="makes a ring of 3"):
        planned(changed(ring(), {"nodes[3].state": "leaving"}))


@pytest.mark.parametrize("size", [2, 3, 7])
def test_a_switched_fabric_of_any_size_has_its_profile(size: int) -> None:
    assert planned(switched(size)).containers[0].env["NCCL_NET"].value == "IB"


def test_without_a_profile_only_what_follows_from_nodes_and_fabric_is_left() -> None:
    names = {name for name in planned(changed(ring(), NO_PROFILE)).containers[1].env if name.startswith("NCCL_")}
    assert names == {"NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_IB_SUBNET_PREFIX_LEN", "NCCL_SOCKET_IFNAME"}


def test_without_a_profile_and_ring_mode_the_rules_of_rings_do_not_hold() -> None:
    env = {"NCCL_ALGO": "Tree", "NCCL_NET": "Socket"}
    load(changed(ring(3), {"engine.env": env}))
    with pytest.raises(SettingsError) as raised:
        load(changed(ring(3), {"engine.env": {**env, "NCCL_SWITCHLESS_RING_ONLY": 1}}))
    assert [one.code for one in raised.value.problems] == ["env-forbidden"] * 2


def test_single_values_of_a_profile_can_be_replaced() -> None:
    env = {"NCCL_PROTO": "LL,LL128,Simple", "NCCL_P2P_LEVEL": "PHB", "NCCL_SKIP_TREE_CONNECT": 0, "NCCL_DEBUG": "INFO"}
    config = changed(ring(), {"engine.env": env, "engine.headEnv.NCCL_DEBUG": "TRACE"})
    head, worker = (planned(config).containers[rank].env for rank in (0, 1))
    assert {name: worker[name].value for name in env} == {name: str(value) for name, value in env.items()}
    assert head["NCCL_DEBUG"].value == "TRACE"


def test_one_plane_needs_no_flags_for_two() -> None:
    one_plane = changed(ring(), {"fabric.plane1.enabled": "off", "engine.env.NCCL_IB_EXTENDED_IPV4_GIDS": 0})
    assert told(planned(one_plane)) == ([], [])


def test_the_profiles_give_no_cause_for_remarks() -> None:
    for config in (ring(), switched(), changed(ring(), {"fabric.plane0.enabled": "off"})):
        assert told(planned(config)) == ([], [])


def test_fewer_channels_than_devices_are_a_warning() -> None:
    env = {"engine.env": {"NCCL_MIN_NCHANNELS": 2, "NCCL_MAX_NCHANNELS": 2}}
    assert told(planned(changed(ring(), env))) == ([("channels-few", CHANNELS)], [])
    assert told(planned(changed(switched(), env))) == ([], [])


def test_more_than_four_channels_on_a_ring_are_noted() -> None:
    env = {"engine.env.NCCL_MAX_NCHANNELS": 8}
    assert told(planned(changed(ring(), env))) == ([], [("channels-many", CHANNELS)])
    assert told(planned(changed(switched(), {"engine.env.NCCL_MAX_NCHANNELS": 16}))) == ([], [])


def test_the_cap_on_published_devices_is_a_warning_where_no_profile_lifts_it() -> None:
    alone = changed(ring(), {**NO_PROFILE, "engine.env": {"NCCL_SWITCHLESS_RING_ONLY": 1}})
    assert told(planned(alone))[0] == [("listener-cap", "spark-fabric:engine.env.NCCL_IB_EXTENDED_IPV4_GIDS")]
    lifted = changed(alone, {"engine.env.NCCL_IB_EXTENDED_IPV4_GIDS": 1})
    assert told(planned(lifted)) == ([], [])


def test_a_ring_without_ring_mode_is_a_warning() -> None:
    path = "spark-fabric:engine.env.NCCL_SWITCHLESS_RING_ONLY"
    assert told(planned(changed(ring(), NO_PROFILE)))[0] == [("ring-trees", path)]
    assert told(planned(changed(switched(), NO_PROFILE))) == ([], [])


@pytest.mark.parametrize(
    ("config", "ep_size", "fits"),
    [
        (ring(), 1, False),
        (changed(ring(), {"engine.env.DSV41_MOE_B12X_NEXT": 1}), 1, True),
        (ring(), 2, True),
        (ring(), 4, True),
        (switched(8), 2, False),  # 576
        (changed(switched(8), {"engine.env.DSV41_MOE_B12X_NEXT": 1}), 2, True),
        (changed(switched(8), {"engine.env.DSV41_MOE_B12X_NEXT": 1}), 1, False),  # 288
        (switched(8), 8, True),
        (changed(switched(8), NO_PROFILE), 1, True),  # another engine: not ours to say
    ],
)
def test_experts_are_split_as_the_kernels_can_take_them(config: dict[str, Any], ep_size: int, fits: bool) -> None:
    config = changed(config, {"engine.epSize": ep_size})
    if fits:
        load(config)
        return
    with pytest.raises(SettingsError) as raised:
        load(config)
    assert [one.code for one in raised.value.problems] == ["ep-share"]
