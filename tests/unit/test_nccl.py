"""The library in the plan: what each node gets, where the container finds it, and what stands in the way on nodes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fleet.drift import of_fleet
from fleet.facts import parse
from fleet.library import Choice
from fleet.library import parse as library_of
from fleet.loading import load
from fleet.nccl import Libraries
from fleet.nccl_settings import PIP_LIBRARY
from fleet.plan import Plan, PlanError
from fleet.planner import make
from fleet.problems import Problem
from fleet.stack import StackName
from node.digest import digest
from node.sent import files
from tests.unit import observed
from tests.unit.stacks import LIBRARY, NO_PROFILE, changed, ring, switched

STACK = StackName("spark-fabric", "test")
FOLDER = "/opt/nccl"
SHORT = f"{FOLDER}/libnccl.so.2"
LOCAL = {"nccl": {"library": "mine/libnccl.so.2.30.7"}}

Raw = dict[str, dict[str, Any]]


def local(kind: str = "patched", machine: str = "aarch64", edition: int = 1, rival: int | None = None) -> Choice:
    """A library of the operator's on this machine."""
    beside = library_of("mine/libnccl.so.2", observed.library(kind, machine, rival)) if rival else None
    return Choice(library_of("mine/libnccl.so.2.30.7", observed.library(kind, machine, edition)), beside)


def planned(config: dict[str, Any], library: Choice | None = None, raw: Raw | None = None) -> Plan:
    facts = {name: parse(answer) for name, answer in (raw or observed.fleet(4)).items()}
    return make(load(config), facts, STACK, library=library)


def problems(config: dict[str, Any], raw: Raw, library: Choice | None = None) -> list[Problem]:
    try:
        planned(config, library, raw)
    except PlanError as error:
        return list(error.problems)
    return []


def told(found: list[Problem]) -> list[tuple[str, str]]:
    return [(one.code, one.path) for one in found]


def mounts(plan: Plan) -> set[tuple[str, str, bool]]:
    return {(one.source, one.target, one.read_only) for container in plan.containers for one in container.volumes}


# What each node gets


def test_a_local_library_is_sent_and_lies_over_that_of_the_image() -> None:
    plan, sha256 = planned(changed(ring(), LOCAL), local()), local().library.sha256
    path = f"/var/lib/spark-fabric/test/nccl/{sha256}/libnccl.so.2"
    size = local().library.size
    desired = {"state": "on", "sha256": sha256, "size": size, "source": "sent", "path": path}
    assert [node.stages["nccl"] for node in plan.nodes] == [desired] * 4
    assert [(file.path, file.sha256, file.size) for file in files(desired)] == [(path, sha256, size)]
    assert mounts(plan) == {(path, PIP_LIBRARY, True)}
    assert not {name for one in plan.containers for name in one.env if name.startswith("LD_")}


def test_a_library_on_the_nodes_is_only_named() -> None:
    plan = planned(ring())
    sha256 = observed.library()["sha256"]
    assert plan.nodes[2].stages["nccl"] == {"state": "on", "sha256": sha256, "source": "node", "path": LIBRARY}
    assert not list(files(plan.nodes[2].stages["nccl"]))
    assert mounts(plan) == {(LIBRARY, PIP_LIBRARY, True)}


def test_a_node_may_have_it_elsewhere() -> None:
    raw = observed.fleet(4)
    raw["spark2"]["nccl"] = {"files": {"/srv/libnccl.so.2": observed.library()}}
    plan = planned(changed(ring(), {"nodes[1].nccl.onNode": "/srv"}), raw=raw)
    assert [node.stages["nccl"]["path"] for node in plan.nodes] == [LIBRARY, "/srv/libnccl.so.2", LIBRARY, LIBRARY]


def test_the_versioned_name_wins_and_its_rival_is_a_warning() -> None:
    raw = observed.fleet(4)
    raw["spark3"]["nccl"]["files"][SHORT] = observed.library(edition=2)
    plan = planned(changed(ring(), {"nccl.library.onNode": FOLDER}), raw=raw)
    assert plan.nodes[2].stages["nccl"]["path"] == LIBRARY
    assert told(list(plan.warnings)) == [("library-rival", f"spark3 {LIBRARY}")]
    sent = planned(changed(ring(), LOCAL), local(rival=2))
    assert told(list(sent.warnings)) == [("library-rival", "spark-fabric:nccl.library")]


def test_a_folder_goes_beside_the_library_of_the_image_with_a_warning() -> None:
    plan = planned(changed(switched(), {"nccl": {"mode": "directory", "library": "mine"}}), local())
    folder = plan.nodes[0].stages["nccl"]["path"].rpartition("/")[0]
    assert mounts(plan) == {(folder, "/nccl", True)}
    flag = plan.containers[3].env["LD_LIBRARY_PATH"]
    assert (flag.value, flag.origin) == ("/nccl", "setting nccl.mode")
    (warning,) = plan.warnings
    assert warning.code == "nccl-directory"
    assert "reaches only programs that load NCCL with ctypes" in warning.text()


