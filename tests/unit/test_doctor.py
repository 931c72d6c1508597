"""What `doctor` and `picture` say of a look at a fleet."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fleet import __main__ as fleet
from fleet import doctor, marks, on_node, overlay, stackfile, survey
from fleet.asking import ask
from fleet.brought import brought
from fleet.doctor import Word
from fleet.facts import parse
from fleet.known import WEIGHTS
from fleet.loading import load
from fleet.picture import picture
from fleet.plan import Plan
from fleet.planner import make
from fleet.probe import Probe
from fleet.problems import Problem
from fleet.stack import StackName
from fleet.survey import Survey
from fleet.svg import svg
from fleet.verdicts import CHECKS
from node.digest import digest
from tests.unit import heard, observed
from tests.unit.checkpoints import PATH, checkpoint, on_network
from tests.unit.fakes import link
from tests.unit.stacks import changed, mesh, switched
from tests.unit.stacks import ring as unproven

NAME = StackName("spark-fabric", "test")
OWNER = {"project": "spark-fabric", "stack": "test", "fleet_id": "default", "state_id": "7", "adoptable": False}
SILENT = "spark3 (nvidia@192.168.1.13:22): No route to host. Is it on? To go on without it: forget"
IMAGE = "sha256:" + "1" * 64
SVG = "{http://www.w3.org/2000/svg}"

Raw = dict[str, dict[str, Any]]


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept of a stack lies in a folder of the test's own, and cables are heard as they should be."""
    monkeypatch.setattr(on_node, "folder", lambda stack: tmp_path / "stacks" / stack)
    monkeypatch.setattr(survey, "listen", lambda *_: heard.CABLED)
    monkeypatch.setattr(overlay, "holds", lambda *_: True)


def ring(size: int = 4) -> dict[str, Any]:
    """A ring whose library the operator trusts."""
    return changed(unproven(size), {"nccl.sha256": observed.library()["sha256"]})


def whole(config: dict[str, Any]) -> Raw:
    """A fleet that is as planned, with its engines running, as far as answers of `observe` can say it without files."""
    plan = make(load(config), None, NAME)
    raw = observed.fleet_applied(plan, journaled=True)
    for name, node in raw.items():
        node |= {"owner": dict(OWNER), "time": 1000.0}
        node["docker"]["images"] = {"engine:1": IMAGE}
        node["journal"]["stages"]["node"] = {"status": "applied", "digest": "", "desired": {"name": name}}
    return raw


def look(raw: Raw, patch: pytest.MonkeyPatch, config: dict[str, Any], *silent: str) -> tuple[Survey, list[Problem]]:
    seen = Probe({name: node for name, node in raw.items() if name not in silent}, dict.fromkeys(silent, SILENT))
    patch.setattr("fleet.asking.probe", lambda *_, **__: seen)
    settings = load(config)
    return survey.look(settings, NAME, ask(settings, NAME, [link(number) for number in range(1, len(raw) + 1)]))


def plain(raw: Raw, patch: pytest.MonkeyPatch, config: dict[str, Any] | None = None) -> tuple[Survey, list[Problem]]:
    """A look in which no stage deviates but by its journal: what the stages look at is tested elsewhere."""
    patch.setattr("fleet.drift.DEVIATIONS", {})
    config = config or ring()
    found, _ = look(raw, patch, config)
    for node in found.plan.nodes:
        stages = {
            stage: {"status": "applied", "digest": digest(dict(desired)), "desired": desired}
            for stage, desired in node.stages.items()
            if desired.get("state") != "off"
        }
        raw[node.name]["journal"]["stages"] = stages
        labels = {"stack": found.plan.label, "rank": str(node.rank), "group": found.plan.group, "start": "100"}
        container = {"name": "spark-fabric-test", "state": "running", "pid": 9}
        labels = {f"spark-fabric.{key}": value for key, value in labels.items()}
        raw[node.name]["docker"]["containers"] = [{**container, "labels": labels}]
        raw[node.name]["started"] = {"start": "100"}
    return look(raw, patch, config)


# Lines


