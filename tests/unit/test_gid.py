"""The GID index of a rank: found where its ports have it, expected where they are not ready, else refused by name."""

from collections.abc import Callable
from typing import Any

import pytest

from fleet.facts import parse
from fleet.flags import Flag, Source
from fleet.gid import Port, gid_index, index_for
from fleet.loading import load
from fleet.plan import Plan, PlanError
from fleet.planner import make
from fleet.problems import Problem
from fleet.stack import StackName
from node.plane import eui64
from tests.unit import observed
from tests.unit.stacks import changed, ring

STACK = StackName("spark-fabric", "test")
NODE, HCA, NETDEV, ADDRESS = "spark2", "rocep1s0f0", "enp1s0f0np0", "10.10.1.10"

Raw = dict[str, Any]
Change = Callable[[Raw], object]


@pytest.fixture
def raw() -> Raw:
    """spark2 of a ring, as its stages have left it."""
    return observed.fleet_applied(make(load(ring()), None, STACK), journaled=True)[NODE]


def ports() -> list[Port]:
    """Its planned ports."""
    plan = make(load(ring()), None, STACK)
    node = plan.nodes[1]
    return [
        Port(plane, device, addresses.ports[end].interface)
        for plane, addresses in plan.planes.items()
        for end in plan.topology.ends(1)
        for device in [node.devices[plane, end.socket]]
    ]


def looked(raw: Raw, given: int | None = None) -> int | list[Problem]:
    found = gid_index(NODE, parse(raw), ports(), given)
    return found if isinstance(found, int) else list(found)


def gids(raw: Raw, hca: str = HCA) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = raw["hcas"][hca]["gids"]
    return found


def moved(raw: Raw, by: int, *hcas: str) -> None:
    """The addresses of some devices have got places further on."""
    for hca in hcas or raw["hcas"]:
        for gid in gids(raw, hca):
            gid["index"] += by if "ffff" in gid["gid"] else 0


def without_address(raw: Raw) -> None:
    raw["links"][NETDEV]["addresses"] = []
    raw["hcas"][HCA]["gids"] = gids(raw)[:2]


def test_the_index_that_all_ports_have_is_found(raw: Raw) -> None:
    assert looked(raw) == 3
    moved(raw, 2)
    assert looked(raw) == 5
    assert index_for(NODE, parse(raw), ports(), None) == Flag("5", Source.FOUND)


def test_an_index_that_moved_by_one_is_found(raw: Raw) -> None:
    """The right address is there twice as before, with its v2 entry at 4."""
    moved(raw, 1)
    assert looked(raw) == 4


def test_of_several_common_indexes_the_lowest_is_taken(raw: Raw) -> None:
    for hca in raw["hcas"].values():
        hca["gids"].append({**hca["gids"][3], "index": 9})
    assert looked(raw) == 3


