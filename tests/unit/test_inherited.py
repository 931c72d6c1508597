"""A set-up by hand: each part of it is adopted, taken over, to be stopped by hand, or left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleet import __main__ as fleet
from fleet import drift, survey
from fleet.facts import parse
from fleet.inherited import Fate, Part, inherited
from fleet.loading import load
from fleet.on_node import Answer, Link
from fleet.plan import Plan
from fleet.planner import make
from fleet.probe import Probe
from fleet.stack import StackName
from node.deviation import Deviation
from tests.unit import heard, observed
from tests.unit.fakes import link
from tests.unit.stacks import LIBRARY, changed, mesh, ring, switched

NAME = StackName("spark-fabric", "test")
PLANE_2 = "/etc/netplan/41-sparkring-plane2.yaml"
STANZA = "network:\n  ethernets:\n    enP2p1s0f0np0: {addresses: [10.20.0.10/24]}\n"
NM = "/etc/netplan/90-NM-01234567-89ab-cdef-0123-456789abcdef.yaml"
NFS = {"driver": "local", "options": {"type": "nfs", "o": "addr=192.168.1.11", "device": ":/"}}
BIND = {"driver": "local", "options": {"type": "none", "o": "bind", "device": "/data/model"}}
MODEL = "/models/DeepSeek-V4.1-Flash"
Raw = dict[str, dict[str, Any]]


def planned(raw: Raw, config: dict[str, Any] | None = None) -> Plan:
    facts = {name: parse(node) for name, node in raw.items()}
    return make(load(config or ring()), facts, NAME, image_id="sha256:1")


def with_file(path: str, text: str, *addresses: str) -> Raw:
    """Nodes, of which the first has a netplan file, and these addresses on its f0 of plane 1."""
    raw = observed.fleet(4)
    raw["spark1"]["netplan"] = {path: {"text": text, "mode": "0600", "uid": 0, "gid": 0}}
    raw["spark1"]["links"]["enP2p1s0f0np0"]["addresses"] = list(addresses)
    return raw


def only(parts: list[Part]) -> Part:
    [part] = parts
    assert part.node == "spark1"
    return part


def netplan(raw: Raw, config: dict[str, Any] | None = None) -> Part:
    return only(inherited(planned(raw, config), raw, {}))


def test_a_fresh_fleet_has_nothing_of_it() -> None:
    raw = observed.fleet(4)
    assert inherited(planned(raw), raw, {}) == []


def test_a_netplan_file_of_fabric_ports_is_taken_over_once_it_is_listed() -> None:
    raw = with_file(PLANE_2, STANZA, "10.20.0.10/24")
    part = netplan(raw)
    [address] = [
        port["address"] for port in planned(raw).nodes[0].stages["plane1"]["ports"] if port["netdev"] == "enP2p1s0f0np0"
    ]
    assert (part.fate, part.what, part.open) == (Fate.TAKE_OVER, PLANE_2, True)
    assert part.why.startswith("once its path is in fabric.setAside")
    assert address in part.why
    listed = netplan(raw, changed(ring(), {"fabric.setAside": [PLANE_2]}))
    assert (listed.fate, listed.open) == (Fate.TAKE_OVER, False)


def test_it_is_told_whether_the_port_keeps_its_address() -> None:
    assert (
        "enP2p1s0f0np0 keeps 10.11.0.10/24"
        in netplan(
            with_file(PLANE_2, STANZA, "10.11.0.10/24"), changed(ring(), {"fabric.plane1.pool": "10.11.0.0/16"})
        ).why
    )
    assert (
        "enP2p1s0f0np0 gets 10.12.0.10/24 and has 10.11.0.10/24"
        in netplan(
            with_file(PLANE_2, STANZA, "10.11.0.10/24"), changed(ring(), {"fabric.plane1.pool": "10.12.0.0/16"})
        ).why
    )


def test_a_file_that_speaks_for_the_management_port_too_is_not_set_aside() -> None:
    part = netplan(with_file(PLANE_2, f"{STANZA}    enP7s7: {{dhcp4: true}}\n"))
    assert (part.fate, part.open) == (Fate.STOP, True)
    assert "it speaks for enP7s7 too" in part.why


def test_stanzas_of_network_manager_are_taken_over_without_asking() -> None:
    part = netplan(with_file(NM, STANZA))
    assert (part.fate, part.open) == (Fate.TAKE_OVER, False)


def docker(
    config: dict[str, Any],
    *mounts: tuple[str, str, bool],
    state: str = "running",
    volumes: dict[str, Any] | None = None,
) -> list[Part]:
    """What is said of a worker of the launcher's on spark1 with mounts (source, target, whether a volume)."""
    raw = observed.fleet(4)
    listed = [{"source": s, "target": t, "volume": v, "read_only": True} for s, t, v in mounts]
    worker = {"name": "dsv41-worker", "state": state, "image": "dsv41:1", "mounts": listed}
    found = inherited(planned(raw, config), raw, {"spark1": {"containers": [worker], "volumes": volumes or {}}})
    assert found[0].what == "container dsv41-worker"
    return [one for one in found if one.what != "image dsv41:1"]