def test_a_switched_fabric_has_the_library_of_its_image() -> None:
    plan = planned(switched())
    assert [node.stages["nccl"] for node in plan.nodes] == [{"state": "off"}] * 4
    assert mounts(plan) == set()
    assert plan.notes == ()


def test_a_switched_fabric_takes_any_library_over_that_of_its_image() -> None:
    plan = planned(changed(switched(), {"nccl": {"mode": "overlay", "library": "mine"}}), local("stock"))
    assert plan.nodes[0].stages["nccl"]["state"] == "on"
    assert {target for _, target, _ in mounts(plan)} == {PIP_LIBRARY}


def test_a_leaving_node_gets_none() -> None:
    plan = planned(changed(ring(), {**NO_PROFILE, "nodes[1].state": "leaving"}))
    assert [node.stages["nccl"]["state"] for node in plan.nodes] == ["on", "off", "on", "on"]


# Digests


def test_a_new_library_stops_the_engines_and_starts_a_new_group() -> None:
    before = planned(changed(ring(), LOCAL), local())
    after = planned(changed(ring(), LOCAL), local(edition=2))
    assert after.standstill != before.standstill
    assert after.group != before.group


def test_a_library_replaced_in_place_stops_the_engines() -> None:
    raw = observed.fleet(4)
    for node in raw.values():
        node["nccl"]["files"][LIBRARY] = observed.library(edition=2)
    assert planned(ring(), raw=raw).standstill != planned(ring()).standstill


def test_where_the_file_lies_here_and_what_is_trusted_change_nothing() -> None:
    before = planned(changed(ring(), LOCAL), local())
    moved = Choice(library_of("/elsewhere/libnccl.so.2", observed.library()))
    trusted = {"nccl": {"library": "/elsewhere", "sha256": moved.library.sha256}}
    after = planned(changed(ring(), trusted), moved)
    assert (after.standstill, after.group) == (before.standstill, before.group)
    assert [node.stages for node in after.nodes] == [node.stages for node in before.nodes]


def test_a_stage_that_is_off_changes_no_digest_of_a_fleet_from_before_it() -> None:
    plan = planned(switched())
    table = [[node.name, node.address, f"{number:032x}"] for number, node in enumerate(plan.ranks, start=1)]
    bare = {
        node.name: {
            stage: {key: value for key, value in node.stages[stage].items() if key != "text"}
            for stage in ("node", "plane0", "plane1", "relay")
        }
        for node in plan.ranks
    }
    assert plan.standstill == digest({"ranks": table, "desired": bare})


# What stands in the way


def test_another_library_on_one_node_is_told_with_all_digests() -> None:
    raw = observed.fleet(4)
    raw["spark3"]["nccl"]["files"][LIBRARY] = observed.library(edition=2)
    (problem,) = problems(ring(), raw)
    assert told([problem]) == [("library-ids", "spark-fabric:nccl.library.onNode")]
    one, other = (observed.library(edition=edition)["sha256"][:12] for edition in (1, 2))
    assert f"{one} on spark1, spark2, spark4; {other} on spark3" in problem.text()


def test_every_wrong_library_is_told_with_its_node() -> None:
    raw = observed.fleet(4)
    raw["spark1"]["nccl"] = {"files": {}}
    raw["spark2"]["nccl"]["files"][LIBRARY] = observed.library("stock")
    raw["spark3"]["nccl"]["files"][LIBRARY] = observed.library(machine="x86_64")
    raw["spark4"]["nccl"]["files"][LIBRARY] = observed.library("skip-tree")
    assert told(problems(ring(), raw)) == [
        ("library-absent", f"spark1 {LIBRARY}"),
        ("library-stock", f"spark2 {LIBRARY}"),
        ("library-machine", f"spark3 {LIBRARY}"),
        ("library-skip-tree", f"spark4 {LIBRARY}"),
        ("library-ids", "spark-fabric:nccl.library.onNode"),
    ]


def test_a_library_on_a_network_that_does_not_answer_is_not_called_missing() -> None:
    raw = observed.fleet(4)
    raw["spark1"]["nccl"] = {"files": {}, "silent": [LIBRARY]}
    (problem,) = problems(ring(), raw)
    assert told([problem]) == [("library-absent", f"spark1 {LIBRARY}")]
    assert "is on a file system of the network that does not answer" in problem.text()


def test_a_local_library_is_held_against_the_machine_of_each_node() -> None:
    raw = observed.fleet(4)
    raw["spark4"]["arch"] = "x86_64"
    (problem,) = problems(changed(ring(), LOCAL), raw, local())
    assert told([problem]) == [("library-machine", "spark4 spark-fabric:nccl.library")]
    assert "is for aarch64, and the node is x86_64" in problem.text()
    for node in raw.values():
        node["arch"] = "x86_64"
    assert problems(changed(ring(), LOCAL), raw, local(machine="x86_64")) == []