def test_a_whole_fleet_has_one_passing_line_for_each_check_stage_and_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, problems = plain(whole(ring()), monkeypatch)
    told = doctor.lines(found, problems)
    assert {line.word for line in told} == {Word.PASS}
    assert doctor.worst(told) is Word.PASS
    has = doctor.applies(found.plan.settings)
    wanted = [row.code for row in CHECKS if row.about is None or row.about in has]
    assert [line.code for line in told] == [
        *wanted,
        *(f"drift {stage}" for stage in (*found.plan.nodes[0].stages, "neighbours", "image")),
        "engine",
    ]
    texts = {line.code: line.text for line in told}
    assert texts["clock"] == "all clocks agree"
    assert texts["drift plane0"] == "as planned on spark1, spark2, spark3, spark4"
    assert texts["engine"] == "4 ranks run as one group, start 100"


def test_what_a_stack_does_not_have_is_not_said_to_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def codes(config: dict[str, Any]) -> set[str]:
        found, problems = look(whole(config), monkeypatch, config)
        return {line.code for line in doctor.lines(found, problems)}

    on_a_ring = codes(ring())
    assert {"cable-wrong", "image-missing", "gpu-busy"} <= on_a_ring
    assert {"rail-split", "mesh-pci", "image-space", "gid-given", "engram-space"} & on_a_ring == set()
    on_a_switch = codes(changed(switched(), {"engine.gpus": "off", "engine.gidIndex": 3}))
    assert {"rail-split", "gid-given"} <= on_a_switch
    assert {"cable-wrong", "ring-ranks", "gpu-busy"} & on_a_switch == set()


def test_weights_that_nobody_looked_into_are_not_said_to_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def texts(config: dict[str, Any], *far: str) -> dict[str, str]:
        raw = whole(config)
        for name, node in raw.items():
            node["weights"] = on_network() if name in far else checkpoint()
        found, problems = look(raw, monkeypatch, config)
        told = [line for line in doctor.lines(found, problems) if line.code.startswith("weights-")]
        return {line.code: line.text for line in told if line.word is Word.PASS}

    weights = {"engine.weights": {"path": PATH}}
    checks = {row.code for row in CHECKS if row.code.startswith("weights-")}
    assert texts(ring()) == {}
    of_manifest = {"weights-manifest", "weights-digest", "weights-unverified"}
    assert texts(changed(ring(), weights)).keys() == checks - {"weights-revision", *of_manifest}
    more = {"revision": WEIGHTS.revision, "manifest": "weights.sha256"}
    named = {"engine.weights": {"path": PATH, **more}}
    assert texts(changed(ring(), named)).keys() == checks
    far = texts(changed(ring(), named), "spark1", "spark2", "spark3", "spark4")
    assert far.keys() == {"weights-unread", "weights-folder", "weights-manifest"}
    some = texts(changed(ring(), weights), "spark2", "spark3")
    assert some["weights-empty"] == "no file of the checkpoint is empty (2 of 4 nodes)"
    assert some["weights-folder"] == "the folder of weights is there"
    none = texts(changed(ring(), weights), "spark1", "spark2", "spark3", "spark4")
    assert none.keys() == {"weights-unread", "weights-folder"}