@pytest.mark.parametrize(("identity", "fate"), [("sha256:1", Fate.ADOPT), ("sha256:2", Fate.LEAVE)])
def test_the_image_of_a_container_is_held_against_the_one_that_will_run(identity: str, fate: Fate) -> None:
    raw = observed.fleet(4)
    worker = {"name": "dsv41-worker", "state": "exited", "image": "dsv41:1", "mounts": []}
    raw["spark1"]["docker"]["containers"] = [{**worker, "labels": {}, "image_id": identity}]
    found = inherited(planned(raw), raw, {"spark1": {"containers": [worker], "volumes": {}}})
    assert [(one.fate, one.what, one.open) for one in found[1:]] == [(fate, "image dsv41:1", False)]
    assert ("engine.image.build builds once for all" in found[1].why) == (fate is Fate.LEAVE)


def test_a_running_container_is_to_be_stopped_and_one_that_ended_is_left() -> None:
    assert [(one.fate, one.open) for one in docker(ring())] == [(Fate.STOP, True)]
    assert [(one.fate, one.open) for one in docker(ring(), state="exited")] == [(Fate.LEAVE, False)]


def test_the_server_of_weights_is_stopped_last() -> None:
    raw = observed.fleet(4)
    server = {"name": "dsv41-nfs", "state": "running", "image": "x", "mounts": []}
    part = only(inherited(planned(raw), raw, {"spark1": {"containers": [server], "volumes": {}}}))
    assert (part.fate, "last of all" in part.why) == (Fate.STOP, True)


@pytest.mark.parametrize(
    ("source", "fate"), [("dsv41-model", Fate.ADOPT), ("/data/other", Fate.LEAVE)], ids=["the same", "another"]
)
def test_weights_are_adopted_where_the_engine_gets_the_same(source: str, fate: Fate) -> None:
    config = changed(ring(), {"engine.volumes": [f"{source}:{MODEL}:ro"]})
    part = docker(config, ("dsv41-model", MODEL, True), volumes={"dsv41-model": BIND})[1]
    assert (part.fate, part.open) == (fate, False)


@pytest.mark.parametrize(
    ("path", "fate", "why"),
    [("/data/model", Fate.ADOPT, "engine.weights has it"), ("/data/other", Fate.LEAVE, "by engine.weights")],
)
def test_a_folder_of_weights_is_adopted_where_the_settings_name_the_same(path: str, fate: Fate, why: str) -> None:
    config = changed(ring(), {"engine.weights": {"path": "/data/none"}, "nodes[0].weights.path": path})
    part = docker(config, ("/data/model", MODEL, False))[1]
    assert part.fate is fate
    assert why in part.why


@pytest.mark.parametrize(
    ("path", "fate", "why"),
    [
        ("/data/model", Fate.ADOPT, "engine.weights has it"),
        ("/data/none", Fate.LEAVE, "To adopt it: /data/model in nodes[].weights.path"),
    ],
)
def test_a_volume_of_weights_that_is_a_folder_is_known_by_that(path: str, fate: Fate, why: str) -> None:
    config = changed(ring(), {"engine.weights": {"path": path}})
    part = docker(config, ("dsv41-local-weights", MODEL, True), volumes={"dsv41-local-weights": BIND})[1]
    assert part.fate is fate
    assert why in part.why


SHARED = {"path": "/data/model", "nfs": {"image": "dsv41-nfs:local", "volume": "dsv41-weights"}}


@pytest.mark.parametrize(
    ("options", "volume", "fate", "why"),
    [
        ("nfsvers=4.2,ro,soft", "dsv41-weights", Fate.ADOPT, "has just such a volume"),
        ("nfsvers=4.2,ro,hard", "dsv41-weights", Fate.STOP, "wants local with device=:/, o=addr=192.168.1.11,"),
        ("nfsvers=4.2,ro,soft", "other", Fate.STOP, "the engine gets other, by engine.weights.nfs"),
    ],
    ids=["the same", "hard", "another name"],
)
def test_a_volume_over_the_network_is_adopted_only_if_it_is_the_one_that_is_wanted(
    options: str, volume: str, fate: Fate, why: str
) -> None:
    raw = observed.fleet(4)
    nfs = {**SHARED["nfs"], "volume": volume, "options": "nfsvers=4.2,ro,soft"}  # type: ignore[dict-item]
    config = changed(ring(), {"engine.weights": {**SHARED, "nfs": nfs}})
    there = {"driver": "local", "options": {"type": "nfs", "o": f"addr=192.168.1.11,{options}", "device": ":/"}}
    found = inherited(planned(raw, config), raw, {"spark2": {"containers": [], "volumes": {"dsv41-weights": there}}})
    assert [(one.fate, one.open) for one in found] == [(fate, fate is Fate.STOP)]
    assert why in found[0].why


