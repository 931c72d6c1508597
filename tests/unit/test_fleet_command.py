"""`python -m fleet`: what each verb says, what it asks the nodes, and how it ends."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet import __main__ as fleet
from fleet import on_node, stackfile, state, survey
from fleet.loading import load
from fleet.on_node import Answer, Link, lost_nodes
from fleet.probe import Probe
from fleet.settings import Settings
from fleet.stack import StackName
from tests.unit import heard, observed
from tests.unit.fakes import link
from tests.unit.stacks import ring

NAME = StackName("spark-fabric", "test")
OWNER = {"project": "spark-fabric", "stack": "test", "fleet_id": "default", "state_id": "7", "adoptable": False}
READ = stackfile.read
SILENT = "spark3 (nvidia@192.168.1.13:22): No route to host. Is it on?"

Raw = dict[str, dict[str, Any]]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept of a stack lies in a folder of the test's own."""
    for module in (on_node, fleet):
        monkeypatch.setattr(module, "folder", lambda stack: tmp_path / "stacks" / stack)


@pytest.fixture
def settings() -> Settings:
    """A ring of four."""
    return load(ring())


@pytest.fixture
def links() -> list[Link]:
    """Of all four."""
    return [link(number) for number in range(1, 5)]


def marked() -> Raw:
    """Nodes that carry the stack's mark, but spark2 another one's, and spark4 none."""
    raw = observed.fleet(4)
    for node in raw.values():
        node["docker"]["images"] = {"engine:1": "sha256:" + "1" * 64}
        node["owner"] = dict(OWNER)
    raw["spark2"]["owner"]["stack"] = "other"
    raw["spark4"]["owner"] = None
    return raw


def probed(patch: pytest.MonkeyPatch, raw: Raw, *silent: str) -> None:
    seen = Probe({name: node for name, node in raw.items() if name not in silent}, dict.fromkeys(silent, SILENT))
    patch.setattr(fleet, "probe", lambda *_, **__: seen)
    patch.setattr("fleet.asking.probe", lambda *_, **__: seen)
    patch.setattr(survey, "listen", lambda *_: heard.CABLED)


