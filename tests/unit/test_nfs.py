"""Weights over NFS: what is looked at on which node, and what keeps a run from starting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fleet import preflight, survey
from fleet.asking import ask
from fleet.loading import load
from fleet.probe import Probe, Question, probe
from fleet.problems import Problem
from fleet.verdicts import judge
from node.nfs import SHARED
from tests.unit import fakes, observed
from tests.unit.checkpoints import PATH, checkpoint
from tests.unit.looks import STACK, planned
from tests.unit.stacks import changed, ring
from tests.unit.test_weights import Raw

IMAGE, VOLUME = "nfs:1", "spark-fabric-weights"
OPTIONS = {
    "type": "nfs",
    "o": "addr=192.168.1.11,nfsvers=4.2,ro,nconnect=8,rsize=1048576,wsize=1048576,soft,timeo=600,retrans=2",
    "device": ":/",
}
SERVER = {"engine.weights.nfs": {"server": "192.168.1.99"}}
REUSE = {"engine.weights.nfs": {"reuse": "glm-nfs"}}
EXPORTS = ["# of somebody else", "/export 192.168.1.12(ro) 192.168.1.13(ro)", "/other 192.168.1.14/31(ro)"]


@pytest.fixture
def raw() -> Raw:
    """Nodes that can, the head with weights and with the server's image."""
    nodes = observed.fleet(4)
    for node in nodes.values():
        node["docker"]["images"] = {"engine:1": "sha256:" + "1" * 64}
        node["nfs"] = {
            "kernel": {"client": True, "server": True},
            "volumes": {VOLUME: None},
            "reached": None,
            "exports": None,
        }
    nodes["spark1"]["weights"] = checkpoint()
    nodes["spark1"]["docker"]["images"][IMAGE] = "sha256:" + "e" * 64
    return nodes


def config(**changes: Any) -> dict[str, Any]:
    return changed(ring(), {"engine.weights": {"path": PATH, "nfs": {"image": IMAGE}}, **changes})


def told(raw: Raw, wanted: dict[str, Any] | None = None) -> list[Problem]:
    found = preflight.check(planned(load(wanted or config()), raw))
    return [one for one in found if one.code.startswith(("nfs-", "weights-", "volume-"))]


def test_nothing_is_said_where_all_of_it_is_there(raw: Raw) -> None:
    assert told(raw) == []
    raw["spark1"]["nfs"]["exports"] = EXPORTS
    for name in ("spark2", "spark3", "spark4"):
        raw[name]["nfs"]["reached"] = ""
    assert told(raw, config(**SERVER)) == []
    assert told(raw, config(**REUSE)) == []


def test_only_the_head_is_asked_for_a_folder_and_the_workers_for_their_volume(
    raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Question] = []

    def answer(question: Question) -> Probe:
        asked.append(question)
        return Probe({}, dict.fromkeys(raw, "no answer"))

    monkeypatch.setattr("fleet.asking.probe", answer)
    for wanted in (
        config(),
        config(**SERVER, **{"nodes[2].weights.server": "10.0.0.1"}),
        config(**REUSE),
        changed(ring(), {"engine.volumes": ["/a:/b", "mine:/c"]}),
        ring(),
    ):
        settings = load(wanted)
        survey.look(settings, STACK, ask(settings, STACK, []))
    own, server, reuse, volumes, bare = (one.nfs for one in asked)
    assert asked[0].weights == {"spark1": PATH}
    assert own == {"spark1": {"volumes": [], "reuse": None}} | {
        name: {"volumes": [VOLUME], "server": None} for name in ("spark2", "spark3", "spark4")
    }
    assert [server[name]["server"] for name in ("spark2", "spark3")] == ["192.168.1.99", "10.0.0.1"]
    assert (reuse["spark1"]["reuse"], reuse["spark2"]["server"]) == ("glm-nfs", "192.168.1.11")
    assert volumes == {name: {"volumes": ["mine"]} for name in raw}
    assert bare == {}


