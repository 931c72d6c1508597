"""The resolved environments against the launcher's lists, and against the fabric that they are for."""

import copy
import re
from collections.abc import Iterator
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fleet import profiles
from fleet.facts import parse
from fleet.loading import load
from fleet.plan import Plan
from fleet.planner import make
from fleet.ports import USUAL_MANAGEMENT
from fleet.profiles import Place, Profile
from fleet.stack import StackName
from fleet.topology import Kind
from lab.engine import settings as simulator
from tests.unit import observed
from tests.unit.stacks import NO_PROFILE, changed, mesh, ring, switched

STACK = StackName("spark-fabric", "test")
LISTS: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "environments.yaml").read_text())
ONE_PLANE = {"fabric.plane1.enabled": "off"}
Fabric = tuple[Kind, int, bool]
COMBINATIONS: dict[Fabric, dict[str, Any]] = {
    (Kind.RING, 1, False): changed(ring(), ONE_PLANE),
    (Kind.RING, 2, False): ring(),
    (Kind.RING, 2, True): mesh(),
    (Kind.SWITCHED, 1, False): changed(switched(), ONE_PLANE),
    (Kind.SWITCHED, 2, False): switched(),
}
"""By kind of fabric, planes, and whether there is a mesh."""

WHOLE = [
    (fabric, profile)
    for profile, whole in profiles.WHOLE.items()
    for fabric in COMBINATIONS
    if not fabric[2] or "roce-ring" in whole.build.has
]
"""Where a profile of the launcher works: the mesh needs an image for it."""

PROFILED = [*((fabric, Profile.AUTO) for fabric in COMBINATIONS), *WHOLE]


def settled(config: dict[str, Any]) -> Plan:
    """The plan for nodes that hold it already."""
    before = make(load(config), None, STACK)
    raw = observed.fleet_applied(before, journaled=True)
    return make(load(config), {name: parse(answer) for name, answer in raw.items()}, STACK)


def values(plan: Plan, rank: int) -> dict[str, str]:
    return {name: flag.value for name, flag in plan.containers[rank].env.items()}


def with_profile(fabric: Fabric, profile: Profile) -> dict[str, Any]:
    """The smallest config of a fabric with a profile; the mesh of a whole one needs no word about the image."""
    if profile is Profile.AUTO:
        return COMBINATIONS[fabric]
    return changed(copy.deepcopy(COMBINATIONS[fabric]), {"engine.image": "engine:1", "engine.profile": profile.value})


def lists_for(fabric: Fabric, profile: Profile = Profile.AUTO) -> Iterator[dict[str, Any]]:
    kind, planes, meshed = fabric
    for one in LISTS:
        place = Place(one.get("fabric", "any"), one.get("planes"), mesh=one.get("mesh"))
        if place.covers(kind, planes, mesh=meshed) and profile.value in one.get("profiles", [profile.value]):
            yield one["values"]


def listed(fabric: Fabric, rank: int, profile: Profile = Profile.AUTO) -> dict[str, str]:
    """What the launcher's lists say for one rank."""
    found: dict[str, str] = {}
    lists = lists_for(fabric, profile)
    for name, value in ((name, value) for values in lists for name, value in values.items()):
        one = value["worker" if rank else "head"] if isinstance(value, dict) else value
        if one is None:
            found.pop(name, None)
            continue
        text = str(one).replace("<rank>", str(rank)).replace("<head>", "192.168.1.11")
        found[name] = text.replace("<address>", f"192.168.1.{11 + rank}")
    return found


@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize(("fabric", "profile"), PROFILED, ids=str)
def test_a_rank_is_told_what_the_launcher_tells_it(fabric: Fabric, profile: Profile, rank: int) -> None:
    kind, planes, meshed = fabric
    left_out = {one.name for one in profiles.LEFT_OUT if one.place.covers(kind, planes, mesh=meshed, profile=profile)}
    told = listed(fabric, rank, profile)
    wanted = {name: value for name, value in told.items() if name not in left_out}
    assert values(settled(with_profile(fabric, profile)), rank) == wanted


