"""The weights: what ranks get, what makes a group another one, and what is said of checkpoints that are not sound."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleet import membership, preflight, survey
from fleet.asking import ask
from fleet.drift import Drift, Group
from fleet.known import WEIGHTS
from fleet.loading import load
from fleet.look import Look, Planned
from fleet.plan import Plan
from fleet.probe import Probe, Question, probe
from fleet.problems import Problem
from fleet.survey import Survey
from fleet.verdicts import judge
from fleet.weights import parse
from fleet.weights_settings import MODEL
from node.weights import CONFIG, INDEX
from tests.unit import fakes, observed
from tests.unit.checkpoints import PATH, SHARDS, SMALL, checkpoint, on_network, sound
from tests.unit.looks import STACK, planned
from tests.unit.stacks import NO_PROFILE, changed, ring

REVISION = {"engine.weights.revision": WEIGHTS.revision}

Raw = dict[str, dict[str, Any]]


@pytest.fixture
def raw() -> Raw:
    """Nodes that have it."""
    nodes = observed.fleet(4)
    for node in nodes.values():
        node["docker"]["images"] = {"engine:1": "sha256:" + "1" * 64}
        node["weights"] = checkpoint()
    return nodes


def config(**changes: Any) -> dict[str, Any]:
    return changed(ring(), {"engine.weights": {"path": PATH}, **changes})


def look(raw: Raw, wanted: dict[str, Any] | None = None) -> Planned:
    return planned(load(wanted or config()), raw)


def plan(raw: Raw, wanted: dict[str, Any] | None = None) -> Plan:
    made = look(raw, wanted).plan
    assert made
    return made


def told(raw: Raw, wanted: dict[str, Any] | None = None) -> list[Problem]:
    return [one for one in preflight.check(look(raw, wanted)) if one.code.startswith("weights-")]


# What the engine gets


def test_each_rank_gets_the_folder_of_its_node_read_only() -> None:
    settings = load(config(**{"nodes[2].weights.path": "/mnt/w"}))
    for node in settings.ranks:
        source = "/mnt/w" if node.name == "spark3" else PATH
        assert [(one.source, one.target, one.read_only) for one in settings.volumes_on(node)] == [(source, MODEL, True)]


def test_the_engine_is_told_where_the_folder_is(raw: Raw) -> None:
    def env(wanted: dict[str, Any]) -> set[tuple[str, str]]:
        ranks = plan(raw, wanted).containers
        return {
            (flag.value, flag.origin)
            for rank in ranks
            for name in ("MODEL_PATH", "DSV41_SOURCE")
            for flag in [rank.env[name]]
        }

    assert env(config()) == {(MODEL, "default")}
    assert env(config(**{"engine.weights.mount": "/m"})) == {("/m", "setting engine.weights.mount")}
    other = plan(raw, config(**{"engine.weights.mount": "/m"})).containers[3]
    assert (PATH, "/m", True) in {(one.source, one.target, one.read_only) for one in other.volumes}


def test_volumes_of_the_operator_stay_beside_it(raw: Raw) -> None:
    volumes = plan(raw, config(**{"engine.volumes": ["/state:/state"]})).containers[1].volumes
    assert [(one.source, one.target) for one in volumes][:2] == [("/state", "/state"), (PATH, MODEL)]


def test_a_stack_without_the_section_is_as_it_was(raw: Raw) -> None:
    """Whatever the nodes say: nobody asked them."""
    bare = observed.fleet(4)
    before, after = plan(bare, ring()), plan(raw, ring())
    assert before.standstill == after.standstill
    for one, other in zip(before.containers, after.containers, strict=True):
        assert {**one.arguments(), "image": other.runs} == other.arguments()
    assert "weights" not in before.containers[0].arguments()
    assert told(bare, ring()) == []


def test_each_ranks_node_is_asked_for_its_own_folder(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Question] = []

    def answer(question: Question) -> Probe:
        asked.append(question)
        return Probe({}, dict.fromkeys(raw, "no answer"))

    monkeypatch.setattr("fleet.asking.probe", answer)
    leaving = {"nodes[3].state": "leaving", **NO_PROFILE}
    for wanted in (ring(), config(**{"nodes[1].weights.path": "/mnt/w", **leaving})):
        settings = load(wanted)
        survey.look(settings, STACK, ask(settings, STACK, []))
    assert asked[0].weights == {}
    assert asked[1].weights == {"spark1": PATH, "spark2": "/mnt/w", "spark3": PATH}


def test_a_node_that_is_asked_looks_into_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node program itself, over a stand-in for ssh."""
    fakes.install(tmp_path, monkeypatch)
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": SHARDS[0]}}))
    (folder / SHARDS[0]).write_text("1234")
    links = [fakes.link(1), fakes.link(2)]
    seen = probe(Question(STACK, "default", links, weights={"spark1": str(folder)})).observed
    found = parse(seen["spark1"]["weights"])
    assert (found.listed, found.files[SHARDS[0]].size, found.config) == ((SHARDS[0],), 4, None)
    assert "weights" not in seen["spark2"]


