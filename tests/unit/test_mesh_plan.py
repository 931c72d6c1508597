"""The mesh in the plan of a fleet: its stages, what moves with them, what is refused, what people see."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fleet.survey
from fleet.asking import OFFLINE, ask
from fleet.facts import Facts, parse
from fleet.loading import load
from fleet.mesh.marker import MarkerError, size_of
from fleet.picture import picture
from fleet.plan import Plan, PlanError
from fleet.planner import make
from fleet.probe import Probe, Question
from fleet.problems import Problem, ProblemsError
from fleet.stack import StackName
from fleet.survey import look, survey
from node.digest import digest
from node.mesh import STAGES
from tests.unit import observed
from tests.unit.stacks import MARKER, NO_PROFILE, changed, mesh, ring

STACK = StackName("spark-fabric", "test")
GOLDEN = Path(__file__).parent / "golden"
Raw = dict[str, dict[str, Any]]


def facts_of(raw: Raw) -> dict[str, Facts]:
    return {name: parse(answer) for name, answer in raw.items()}


def fresh(config: dict[str, Any]) -> Raw:
    """Nodes as delivered: each is the machine that its name says, wherever it stands in the config."""
    return {
        node.name: observed.fresh(int(node.name.removeprefix("spark")), str(node.address))
        for node in load(config).nodes
    }


def planned(config: dict[str, Any], *, raw: Raw | None = None, marker_size: int | None = None) -> Plan:
    return make(load(config), facts_of(raw or fresh(config)), STACK, marker_size=marker_size)


def problems(config: dict[str, Any], raw: Raw) -> list[Problem]:
    with pytest.raises(PlanError) as raised:
        planned(config, raw=raw)
    return list(raised.value.problems)


def env(plan: Plan, rank: int = 0) -> dict[str, str]:
    return {name: flag.value for name, flag in plan.containers[rank].env.items()}


def states(plan: Plan) -> dict[str, list[str]]:
    """By node: the states of the mesh's stages, none where it has no such stages."""
    return {node.name: [node.stages[stage]["state"] for stage in STAGES if stage in node.stages] for node in plan.nodes}


# --- which stages there are --------------------------------------------------------------------------------------


def test_a_fleet_that_never_had_a_mesh_has_no_stage_of_it() -> None:
    plan = planned(ring())
    assert [set(node.stages) & set(STAGES) for node in plan.nodes] == [set()] * 4
    assert plan.mesh is None


def test_a_mesh_that_is_on_has_all_its_stages_on_every_node() -> None:
    assert states(planned(mesh())) == {f"spark{number}": ["on"] * 3 for number in range(1, 5)}


def test_the_stages_are_what_the_node_program_takes() -> None:
    stages = planned(mesh()).nodes[1].stages
    assert json.loads(json.dumps(stages)) == stages
    assert stages["nic"]["functions"][0] == {
        "netdev": "enp1s0f0np0",
        "hca": "rocep1s0f0",
        "pci": "0000:01:00.0",
        "hairpin_num_queues": 4,
        "hairpin_queue_size": 8192,
        "address": "10.10.1.10/24",
        "mtu": 9000,
        "gid_index": 3,
    }
    assert stages["forwarding"] == {
        "state": "on",
        "qdiscs": ["enp1s0f0np0", "enp1s0f1np1"],
        "rules": [
            {
                "name": "restore-rank0-to-rank2-diagonal-clockwise-via-rank1-function0",
                "netdev": "enp1s0f1np1",
                "pref": 49152,
                "handle": 49152,
                "src_mac": "02:00:00:00:01:11",
                "dst_mac": "02:00:00:00:02:12",
                "new_dst_mac": "02:00:00:00:03:12",
                "egress": "enp1s0f0np0",
            },
            {
                "name": "restore-rank2-to-rank0-diagonal-counter_clockwise-via-rank1-function0",
                "netdev": "enp1s0f0np0",
                "pref": 49162,
                "handle": 49162,
                "src_mac": "02:00:00:00:03:12",
                "dst_mac": "02:00:00:00:02:11",
                "new_dst_mac": "02:00:00:00:01:11",
                "egress": "enp1s0f1np1",
            },
        ],
        "routes": [
            {
                "name": "rank1-to-rank3-diagonal-clockwise-via-rank2-function0",
                "to": "10.10.2.11/32",
                "via": "10.10.1.11",
                "netdev": "enp1s0f0np0",
                "src": "10.10.1.10",
            },
            {
                "name": "rank1-to-rank3-diagonal-counter_clockwise-via-rank0-function1",
                "to": "10.20.3.10/32",
                "via": "10.20.0.10",
                "netdev": "enP2p1s0f1np1",
                "src": "10.20.0.11",
            },
        ],
    }
    assert stages["markers"] == {
        "state": "on",
        "binary": {"path": MARKER["onNode"], "sha256": MARKER["sha256"], "source": "node"},
        "markers": [
            {"hca": "roceP2p1s0f1", "source_port": 65535, "ethertype": 34997},
            {"hca": "rocep1s0f0", "source_port": 65535, "ethertype": 34997},
        ],
    }