@pytest.mark.parametrize(("fabric", "profile"), WHOLE, ids=str)
def test_of_a_whole_profile_next_to_nothing_is_left_out(fabric: Fabric, profile: Profile) -> None:
    kind, planes, meshed = fabric
    left_out = {one.name for one in profiles.LEFT_OUT if one.place.covers(kind, planes, mesh=meshed, profile=profile)}
    off = {"B12X_ROCE_HCA", "SGLANG_ROCE_MAX_SIZE"} if kind is Kind.RING and not meshed else set()
    assert left_out == {"API_KEY"} | (off if profile not in (Profile.BASE, Profile.CANARY) else set())


@pytest.mark.parametrize(("fabric", "profile"), PROFILED, ids=str)
def test_the_simulated_engine_takes_every_profile(fabric: Fabric, profile: Profile) -> None:
    """As boot program and engine would check it; on a switch the simulator has no RoCEnante."""
    plan = settled(with_profile(fabric, profile))
    without = {} if fabric[0] is Kind.RING else {"SGLANG_ROCE_ALLREDUCE": "0"}
    for rank in range(4):
        assert simulator.parse({**values(plan, rank), **without}).rank == rank


@pytest.mark.parametrize(("fabric", "profile"), WHOLE, ids=str)
def test_a_whole_profile_gives_no_cause_for_remarks(fabric: Fabric, profile: Profile) -> None:
    plan = settled(with_profile(fabric, profile))
    assert plan.warnings == ()
    assert not [one.path for one in plan.notes if "engine" in one.path]


def test_the_table_of_profiles_is_that_of_their_names() -> None:
    assert {Profile.AUTO, Profile.NONE, *profiles.WHOLE} == set(Profile)
    assert {need.capability for need in profiles.NEEDS} == set(profiles.CAPABILITIES)
    assert {name for build in profiles.BUILDS.values() for name in build.has} <= set(profiles.CAPABILITIES)
    for whole in profiles.WHOLE.values():
        assert whole.source.split(",")[0] in profiles.SOURCES


def test_whatever_is_left_out_is_in_the_launchers_lists_and_has_a_reason() -> None:
    names = {name for one in LISTS for name in one["values"]}
    assert {one.name for one in profiles.LEFT_OUT} <= names
    assert all(one.why.endswith(".") for one in profiles.LEFT_OUT)


def test_every_value_of_a_profile_says_from_where_it_is() -> None:
    for layer in profiles.LAYERS:
        assert layer.source.split(",")[0] in profiles.SOURCES
        assert all(value for value in layer.values.values()), layer.name


def test_every_line_says_from_where_it_is_and_names_no_variable_that_it_does_not_need() -> None:
    assert len({line.name for line in profiles.LINES}) == len(profiles.LINES)
    always = {"NNODES", "NODE_RANK", "NCCL_IB_GID_INDEX", "HCAS"}
    for line in profiles.LINES:
        assert line.source.split(",")[0] in profiles.SOURCES
        needed = {need.partition("=")[0] for need in line.needs}
        assert set(re.findall(r"{(\w+)}", line.text or "")) <= needed | always, line.name