WRONG: dict[str, tuple[Change, str, str, tuple[str, ...]]] = {
    "missing": (
        lambda raw: gids(raw).clear(),
        "gid-missing",
        f"{NODE} {HCA}",
        (f"no GID of {ADDRESS}, which {NETDEV} has", f"ip address del {ADDRESS}/24 dev {NETDEV}", "run up"),
    ),
    "zero": (
        lambda raw: [gid.update(gid="0000:0000:0000:0000:0000:0000:0000:0000") for gid in gids(raw)],
        "gid-missing",
        f"{NODE} {HCA}",
        (f"no GID of {ADDRESS}",),
    ),
    "zero address": (
        lambda raw: [gid.update(gid="0000:0000:0000:0000:0000:ffff:0000:0000") for gid in gids(raw)],
        "gid-missing",
        f"{NODE} {HCA}",
        (f"no GID of {ADDRESS}",),
    ),
    "link-local only": (lambda raw: gids(raw).__delitem__(slice(2, None)), "gid-missing", f"{NODE} {HCA}", (ADDRESS,)),
    "another address": (
        lambda raw: [gid.update(gid="::ffff:192.168.177.11") for gid in gids(raw)[2:]],
        "gid-missing",
        f"{NODE} {HCA}",
        (ADDRESS,),
    ),
    "RoCE v1 only": (
        lambda raw: gids(raw)[3].update(type="IB/RoCE v1"),
        "gid-type",
        f"{NODE} {HCA}",
        (f"{ADDRESS} as IB/RoCE v1 only (index 2)",),
    ),
    "of another port": (
        lambda raw: gids(raw)[3].update(netdev="enp1s0f1np1"),
        "gid-netdev",
        f"{NODE} {HCA}",
        ("for enp1s0f1np1 (index 3)", f"on {NETDEV}"),
    ),
    "not active": (
        lambda raw: raw["hcas"][HCA].update(state="1: DOWN"),
        "gid-port",
        f"{NODE} {HCA}",
        ("is 1: DOWN, wanted ACTIVE", "cable"),
    ),
    "not common": (
        lambda raw: moved(raw, 2, HCA),
        "gid-not-common",
        NODE,
        ("rocep1s0f0 has 5, rocep1s0f1 has 3", f"ip address del {ADDRESS}/24 dev {NETDEV}"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_an_index_that_cannot_work_is_refused_by_name(what: str, raw: Raw) -> None:
    change, code, path, parts = WRONG[what]
    change(raw)
    problems = looked(raw)
    assert isinstance(problems, list)
    assert [(one.code, one.path) for one in problems] == [(code, path)]
    for part in parts:
        assert part in problems[0].text()


def test_every_port_that_is_wrong_is_told(raw: Raw) -> None:
    gids(raw).clear()
    raw["hcas"]["roceP2p1s0f1"]["state"] = "1: DOWN"
    problems = looked(raw)
    assert isinstance(problems, list)
    assert [one.path for one in problems] == [f"{NODE} {HCA}", f"{NODE} roceP2p1s0f1"]


def test_a_given_index_is_checked(raw: Raw) -> None:
    assert looked(raw, given=3) == 3
    problems = looked(raw, given=1)
    assert isinstance(problems, list)
    assert [(one.code, one.path) for one in problems] == [("gid-given", "spark-fabric:engine.gidIndex")]
    text = problems[0].text()
    assert "is 1; on spark2 rocep1s0f0 has fe80::" in text
    assert "wanted 3, which all ports of spark2 have" in text
    gone = looked(raw, given=9)
    assert isinstance(gone, list)
    assert "rocep1s0f0 has nothing there" in gone[0].text()


NOT_READY: dict[str, Change] = {
    "without its address": without_address,
    "down": lambda raw: raw["links"][NETDEV].update(up=False),
    "gone": lambda raw: raw["links"].pop(NETDEV),
    "with a second link-local address": lambda raw: raw["links"][NETDEV]["inet6"].append("fe80::1/64"),
    "with an older address": lambda raw: raw["links"][NETDEV].update(addresses=["10.30.1.10/24"]),
}


@pytest.mark.parametrize("what", NOT_READY)
def test_a_port_that_its_stage_has_to_put_right_is_not_judged(what: str, raw: Raw) -> None:
    NOT_READY[what](raw)
    moved(raw, 2)
    gids(raw).clear()
    assert index_for(NODE, parse(raw), ports(), None) == Flag("5", Source.EXPECTED)  # as the others
    moved(raw, 2, "rocep1s0f1")
    problems = index_for(NODE, parse(raw), ports(), None)
    assert not isinstance(problems, Flag)
    assert [one.code for one in problems] == ["gid-not-common"]  # they are judged all the same


def test_an_unfinished_or_missing_stage_is_not_judged(raw: Raw) -> None:
    moved(raw, 2)
    raw["journal"]["stages"]["plane0"]["status"] = "applying"
    assert index_for(NODE, parse(raw), ports(), None) == Flag("5", Source.EXPECTED)
    raw["journal"] = None  # whatever is there, our stage will bring up anew
    assert index_for(NODE, parse(raw), ports(), None) == Flag("3", Source.EXPECTED)


def test_a_fresh_node_is_expected_to_have_the_usual_index() -> None:
    assert index_for(NODE, parse(observed.fresh(2)), ports(), None) == Flag("3", Source.EXPECTED)
    assert index_for(NODE, None, ports(), None) == Flag("3", Source.EXPECTED)
    assert index_for(NODE, None, ports(), 5) == Flag("5", Source.SETTING, "engine.gidIndex")


def test_the_link_local_address_in_the_facts_is_that_of_the_mac(raw: Raw) -> None:
    assert raw["links"][NETDEV]["inet6"] == [f"{eui64(raw['links'][NETDEV]['mac'])}/64"]


def planned(change: Change | None = None, **settings: Any) -> Plan:
    """The ring for nodes that hold it, with one of them changed."""
    nodes = observed.fleet_applied(make(load(ring()), None, STACK), journaled=True)
    if change:
        change(nodes[NODE])
    return make(load(changed(ring(), settings)), {name: parse(node) for name, node in nodes.items()}, STACK)


def test_each_rank_gets_its_own_index_and_the_check_is_told() -> None:
    plan = planned(lambda raw: moved(raw, 2))
    assert [container.env["NCCL_IB_GID_INDEX"].value for container in plan.containers] == ["3", "5", "3", "3"]
    assert [verify["gid_index"] for verify in plan.verify.values()] == [3, 5, 3, 3]


def test_another_index_is_another_group_and_not_a_standstill() -> None:
    before, after = planned(), planned(lambda raw: moved(raw, 2))
    assert after.group != before.group
    assert after.standstill == before.standstill


def test_what_was_expected_and_is_found_changes_nothing() -> None:
    fresh = make(load(ring()), {name: parse(node) for name, node in observed.fleet(4).items()}, STACK)
    assert (fresh.group, fresh.standstill, fresh.verify) == (planned().group, planned().standstill, planned().verify)
    sources = {plan.containers[0].env["NCCL_IB_GID_INDEX"].source for plan in (fresh, planned())}
    assert sources == {Source.EXPECTED, Source.FOUND}


def test_problems_of_all_ranks_are_problems_of_the_plan() -> None:
    with pytest.raises(PlanError) as raised:
        planned(lambda raw: moved(raw, 2, HCA), **{"engine.gidIndex": 5})
    assert [(one.code, one.path.partition(":")[0]) for one in raised.value.problems] == [
        ("gid-given", "spark-fabric"),
        ("gid-not-common", NODE),
        ("gid-given", "spark-fabric"),
        ("gid-given", "spark-fabric"),
    ]
    assert raised.value.draft.containers[1].env["NCCL_IB_GID_INDEX"].source is Source.EXPECTED
