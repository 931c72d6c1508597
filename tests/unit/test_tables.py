"""`python -m fleet tables`: what stands in the way, what each node is asked, and what is said of each table."""

from __future__ import annotations

from typing import Any

import pytest

from fleet import __main__ as fleet
from fleet import on_node
from fleet.on_node import Answer, Link
from fleet.tables import tables
from tests.unit.oneshots import NAME, NODES, OWNER, Json, owned, runs, survey

VOLUME = {"engine.volumes": ["/data/state:/state", "/data/engram:/engram"]}
SPS, STS = "dspark_sps.json", "dspark_sts.json"


def table(content: str) -> Json:
    return {"sha256": content * 32, "size": len(content), "content": f"{content}="}


class Nodes:
    """Nodes with tables; `acts` has what each was asked."""

    def __init__(self, patch: pytest.MonkeyPatch, **held: Json) -> None:
        self.held = {name: {SPS: None, STS: None, **held.get(name, {})} for name in NODES}
        self.failing: dict[tuple[str, str], str] = {}
        self.silent = ("", "")  # node and action whose ssh is killed
        self.acts: list[tuple[str, str, Json | None]] = []
        patch.setattr(on_node, "on_all", self._on_all)

    def _on_all(self, verb: str, stack: str, links: list[Link], requests: dict[str, Any]) -> list[Answer]:
        assert (verb, stack) == ("tables", "test")
        assert all(requests[one.name]["owner"] == OWNER for one in links)
        return [self._one(one.name, requests[one.name]["desired"]) for one in links]

    def _one(self, name: str, desired: Json) -> Answer:
        assert desired["folder"] == "/data/state"
        self.acts.append((name, desired["action"], desired.get("tables")))
        if said := self.failing.get((name, desired["action"])):
            return Answer(name, 1, None, said)
        if self.silent == (name, desired["action"]):
            return Answer(name, -9, None, "")
        whole = desired["action"] == "read"
        told = {one: held and {**held, **({} if whole else {"content": None})} for one, held in self.held[name].items()}
        return Answer(name, 0, {"tables": told, "changed": []}, "")

    @property
    def written(self) -> dict[str, Json | None]:
        return {name: wanted for name, action, wanted in self.acts if action == "write"}


def test_workers_get_the_heads_tables_and_lose_what_it_has_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = Nodes(
        monkeypatch,
        spark1={SPS: table("aa")},
        spark2={SPS: table("bb"), STS: table("cc")},
        spark3={SPS: table("aa")},
    )
    assert tables(survey(owned(), VOLUME)) == []
    assert nodes.acts[:4] == [("spark1", "read", None), *((name, "look", None) for name in NODES[1:])]
    assert nodes.written == {"spark2": {SPS: "aa=", STS: None}, "spark4": {SPS: "aa="}}
    digest = f"2 bytes, sha256 {'a' * 12}"
    assert capsys.readouterr().out.splitlines() == [
        f"spark2 /data/state/{SPS}: copied from spark1: {digest}",
        f"spark2 /data/state/{STS}: removed, as spark1 has none",
        f"spark3 /data/state/{SPS}: as on spark1: {digest}",
        f"spark3 /data/state/{STS}: none, as on spark1",
        f"spark4 /data/state/{SPS}: copied from spark1: {digest}",
        f"spark4 /data/state/{STS}: none, as on spark1",
    ]


def test_nothing_is_written_where_all_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes(monkeypatch, **{name: {SPS: table("aa")} for name in NODES})
    assert tables(survey(owned(), VOLUME)) == []
    assert nodes.written == {}


@pytest.mark.parametrize(
    ("volumes", "said"),
    [
        ([], "spark-fabric:engine.volumes: has nothing for /state, wanted the engine's folder of state"),
        (["kept:/state"], "spark-fabric:engine.volumes: has the docker volume kept for /state, wanted a folder"),
    ],
)
def test_without_a_folder_of_state_no_node_is_asked(
    volumes: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = Nodes(monkeypatch)
    (line,) = tables(survey(owned(), {"engine.volumes": volumes}))
    assert line.startswith(said)
    assert not nodes.acts


def test_everything_that_stands_in_the_way_is_told_at_once_and_no_node_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes, raw = Nodes(monkeypatch), owned()
    raw["spark3"]["owner"]["stack"] = "other"
    runs(raw, "spark1", 0)
    found = survey(raw, VOLUME, {"spark2": "spark2: No route to host"})
    silent, other, running = tables(found)
    assert silent.startswith("spark2: does not answer (spark2: No route to host), wanted a node of this stack")
    assert other.startswith("spark3: does not carry the mark of spark-fabric/test/default")
    assert running.startswith("spark1: rank 0 runs, in container spark-fabric-test, wanted no engine. An engine reads")
    assert "sudo docker stop spark-fabric-test" in running
    assert not nodes.acts


def test_what_one_node_refuses_keeps_all_others_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes(monkeypatch, spark1={SPS: table("aa")})
    nodes.failing["spark3", "look"] = f"spark3 /data/state/{SPS}: is a symbolic link\nlook at it"
    assert tables(survey(owned(), VOLUME)) == [
        f"spark3 /data/state/{SPS}: is a symbolic link",
        "spark3: look at it",
        "Nothing was changed.",
    ]
    assert nodes.written == {}


@pytest.mark.parametrize("act", ["look", "write"])
def test_a_node_that_says_nothing_is_told_all_the_same(
    act: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = Nodes(monkeypatch, spark1={SPS: table("aa")})
    nodes.silent = ("spark3", act)
    told = "spark3: ended with status -9 and said nothing"
    assert tables(survey(owned(), VOLUME)) == [told, *(["Nothing was changed."] if act == "look" else [])]
    assert "spark3" not in capsys.readouterr().out


def test_a_node_that_may_be_adopted_is_not_ours_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, raw = Nodes(monkeypatch), owned()
    raw["spark2"]["owner"]["adoptable"] = True
    (line,) = tables(survey(raw, VOLUME))
    assert line.startswith("spark2: was freed by `fleet adopt`, and no `up` has taken it since, wanted a node of")
    assert line.endswith("`./pulumiw up -s test` comes first.")
    assert not nodes.acts


def test_a_node_that_fails_to_write_is_told_and_the_others_are_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = Nodes(monkeypatch, spark1={SPS: table("aa")})
    nodes.failing["spark3", "write"] = f"spark3 /data/state/{SPS}: cannot be changed: No space left on device"
    found = survey(owned(), VOLUME)
    monkeypatch.setattr(fleet, "_looked", lambda *_: (found, []))
    assert fleet.VERBS["tables"](NAME, found.plan.settings, list(found.links.values())) == fleet.FAILED
    out, err = capsys.readouterr()
    assert err == f"spark3 /data/state/{SPS}: cannot be changed: No space left on device\n"
    assert f"spark2 /data/state/{SPS}: copied" in out
    assert "spark3" not in out