def test_a_server_that_the_settings_reuse_serves_on() -> None:
    raw = observed.fleet(4)
    config = changed(ring(), {"engine.weights": {"path": "/data/model", "nfs": {"reuse": "dsv41-nfs"}}})
    server = {"name": "dsv41-nfs", "state": "running", "image": "x", "mounts": []}
    assert only(inherited(planned(raw, config), raw, {"spark1": {"containers": [server]}})).fate is Fate.ADOPT


def test_weights_that_the_settings_do_not_name_come_with_what_to_write() -> None:
    part = docker(ring(), ("/data/model", MODEL, False))[1]
    assert part.fate is Fate.LEAVE
    assert f"/data/model:{MODEL}:ro in engine.volumes" in part.why


def test_weights_over_the_network_are_not_adopted() -> None:
    config = changed(ring(), {"engine.volumes": [f"dsv41-model:{MODEL}:ro"]})
    for found in (
        docker(config, ("dsv41-model", MODEL, True), volumes={"dsv41-model": NFS}),
        docker(config, volumes={"dsv41-model": NFS}),
    ):
        assert (found[1].fate, found[1].open) == (Fate.STOP, True)


def test_a_library_is_adopted_where_the_settings_name_it() -> None:
    folder = str(Path(LIBRARY).parent)
    assert docker(ring(), (folder, "/nccl", False))[1].fate is Fate.ADOPT
    assert "nccl.mode" in docker(switched(), (folder, "/nccl", False))[1].why
    other = docker(ring(), ("/home/a/nccl-2.30.7", "/nccl", False))[1]
    assert (other.fate, f"the engine gets {LIBRARY}" in other.why) == (Fate.LEAVE, True)


def installed(**more: Any) -> Raw:
    raw = observed.fleet(4)
    for node in raw.values():
        node["mesh"] = None
    raw["spark1"]["mesh"] = {
        "files": {"/opt/dsv41-mesh/mesh-up.sh": {"text": "x"}},
        "binary": None,
        "service": None,
        "others": [],
        **more,
    }
    return raw


def test_a_mesh_by_hand_goes_by_hand_where_none_is_wanted() -> None:
    raw = installed()
    part = only(inherited(planned(raw), raw, {}))
    assert (part.fate, part.what) == (Fate.STOP, "/opt/dsv41-mesh")
    assert "systemctl disable --now dsv41-mesh" in part.why


def test_a_relay_table_is_told_and_nothing_that_is_not_there() -> None:
    raw = installed(files={}, others=["sparkring-fabric.service"])
    part = only(inherited(planned(raw), raw, {}))
    assert (part.fate, part.what) == (Fate.STOP, "sparkring-fabric.service")


@pytest.mark.parametrize(("foreign", "fate"), [(True, Fate.STOP), (False, Fate.ADOPT)])
def test_a_mesh_is_adopted_where_it_means_the_same(foreign: bool, fate: Fate, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Deviation("markers.by-hand", "/opt/dsv41-mesh/mesh", "is of an installation by hand", "ours", True, foreign)
    monkeypatch.setattr(drift, "DEVIATIONS", {"markers": lambda *_: [found]})
    raw = installed()
    raw["spark1"]["docker"]["images"] = {"engine:1": "sha256:1"}
    part = only(inherited(planned(raw, mesh()), raw, {}))
    assert (part.fate, part.open) == (fate, foreign)


def test_what_this_stack_has_installed_is_not_by_hand() -> None:
    raw = installed()
    raw["spark1"]["journal"] = {"stages": {"markers": {"status": "applied", "digest": "", "desired": {}}}}
    assert inherited(planned(raw), raw, {}) == []


@pytest.mark.parametrize(("state", "status"), [("running", fleet.NOT_OK), ("exited", fleet.OK)])
def test_the_command_tells_all_nodes_and_what_is_open(
    state: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = observed.fleet(4)
    monkeypatch.setattr("fleet.asking.probe", lambda *_, **__: Probe(raw, {}))
    monkeypatch.setattr(survey, "listen", lambda *_: heard.CABLED)

    def on_all(verb: str, stack: str, links: list[Link], requests: dict[str, Any]) -> list[Answer]:
        assert (verb, stack) == ("by-hand", "test")
        container = {"name": "dsv41-head", "state": state, "image": "x", "mounts": []}
        return [Answer(one.name, 0, {"containers": [container], "volumes": {}}, "") for one in links]

    monkeypatch.setattr(fleet, "on_all", on_all)
    links = [link(number) for number in range(1, 5)]
    assert fleet.moving_in(NAME, load(ring()), links) == status
    told = capsys.readouterr().out.splitlines()
    assert [line.split("container")[0].split()[-1] for line in told if "container" in line] == [
        "spark1",
        "spark2",
        "spark3",
        "spark4",
    ]
