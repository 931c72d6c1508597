"""Everything that stands in the way is told at once, with the drift of every node that can be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fleet import containers, on_node, overlay, survey
from fleet.asking import OFFLINE, ask
from fleet.brought import brought
from fleet.loading import load
from fleet.on_node import Link
from fleet.probe import Probe, Question, probe
from fleet.problems import Problem
from fleet.stack import StackName
from fleet.survey import Refused, Survey, look
from tests.unit import fakes, heard, observed
from tests.unit.fakes import link
from tests.unit.looks import at_first, planned
from tests.unit.stacks import changed, ring

STACK = StackName("spark-fabric", "test")
OWNER = {"project": "spark-fabric", "stack": "test", "fleet_id": "default", "state_id": "1", "adoptable": False}
SILENT = "spark3 (nvidia@192.168.1.13:22): No route to host. Is it on? To go on without it: forget"

Raw = dict[str, dict[str, Any]]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept of a stack lies in a folder of the test's own, and every image holds the file to lie over."""
    monkeypatch.setattr(on_node, "folder", lambda stack: tmp_path / "stacks" / stack)
    monkeypatch.setattr(overlay, "holds", lambda *_: True)


@pytest.fixture
def raw() -> Raw:
    """Fresh nodes with the engine's image."""
    nodes = observed.fleet(4)
    for node in nodes.values():
        node["docker"]["images"] = {"engine:1": "sha256:" + "1" * 64}
    return nodes


@pytest.fixture
def links() -> list[Link]:
    """Of all four."""
    return [link(number) for number in range(1, 5)]


def looked(raw: Raw, patch: pytest.MonkeyPatch, *silent: str, **changes: Any) -> tuple[Survey, list[Problem]]:
    """What a look at these nodes finds; `silent` ones do not answer."""
    seen = Probe({name: node for name, node in raw.items() if name not in silent}, dict.fromkeys(silent, SILENT))
    patch.setattr("fleet.asking.probe", lambda *_, **__: seen)
    patch.setattr(survey, "listen", lambda *_: heard.CABLED)
    settings = load(changed(ring(), changes))
    return look(settings, STACK, ask(settings, STACK, [link(number) for number in range(1, 5)]))


def codes(problems: list[Problem]) -> list[tuple[str, str]]:
    return [(one.code, one.path) for one in problems]


def journaled(raw: Raw, name: str, **stages: Any) -> None:
    """Let a node belong to the stack, with these desired states applied."""
    entries = {stage: {"status": "applied", "digest": "", "desired": desired} for stage, desired in stages.items()}
    raw[name] |= {"owner": dict(OWNER), "journal": {"schema": 1, "generation": 1, "stages": entries}}


def container(name: str = "spark-fabric-test", stack: str | None = None) -> dict[str, Any]:
    labels = {"spark-fabric.stack": stack} if stack else {}
    return {"name": name, "state": "running", "labels": labels}


# One by one


