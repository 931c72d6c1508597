"""A manifest of the weights: how it is read, what is said of nodes, and how they are made to read their files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from fleet import manifest, on_node, preflight, weigh
from fleet.brought import brought
from fleet.loading import load
from fleet.manifest import ManifestError, Reading, readings
from fleet.on_node import Answer
from fleet.plan import Plan
from fleet.problems import Problem
from fleet.verdicts import judge
from tests.unit import observed
from tests.unit.checkpoints import PATH, SHARDS, checkpoint
from tests.unit.fakes import link
from tests.unit.looks import planned
from tests.unit.stacks import changed, ring
from tests.unit.test_weights import Raw

ONE, TWO = "1" * 64, "2" * 64
WANTED = dict.fromkeys(SHARDS, ONE)
OWNER = {"project": "spark-fabric", "stack": "test", "fleet_id": "default", "state_id": "s"}


@pytest.fixture
def raw() -> Raw:
    """Nodes that are ours and have read all of it."""
    nodes = observed.fleet(4)
    for node in nodes.values():
        node["docker"]["images"] = {"engine:1": "sha256:" + "1" * 64}
        node["weights"] = checkpoint() | {"read": dict(WANTED)}
        node["owner"], node["time"] = OWNER, 700.0
    return nodes


# The file


def test_it_is_what_sha256sum_prints(tmp_path: Path) -> None:
    file = tmp_path / "w.sha256"
    file.write_text(f"{ONE}  {SHARDS[0]}\n{TWO} *./tokenizer.json\n\n{ONE}  {SHARDS[0]}\n")
    assert manifest.read(file) == {SHARDS[0]: ONE, "tokenizer.json": TWO}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is empty"),
        (f"{ONE}  a\n{TWO}  a\n", "line 2 has another digest of a"),
        (f"{ONE}  ../a\n", "line 1 is not a sha256 and a file of the folder"),
        (f"{ONE}  sub/a\n", "line 1 is not"),
        (f"{ONE[1:]}  a\n", "line 1 is not"),
        (f"{ONE} a\n", "line 1 is not"),
        ("\xff", "line 1 is not"),
    ],
)
def test_what_is_none_is_refused_with_its_line(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "w.sha256"
    file.write_text(text)
    with pytest.raises(ManifestError, match=said):
        manifest.read(file)


def test_a_file_that_is_not_there_is_a_problem_before_any_node_is_asked(tmp_path: Path) -> None:
    settings = load(changed(ring(), {"engine.weights": {"path": PATH, "manifest": str(tmp_path / "none")}}))
    (problem,) = brought(settings).problems
    assert (problem.code, problem.path) == ("weights-manifest", "spark-fabric:engine.weights.manifest")
    assert "No such file" in problem.text()
    (tmp_path / "none").write_text(f"{ONE}  {SHARDS[0]}\n")
    assert brought(settings).manifest == {SHARDS[0]: ONE}


# What is said of nodes


IGNORED: dict[str, Any] = {"preflight.ignore": ["weights-digest"]}


def told(raw: Raw, wanted: dict[str, str] | None = None, **changes: Any) -> list[Problem]:
    settings = load(changed(ring(), {"engine.weights": {"path": PATH}, **changes}))
    look = planned(settings, raw, manifest=WANTED if wanted is None else wanted)
    return [one for one in preflight.check(look) if one.code.startswith("weights-")]


def test_nothing_is_said_of_files_that_were_read_and_are_right(raw: Raw) -> None:
    assert told(raw) == []


def test_files_that_were_not_read_yet_are_a_note(raw: Raw) -> None:
    raw["spark2"]["weights"]["read"] = {}
    del raw["spark4"]["weights"]["read"][SHARDS[3]]
    (found,) = told(raw)
    assert found.code == "weights-unverified"
    assert "48 on spark2, 1 on spark4" in found.text()
    assert judge([found], dict.fromkeys(raw, True)).notes == (found,)


def test_a_file_that_was_read_and_is_another_is_a_problem_by_node_and_name(raw: Raw) -> None:
    for name in SHARDS[:5]:
        raw["spark3"]["weights"]["read"][name] = TWO
    (found,) = told(raw)
    assert (found.code, found.path) == ("weights-digest", f"spark3 {PATH}")
    assert f"{SHARDS[0]} is 222222222222, not 111111111111" in found.text()
    assert "and 2 more" in found.text()


def test_without_a_manifest_nothing_is_said_of_what_was_read(raw: Raw) -> None:
    raw["spark3"]["weights"]["read"] = {SHARDS[0]: TWO}
    assert told(raw, {}) == []


# What is to be read


def plan(raw: Raw, **changes: Any) -> Plan:
    made = planned(load(changed(ring(), {"engine.weights": {"path": PATH}, **changes})), raw).plan
    assert made
    return made


def test_every_rank_reads_its_own_folder_and_none_without_a_manifest(raw: Raw) -> None:
    desired = {"path": PATH, "files": WANTED}
    assert readings(plan(raw), WANTED, raw) == [Reading(name, desired, None, ours=True) for name in raw]
    assert readings(plan(raw), {}, raw) == []


def test_where_other_files_are_let_be_none_are_read(raw: Raw) -> None:
    """The reading would refuse them. What was read before is still told."""
    raw["spark2"]["weights"]["read"] = {}
    raw["spark3"]["weights"]["read"][SHARDS[0]] = TWO
    assert readings(plan(raw, **IGNORED), WANTED, raw) == []
    (found,) = told(raw, **IGNORED)
    assert judge([found], {}, ignore=["weights-digest"]).ignored == (found,)


def test_only_who_has_a_folder_reads_one(raw: Raw) -> None:
    for name in ("spark2", "spark3", "spark4"):
        raw[name]["weights"] = None
    shared = {"engine.weights": {"path": PATH, "nfs": {"server": "192.168.1.99"}}}
    assert [one.node for one in readings(plan(raw, **shared), WANTED, raw)] == ["spark1"]


def test_what_is_left_is_told_with_the_time(raw: Raw) -> None:
    raw["spark2"]["weights"]["read"] = {}
    reasons = [one.reason for one in readings(plan(raw), WANTED, raw)]
    assert reasons == [None, "not read yet: 48 files (seen at 700)", None, None]


@pytest.mark.parametrize("owner", [None, OWNER | {"adoptable": True}, OWNER | {"stack": "other"}])
def test_it_waits_on_a_node_that_is_not_ours_and_on_no_other(owner: dict[str, Any] | None, raw: Raw) -> None:
    """The node program refuses to read where nobody has taken the node yet, also after `fleet adopt`."""
    raw["spark3"]["owner"] = owner
    assert [one.ours for one in readings(plan(raw), WANTED, raw)] == [True, True, False, True]


# The command


@pytest.fixture
def asks(monkeypatch: pytest.MonkeyPatch) -> list[Answer]:
    """What a node answers, one call after the other."""
    answers: list[Answer] = []

    def ask(verb: str, stack: str, one: Any, packed: bytes, request: dict[str, Any]) -> Answer:
        assert (verb, stack, request["desired"]) == ("weigh", "test", {"path": PATH, "files": ["a", "b"]})
        assert one.name == request["node"]
        assert packed == b"zip"
        return answers.pop(0)

    monkeypatch.setattr(on_node, "ask", ask)
    return answers


def answer(left: int, *missing: str, **read: str) -> Answer:
    return Answer("spark1", 0, {"read": read, "missing": list(missing), "left": left}, "")


def done() -> str:
    return weigh.weigh(OWNER, link(1), b"zip", {"path": PATH, "files": {"a": ONE, "b": TWO}})


def test_it_asks_until_all_is_read_and_tells_how_far_it_is(
    asks: list[Answer], capsys: pytest.CaptureFixture[str]
) -> None:
    asks += [answer(1, a=ONE), answer(0, a=ONE, b=TWO)]
    assert done() == "spark1: 2 files are those of the manifest"
    assert capsys.readouterr().out == "spark1: 1 of 2 files read\n"


def test_every_file_that_is_not_right_is_named(asks: list[Answer]) -> None:
    asks.append(answer(0, "a", b=ONE))
    with pytest.raises(weigh.WeighError) as raised:
        done()
    assert str(raised.value).splitlines() == [
        f"spark1 {PATH}/a: cannot be read",
        f"spark1 {PATH}/b: has the sha256 {ONE}, wanted {TWO}",
    ]


def test_a_node_that_fails_says_why(asks: list[Answer]) -> None:
    asks.append(Answer("spark1", 1, None, "spark1: a changed while it was read"))
    with pytest.raises(weigh.WeighError, match="changed while it was read"):
        done()


def test_all_nodes_read_side_by_side_and_one_that_differs_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(weigh, "program", lambda _: b"zip")
    monkeypatch.setattr(on_node, "links_of_command", lambda _: [link(1), link(2)])
    right = hashlib.sha256(b"x").hexdigest()

    def ask(*arguments: Any) -> Answer:
        name = arguments[2].name
        return Answer(name, 0, {"read": {"a": right if name == "spark1" else ONE}, "missing": [], "left": 0}, "")

    monkeypatch.setattr(on_node, "ask", ask)
    wanted = {name: {"path": PATH, "files": {"a": right}} for name in ("spark1", "spark2")}
    given = tmp_path / "stdin"
    given.write_text(json.dumps(wanted))
    monkeypatch.setenv("FLEET_OWNER", json.dumps(OWNER))
    with given.open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert weigh.main() == 1
    out, err = capsys.readouterr()
    assert "spark1: 1 files are those of the manifest" in out
    assert f"spark2 {PATH}/a: has the sha256" in err