def test_a_marker_that_is_sent_lies_below_its_digest() -> None:
    config = changed(mesh(), {"mesh.marker": {"file": "marker", "sha256": "2" * 64}})
    binary = planned(config, marker_size=70000).nodes[3].stages["markers"]["binary"]
    assert binary == {
        "path": f"/var/lib/spark-fabric/test/marker/{'2' * 64}/mlx5-rdma-tx-rewrite-probe",
        "sha256": "2" * 64,
        "source": "sent",
        "size": 70000,
    }


def test_off_is_a_desired_state_as_long_as_the_section_is_there() -> None:
    plan = planned(changed(mesh(), {"mesh.enabled": "off"}))
    assert states(plan) == {f"spark{number}": ["off"] * 3 for number in range(1, 5)}
    assert plan.nodes[0].stages["nic"] == {"state": "off"}


@pytest.mark.parametrize("stage", STAGES)
def test_off_is_a_desired_state_where_a_node_still_holds_one(stage: str) -> None:
    """The section was removed at once: what is on the nodes must not stay there."""
    on = planned(mesh())
    raw = fresh(ring())
    journal = {stage: {"status": "applied", "digest": "", "desired": on.nodes[1].stages[stage]}}
    raw["spark2"]["journal"] = {"schema": 1, "generation": 9, "stages": journal}
    assert states(planned(ring(), raw=raw)) == {f"spark{number}": ["off"] * 3 for number in range(1, 5)}


def test_a_leaving_node_is_off_while_the_others_have_their_mesh() -> None:
    nodes = [*ring(5)["nodes"]]
    nodes[1]["state"] = "leaving"
    plan = planned({**mesh(), "nodes": nodes})
    assert states(plan)["spark2"] == ["off"] * 3
    assert states(plan)["spark5"] == ["on"] * 3
    assert plan.nodes[1].container is None


def test_a_plan_without_nodes_has_no_macs() -> None:
    plan = make(load(mesh()), None, STACK)
    assert {rule["src_mac"] for rule in plan.nodes[0].stages["forwarding"]["rules"]} == {None}
    assert [f["pci"] for f in plan.nodes[0].stages["nic"]["functions"]][2:] == ["0002:01:00.0", "0002:01:00.1"]


# --- what moves with it -------------------------------------------------------------------------------------------


def test_a_mesh_that_is_off_is_to_an_engine_as_one_that_never_was() -> None:
    never, off = planned(ring()), planned(changed(mesh(), {"mesh.enabled": "off"}))
    assert (off.standstill, off.group) == (never.standstill, never.group)
    on = planned(mesh())
    assert on.standstill != never.standstill
    assert on.group != never.group


STANDSTILL: list[dict[str, Any]] = [
    {"mesh.hairpinQueueSize": 4096},
    {"mesh.marker.sha256": "2" * 64},
    {"mesh.marker.onNode": "/opt/other"},
    {"mesh.enabled": "off"},
    {"fabric.mtu": 4200},
    {"fabric.plane1.pool": "10.30.0.0/16"},
    {"fabric.cabling": "reversed"},
]


@pytest.mark.parametrize("change", STANDSTILL, ids=str)
def test_what_engines_would_feel_moves_the_standstill(change: dict[str, Any]) -> None:
    assert planned(changed(mesh(), change)).standstill != planned(mesh()).standstill


def test_a_replaced_card_moves_the_standstill() -> None:
    raw = fresh(mesh())
    raw["spark2"]["links"]["enp1s0f1np1"]["mac"] = "02:00:00:00:02:99"
    before, after = planned(mesh()), planned(mesh(), raw=raw)
    assert after.standstill != before.standstill
    differing = [
        node.name for node, old in zip(after.nodes, before.nodes, strict=True)
        if digest(node.stages["forwarding"]) != digest(old.stages["forwarding"])
    ]  # fmt: skip
    assert differing == ["spark2"]  # the only node between whose rules name that port