def test_nothing_stands_in_the_way_of_a_fresh_fleet(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    found, problems = looked(raw, monkeypatch)
    assert problems == []
    assert found.warnings == ()
    assert set(found.links) == {"spark1", "spark2", "spark3", "spark4"}
    assert found.outputs()["apiUrl"] == "http://192.168.1.11:8888"


def test_a_silent_node_is_told_once_and_the_others_are_judged(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    raw["spark2"]["docker"]["images"] = {}
    raw["spark4"]["docker"] = None
    _, problems = looked(raw, monkeypatch, "spark3")
    assert codes(problems) == [
        ("unreachable", "spark3 (nvidia@192.168.1.13:22)"),
        ("docker", "spark4"),
        ("image-missing", "spark2"),
    ]
    assert problems[0].text() == (
        "spark3 (nvidia@192.168.1.13:22): No route to host, wanted an answer. Is it on? To go on without it: forget"
    )


def test_problems_of_the_plan_come_with_all_others(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    del raw["spark1"]["hcas"]["rocep1s0f0"]
    raw["spark2"]["docker"]["containers"] = [container()]
    raw["spark4"]["owner"] = {**OWNER, "fleet_id": "other"}
    _, problems = looked(raw, monkeypatch)
    assert codes(problems) == [
        ("other-owner", "spark4"),
        ("port-missing", "spark1 plane 0 f0"),
        ("container-name", "spark2"),
    ]
    assert "Is a cable in the port?" in problems[1].hint  # F017


def test_an_image_may_be_missing_where_the_operator_has_an_archive(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    raw["spark2"]["docker"]["images"] = {}
    image = {"ref": "engine:1", "archive": "engine.tar"}
    assert looked(raw, monkeypatch, **{"engine.image": image})[1] == []


BUILD = {"ref": "engine:1", "build": {"context": "."}}
PULL = {"ref": f"engine@sha256:{'a' * 64}", "pull": True}


@pytest.mark.parametrize("image", [BUILD, PULL])
def test_an_image_may_be_missing_where_it_is_built_or_pulled(
    image: dict[str, Any], raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("spark1", "spark2"):
        raw[name]["docker"]["images"] = {}
    assert looked(raw, monkeypatch, **{"engine.image": image})[1] == []


def test_different_images_under_one_digest_are_refused_and_of_a_build_the_builders_counts(
    raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, node in enumerate(raw.values()):
        node["docker"]["images"] = dict.fromkeys((PULL["ref"], "engine:1"), f"sha256:{number // 3:064}")
    assert codes(looked(raw, monkeypatch, **{"engine.image": PULL})[1]) == [("image-ids", "spark-fabric:engine.image")]
    found, problems = looked(raw, monkeypatch, **{"engine.image": BUILD})
    assert problems == []
    assert [node for node, stage in found.drift.stages if stage == "image"] == ["spark4"]


@pytest.mark.parametrize("image", ["engine:1", BUILD, PULL])
def test_an_image_for_another_machine_is_refused_on_each_node(
    image: Any, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    for node in raw.values():
        node["docker"]["image"] = {"architecture": "arm64"}
    assert looked(raw, monkeypatch, **{"engine.image": image})[1] == []
    raw["spark2"]["docker"]["image"] = {"architecture": "amd64"}
    raw["spark3"]["docker"]["image"] = None
    _, problems = looked(raw, monkeypatch, **{"engine.image": image})
    assert codes(problems) == [("image-machine", "spark2")]
    assert "is for amd64, wanted one for arm64. Build it on such a machine" in problems[0].text()


def test_an_archive_for_another_machine_is_refused_before_it_is_sent(raw: Raw) -> None:
    found = list(containers.architecture(planned(load(ring()), raw, machine="amd64")))
    assert codes(found) == [("image-machine", f"spark{number}") for number in range(1, 5)]
    assert "engine:1 in the archive is for amd64" in found[0].text()
    assert list(containers.architecture(planned(load(ring()), raw, machine="arm64"))) == []


def test_what_is_built_is_named_by_what_it_is_built_of(tmp_path: Path) -> None:
    settings = load(changed(ring(), {"engine.image": {"ref": "engine:1", "build": {"context": str(tmp_path)}}}))
    (problem,) = brought(settings).problems
    assert (problem.code, problem.path) == ("image-build", "spark-fabric:engine.image.build")
    assert f"cannot be used: {tmp_path} holds no Dockerfile" in problem.text()
    (tmp_path / "Dockerfile").write_text("FROM base\n")
    first = brought(settings).image_ref
    assert first
    assert first.startswith("engine:1-")
    (tmp_path / "Dockerfile").write_text("FROM base:2\n")
    assert brought(settings).image_ref not in (None, first)


def test_a_user_whom_docker_shuts_out_is_named(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    raw["spark2"]["docker"]["shut_out"] = "nvidia"
    _, problems = looked(raw, monkeypatch)
    assert codes(problems) == [("docker-rights", "spark2")]
    assert "usermod -aG docker nvidia" in problems[0].text()


def test_nodes_with_different_images_are_told_apart(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    raw["spark3"]["docker"]["images"] = {"engine:1": "sha256:" + "2" * 64}
    _, problems = looked(raw, monkeypatch)
    assert codes(problems) == [("image-ids", "spark-fabric:engine.image")]
    assert f"{'1' * 12} on spark1, spark2, spark4; {'2' * 12} on spark3" in problems[0].text()


def test_a_container_of_our_own_is_in_nobodys_way(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    raw["spark2"]["docker"]["containers"] = [container(stack=STACK.label("default")), container("other")]
    assert looked(raw, monkeypatch)[1] == []


def test_a_container_of_another_stack_with_our_name_is_refused(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    raw["spark2"]["docker"]["containers"] = [container(stack="spark-fabric/other/default")]
    assert codes(looked(raw, monkeypatch)[1]) == [("container-name", "spark2")]


# Who is who


def before(raw: Raw, *, lost: tuple[str, ...] = (), size: int = 4) -> tuple[list[Problem], list[Problem]]:
    judged = at_first(load(ring(size)), STACK, Probe(raw, {}), lost)
    return list(judged.problems), list(judged.warnings)


def test_a_member_that_vanished_at_once_is_missed(raw: Raw) -> None:
    members = ["spark1", "spark2", "spark3", "spark4"]
    journaled(raw, "spark1", node={"name": "spark1", "members": members})
    journaled(raw, "spark2", node={"name": "spark2", "members": members})
    problems, _ = before({name: raw[name] for name in members[:3]}, size=3)
    assert codes(problems) == [("member-vanished", "spark-fabric:nodes")]
    assert "state: leaving" in problems[0].text()
    assert "python -m fleet forget spark4" in problems[0].text()
    problems, warnings = before({name: raw[name] for name in members[:3]}, size=3, lost=("spark4",))
    assert problems == []
    assert codes(warnings) == [("forgotten", "spark4")]
    assert before(raw)[0] == []


def test_a_machine_that_was_another_node_so_far_is_refused(raw: Raw) -> None:
    journaled(raw, "spark2", node={"name": "spark3", "members": []})
    problems, _ = before(raw)
    assert codes(problems) == [("other-node", "spark2")]
    assert "is spark3 to this stack" in problems[0].text()


def test_a_node_of_another_fleet_is_refused(raw: Raw) -> None:
    raw["spark2"]["owner"] = {**OWNER, "stack": "other"}
    problems, _ = before(raw)
    assert codes(problems) == [("other-owner", "spark2")]
    assert "belongs to spark-fabric/other/default, wanted spark-fabric/test/default" in problems[0].text()


def test_another_state_of_the_same_stack_is_left_to_the_node(raw: Raw) -> None:
    raw["spark2"]["owner"] = {**OWNER, "state_id": "another"}
    assert before(raw)[0] == []


def test_what_is_only_odd_is_a_warning(raw: Raw) -> None:
    raw["spark1"]["hostname"] = "gpu-7"
    raw["spark2"]["lock"] = {"holder": "ann@desk (pid 7)", "pid": 7, "since": 0}
    problems, warnings = before(raw)
    assert problems == []
    assert [(one.code, one.path) for one in warnings] == [("hostname", "spark1"), ("at-work", "spark2")]
    assert "ann@desk (pid 7)" in warnings[1].text()


def test_the_way_to_a_node_is_kept_when_it_answers_and_is_the_right_one(
    raw: Raw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journaled(raw, "spark2", node={"name": "spark3", "members": []})
    looked(raw, monkeypatch, "spark4")
    kept = json.loads((tmp_path / "stacks" / "test" / "links.json").read_text())
    assert sorted(kept) == ["spark1", "spark3"]
    assert kept["spark1"]["address"] == "192.168.1.11"


# With a problem, the drift all the same


@pytest.fixture
def trusted(tmp_path: Path) -> str:
    """A known_hosts file with a key for each node."""
    file = tmp_path / "known_hosts"
    file.write_text("".join(f"spark{number} ssh-ed25519 AAAA{number}\n" for number in range(1, 5)))
    return str(file)


def refused(raw: Raw, trusted: str, patch: pytest.MonkeyPatch, *silent: str) -> Refused:
    seen = Probe({name: node for name, node in raw.items() if name not in silent}, dict.fromkeys(silent, SILENT))
    patch.setattr("fleet.asking.probe", lambda *_, **__: seen)
    patch.setattr(survey, "listen", lambda *_: heard.CABLED)
    with pytest.raises(Refused) as raised:
        survey.survey(load(changed(ring(), {"ssh.knownHosts": trusted})), STACK)
    return raised.value


def test_the_drift_of_the_others_is_told_with_a_problem(
    raw: Raw, trusted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw["spark1"]["hostname"] = "gpu-7"
    for name in raw:
        journaled(raw, name, node={"name": name, "members": []})
    error = refused(raw, trusted, monkeypatch, "spark3")
    assert codes(list(error.problems)) == [("unreachable", "spark3 (nvidia@192.168.1.13:22)")]
    assert [one.code for one in error.warnings] == ["hostname"]
    assert "spark2 node: the node's journal holds another desired state" in error.drift
    assert "spark4 plane0: not applied on this node" in error.drift
    assert "engine: rank 3 (spark4): no container" in error.drift
    assert not any("spark3" in line for line in error.drift)
    assert error.report().splitlines()[:5] == [
        "1 problem(s); nothing was changed:",
        f"  {error.problems[0].text()}",
        "Warnings:",
        f"  {error.warnings[0].text()}",
        "Deviations, which `up` repairs when the problems are gone:",
    ]


def test_a_fleet_that_never_was_up_has_no_drift(raw: Raw, trusted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    error = refused(raw, trusted, monkeypatch, "spark3")
    assert error.drift == ()
    assert error.report().count("\n") == 1


def test_a_node_of_another_fleet_is_none_of_our_drift(raw: Raw, trusted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in raw:
        journaled(raw, name, node={"name": name, "members": []})
    raw["spark2"]["owner"] = {**OWNER, "stack": "other"}
    error = refused(raw, trusted, monkeypatch)
    assert codes(list(error.problems)) == [("other-owner", "spark2")]
    assert not any(line.startswith("spark2 ") for line in error.drift)
    assert any(line.startswith("spark1 ") for line in error.drift)


def test_without_nodes_the_usual_names_are_planned_and_nobody_is_asked(
    trusted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh = fakes.install(tmp_path, monkeypatch)
    monkeypatch.setenv(OFFLINE, "1")
    found = survey.survey(load(changed(ring(), {"ssh.knownHosts": "no-such-file"})), STACK)
    assert [node.rank for node in found.plan.ranks] == [0, 1, 2, 3]
    assert found.drift.lines() == []
    assert ssh.calls() == []


# The probe


def test_the_probe_keeps_the_answers_of_the_others(
    tmp_path: Path, links: list[Link], monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh = fakes.install(tmp_path, monkeypatch)
    ssh.answers("spark1", {"ok": True, "hostname": "spark1"})
    ssh.answers("spark2", None, status=255, said="ssh: connect to host 192.168.1.12 port 22: Connection timed out")
    ssh.answers("spark3", None, status=127, said="sh: python3: not found")
    ssh.does("spark4", "exec sleep 20")
    seen = probe(Question(STACK, "default", links), deadline=1)
    assert set(seen.observed) == {"spark1"}
    assert list(seen.unreachable) == ["spark2", "spark3", "spark4"]
    assert "Connection timed out. Is it on?" in seen.unreachable["spark2"]
    assert seen.unreachable["spark3"] == "spark3: cannot be read: sh: python3: not found"
    assert "no answer within 1 s" in seen.unreachable["spark4"]
    assert sorted(ssh.calls()) == ["spark1", "spark2", "spark3", "spark4"]
