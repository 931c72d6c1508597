"""The resolved environments as they are shown: compact, with origins, without secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet import on_node, stackfile, survey
from fleet.__main__ import status
from fleet.drift import Drift
from fleet.environment import listing, resolved
from fleet.loading import load
from fleet.plan import Plan
from fleet.planner import make
from fleet.probe import Probe
from fleet.stack import StackName
from node.hide import HIDDEN
from tests.unit import heard, observed
from tests.unit.fakes import link
from tests.unit.stacks import changed, ring

STACK = StackName("spark-fabric", "test")
SECRETS = {"engine.env": {"HF_TOKEN": "hunter2", "A": "plain"}, "engine.headEnv": {"API_KEY": "hunter3"}}


def planned(**changes: Any) -> Plan:
    return make(load(changed(ring(), changes)), None, STACK)


def test_a_value_that_all_ranks_have_is_said_once() -> None:
    shown = resolved(planned())
    assert shown["NCCL_ALGO"] == "Ring (profile ring)"
    assert shown["NCCL_IB_GID_INDEX"] == "3 (expected)"
    assert shown["NNODES"] == "4 (topology)"


def test_values_that_differ_are_said_with_their_ranks() -> None:
    shown = resolved(planned(**{"engine.headEnv.B": 1}))
    assert shown["SKIP_SMOKE"] == {"spark1": "0 (default)", "spark2, spark3, spark4": "1 (default)"}
    assert shown["B"] == {"spark1": "1 (override engine.headEnv)"}
    ranks = shown["NODE_RANK"]
    assert isinstance(ranks, dict)
    assert list(ranks) == ["spark1", "spark2", "spark3", "spark4"]


def test_every_variable_of_every_rank_is_shown() -> None:
    plan = planned()
    assert list(resolved(plan)) == sorted({name for container in plan.containers for name in container.env})


def test_what_is_named_like_a_secret_is_never_shown() -> None:
    shown = resolved(planned(**SECRETS))
    assert shown["HF_TOKEN"] == f"{HIDDEN} (override engine.env)"
    assert shown["API_KEY"] == {"spark1": f"{HIDDEN} (override engine.headEnv)"}
    assert shown["A"] == "plain (override engine.env)"
    assert "hunter" not in "\n".join(listing(planned(**SECRETS)))


def test_nothing_of_the_operators_own_is_shown_where_some_of_it_is_encrypted() -> None:
    shown = resolved(planned(**SECRETS), hidden=True)
    assert shown["A"] == f"{HIDDEN} (override engine.env)"
    assert shown["NCCL_NET"] == "IB (profile network)"


def test_a_preview_shows_it_among_the_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(**SECRETS)
    found = survey.Survey(plan, {}, Probe({}, {}), Drift(), survey.OFFLINE_GROUP, ())
    assert found.outputs()["environment"] == resolved(plan)
    assert found.outputs(hidden=True)["environment"] == resolved(plan, hidden=True)


def test_keys_of_serving_are_hidden_as_variables_are() -> None:
    plan = planned(**{"engine.serving.extraArgs": "--api-key hunter2", "engine.serving.contextLength": 8192})
    assert "hunter2" not in str(resolved(plan, hidden=True))
    assert resolved(plan)["CONTEXT_LENGTH"] == "8192 (setting engine.serving.contextLength)"


def test_status_shows_it_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = changed(ring(), {"engine.env": {"NCCL_MAX_NCHANNELS": 8, "MY_OWN": {"secure": "AAAB"}}})
    (tmp_path / "Pulumi.yaml").write_text("name: spark-fabric\n")
    namespaced = {f"spark-fabric:{key}": value for key, value in config.items()}
    (tmp_path / "Pulumi.test.yaml").write_text(yaml.safe_dump({"config": namespaced}))
    name, settings = stackfile.read("test", root=tmp_path)
    monkeypatch.setattr(on_node, "folder", lambda stack: tmp_path / stack)
    monkeypatch.setattr("fleet.asking.probe", lambda *_, **__: Probe(observed.fleet(4), {}))
    monkeypatch.setattr(survey, "listen", lambda *_: heard.CABLED)
    links = [link(number) for number in range(1, 5)]
    status(name, settings, links)
    assert "NCCL_ALGO" not in capsys.readouterr().out
    status(name, settings, links, env=True)
    out = capsys.readouterr().out
    assert "note         spark-fabric:engine.env.NCCL_MAX_NCHANNELS: is 8" in out
    rows = {tuple(line.split()[:3]): line.split(maxsplit=3)[-1] for line in out.partition("\n\n")[2].splitlines()}
    assert rows["NCCL_ALGO", "all", "Ring"] == "profile ring"
    assert rows["NCCL_MAX_NCHANNELS", "all", "8"] == "override engine.env"
    assert rows["MY_OWN", "all", "(encrypted)"] == "override engine.env"
    assert rows["NODE_RANK", "spark3", "2"] == "topology"
    assert rows["NCCL_SOCKET_IFNAME", "all", "enP7s7"] == "found"