@pytest.mark.parametrize("change", [{"mesh.maxSize": 81920}, {"mesh.gatherSize": 81920}], ids=str)
def test_a_size_moves_the_group_only(change: dict[str, Any]) -> None:
    before, after = planned(mesh()), planned(changed(mesh(), change))
    assert after.standstill == before.standstill
    assert after.group != before.group


def test_where_the_marker_lies_on_this_side_moves_nothing() -> None:
    here, there = ({"mesh.marker": {"file": name, "sha256": "2" * 64}} for name in ("a", "b"))
    before, after = (planned(changed(mesh(), one), marker_size=7) for one in (here, there))
    assert (after.standstill, after.group) == (before.standstill, before.group)


# --- what the engine is told -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("queue", "cap"), [(8192, "262144"), (4096, "81920"), (1024, "81920")])
def test_the_cap_is_that_of_the_queues_to_come(queue: int, cap: str) -> None:
    """Fresh nodes have queues of 1024: what counts is what the stage before the engine puts in effect."""
    told = env(planned(changed(mesh(), {"mesh.hairpinQueueSize": queue})))
    assert (told["SGLANG_ROCE_MAX_SIZE"], told["DSV41_ROCE_GATHER"]) == (cap, cap)


def test_sizes_can_be_said() -> None:
    told = env(planned(changed(mesh(), {"mesh.maxSize": 131072, "mesh.gatherSize": 65536})), rank=2)
    assert (told["SGLANG_ROCE_MAX_SIZE"], told["DSV41_ROCE_GATHER"]) == ("131072", "65536")


def test_each_value_says_where_it_comes_from() -> None:
    config = changed(mesh(), {"mesh.maxSize": 65536, "engine.env.B12X_ROCE_TWO_WAVE_THRESHOLD_BYTES": 196608})
    flags = planned(config).containers[0].env
    assert {name: flags[name].origin for name in flags if "ROCE" in name} == {
        "B12X_ROCE_HCA": "topology",
        "B12X_ROCE_PEER_HCA_MAPS": "topology",
        "B12X_ROCE_TWO_WAVE_THRESHOLD_BYTES": "override engine.env",
        "DSV41_ROCE_GATHER": "default mesh.hairpinQueueSize",
        "DSV41_ROCE_RING": "profile mesh",
        "SGLANG_ROCE_ALLREDUCE": "profile mesh",
        "SGLANG_ROCE_MAX_SIZE": "setting mesh.maxSize",
    }


def test_the_peer_maps_follow_the_direction_of_the_cables() -> None:
    told = env(planned(changed(mesh(), {"fabric.cabling": "reversed"})))
    assert told["B12X_ROCE_PEER_HCA_MAPS"] == (
        "1=1/3,2=0/3,3=0/2;0=0/2,2=1/3,3=1/2;0=1/2,1=0/2,3=1/3;0=1/3,1=0/3,2=0/2"
    )


def test_without_the_mesh_a_ring_keeps_rocenante_off() -> None:
    for config in (ring(), changed(mesh(), {"mesh.enabled": "off"})):
        told = env(planned(config))
        assert told["SGLANG_ROCE_ALLREDUCE"] == "0"
        assert not {"DSV41_ROCE_GATHER", "DSV41_ROCE_RING", "B12X_ROCE_PEER_HCA_MAPS"} & told.keys()


def applied(*moved: tuple[str, str, int]) -> Raw:
    """Nodes that hold the plan, with the GIDs of some devices at another index."""
    raw = observed.fleet_applied(planned(mesh()), journaled=True)
    for node, hca, index in moved:
        for gid in raw[node]["hcas"][hca]["gids"]:
            if gid["index"] == 3:
                gid["index"] = index
    return raw


ALL = [("spark2", hca, 4) for hca in ("rocep1s0f0", "rocep1s0f1", "roceP2p1s0f0", "roceP2p1s0f1")]


@pytest.mark.parametrize("moved", [[], ALL[:1], ALL], ids=["none", "one", "all of a node"])
def test_gids_that_have_moved_are_put_back_and_not_followed(moved: list[tuple[str, str, int]]) -> None:
    plan = planned(mesh(), raw=applied(*moved))
    assert env(plan, rank=1)["NCCL_IB_GID_INDEX"] == "3"
    assert plan.containers[1].env["NCCL_IB_GID_INDEX"].source == ("expected" if moved else "found")
    assert plan.verify["spark2"]["gid_index"] is None  # asked once the stage that puts them back is through
    assert {function["gid_index"] for function in plan.nodes[1].stages["nic"]["functions"]} == {3}