def test_a_node_that_is_asked_answers(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node program itself, over a stand-in for ssh."""
    fakes.install(tmp_path, monkeypatch)
    links = [fakes.link(1), fakes.link(2)]
    seen = probe(Question(STACK, "default", links, nfs={"spark1": {"server": "127.0.0.1"}})).observed
    assert seen["spark1"]["nfs"]["reached"] == "Connection refused"
    assert "nfs" not in seen["spark2"]


Case = tuple[Callable[[Raw], Any], dict[str, Any], str, str, str]


def nfs(node: str, **values: Any) -> Callable[[Raw], Any]:
    return lambda raw: raw[node]["nfs"].update(values)


def volume(**values: Any) -> Callable[[Raw], Any]:
    found = {"driver": "local", "options": OPTIONS, "labels": {}} | values
    return nfs("spark3", volumes={VOLUME: found})


def container(raw: Raw) -> None:
    raw["spark1"]["docker"]["containers"] = [
        {"name": "spark-fabric-exporter", "labels": {SHARED: "spark-fabric/other/default"}, "state": "exited"}
    ]


def listener(raw: Raw) -> None:
    """Of a server in the kernel, in both families."""
    raw["spark1"]["listeners"] = [
        {"address": address, "port": 2049, "pid": None, "command": ""}
        for address in ("0.0.0.0", "::")  # noqa: S104
    ]


BIND = {"type": "none", "o": "bind", "device": "/data"}
CASES: dict[str, Case] = {
    "no client": (
        nfs("spark3", kernel={"client": False, "server": True}),
        {},
        "nfs-client",
        "spark3",
        "has no NFS client in its kernel and no module of one, wanted a kernel that mounts NFS 4",
    ),
    "no server in the kernel": (
        nfs("spark1", kernel={"client": False, "server": False}),
        {},
        "nfs-kernel",
        "spark1",
        "has no NFS server in its kernel",
    ),
    "no image": (
        lambda raw: raw["spark1"]["docker"]["images"].pop(IMAGE),
        {},
        "nfs-image",
        "spark1",
        "has no image nfs:1",
    ),
    "name": (container, {}, "nfs-name", "spark1", "a container spark-fabric-exporter that is not this stack's"),
    "port": (listener, {}, "nfs-port", "spark1 TCP port 2049", "is taken by the kernel, wanted it free"),
    "silent": (
        nfs("spark3", reached="timed out"),
        SERVER,
        "nfs-reach",
        "spark3 192.168.1.99",
        "does not answer on TCP 2049: timed out",
    ),
    "no such container": (
        lambda _: None,
        REUSE,
        "nfs-reuse",
        "spark1",
        "runs no container glm-nfs",
    ),
    "not let in": (
        nfs("spark1", exports=["/export 192.168.1.12/31(ro) spark4(ro) # 192.168.1.14"]),
        REUSE,
        "nfs-acl",
        "spark4 192.168.1.11",
        "does not let 192.168.1.14 in, wanted an export to it",
    ),
    "bind volume": (
        volume(options=BIND),
        {},
        "nfs-volume",
        f"spark3 {VOLUME}",
        f"is local with device=/data, o=bind, type=none, wanted local with device=:/, o={OPTIONS['o']}, type=nfs",
    ),
    "hard volume": (
        volume(options={**OPTIONS, "o": "addr=192.168.1.11,ro,hard"}),
        {},
        "nfs-volume",
        f"spark3 {VOLUME}",
        "o=addr=192.168.1.11,ro,hard, type=nfs, wanted local with",
    ),
    "other driver": (volume(driver="plugin"), {}, "nfs-volume", f"spark3 {VOLUME}", "is plugin with"),
}


@pytest.mark.parametrize("case", CASES)
def test_each_obstacle_is_told_once_by_node_and_object(case: str, raw: Raw) -> None:
    damage, changes, code, path, part = CASES[case]
    damage(raw)
    found = told(raw, config(**changes))
    assert [(one.code, one.path) for one in found] == [(code, path)]
    assert part in found[0].text()
    assert found[0].hint


@pytest.mark.parametrize("what", ["no client", "no server in the kernel", "no image", "name", "port", "bind volume"])
def test_what_docker_could_not_do_cannot_be_ignored(what: str, raw: Raw) -> None:
    CASES[what][0](raw)
    found = told(raw)
    judged = judge(found, dict.fromkeys(raw, True), ignore=[found[0].code])
    assert [one.code for one in judged.problems] == [found[0].code]


def test_a_volume_that_is_just_so_is_used_and_one_of_ours_may_be_another(raw: Raw) -> None:
    """Ours is made anew, once the engines have stopped."""
    for there in (volume(), volume(options=BIND, labels={SHARED: STACK.label("default")})):
        there(raw)
        assert told(raw) == []


def test_a_server_of_the_kernel_is_wanted_only_where_one_is_started(raw: Raw) -> None:
    CASES["no server in the kernel"][0](raw)
    for name in ("spark2", "spark3", "spark4"):
        raw[name]["nfs"]["reached"] = ""
    assert told(raw, config(**SERVER)) == []


@pytest.mark.parametrize(
    ("label", "state", "free"),
    [
        (STACK.label("default"), "running", True),
        (STACK.label("default"), "exited", False),
        ("spark-fabric/other/default", "running", False),
    ],
    ids=["ours", "ours, ended", "another stack's"],
)
def test_a_port_that_our_own_server_has_is_free(label: str, state: str, free: bool, raw: Raw) -> None:
    listener(raw)
    raw["spark1"]["docker"]["containers"] = [{"name": "any", "labels": {SHARED: label}, "state": state}]
    assert [one.code for one in told(raw)] == ([] if free else ["nfs-port"])


def test_where_somebody_elses_server_is_used_it_has_its_port(raw: Raw) -> None:
    listener(raw)
    raw["spark1"]["nfs"]["exports"] = EXPORTS
    assert told(raw, config(**REUSE)) == []


@pytest.mark.parametrize(
    ("line", "listed"),
    [
        ("/export *(ro)", True),
        ("/export (ro)", True),
        ("/export 192.168.1.0/24(ro,sync)", True),
        ("/export 192.168.1.0/255.255.255.0(ro)", True),
        ("/export 192.168.1.12(ro) 192.168.1.13(ro) 192.168.1.14(ro)", True),
        ("/export 10.0.0.0/8(ro)", False),
        ("/export spark2(ro) spark3(ro)", False),
        ("#/export *(ro)", False),
        ("", False),
    ],
)
def test_an_export_is_read_as_the_server_reads_it(line: str, listed: bool, raw: Raw) -> None:
    raw["spark1"]["nfs"]["exports"] = [line]
    assert ([one.code for one in told(raw, config(**REUSE))] == []) is listed


def test_a_node_that_could_not_be_asked_is_told_by_that_and_not_by_guesses(raw: Raw) -> None:
    raw["spark3"] |= {"nfs": None, "errors": ["nfs: docker answers nothing"]}
    assert told(raw) == []


def test_a_look_that_failed_is_no_volume_that_has_gone(raw: Raw) -> None:
    """Else it would be made anew under an engine. Without shared weights only a caution rests on it."""
    raw["spark3"] |= {"nfs": None, "errors": ["nfs: docker answers nothing"]}
    for wanted, code in ((config(), "unread"), (ring(), "unread-part")):
        found = preflight.before_plan(planned(load(wanted), raw))
        assert [(one.code, one.path) for one in found if one.code.startswith("unread")] == [(code, "spark3")]
    judged = judge([Problem("unread", "spark3", "", "", "")], dict.fromkeys(raw, True), ignore=["unread"])
    assert [one.code for one in judged.problems] == ["unread"]


# Volumes of the operator's: local weights are never taken from a network without a word.


@pytest.mark.parametrize(
    ("found", "code", "part"),
    [
        (None, "volume-missing", "is not there, wanted that volume"),
        ({"driver": "local", "options": OPTIONS, "labels": {}}, "volume-network", "is local with device=:/, o=addr="),
        ({"driver": "local", "options": BIND, "labels": {}}, None, ""),
    ],
    ids=["missing", "nfs", "bind"],
)
def test_a_docker_volume_of_the_operators_is_there_and_local(
    found: dict[str, Any] | None, code: str | None, part: str, raw: Raw
) -> None:
    wanted = changed(ring(), {"engine.volumes": ["dsv41-local-weights:/models/DeepSeek-V4.1-Flash:ro"]})
    for node in raw.values():
        node["nfs"]["volumes"] = {}
    raw["spark2"]["nfs"]["volumes"] = {"dsv41-local-weights": found}
    problems = told(raw, wanted)
    assert [(one.code, one.path) for one in problems] == ([(code, "spark2 dsv41-local-weights")] if code else [])
    assert part in (problems[0].text() if problems else "")