# What makes it another engine


def shard(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda weights: weights["files"][SHARDS[7]].update({key: value})


CONTENT: dict[str, Callable[[dict[str, Any]], Any]] = {
    "another config": lambda weights: weights.update(config="2" * 64),
    "another index": lambda weights: weights.update(index="2" * 64),
    "a longer shard": shard("size", SMALL + 1),
    "a shard that went": lambda weights: weights["files"].pop(SHARDS[7]),
    "one more shard": lambda weights: weights["files"].update({"model-00001-of-00001.safetensors": sound(1)}),
    "another name": lambda weights: weights["files"].update(
        {"model-00049-of-00048.safetensors": weights["files"].pop(SHARDS[7])}
    ),
}


@pytest.mark.parametrize("change", CONTENT)
def test_other_weights_on_any_node_are_another_group_on_the_same_fabric(change: str, raw: Raw) -> None:
    before = plan(raw)
    CONTENT[change](raw["spark3"]["weights"])
    after = plan(raw)
    assert after.group != before.group
    assert after.standstill == before.standstill


def test_the_same_weights_are_the_same_group_wherever_else_they_changed(raw: Raw) -> None:
    """What cannot be read today is told, and is no other engine."""
    before = plan(raw)
    raw["spark3"]["weights"]["files"][SHARDS[7]]["readable"] = False
    raw["spark3"]["weights"]["files"][CONFIG]["size"] = 901  # its digest counts
    assert plan(raw).group == before.group


def test_the_stack_shows_by_node_which_weights_they_are(raw: Raw) -> None:
    def shown(wanted: dict[str, Any]) -> dict[str, Any]:
        found = Survey(plan(raw, wanted), {}, Probe(raw, {}), Drift(), Group(None, "1"), ())
        return found.outputs()

    raw["spark2"]["weights"]["config"] = "2" * 64
    digests = shown(config())["weights"]
    assert list(digests) == list(raw)
    assert digests["spark1"] == digests["spark3"] == digests["spark4"] != digests["spark2"]
    assert "weights" not in shown(ring())


# What is said of them


def test_nothing_is_said_of_a_sound_checkpoint(raw: Raw) -> None:
    assert told(raw) == []
    assert told(raw, config(**REVISION)) == []


Case = tuple[Callable[[dict[str, Any]], Any], list[tuple[str, str, str]]]
AT = f"spark2 {PATH}"


def lost(weights: dict[str, Any], *names: str) -> None:
    for name in names:
        del weights["files"][name]
        if name == CONFIG:
            weights["config"] = None


CASES: dict[str, Case] = {
    "folder": (
        lambda weights: weights.update(there=False, config=None, index=None, listed=None, files={}),
        [("weights-folder", AT, "nodes[].weights.path is for one node")],
    ),
    "network": (
        lambda weights: weights.update(on_network()),
        [("weights-network", AT, "wanted a folder on the node's own disk")],
    ),
    "config": (lambda weights: lost(weights, CONFIG), [("weights-config", f"{AT}/{CONFIG}", "is not there")]),
    "index": (
        lambda weights: (weights["files"].pop(INDEX), weights.update(index=None, listed=None)),
        [("weights-index", f"{AT}/{INDEX}", "is not there")],
    ),
    "no JSON": (
        lambda weights: weights.update(listed=None),
        [("weights-index", f"{AT}/{INDEX}", "names no shards, wanted JSON with a weight_map")],
    ),
    "no index": (
        lambda weights: weights.update(index=None, listed=None),
        [("weights-index", f"{AT}/{INDEX}", "is far too large")],
    ),
    "one shard": (
        lambda weights: lost(weights, SHARDS[4]),
        [("weights-shards", AT, f"lacks 1 of 48 shards: {SHARDS[4]}, wanted")],
    ),
    "five shards": (
        lambda weights: lost(weights, *SHARDS[4:9]),
        [("weights-shards", AT, f"lacks 5 of 48 shards: {SHARDS[4]}, {SHARDS[5]}, {SHARDS[6]} and 2 more, wanted")],
    ),
    "empty": (shard("size", 0), [("weights-empty", AT, f"has empty files: {SHARDS[7]}")]),
    "empty index": (
        lambda weights: (weights["files"][INDEX].update(size=0), weights.update(listed=None, index=None)),
        [("weights-empty", AT, f"has empty files: {INDEX}")],
    ),
    "unreadable": (shard("readable", False), [("weights-unreadable", AT, f"has what cannot be read: {SHARDS[7]}")]),
    "link": (
        lambda weights: weights["files"][SHARDS[7]].update(size=None, readable=False, link="../../blobs/x"),
        [("weights-link", AT, f"has links out of it: {SHARDS[7]} to ../../blobs/x, wanted the files themselves")],
    ),
    "size": (
        shard("size", SMALL - 1),
        [
            (
                "weights-sizes",
                "weights shards",
                f"{SHARDS[7]} is {SMALL} bytes on spark1 and spark3 and spark4, {SMALL - 1} bytes on spark2, wanted",
            )
        ],
    ),
    "one more": (
        lambda weights: weights["files"].update({"model-00001-of-00001.safetensors": sound(1)}),
        [("weights-sizes", "weights shards", "is not there on spark1 and spark3 and spark4, 1 bytes on spark2")],
    ),
    "other config": (
        lambda weights: weights.update(config="2" * 64),
        [
            (
                "weights-differ",
                f"weights {CONFIG}",
                "8be45ce04760 on spark1 and spark3 and spark4, 222222222222 on spark2",
            )
        ],
    ),
    "other index": (
        lambda weights: weights.update(index="2" * 64),
        [
            (
                "weights-differ",
                f"weights {INDEX}",
                "111111111111 on spark1 and spark3 and spark4, 222222222222 on spark2",
            )
        ],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_damage_of_one_node_is_told_once_by_name(case: str, raw: Raw) -> None:
    damage, wanted = CASES[case]
    damage(raw["spark2"]["weights"])
    found = told(raw)
    assert [(one.code, one.path) for one in found] == [(code, path) for code, path, _ in wanted]
    for one, (_, _, part) in zip(found, wanted, strict=True):
        assert part in one.text()
        assert one.hint


def test_all_of_it_is_told_at_once(raw: Raw) -> None:
    lost(raw["spark1"]["weights"], CONFIG, SHARDS[0])
    shard("size", 0)(raw["spark2"]["weights"])
    shard("size", 5)(raw["spark3"]["weights"])
    raw["spark4"]["weights"]["there"] = False
    assert [(one.code, one.path) for one in told(raw)] == [
        ("weights-folder", f"spark4 {PATH}"),
        ("weights-config", f"spark1 {PATH}/{CONFIG}"),
        ("weights-shards", f"spark1 {PATH}"),
        ("weights-empty", AT),
        ("weights-sizes", "weights shards"),
    ]


def test_many_shards_that_differ_are_told_by_the_first(raw: Raw) -> None:
    for name in SHARDS[:10]:
        raw["spark2"]["weights"]["files"][name]["size"] = 1
    (found,) = told(raw)
    assert found.seen.count("1 bytes on spark2") == 3
    assert found.seen.endswith(" and 7 more")


def test_a_folder_that_could_not_be_looked_at_is_told_with_the_reason_and_only_once(raw: Raw) -> None:
    raw["spark2"] |= {"weights": None, "errors": ["weights: [Errno 116] Stale file handle"]}
    (found,) = told(raw)
    assert (found.code, found.path) == ("weights-unread", "spark2")
    assert "its weights: [Errno 116] Stale file handle, wanted a folder that can be read" in found.text()
    assert list(membership.unread(look(raw))) == []
    del raw["spark2"]["weights"]
    raw["spark2"]["errors"] = []
    assert next(one.text() for one in told(raw)).startswith("spark2: its weights could not be looked at, wanted")


@pytest.mark.parametrize(
    ("damage", "path", "part"),
    [
        (lambda weights: weights.update(config="2" * 64), f"/{CONFIG}", "the sha256 222222222222, wanted 8be45ce04760"),
        (lambda weights: weights["listed"].remove(SHARDS[7]), f"/{INDEX}", "names 47 shards, wanted 48 as revision"),
        (
            shard("size", SMALL + 1),
            "",
            f"has shards of {WEIGHTS.size + 1} bytes, wanted {WEIGHTS.size} as revision fb27",
        ),
    ],
    ids=["config", "shards", "size"],
)
def test_another_revision_is_told_where_one_is_named(
    damage: Callable[[dict[str, Any]], Any], path: str, part: str, raw: Raw
) -> None:
    for node in raw.values():
        damage(node["weights"])
    found = told(raw, config(**REVISION))
    assert [(one.code, one.path) for one in found] == [
        ("weights-revision", f"{name} {PATH}{path}") for name in ("spark1", "spark2", "spark3", "spark4")
    ]
    assert part in found[0].text()
    assert told(raw) == []


def test_nothing_is_said_of_a_revision_that_cannot_be_told(raw: Raw) -> None:
    shard("size", 0)(raw["spark2"]["weights"])
    raw["spark2"]["weights"] |= {"config": None}
    raw["spark3"]["weights"] |= {"listed": None}
    assert {one.code for one in told(raw, config(**REVISION))} == {"weights-empty", "weights-index"}


def test_a_node_that_leaves_needs_no_weights(raw: Raw) -> None:
    raw["spark4"]["weights"] = None
    assert told(raw, config(**{"nodes[3].state": "leaving", **NO_PROFILE})) == []


# What follows


@pytest.mark.parametrize("runs", [False, True])
def test_damage_keeps_a_run_from_starting_with_an_engine_and_without(runs: bool, raw: Raw) -> None:
    """A start with them would end the engine that runs."""
    damage, _ = CASES["empty"]
    damage(raw["spark2"]["weights"])
    assert [one.code for one in judge(told(raw), dict.fromkeys(raw, runs)).problems] == ["weights-empty"]


def test_a_folder_on_the_network_can_be_taken_as_it_is(raw: Raw) -> None:
    for node in raw.values():
        CASES["network"][0](node["weights"])
    found = told(raw)
    assert len(found) == 4
    judged = judge(found, dict.fromkeys(raw, False), ignore=["weights-network"])
    assert (judged.problems, len(judged.ignored)) == ((), 4)
    assert "weights" not in plan(raw).containers[0].arguments()


def test_a_missing_folder_cannot_be_ignored(raw: Raw) -> None:
    """No container could be made."""
    CASES["folder"][0](raw["spark2"]["weights"])
    judged = judge(told(raw), dict.fromkeys(raw, False), ignore=["weights-folder"])
    assert [one.code for one in judged.problems] == ["weights-folder"]


def test_a_look_before_the_plan_says_nothing_of_weights(raw: Raw) -> None:
    asked = Look(load(config()), STACK, Probe(raw, {}))
    assert not [one for one in preflight.before_plan(asked) if one.code.startswith("weights-")]