def test_a_gid_that_is_not_there_is_still_refused() -> None:
    raw = applied()
    raw["spark2"]["hcas"]["rocep1s0f0"]["gids"] = []
    assert [problem.code for problem in problems(mesh(), raw)] == ["gid-missing"]


# --- what is checked ----------------------------------------------------------------------------------------------


def test_each_path_is_written_over_once() -> None:
    found = planned(mesh()).mesh_checks
    writes = {one["path"]: (name, one) for name, check in found.items() for one in check["write"]}
    listens = {one["path"]: (name, one) for name, check in found.items() for one in check["listen"]}
    assert len(writes) == 8
    assert writes.keys() == listens.keys()
    assert len({one["port"] for _, one in writes.values()}) == 8
    numbers = {f"spark{number}": number for number in range(1, 5)}
    for path, (source, write) in writes.items():
        far, listen = listens[path]
        assert (listen["turn"], listen["port"]) == (write["turn"], write["port"])
        assert write["turn"] == numbers[source] - 1
        assert (write["peer"], write["host"]) == (far, f"192.168.1.{10 + numbers[far]}")
        assert abs(numbers[far] - numbers[source]) == 2


def test_a_check_of_one_node() -> None:
    plan = planned(mesh())
    check = plan.mesh_checks["spark2"]
    assert check["forward"] == plan.nodes[1].stages["forwarding"]["rules"]
    assert (check["size"], check["flow_label"], check["gid_index"]) == (61440, 16383, 3)
    assert check["image"] == "engine:1"
    assert check["write"] == [
        {
            "path": "rank1-to-rank3-diagonal-clockwise-via-rank2-function0",
            "turn": 1,
            "port": 18517,
            "hca": "rocep1s0f0",
            "host": "192.168.1.14",
            "peer": "spark4",
        },
        {
            "path": "rank1-to-rank3-diagonal-counter_clockwise-via-rank0-function1",
            "turn": 1,
            "port": 18518,
            "hca": "roceP2p1s0f1",
            "host": "192.168.1.14",
            "peer": "spark4",
        },
    ]
    assert [(one["hca"], one["turn"]) for one in check["listen"]] == [("roceP2p1s0f1", 3), ("rocep1s0f0", 3)]
    assert planned(ring()).mesh_checks == {}


# --- what is refused ----------------------------------------------------------------------------------------------


def link(node: str, netdev: str, **values: Any) -> Callable[[Raw], None]:
    return lambda raw: raw[node]["links"][netdev].update(values)


def both(*faults: Callable[[Raw], None]) -> Callable[[Raw], None]:
    def each(raw: Raw) -> None:
        for fault in faults:
            fault(raw)

    return each


def hca(node: str, name: str, **values: Any) -> Callable[[Raw], None]:
    return lambda raw: raw[node]["hcas"][name].update(values)


def routed(node: str, to: str, netdev: str, via: str) -> Callable[[Raw], None]:
    route = {"to": to, "netdev": netdev, "via": via, "src": None, "protocol": "boot"}
    return lambda raw: raw[node]["routes"].append(route)


REFUSED: list[tuple[str, Callable[[Raw], None], str, str, str]] = [
    ("no MAC", link("spark3", "enp1s0f1np1", mac=None), "mesh-mac", "spark3 enp1s0f1np1", "has no MAC"),
    (
        "a zero MAC",
        link("spark3", "enp1s0f1np1", mac="00:00:00:00:00:00"),
        "mesh-mac",
        "spark3 enp1s0f1np1",
        "00:00:00:00:00:00, wanted a unicast MAC",
    ),
    (
        "a multicast MAC",
        link("spark1", "enP2p1s0f0np0", mac="03:00:00:00:01:15"),
        "mesh-mac",
        "spark1 enP2p1s0f0np0",
        "03:00:00:00:01:15",
    ),
    ("half a MAC", link("spark1", "enP2p1s0f0np0", mac="02:00"), "mesh-mac", "spark1 enP2p1s0f0np0", "02:00"),
    (
        "a MAC twice",
        link("spark4", "enp1s0f0np0", mac="02:00:00:00:02:11"),
        "mesh-mac-twice",
        "spark4 enp1s0f0np0",
        "02:00:00:00:02:11, as spark2 enp1s0f0np0 has",
    ),
    (
        "a MAC twice on one node, in other letters",
        both(
            link("spark1", "enp1s0f1np1", mac="02:00:00:00:01:1A"),
            link("spark1", "enP2p1s0f0np0", mac="02:00:00:00:01:1a"),
        ),
        "mesh-mac-twice",
        "spark1 enP2p1s0f0np0",
        "as spark1 enp1s0f1np1 has",
    ),
    ("no PCI address", hca("spark2", "rocep1s0f1", pci=None), "mesh-pci", "spark2 rocep1s0f1", "no PCI address"),
    (
        "two cards in one plane",
        hca("spark2", "rocep1s0f1", pci="0000:07:00.1"),
        "mesh-card",
        "spark2 plane 0",
        "enp1s0f0np0 at 0000:01:00.0, enp1s0f1np1 at 0000:07:00.1",
    ),
    (
        "the route of a path by another port",
        routed("spark1", "10.10.1.11/32", "enp1s0f1np1", "10.10.3.10"),
        "route-overlap",
        "spark1 enp1s0f1np1",
        "10.10.1.11/32",
    ),
]