def test_findings_take_the_place_of_their_checks_line_each_with_its_word(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = whole(ring())
    raw["spark1"]["hostname"] = "gpu-7"
    raw["spark2"] |= {"kernel": "6.99.0"}
    raw["spark4"]["disks"] = {"/etc": {"free": 1, "total": 9, "files_free": 9, "files_total": 9}}
    raw["spark2"]["hcas"]["rocep1s0f0"]["rate"] = "100 Gb/sec (4X EDR)"
    found, problems = plain(raw, monkeypatch, changed(ring(), {"preflight.ignore": ["rate-low"]}))
    told = [line for line in doctor.lines(found, problems) if line.word is not Word.PASS]
    assert [(line.word, line.code, line.node, line.subject) for line in told] == [
        (Word.WARN, "hostname", "spark1", ""),
        (Word.FAIL, "disk-full", "spark4", "/etc"),
        (Word.NOTE, "level-unknown", None, "versions"),
        (Word.NOTE, "rate-low", "spark2", "enp1s0f0np0"),
        (Word.WARN, "rate-differs", None, "cable 1 plane 0"),
    ]
    assert told[3].text.endswith("Ignored, as preflight.ignore says.")
    assert doctor.worst(told) is Word.FAIL
    assert doctor.worst(told[:1]) is Word.WARN
    assert doctor.worst(told[2:3]) is Word.PASS


def test_a_dead_node_is_told_and_the_drift_of_the_others_too(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = whole(ring())
    found, problems = look(raw, monkeypatch, ring(), "spark3")
    text = doctor.text(doctor.lines(found, problems))
    assert "FAIL  unreachable        spark3 (nvidia@192.168.1.13:22): No route to host" in text
    assert "PASS  disk-full          there is room for the journal and for files (3 of 4 nodes)" in text
    assert re.search(r"FAIL  drift plane0       spark2: .*\(drift disruptive: `up` repairs it\)", text)
    assert re.search(r"FAIL  engine             rank 1 \(spark2\): no container", text)
    assert re.fullmatch(r"\d+ PASS, \d+ FAIL", text.splitlines()[-1])
    assert not re.search(r"drift \w+ +spark3", text)


def test_a_fleet_that_was_never_up_has_a_note_in_place_of_its_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = observed.fleet(4)
    for node in raw.values():
        node["docker"]["images"] = {"engine:1": IMAGE}
    found, problems = look(raw, monkeypatch, ring())
    told = doctor.lines(found, problems)
    assert [(line.code, line.text) for line in told if line.word is not Word.PASS] == [
        ("drift", "this stack is on none of these nodes yet")
    ]
    assert not any(line.code == "engine" for line in told)
    assert marks.of(found, problems).marks == ()


def test_a_node_of_another_stack_is_none_of_our_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = whole(ring())
    raw["spark2"]["owner"]["stack"] = "other"
    found, problems = look(raw, monkeypatch, ring())
    told = doctor.lines(found, problems)
    assert [line.node for line in told if line.code == "other-owner"] == ["spark2"]
    assert not any(line.code.startswith("drift") and line.node == "spark2" for line in told)
    assert {mark.place for mark in marks.of(found, problems).marks if "spark2" in mark.place[0]} == {("spark2", "")}


# The commands


def answer(patch: pytest.MonkeyPatch, raw: Raw, *silent: str) -> None:
    seen = Probe({name: node for name, node in raw.items() if name not in silent}, dict.fromkeys(silent, SILENT))
    patch.setattr("fleet.asking.probe", lambda *_, **__: seen)


def test_the_exit_status_says_whether_anything_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raw, links = whole(ring()), [link(number) for number in range(1, 5)]
    plain(raw, monkeypatch)
    raw["spark1"]["hostname"] = "gpu-7"
    answer(monkeypatch, raw)
    assert fleet.diagnose(NAME, load(ring()), links) == fleet.OK
    assert "WARN  hostname" in capsys.readouterr().out
    answer(monkeypatch, raw, "spark3")
    assert fleet.diagnose(NAME, load(ring()), links, as_json=True) == fleet.NOT_OK
    said = json.loads(capsys.readouterr().out)
    assert (said["stack"], said["result"], said["exit"], said["nodes"]["spark3"]) == ("test", "fail", 3, False)
    (failed,) = (line for line in said["lines"] if line["word"] == "fail")
    assert (failed["code"], failed["node"], failed["wanted"]) == ("unreachable", "spark3", "an answer")


def test_what_is_wrong_with_the_operators_own_files_is_told_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = changed(ring(), {"engine.image": {"ref": "engine:1", "archive": "no-such.tar"}})
    answer(monkeypatch, whole(ring()))
    assert fleet.diagnose(NAME, load(config), [link(number) for number in range(1, 5)]) == fleet.NOT_OK
    assert "FAIL  image-archive      spark-fabric:engine.image.archive: cannot be used" in capsys.readouterr().out


def test_a_picture_is_printed_or_drawn_into_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(monkeypatch, whole(ring()), "spark3")
    links = [link(number) for number in range(1, 5)]
    assert fleet.draw(NAME, load(ring()), links) == fleet.OK
    out = capsys.readouterr().out
    assert re.search(r"^│   \[2\] spark3  192\.168\.1\.13  ✗1$", out, flags=re.MULTILINE)
    assert "\n✗1 spark3 (nvidia@192.168.1.13:22): No route to host" in out
    file = tmp_path / "ring.svg"
    assert fleet.draw(NAME, load(ring()), links, file=file) == fleet.OK
    assert ET.fromstring(file.read_text()).tag == f"{SVG}svg"  # noqa: S314 - ours


# Marks


def test_marks_are_where_the_trouble_is(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = whole(ring())
    plain(raw, monkeypatch)
    raw["spark1"]["hostname"] = "gpu-7"
    raw["spark2"]["hcas"]["roceP2p1s0f1"]["rate"] = "100 Gb/sec (4X EDR)"
    raw["spark4"]["docker"]["images"] = {}
    raw["spark4"]["docker"]["containers"] = []
    found, problems = look(raw, monkeypatch, ring())
    wrong = marks.of(found, problems)
    assert [(mark.place, mark.bad) for mark in wrong.marks] == [
        (("spark4", ""), True),
        (("spark1", ""), False),
        (("spark2", "enP2p1s0f1np1"), False),
        (("", "cable 0"), False),
        (("spark4", ""), True),
        (("", ""), True),
    ]
    assert (wrong.at("spark4"), wrong.at("spark2", "enP2p1s0f1np1"), wrong.at("spark3")) == ("✗1 ✗5", "!3", "")
    text = picture(found.plan, wrong.at)
    assert "  ║  cable 0 !4" in text
    assert re.search(r"10\.20\.0\.11 enP2p1s0f1np1 !3$", text, flags=re.MULTILINE)
    assert wrong.lines()[4].startswith("✗5 spark4 image: engine:1 is not there")
    assert wrong.lines()[5].startswith("✗6 engine: rank 3 (spark4): no container")


def test_drift_is_marked_at_its_port(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = whole(ring())
    raw["spark2"]["links"]["enp1s0f0np0"]["mtu"] = 1500
    found, problems = look(raw, monkeypatch, ring())
    wrong = marks.of(found, problems)
    assert "spark2 plane0: enp1s0f0np0: MTU is 1500, plan wants 9000" in wrong.texts("spark2", "enp1s0f0np0")
    assert wrong.bad("spark2", "enp1s0f0np0")
    assert wrong.at("spark2").endswith("…")  # files of ours that these nodes lack


# The drawing


def drawn(plan: Plan, wrong: marks.Marks) -> ET.Element:
    return ET.fromstring(svg(plan, wrong))  # noqa: S314 - ours


def titles(found: ET.Element, tag: str) -> list[str]:
    return [one.findtext(f"{SVG}title") or "" for one in found.iter(f"{SVG}{tag}")]


@pytest.mark.parametrize("size", [3, 4, 8])
def test_a_ring_is_drawn_with_every_cable_and_plane(size: int) -> None:
    plan = make(load(ring(size)), None, NAME)
    found = drawn(plan, marks.Marks())
    lines = titles(found, "line")
    assert sorted(lines) == sorted(
        f"cable {cable}, plane {plane}: 10.{10 + 10 * plane}.{cable}.0/24" for cable in range(size) for plane in (0, 1)
    )
    ports = titles(found, "circle")
    assert len(ports) == len(set(ports)) == 4 * size
    assert "spark2 enp1s0f1np1 10.10.0.11" in ports
    text = [one.text or "" for one in found.iter(f"{SVG}text")]
    assert {f"[{rank}] spark{rank + 1}" for rank in range(size)} <= set(text)
    assert not re.search("#d1242f", "".join(one.get("stroke", "") for one in found.iter()))


@pytest.mark.parametrize("config", [ring(), ring(5), switched(), switched(7)], ids=["ring", "ring5", "switched", "7"])
def test_every_port_is_on_the_edge_of_a_box(config: dict[str, Any]) -> None:
    found = drawn(make(load(config), None, NAME), marks.Marks())
    boxes = box(found)
    for port in found.iter(f"{SVG}circle"):
        px, py = float(port.get("cx", "")), float(port.get("cy", ""))
        across = [min(abs(px - x), abs(px - x - w)) for x, y, w, h in boxes if y - 1 <= py <= y + h + 1]
        along = [min(abs(py - y), abs(py - y - h)) for x, y, w, h in boxes if x - 1 <= px <= x + w + 1]
        assert min([*across, *along]) < 1, (px, py)


def test_the_paths_of_a_mesh_are_told_below() -> None:
    facts = {name: parse(node) for name, node in observed.fleet(4).items()}
    plan = make(load(mesh()), facts, NAME)
    below = [one.text or "" for one in drawn(plan, marks.Marks()).iter(f"{SVG}text")]
    head = next(place for place, text in enumerate(below) if text.startswith("mesh ("))
    assert below[head + 1].split()[:2] == ["path", "over"]
    assert len(below) == head + 2 + 8
    assert below[head + 2].startswith("spark1 to spark3")


def test_a_path_of_a_mesh_is_broken_by_what_is_in_its_way_and_by_nothing_else() -> None:
    facts = {name: parse(node) for name, node in observed.fleet(4).items()}
    plan = make(load(mesh()), facts, NAME)
    assert plan.mesh
    every = range(8)  # 1 to 3 over 2 and 4, 2 to 4 over 3 and 1, 3 to 1 over 4 and 2, 4 to 2 over 1 and 3
    table: list[tuple[marks.Place, str, str, Sequence[int]]] = [
        (("spark2", "enp1s0f1np1"), "forwarding", "spark2 forwarding: enp1s0f1np1 pref 49152: rule is missing", [0]),
        (("spark2", "enp1s0f1np1"), "forwarding", "spark2 forwarding: enp1s0f1np1 pref 11: rule is there", []),
        (("spark1", ""), "forwarding", "spark1 forwarding: 10.20.2.10/32: route is missing", [1]),
        (("spark4", ""), "forwarding", "spark4 forwarding: not applied on this node", [1, 4, 6, 7]),
        (("spark3", "roceP2p1s0f0"), "markers", "spark3 markers: not its netdev", []),
        (("spark3", "enP2p1s0f0np0"), "markers", "spark3 markers: dsv41-mesh-marker@roceP2p1s0f0.service: failed", [4]),
        (("spark3", ""), "markers", "spark3 markers: dsv41-mesh.service: is not active", [4, 5]),
        (("spark1", "enp1s0f0np0"), "nic", "spark1 nic: enp1s0f0np0: queue is 1024", [0, 5]),
        (("spark1", ""), "nic", "spark1 nic: not applied on this node", [0, 1, 3, 4, 5, 6]),
        (("spark4", "enp1s0f1np1"), "plane0", "spark4 plane0: enp1s0f1np1: MTU is 1500", [2, 7]),
        (("spark4", "enp1s0f1np1"), "plane0", "spark4 plane0: enp1s0f1np1: route to 10.10.0.0/24 is missing", []),
        (("spark4", "enp1s0f1np1"), "relay", "spark4 relay: enp1s0f1np1: rule is missing", []),
        (("spark4", ""), "image-missing", "spark4: has no image", []),
        (("spark4", ""), "unreachable", "spark4: no answer", [1, 2, 3, 4, 6, 7]),
        (("", "cable 1"), "cable-wrong", "cable 1: is not there", [0, 2, 5, 7]),
        (("", ""), "engine", "engine: rank 0 (spark1): no container", []),
    ]
    for place, kind, text, wanted in table:
        wrong = marks.Marks((marks.Mark(place, text, kind=kind),))
        taken = plan.mesh.ring.taken()
        assert [number for number in every if wrong.over(plan, taken[number]) == "✗1"] == wanted, text
        rows = [line for line in picture(plan, wrong.at, partial(wrong.over, plan)).splitlines() if " to spark" in line]
        assert [number for number, row in enumerate(rows) if row.endswith("✗1")] == wanted, text
        red = [one.get("stroke") == "#d1242f" for one in drawn(plan, wrong).iter(f"{SVG}path")]
        assert [number for number in every if red[number]] == wanted, text
        assert wrong.over(plan, taken[0]) == "" or text in wrong.texts_over(plan, taken[0])
        told = marks.Marks((marks.Mark(place, text, bad=False, kind=kind),))
        assert {told.over(plan, path) for path in taken} == {""}


def test_the_paths_of_a_mesh_are_drawn_from_port_to_port() -> None:
    facts = {name: parse(node) for name, node in observed.fleet(4).items()}
    plan = make(load(mesh()), facts, NAME)
    found = drawn(plan, marks.Marks())
    ports = {
        (float(one.get("cx", "")), float(one.get("cy", ""))): (one.findtext(f"{SVG}title") or "").split()[:2]
        for one in found.iter(f"{SVG}circle")
    }
    told = {}
    for one in found.iter(f"{SVG}path"):
        numbers = [float(word) for word in (one.get("d") or "").split() if word[0] not in "MQ"]
        told[one.findtext(f"{SVG}title")] = [*ports[numbers[0], numbers[1]], *ports[numbers[4], numbers[5]]]
    assert len(told) == 8
    first = told["mesh: spark1 to spark3 over spark2, plane 0, rule 49152"]
    assert first == ["spark1", "enp1s0f0np0", "spark3", "enp1s0f1np1"]
    assert not list(drawn(make(load(ring()), None, NAME), marks.Marks()).iter(f"{SVG}path"))


def box(found: ET.Element) -> list[tuple[float, float, float, float]]:
    wide = [one for one in found.iter(f"{SVG}rect") if one.get("rx")]
    return [tuple(float(one.get(key, "")) for key in ("x", "y", "width", "height")) for one in wide]  # type: ignore[misc]


@pytest.mark.parametrize("config", [ring(3), ring(), ring(6), ring(16), switched(2), switched(9)], ids=str)
def test_no_two_boxes_overlap_and_all_lies_within_the_drawing(config: dict[str, Any]) -> None:
    found = drawn(make(load(config), None, NAME), marks.Marks())
    boxes = box(found)
    width, height = float(found.get("width", "")), float(found.get("height", ""))
    for x, y, w, h in boxes:
        assert x >= 0 <= y
        assert x + w <= width
        assert y + h <= height
        others = [other for other in boxes if other != (x, y, w, h)]
        assert all(x + w < ox or ox + ow < x or y + h < oy or oy + oh < y for ox, oy, ow, oh in others)


def test_a_switch_is_drawn_with_a_line_for_each_node_and_plane() -> None:
    found = drawn(make(load(switched()), None, NAME), marks.Marks())
    assert sorted(titles(found, "line")) == sorted(["plane 0: 10.10.0.0/24", "plane 1: 10.20.0.0/24"] * 4)
    assert "switch" in [one.text for one in found.iter(f"{SVG}text")]


def test_what_is_wrong_is_red_where_it_is_and_told_below() -> None:
    plan = make(load(ring()), None, NAME)
    wrong = (
        marks.Mark(("spark2", "enp1s0f0np0"), "spark2 enp1s0f0np0: MTU is <1500> & more"),
        marks.Mark(("", "cable 3"), "cable 3: is not there"),
        marks.Mark(("spark4", ""), "spark4: no answer"),
        marks.Mark(("spark1", "enP2p1s0f0np0"), "spark1: slow", bad=False),
    )
    found = drawn(plan, marks.Marks(wrong))
    red = [one.findtext(f"{SVG}title") or "" for one in found.iter(f"{SVG}line") if one.get("stroke-dasharray")]
    assert [text.splitlines()[0] for text in red] == [
        "cable 0, plane 1: 10.20.0.0/24",
        "cable 1, plane 0: 10.10.1.0/24",
        "cable 3, plane 0: 10.10.3.0/24",
        "cable 3, plane 1: 10.20.3.0/24",
    ]
    assert "MTU is <1500> & more" in red[1]
    colours = [one.get("stroke") for one in found.iter(f"{SVG}line") if one.get("stroke-dasharray")]
    assert colours == ["#bf8700", "#d1242f", "#d1242f", "#d1242f"]
    fills = {one.get("fill"): one.findtext(f"{SVG}title") for one in found.iter(f"{SVG}circle")}
    assert (fills["#d1242f"] or "").startswith("spark2 enp1s0f0np0")
    assert (fills["#bf8700"] or "").startswith("spark1 enP2p1s0f0np0")
    boxes = [one.findtext(f"{SVG}title") for one in found.iter(f"{SVG}rect") if one.get("stroke") == "#d1242f"]
    assert boxes == ["spark4: no answer"]
    below = [one.text or "" for one in found.iter(f"{SVG}text")]
    assert "✗3 spark4: no answer" in below
    assert "[3] spark4 ✗3" in below
    assert "cable 3 ✗2" in below


def test_an_image_whose_build_holds_an_encrypted_arg_is_known_by_what_the_ranks_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name cannot be worked out without that arg, and another name would be drift of a fleet that is whole."""
    (tmp_path / "Dockerfile").write_text("FROM base\n")
    build = {"context": str(tmp_path), "args": {"TOKEN": stackfile.ENCRYPTED}}
    config = changed(ring(), {"engine.image": {"ref": "engine:1", "build": build}})
    other, run = "sha256:" + "2" * 64, "engine:1-fedcba987654"
    raw = whole(config)
    for node in raw.values():
        node["docker"]["images"] = {"engine:1-0123456789ab": other, run: IMAGE, "engine:1-other": other}
    plain(raw, monkeypatch, config)
    for node in raw.values():
        node["docker"]["containers"][0]["image_id"] = IMAGE
    own = brought(load(config))
    assert (own.image_ref, own.problems) == (None, ())
    found, problems = look(raw, monkeypatch, config)
    assert found.plan.image_ref == run
    told = doctor.lines(found, problems)
    assert [line for line in told if line.word is Word.FAIL] == []
    del raw["spark2"]["docker"]["images"][run]
    found, problems = look(raw, monkeypatch, config)
    told = doctor.lines(found, problems)
    assert [line.node for line in told if line.code == "drift image" and line.word is Word.FAIL] == ["spark2"]