def asked(patch: pytest.MonkeyPatch, *failing: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Collects (verb, node, request); the nodes in `failing` fail each."""
    calls: list[tuple[str, str, dict[str, Any]]] = []

    def on_all(verb: str, stack: str, links: list[Link], requests: dict[str, Any]) -> list[Answer]:
        calls.extend((verb, one.name, requests[one.name]) for one in links)
        return [
            Answer(one.name, 9, None, "an engine runs") if one.name in failing else Answer(one.name, 0, {}, "")
            for one in links
        ]

    patch.setattr(fleet, "on_all", on_all)
    return calls


# status


def test_status_has_a_word_for_everything(
    settings: Settings, links: list[Link], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = marked()
    node = {"name": "spark1", "rank": 0, "members": ["spark1", "spark2", "spark3", "spark4"]}
    raw["spark1"]["journal"] = {
        "generation": 1,
        "stages": {"node": {"status": "applying", "digest": "", "desired": node}},
    }
    probed(monkeypatch, raw, "spark3")
    assert fleet.status(NAME, settings, links) == fleet.NOT_OK
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    for start in (
        "unreachable spark3 (nvidia@192.168.1.13:22) ",
        "foreign spark2 spark2: belongs to spark-fabric/other/default",
        "drift spark1 node an earlier change was not finished",
        "missing spark1 plane0 not applied on this node",
        "drift engine rank 0 (spark1): no container",
    ):
        assert any(line.startswith(start) for line in lines), (start, lines)
    assert not any("spark3 plane" in line for line in lines)


# forget and remember


def test_a_forgotten_node_is_skipped_until_it_is_remembered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(state, "forget", lambda *_: (["spark2-undo"], ["file /etc/netplan/x.yaml"]))
    assert fleet.main(["forget", "spark2", "-s", "test"]) == 0
    out = capsys.readouterr().out
    assert "spark2: 1 resources forgotten: spark2-undo" in out
    assert "What stays on spark2, as far as the state knew:\n  file /etc/netplan/x.yaml\n" in out
    assert "sudo python3 /var/lib/spark-fabric/test/spark-node.pyz revert" in out
    assert "python -m fleet remember spark2 -s test" in out
    assert fleet.main(["forget", "spark3", "-s", "test"]) == 0
    assert lost_nodes("test") == {"spark2", "spark3"}
    assert fleet.main(["remember", "spark2", "-s", "test"]) == 0
    assert lost_nodes("test") == {"spark3"}
    assert "spark2: no longer skipped; run up" in capsys.readouterr().out


def test_a_node_that_was_not_forgotten_needs_no_remembering(capsys: pytest.CaptureFixture[str]) -> None:
    assert fleet.main(["remember", "spark2", "-s", "test"]) == 0
    assert "spark2: was not forgotten" in capsys.readouterr().out


def test_a_name_that_nobody_knows_is_not_forgotten(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(state, "forget", lambda *_: ([], []))
    monkeypatch.setattr(stackfile, "read", lambda *_: (NAME, settings))
    assert fleet.main(["forget", "spork3", "-s", "test"]) == fleet.USAGE
    assert "neither in the state nor in Pulumi.test.yaml" in capsys.readouterr().err
    assert on_node.lost_nodes("test") == set()


def test_a_state_that_cannot_be_edited_forgets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(*_: str) -> None:
        raise state.StateError("pulumi stack import failed: the stack is locked")

    monkeypatch.setattr(state, "forget", forget)
    assert fleet.main(["forget", "spark2", "-s", "test"]) == fleet.FAILED
    assert lost_nodes("test") == set()


# adopt and revert


def test_only_nodes_with_the_stacks_mark_are_touched(
    settings: Settings, links: list[Link], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    probed(monkeypatch, marked(), "spark3")
    calls = asked(monkeypatch)
    assert fleet.adopt(NAME, settings, links) == fleet.FAILED  # one could not be asked
    assert [(verb, node) for verb, node, _ in calls] == [("adopt", "spark1")]
    assert calls[0][2]["owner"] == {key: value for key, value in OWNER.items() if key != "adoptable"}
    out, err = capsys.readouterr()
    assert "spark2: does not carry the mark of spark-fabric/test/default; left as it is" in out
    assert "spark4: does not carry the mark" in out
    assert SILENT in err


def test_another_try_is_granted_on_the_nodes_that_are_named_ours(
    settings: Settings, links: list[Link], monkeypatch: pytest.MonkeyPatch
) -> None:
    probed(monkeypatch, marked())
    calls = asked(monkeypatch)
    assert fleet.retry(NAME, settings, links) == fleet.OK
    assert [(verb, node, request["stage"]) for verb, node, request in calls] == [
        ("retry", "spark1", "node"),
        ("retry", "spark3", "node"),
    ]


def test_all_engines_go_before_any_node_is_put_back(
    settings: Settings, links: list[Link], monkeypatch: pytest.MonkeyPatch
) -> None:
    probed(monkeypatch, {name: {**node, "owner": dict(OWNER)} for name, node in marked().items()})
    calls = asked(monkeypatch)
    assert fleet.revert(NAME, settings, links) == fleet.OK
    assert [verb for verb, _, _ in calls] == ["engines"] * 4 + ["revert"] * 4
    assert calls[0][2]["desired"] == {"action": "remove", "grace": 30}
    assert calls[4][2]["stage"] == "undo"


def test_a_node_whose_engine_stays_is_not_put_back(
    settings: Settings, links: list[Link], monkeypatch: pytest.MonkeyPatch
) -> None:
    probed(monkeypatch, {name: {**node, "owner": dict(OWNER)} for name, node in marked().items()})
    calls = asked(monkeypatch, "spark2")
    assert fleet.revert(NAME, settings, links) == fleet.FAILED
    assert [node for verb, node, _ in calls if verb == "revert"] == ["spark1", "spark3", "spark4"]


# Usage


def stack_file(root: Path, config: dict[str, Any], patch: pytest.MonkeyPatch) -> None:
    (root / "Pulumi.yaml").write_text("name: spark-fabric\n")
    values = {f"spark-fabric:{key}": value for key, value in config.items()}
    (root / "Pulumi.test.yaml").write_text(yaml.safe_dump({"config": values}))
    patch.setattr(stackfile, "read", partial(READ, root=root))


def test_wrong_settings_and_unknown_names_are_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stack_file(tmp_path, {**ring(), "fabric": {"mtu": 1}}, monkeypatch)
    assert fleet.main(["status", "-s", "test"]) == fleet.USAGE
    assert "spark-fabric:fabric.mtu: is 1" in capsys.readouterr().err
    assert fleet.main(["status", "-s", "other"]) == fleet.USAGE
    assert "has no file Pulumi.other.yaml" in capsys.readouterr().err
    known = tmp_path / "known_hosts"
    stack_file(tmp_path, {**ring(), "ssh": {"user": "u", "knownHosts": str(known)}}, monkeypatch)
    assert fleet.main(["revert", "-s", "test"]) == fleet.USAGE
    assert "known_hosts has no key for spark1" in capsys.readouterr().err
    known.write_text("".join(f"spark{number} ssh-ed25519 AAAA{number}\n" for number in range(1, 5)))
    assert fleet.main(["revert", "spark9", "-s", "test"]) == fleet.USAGE
    assert "no node spark9 in stack test; there are spark1, spark2, spark3, spark4" in capsys.readouterr().err