def test_only_the_trusted_digest_is_taken_from_a_node() -> None:
    raw = observed.fleet(4)
    trusted = observed.library()["sha256"]
    raw["spark2"]["nccl"]["files"][LIBRARY] = observed.library(edition=2)
    config = changed(ring(), {"nccl.sha256": trusted})
    assert told(problems(config, raw))[0] == ("library-untrusted", f"spark2 {LIBRARY}")


@pytest.mark.parametrize(("beside", "word"), [(None, "no"), (2, "another")])
def test_in_a_folder_the_loader_must_find_the_same_library(beside: int | None, word: str) -> None:
    raw = observed.fleet(4)
    for name in raw:
        if name != "spark2":
            raw[name]["nccl"]["files"][SHORT] = observed.library()
        elif beside:
            raw[name]["nccl"]["files"][SHORT] = observed.library(edition=beside)
    config = changed(switched(), {"nccl": {"mode": "directory", "library": {"onNode": FOLDER}}})
    (problem,) = problems(config, raw)
    assert told([problem]) == [("library-unloadable", f"spark2 {LIBRARY}")]
    assert f"has {word} libnccl.so.2 beside it" in problem.text()


# What to know


def test_without_a_trusted_digest_the_note_says_which_library_it_is() -> None:
    (note,) = [one for one in planned(ring()).notes if one.code == "library-unproven"]
    for part in (observed.library()["sha256"], "BuildID", "EXTENDED_IPV4_GIDS", "they prove nothing"):
        assert part in note.text()
    trusted = changed(ring(), {"nccl.sha256": observed.library()["sha256"]})
    assert planned(trusted).notes == ()


def test_the_note_names_a_build_that_is_known() -> None:
    raw = observed.fleet(4)
    good = "933c0cecfd68b25511ab49fd8cf1cb33c75f471d9d0f6db35ae302d56ebbe925"
    for node in raw.values():
        node["nccl"]["files"][LIBRARY]["sha256"] = good
    (note,) = planned(ring(), raw=raw).notes
    assert "which is knapcio's R5 library, known as good" in note.text()


def test_a_plan_without_nodes_and_file_is_a_draft() -> None:
    settings = load(changed(ring(), LOCAL))
    draft = Libraries(settings, None, {}).desired(settings.nodes[0], "test")
    assert (draft["sha256"], draft["size"], draft["source"]) == (None, None, "sent")


# Drift


def applied(plan: Plan, **change: Any) -> Raw:
    """Nodes on which the stage is applied; spark2's file is changed."""
    raw = observed.fleet(4)
    for node in plan.nodes:
        stages = {
            stage: {"status": "applied", "digest": digest(desired), "desired": desired}
            for stage, desired in node.stages.items()
            if stage == "nccl"
        }
        raw[node.name]["journal"] = {"schema": 1, "generation": 3, "stages": stages}
        path = node.stages["nccl"]["path"]
        raw[node.name]["nccl"]["files"][path] = {**observed.library(), **(change if node.name == "spark2" else {})}
    return raw


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"sha256": "0" * 64}, "is 000000000000, plan wants the library"),
        ({"mode": "0755"}, "mode and owner are 0755 0:0, plan wants 0644 0:0"),
        ({"uid": 1000}, "mode and owner are 0644 1000:0, plan wants 0644 0:0"),
    ],
)
def test_a_library_that_somebody_touched_is_drift_of_that_stage(change: dict[str, Any], says: str) -> None:
    plan = planned(changed(ring(), LOCAL), local())
    assert [line for line in of_fleet(plan, applied(plan)).lines() if " nccl" in line] == []
    found = of_fleet(plan, applied(plan, **change))
    ((key, drift),) = [(key, one) for key, one in found.stages.items() if key[1] == "nccl"]
    assert key == ("spark2", "nccl")
    assert drift.disruptive
    assert says in drift.text()
    assert "nccl" not in (found.fabric() or "")


def test_a_library_that_is_gone_is_drift() -> None:
    plan = planned(changed(ring(), LOCAL), local())
    raw = applied(plan)
    del raw["spark2"]["nccl"]["files"][plan.nodes[1].stages["nccl"]["path"]]
    assert "libnccl.so.2: is missing" in str(of_fleet(plan, raw).repair("spark2", "nccl"))


def test_desired_states_are_plain_json() -> None:
    for plan in (planned(ring()), planned(changed(ring(), LOCAL), local()), planned(switched())):
        for node in plan.nodes:
            assert json.loads(json.dumps(node.stages["nccl"])) == node.stages["nccl"]