@pytest.mark.parametrize(
    ("env", "printed"),
    [
        ({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET"}, {"INIT", "ENV", "NET"}),
        ({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV"}, {"INIT", "ENV"}),
        ({"NCCL_DEBUG": "TRACE", "NCCL_DEBUG_SUBSYS": "ALL"}, {"INIT", "ENV", "NET"}),
        ({"NCCL_DEBUG": "info", "NCCL_DEBUG_SUBSYS": "^NET"}, {"INIT", "ENV"}),
        ({"NCCL_DEBUG": "INFO"}, {"INIT", "ENV"}),
        ({"NCCL_DEBUG": "WARN", "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET"}, set()),
        ({}, set()),
    ],
)
def test_a_line_is_printed_at_the_level_of_its_subsystem(env: dict[str, str], printed: set[str]) -> None:
    for line in profiles.LINES:
        assert line.printed(env) == (line.level is None or line.level in printed), line.name


def test_a_profile_obeys_its_own_rules() -> None:
    for (kind, planes, meshed), profile in PROFILED:
        told = profiles.values(kind, planes, mesh=meshed, profile=profile)
        for rule in profiles.rules_for(kind, planes, mesh=meshed, profile=profile):
            assert rule.name not in told or told[rule.name][0] in rule.only, rule


HARMLESS = {
    "NCCL_DEBUG": "INFO",
    "NCCL_PROTO": "Simple",
    "NCCL_MAX_NCHANNELS": "6",
    "NCCL_BUFFSIZE": "4194304",
    "NCCL_P2P_LEVEL": "PHB",
    "NCCL_IB_MERGE_NICS": "0",
    "SGLANG_ROCE_ALLREDUCE": "0",
}
OF_RANK = {
    "NODE_RANK", "HOST_IP", "VLLM_HOST_IP", "WARMUP", "SKIP_SMOKE", "SMOKE_QUICK",
    "NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME",
}  # fmt: skip


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """Any fabric, with or without profile where there is a choice, and some overrides that are allowed."""
    is_ring = draw(st.booleans())
    size = draw(st.integers(3 if is_ring else 2, 8))
    changes: dict[str, Any] = {
        "engine.env": {name: HARMLESS[name] for name in draw(st.sets(st.sampled_from(sorted(HARMLESS))))}
    }
    if draw(st.booleans()) or (is_ring and size != 4):
        changes |= NO_PROFILE
    off = draw(st.sampled_from([None, 0, 1]))
    if off is not None:
        changes[f"fabric.plane{off}.enabled"] = "off"
    if is_ring:
        changes["fabric.cabling"] = draw(st.sampled_from(["ring", "reversed"]))
    else:
        changes["fabric.port"] = draw(st.sampled_from(["f0", "f1"]))
    return changed(ring(size) if is_ring else switched(size), changes)


@given(configs(), st.booleans())
def test_no_variable_contradicts_the_fabric(config: dict[str, Any], looked: bool) -> None:
    plan = settled(config) if looked else make(load(config), None, STACK)
    dual, is_ring = len(plan.planes) == 2, plan.topology.kind is Kind.RING
    profiled = plan.settings.engine.profile is profiles.Profile.AUTO
    shared = [
        {name: value for name, value in values(plan, rank).items() if name not in OF_RANK}
        for rank in range(len(plan.ranks))
    ]
    assert all(one == shared[0] for one in shared)
    for node in plan.ranks:
        assert node.rank is not None
        env, verify = values(plan, node.rank), plan.verify[node.name]
        assert all(env.values())
        assert env["NCCL_IB_HCA"].split(",") == [port["hca"] for port in verify["ports"]]
        assert env["NCCL_IB_GID_INDEX"] == str(verify["gid_index"])
        assert env["NCCL_SOCKET_IFNAME"] == env["GLOO_SOCKET_IFNAME"] == node.management == USUAL_MANAGEMENT
        assert (env["NNODES"], env["TP_SIZE"], env["NODE_RANK"]) == (str(len(plan.ranks)),) * 2 + (str(node.rank),)
        prefixes = {str(IPv4Interface(port["address"]).network.prefixlen) for port in verify["ports"]}
        assert {env.get("NCCL_IB_SUBNET_PREFIX_LEN", "24")} == prefixes  # NCCL's own default is 24
        assert ("NCCL_IB_SUBNET_PREFIX_LEN" in env) == is_ring
        assert ("NCCL_SWITCHLESS_RING_ONLY" in env) == (env.get("NCCL_ALGO") == "Ring") == (is_ring and profiled)
        assert ("NCCL_IB_EXTENDED_IPV4_GIDS" in env) == (is_ring and profiled and dual)
        assert not {"LD_LIBRARY_PATH", "LD_PRELOAD"} & env.keys()
        assert simulator.parse(env).rank == node.rank  # as boot program and engine would check it
        if profiled:
            assert int(env.get("NCCL_MIN_NCHANNELS", "1")) <= int(env["NCCL_MAX_NCHANNELS"])
            assert env["NCCL_IB_MERGE_NICS"] == "0"