@pytest.mark.parametrize(
    ("fault", "code", "path", "part"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_each_obstacle_is_refused_by_node_and_object(
    fault: Callable[[Raw], None], code: str, path: str, part: str
) -> None:
    raw = fresh(mesh())
    fault(raw)
    (problem,) = problems(mesh(), raw)
    assert (problem.code, problem.path) == (code, path)
    assert part in problem.text()


@pytest.mark.parametrize("fault", [case[1] for case in REFUSED if case[2].startswith("mesh-")])
def test_without_the_mesh_no_rule_has_to_be_made(fault: Callable[[Raw], None]) -> None:
    raw = fresh(ring())
    fault(raw)
    assert planned(ring(), raw=raw).mesh is None


def test_a_mesh_of_three_is_refused_and_can_still_be_shown() -> None:
    config = changed(mesh(), {"nodes[3].state": "leaving"})
    with pytest.raises(PlanError) as raised:
        planned(config)
    assert [(one.code, one.path) for one in raised.value.problems] == [
        ("mesh-ranks", "spark-fabric:nodes"),
        ("ring-ranks", "spark-fabric:nodes"),
    ]
    assert "has 3 active with the mesh on, wanted 4 active nodes. Set mesh.enabled: off." in str(raised.value)
    draft = raised.value.draft
    assert draft.mesh is None
    assert states(draft) == {f"spark{number}": [] for number in range(1, 5)}
    assert draft.containers


def test_a_node_leaves_and_the_mesh_goes_off_in_one_step() -> None:
    config = changed(mesh(), {**NO_PROFILE, "nodes[3].state": "leaving", "mesh.enabled": "off"})
    assert states(planned(config)) == {f"spark{number}": ["off"] * 3 for number in range(1, 5)}


def test_a_missing_port_is_told_once_and_the_draft_has_a_mesh() -> None:
    raw = fresh(mesh())
    del raw["spark2"]["hcas"]["rocep1s0f1"]
    with pytest.raises(PlanError) as raised:
        planned(mesh(), raw=raw)
    assert [one.code for one in raised.value.problems] == ["port-missing"]
    assert states(raised.value.draft)["spark2"] == ["on"] * 3


def path_routes(plan: Plan, raw: Raw) -> None:
    """Put the routes of a plan on the nodes."""
    for node in plan.nodes:
        for route in node.stages["forwarding"]["routes"]:
            routed(node.name, route["to"], route["netdev"], route["via"])(raw)


def test_routes_that_equal_the_plan_are_adopted() -> None:
    raw = observed.fleet_applied(planned(mesh()), journaled=False)
    path_routes(planned(mesh()), raw)
    assert planned(mesh(), raw=raw).mesh


@pytest.mark.parametrize("status", ["applied", "applying", "reverting"])
def test_our_own_routes_of_an_older_plan_are_ours_to_change(status: str) -> None:
    old = planned(mesh())
    raw = observed.fleet_applied(old, journaled=True)
    path_routes(old, raw)
    for config in (changed(mesh(), {"fabric.cabling": "reversed"}), changed(mesh(), {"mesh.enabled": "off"}), ring()):
        with pytest.raises(PlanError, match=r"route to 10\.10\.1\.11/32"):
            planned(config, raw=raw)
    for node in old.nodes:
        stages = raw[node.name]["journal"]["stages"]
        stages["forwarding"] = {"status": status, "digest": "", "desired": node.stages["forwarding"]}
    for config in (changed(mesh(), {"fabric.cabling": "reversed"}), changed(mesh(), {"mesh.enabled": "off"}), ring()):
        planned(config, raw=raw)


# --- what people see ----------------------------------------------------------------------------------------------


def mesh_notes(config: dict[str, Any]) -> list[Problem]:
    return [note for note in planned(config).notes if note.code.startswith("mesh-")]


def test_a_note_says_that_it_is_research() -> None:
    (note,) = mesh_notes(mesh())
    assert (note.code, note.path) == ("mesh-research", "spark-fabric:mesh.enabled")
    assert "research-only" in note.text()
    assert "65535" in note.text()
    assert mesh_notes(changed(mesh(), {"mesh.enabled": "off"})) == []


def test_a_marker_of_another_build_is_noted() -> None:
    codes = [note.code for note in mesh_notes(changed(mesh(), {"mesh.marker.sha256": "2" * 64}))]
    assert codes == ["mesh-research", "mesh-marker-unknown"]


def test_the_picture_has_the_paths() -> None:
    assert f"{picture(planned(mesh()))}\n" == (GOLDEN / "ring4-mesh.txt").read_text()


def test_the_outputs_have_peer_maps_cap_and_the_label() -> None:
    plan = planned(mesh())
    assert plan.mesh
    shown = plan.mesh.outputs([node.name for node in plan.ranks])
    assert (shown["status"], shown["cap"], shown["queue"]) == ("research-only", 262144, 8192)
    assert (shown["maxSize"], shown["gatherSize"]) == (262144, 262144)
    assert shown["peerMaps"] == env(plan)["B12X_ROCE_PEER_HCA_MAPS"]
    assert shown["loads"]["spark2-spark3 plane 0"] == 4
    assert shown["nativePaths"]["spark1"][2] == "2,0,rocep1s0f0,3,2"
    assert json.loads(json.dumps(shown)) == shown


# --- the local file -----------------------------------------------------------------------------------------------


def test_the_local_marker_is_what_the_settings_say(tmp_path: Path) -> None:
    file = tmp_path / "marker"
    file.write_bytes(b"program")
    assert size_of(file, hashlib.sha256(b"program").hexdigest()) == 7
    with pytest.raises(MarkerError) as raised:
        size_of(file, "2" * 64)
    assert hashlib.sha256(b"program").hexdigest()[:12] in raised.value.seen
    assert "222222222222" in raised.value.wanted
    with pytest.raises(MarkerError, match="No such file"):
        size_of(tmp_path / "gone", "2" * 64)


def test_a_wrong_marker_is_refused_before_any_node_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OFFLINE, "1")
    file = tmp_path / "marker"
    file.write_bytes(b"program")
    right = {"file": str(file), "sha256": hashlib.sha256(b"program").hexdigest()}
    found = survey(load(changed(mesh(), {"mesh.marker": right})), STACK)
    assert found.plan.nodes[0].stages["markers"]["binary"]["size"] == 7
    assert found.outputs()["mesh"]["cap"] == 262144
    with pytest.raises(ProblemsError) as raised:
        survey(load(changed(mesh(), {"mesh.marker": {**right, "sha256": "2" * 64}})), STACK)
    (problem,) = raised.value.problems
    assert (problem.code, problem.path) == ("mesh-marker-file", "spark-fabric:mesh.marker.file")
    assert str(file) in problem.text()
    off = survey(load(changed(mesh(), {"mesh.enabled": "off", "mesh.marker": {**right, "sha256": "2" * 64}})), STACK)
    assert "mesh" not in off.outputs()


@pytest.mark.parametrize(("config", "asked"), [(mesh(), True), (ring(), False)], ids=["on", "off"])
def test_nodes_are_asked_for_the_mesh_where_it_is_on(
    config: dict[str, Any], asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []

    def probe(question: Question) -> Probe:
        told.append(question.mesh)
        return Probe(fresh(config), {})

    monkeypatch.setattr("fleet.asking.probe", probe)
    monkeypatch.setattr(fleet.survey, "lost_nodes", lambda _: set())
    monkeypatch.setattr(fleet.survey, "remember_links", lambda *_: None)
    settings = load(config)
    look(settings, STACK, ask(settings, STACK, []))
    assert told == [asked]


def test_a_node_that_does_not_answer_is_no_node_without_macs() -> None:
    raw = fresh(mesh())
    del raw["spark3"]
    assert [one.code for one in problems(mesh(), raw)] == ["not-probed"]
