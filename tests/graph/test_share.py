"""Weights that the head shares: who waits for whom, what replaces what, and what is left alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from typing import Any

import pytest

import components.share
from components.cluster import Cluster, ClusterArgs
from components.remote import Owner
from fleet.catalogue import every_key
from fleet.drift import Drift
from fleet.on_node import Link
from fleet.share import Exporter, SharedVolume
from node.nfs import MADE, SHARED
from tests.graph.conftest import STACK, WHOLE, Register, links_of, planned
from tests.graph.recorder import CONTAINER, VOLUME, Graph, record
from tests.unit.checkpoints import PATH
from tests.unit.observed import fresh
from tests.unit.stacks import NO_PROFILE, changed, ring

HEAD, WORKERS = "spark1", ["spark2", "spark3", "spark4"]
IMAGE, IMAGE_ID = "nfs:1", "sha256:" + "e" * 64
LABEL = STACK.label("default")
OPTIONS = {
    "type": "nfs",
    "o": "addr=192.168.1.11,nfsvers=4.2,ro,nconnect=8,rsize=1048576,wsize=1048576,soft,timeo=600,retrans=2",
    "device": ":/",
}


def config(**changes: Any) -> dict[str, Any]:
    return changed(ring(), {"engine.weights": {"path": PATH, "nfs": {"image": IMAGE}}, **changes})


def found(labels: dict[str, str], **more: Any) -> dict[str, Any]:
    """What a worker tells of the volume."""
    volume = {"driver": "local", "options": OPTIONS, "labels": labels, **more}
    return {"nfs": {"kernel": {}, "volumes": {"spark-fabric-weights": volume}, "reached": None, "exports": None}}


def serving(since: str, state: str = "running") -> dict[str, Any]:
    """What the head tells of our server."""
    container = {"name": "spark-fabric-exporter", "labels": {SHARED: LABEL, MADE: since}, "state": state}
    return {"time": 500.0, "docker": {"images": {IMAGE: IMAGE_ID}, "containers": [container]}}


@pytest.fixture(scope="session")
def shared(register: Register) -> Graph:
    return register(config(), seen={HEAD: serving("100")})


def labels(graph: Graph, name: str) -> dict[str, str]:
    return {one["label"]: one["value"] for one in graph[name].inputs.get("labels", [])}


def test_server_then_the_way_to_it_then_volumes_then_engines(shared: Graph) -> None:
    volumes = {f"{name}-weights" for name in WORKERS}
    state = {"state-id"}
    assert shared["spark1-exporter"].after == {"weights-left"}
    assert shared["weights-reached"].after - state == {"spark1-exporter"}
    assert {shared[name].after - state for name in volumes} == {frozenset({"weights-reached"})}
    assert shared["weights-kept"].after - state == volumes
    assert shared["gate"].after - state == {"weights-kept"}
    for rank in (HEAD, *WORKERS):
        assert {*volumes, "spark1-exporter"} <= shared.before(f"{rank}-engine")
    assert shared["weights-left"].after - state == {f"{name}-nccl" for name in (HEAD, *WORKERS)}


def test_a_server_of_somebody_elses_is_not_made(register: Register) -> None:
    graph = register(config(**{"engine.weights.nfs": {"server": "192.168.1.99", "device": ":/models"}}))
    assert "spark1-exporter" not in graph
    assert graph["weights-reached"].after - {"state-id"} == {"weights-left"}
    assert graph["spark2-weights"].inputs["driverOpts"]["o"].startswith("addr=192.168.1.99,")
    assert graph["spark2-weights"].inputs["driverOpts"]["device"] == ":/models"


def test_what_is_kept_of_an_engine_goes_before_volumes_that_it_has(shared: Graph) -> None:
    """At destroy, and where volumes change or a node leaves: docker removes none that a container has."""
    kept = shared["weights-kept"]
    delete = "exec python3 -IS fleet/on_node.py engines:forget"
    assert kept.texts == {"create": "true", "update": "true", "delete": delete}
    assert kept.deleted_first
    assert kept.replace_with == {"standstill"}
    assert shared["standstill"].deleted_first
    assert [link["name"] for link in json.loads(kept.environment["FLEET_LINKS"])] == [HEAD, *WORKERS]


def test_the_server_lets_in_the_workers_and_serves_the_heads_folder(shared: Graph) -> None:
    server = shared["spark1-exporter"]
    assert server.provider == "spark1-docker"
    assert server.inputs["envs"] == [
        "NFS_CLIENTS=192.168.1.12,192.168.1.13,192.168.1.14",
        "NFS_OPTS=ro,sync,no_subtree_check,no_root_squash,fsid=0",
    ]
    assert server.inputs["mounts"] == [{"type": "bind", "source": PATH, "target": "/export", "readOnly": True}]
    assert (server.inputs["image"], server.inputs["restart"]) == (IMAGE_ID, "unless-stopped")
    assert "spark-fabric.stack" not in labels(shared, "spark1-exporter")  # or the gate would remove it as an engine


def test_every_rank_gets_the_weights_read_only(shared: Graph) -> None:
    for name in (HEAD, *WORKERS):
        [mount] = [one for one in shared[f"{name}-engine"].inputs["mounts"] if one["target"].startswith("/models")]
        source = ("bind", PATH) if name == HEAD else ("volume", "spark-fabric-weights")
        assert (mount["type"], mount["source"], mount["readOnly"]) == (*source, True)
    for name in WORKERS:
        assert shared[f"{name}-weights"].provider == f"{name}-docker"
        assert shared[f"{name}-weights"].inputs["driverOpts"] == OPTIONS
        assert shared[f"{name}-weights"].deleted_first


def test_a_worker_may_reach_the_server_elsewhere_and_comes_from_there(register: Register) -> None:
    """On the fabric, it comes from its own addresses there."""
    graph = register(config(**{"nodes[1].weights.server": "10.10.0.10"}))
    options = [graph[f"{name}-weights"].inputs["driverOpts"]["o"] for name in WORKERS]
    assert [one.split(",")[0] for one in options] == ["addr=10.10.0.10", *["addr=192.168.1.11"] * 2]
    clients = graph["spark1-exporter"].inputs["envs"][0].removeprefix("NFS_CLIENTS=").split(",")
    assert clients == ["10.10.1.10", "10.10.0.11", "192.168.1.13", "192.168.1.14"]
    asked = json.loads(graph["weights-reached"].inputs["stdin"])
    assert {name: one["server"] for name, one in asked.items()} == {
        "spark2": "10.10.0.10",
        "spark3": "192.168.1.11",
        "spark4": "192.168.1.11",
    }


def test_on_a_third_network_a_worker_comes_from_its_address_there(register: Register) -> None:
    """One that it has there beside the address at which it is reached is not let in, and one without any is."""
    seen = {}
    for name, address in (("spark2", "10.7.0.12/24"), ("spark3", "192.168.1.203/24")):
        raw = fresh(int(name[-1]))
        raw["links"]["docker0"]["addresses"].append(address)
        seen[name] = {"links": raw["links"]}
    third = {f"nodes[{rank}].weights.server": "10.7.0.11" for rank in (1, 3)}
    graph = register(config(**third), seen=seen)
    clients = graph["spark1-exporter"].inputs["envs"][0].removeprefix("NFS_CLIENTS=").split(",")
    assert clients == ["10.7.0.12", "192.168.1.13", "192.168.1.14"]


# What changes behind a standstill

KEYS: dict[str, Any] = {
    "engine.weights.path": "/data/other",
    "engine.weights.nfs.image": "nfs:2",
    "engine.weights.nfs.name": "other",
    "engine.weights.nfs.exportOptions": "ro,insecure",
    "engine.weights.nfs.server": "192.168.1.99",
    "engine.weights.nfs.device": ":/x",
    "engine.weights.nfs.volume": "other",
    "engine.weights.nfs.options": "nfsvers=4.2,ro,hard",
    "nodes[2].weights.server": "192.168.1.98",
    "nodes[0].weights.path": "/data/other",
}

OTHERS: dict[str, Any] = {
    "node": "spark9",
    "name": "other",
    "image": "sha256:2",
    "path": "/other",
    "clients": ("192.168.1.99",),
    "options": "ro,hard",
    "privileged": False,
    "network_mode": "bridge",
    "restart": "no",
    "server": "192.168.1.99",
    "device": ":/x",
    "driver": "other",
}


def test_every_key_is_in_the_table() -> None:
    """But the container that serves already: it is looked at only."""
    below = {path for path, _ in every_key() if path.startswith("engine.weights.nfs.")}
    assert below - {"engine.weights.nfs.reuse"} == {key for key in KEYS if ".nfs." in key}


@pytest.mark.parametrize("key", KEYS)
def test_every_key_stops_the_engines_first(key: str) -> None:
    assert planned(config(**{key: KEYS[key]})).standstill != planned(config()).standstill


@pytest.mark.parametrize("kind", [Exporter, SharedVolume])
def test_every_argument_is_in_the_digest_of_the_standstill(kind: type[Exporter | SharedVolume]) -> None:
    share = planned(config()).share
    assert share
    assert share.exporter
    for name in (field.name for field in fields(kind) if field.name != "adopted"):
        if kind is Exporter:
            other = replace(share, exporter=replace(share.exporter, **{name: OTHERS[name]}))
        else:
            last = replace(share.volumes[2], **{name: OTHERS[name]})
            other = replace(share, volumes=(*share.volumes[:2], last))
        assert other.arguments() != share.arguments(), name
    assert set(asdict(share.volumes[0])) | set(asdict(share.exporter)) == {*OTHERS, "adopted"}


def test_what_docker_is_told_has_nothing_that_the_digest_has_not(shared: Graph) -> None:
    """Labels tell whose it is and since when; the grace of its stop is no part of it."""
    server = {"name", "image", "envs", "labels", "mounts", "privileged", "networkMode", "restart"}
    assert shared["spark1-exporter"].inputs.keys() == {*server, "destroyGraceSeconds", "mustRun"}
    assert shared["spark2-weights"].inputs.keys() == {"name", "driver", "driverOpts", "labels"}


def test_a_stack_without_it_has_none_of_its_resources_and_the_digest_it_had(graph: Graph) -> None:
    assert not graph.of(VOLUME)
    assert not [one.name for one in graph.managed if one.name.startswith("weights-")]
    assert planned(ring()).share is None


def test_another_image_behind_the_servers_tag_stops_the_engines_too() -> None:
    seen = [{HEAD: {"docker": {"images": {IMAGE: one}, "containers": []}}} for one in (IMAGE_ID, "sha256:2")]
    assert planned(config(), seen=seen[0]).standstill != planned(config(), seen=seen[1]).standstill


# What is there already


@pytest.mark.parametrize(
    ("seen", "since"),
    [(serving("100"), "100"), (serving("100", "exited"), "500"), ({"time": 500.0}, "500")],
    ids=["runs", "stopped", "gone"],
)
def test_a_server_that_has_gone_is_made_anew_and_the_way_to_it_is_tried_again(
    seen: dict[str, Any], since: str, register: Register, shared: Graph
) -> None:
    """Under a running engine too, which waits for it."""
    images = {"docker": {"images": {IMAGE: IMAGE_ID}, "containers": (seen.get("docker") or {}).get("containers", [])}}
    graph = register(config(), seen={HEAD: {**seen, **images}})
    assert labels(graph, "spark1-exporter") == {SHARED: LABEL, MADE: since}
    anew = since != "100"
    different = {one.name for one in graph.managed if one.inputs != shared[one.name].inputs}
    assert different == ({"spark1-exporter", "weights-reached"} if anew else set())


def test_a_volume_that_has_gone_is_made_anew(register: Register) -> None:
    """Else docker would make an empty one when the engine starts."""
    there = register(config(), seen={"spark3": {"time": 700.0, **found({SHARED: LABEL, MADE: "100"})}})
    gone = register(config(), seen={"spark3": {"time": 700.0}})
    assert labels(there, "spark3-weights")[MADE] == "100"
    assert labels(gone, "spark3-weights")[MADE] == "700"
    assert there["stop"].trigger == gone["stop"].trigger


@pytest.mark.parametrize("nfs", [{"server": "192.168.1.99"}, {"reuse": "glm-nfs"}], ids=["elsewhere", "in use"])
def test_without_a_server_of_ours_nothing_is_different_at_another_time(nfs: dict[str, str], register: Register) -> None:
    changes = {"engine.weights.nfs": nfs}
    seen = {name: found({SHARED: LABEL, MADE: "100"}) for name in WORKERS}
    one, other = (register(config(**changes), seen={HEAD: {"time": time}, **seen}) for time in (500.0, 700.0))
    assert {each.name: each.inputs for each in one.managed} == {each.name: each.inputs for each in other.managed}


@pytest.mark.parametrize("label", [{}, {SHARED: "spark-fabric/other/default"}])
def test_a_volume_that_was_there_before_is_used_as_it_is_and_stays(label: dict[str, str], register: Register) -> None:
    graph = register(config(), seen={"spark3": found(label)})
    assert labels(graph, "spark3-weights") == {}
    assert graph["spark3-weights"].request.retainOnDelete
    assert graph["spark3-weights"].ignored == {"labels"}  # its own are no difference
    assert not graph["spark2-weights"].ignored
    assert not graph["spark2-weights"].request.retainOnDelete
    assert planned(config(), seen={"spark3": found(label)}).standstill == planned(config()).standstill


def test_a_node_that_leaves_has_no_volume_and_is_let_in_no_more(register: Register) -> None:
    graph = register(config(**{**NO_PROFILE, "nodes[3].state": "leaving"}))
    assert "spark4-weights" not in graph
    assert "192.168.1.14" not in graph["spark1-exporter"].inputs["envs"][0]


def test_what_no_state_knows_is_removed_engines_before_their_server_and_volumes_before_it(shared: Graph) -> None:
    """Engines once, by a state that is new; the rest at its end."""
    left = shared["weights-left"]
    assert left.texts == {
        "create": "exec python3 -IS fleet/on_node.py engines:remove+forget",
        "update": "true",
        "delete": "exec python3 -IS fleet/on_node.py unshare:volumes+exporter",
    }
    assert json.loads(left.inputs["stdin"]) == json.loads(shared["gate"].inputs["stdin"])  # names and grace, as there
    assert "weights-left" in shared.before("spark1-exporter")  # so its delete comes after that one's
    nodes = [link["name"] for link in json.loads(left.environment["FLEET_LINKS"])]
    assert nodes == [HEAD, *WORKERS]


def test_each_container_and_volume_is_made_after_its_leftover_went(shared: Graph) -> None:
    for one in shared.all:
        assert len(one.request.hooks.before_create) == (1 if one.type in (CONTAINER, VOLUME) else 0), one.name


def test_each_is_told_what_may_not_be_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A volume with other options, as of a killed run, would stay in the place of the right one."""
    asked: dict[str, tuple[str, Any]] = {}

    def clear(link: Link, _: Owner, verb: str, desired: dict[str, Any] | None = None) -> Callable[..., None]:
        asked[link.name] = verb, desired
        return lambda _: None

    monkeypatch.setattr(components.share, "clear_leftover", clear)
    plan = planned(config())
    record(lambda: Cluster("cluster", ClusterArgs(plan, links_of(plan), Drift(), WHOLE)))
    wanted = {"volume": {"name": "spark-fabric-weights", "driver": "local", "options": OPTIONS}}
    assert asked == {HEAD: ("unshare:exporter", None)} | dict.fromkeys(WORKERS, ("unshare:other", wanted))


CHECKED: dict[str, Callable[[Graph], bool]] = {
    "no default docker": lambda graph: all(one.provider for one in graph.all if one.type.startswith("docker:")),
    "names of nodes": lambda graph: all(one.name.split("-")[0] in (HEAD, *WORKERS) for one in graph.of(VOLUME)),
}


@pytest.mark.parametrize("what", CHECKED)
def test_what_holds_of_all_resources_holds_of_these(what: str, shared: Graph) -> None:
    assert CHECKED[what](shared)
