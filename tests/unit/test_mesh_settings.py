"""The section `mesh`: what it takes, and what it needs of the rest."""

from typing import Any

import pytest

from fleet.loading import SettingsError, load
from tests.unit.stacks import DELETE, MARKER, changed, mesh, ring, switched

SHA = MARKER["sha256"]


def refused(config: dict[str, Any]) -> list[tuple[str, str]]:
    with pytest.raises(SettingsError) as raised:
        load(config)
    return [(problem.code, problem.path.removeprefix("spark-fabric:")) for problem in raised.value.problems]


def test_it_is_off_where_nothing_is_said() -> None:
    settings = load(ring())
    assert not settings.mesh.enabled
    assert not settings.mesh.model_fields_set
    assert (settings.mesh.hairpin_queue_size, settings.mesh.cap) == (8192, 262144)


def test_on_takes_a_marker_and_an_image() -> None:
    settings = load(mesh())
    assert settings.mesh.enabled
    assert settings.mesh.marker
    assert settings.mesh.marker.on_node == MARKER["onNode"]


def test_a_switched_mesh_of_other_sizes_with_one_plane_lacks_everything_at_once() -> None:
    config = {
        **switched(3),
        "mesh": {"enabled": "on"},
        "engine": {"image": "engine:1", "profile": "none", "gidIndex": 4},
        "fabric": {"topology": "switched", "mtu": 1500, "plane1": {"enabled": False}},
    }
    assert sorted(refused(config)) == [
        ("mesh-gid", "engine.gidIndex"),
        ("mesh-image", "engine.image.roceRing"),
        ("mesh-marker", "mesh.marker"),
        ("mesh-mtu", "fabric.mtu"),
        ("mesh-plane", "fabric.plane1.enabled"),
        ("mesh-profile", "engine.profile"),
        ("mesh-topology", "mesh.enabled"),
    ]


ONE_MISSING: list[tuple[dict[str, Any], str, str]] = [
    ({"fabric.topology": "switched"}, "mesh-topology", "mesh.enabled"),
    ({"fabric.plane0.enabled": "off"}, "mesh-plane", "fabric.plane0.enabled"),
    ({"fabric.plane1.enabled": "off"}, "mesh-plane", "fabric.plane1.enabled"),
    ({"mesh.marker": DELETE}, "mesh-marker", "mesh.marker"),
    ({"engine.image": "engine:1"}, "mesh-image", "engine.image.roceRing"),
    ({"engine.profile": "none"}, "mesh-profile", "engine.profile"),
    ({"engine.gidIndex": 4}, "mesh-gid", "engine.gidIndex"),
    ({"fabric.mtu": 4199}, "mesh-mtu", "fabric.mtu"),
    ({"mesh.marker.sha256": DELETE}, "missing", "mesh.marker.sha256"),
    ({"mesh.marker.sha256": SHA[:-1]}, "not-a-sha256", "mesh.marker.sha256"),
    ({"mesh.marker.onNode": DELETE}, "file-nowhere", "mesh.marker.file"),
    ({"mesh.marker.file": "marker"}, "file-twice", "mesh.marker.onNode"),
    ({"mesh.marker.onNode": "marker"}, "not-a-node-path", "mesh.marker.onNode"),
    ({"mesh.marker.sha256": SHA.upper()}, "not-a-sha256", "mesh.marker.sha256"),
    ({"mesh.marker.onNode": "/opt/../marker"}, "not-a-node-path", "mesh.marker.onNode"),
    ({"mesh.marker": "/opt/marker"}, "wrong-shape", "mesh.marker"),
    ({"mesh.hairpinQueueSize": 512}, "out-of-range", "mesh.hairpinQueueSize"),
    ({"mesh.hairpinQueueSize": 16384}, "out-of-range", "mesh.hairpinQueueSize"),
    ({"mesh.hairpinQueueSize": 8000}, "mesh-queue", "mesh.hairpinQueueSize"),
    ({"mesh.maxSize": 262145}, "mesh-size", "mesh.maxSize"),
    ({"mesh.gatherSize": 2097152}, "mesh-size", "mesh.gatherSize"),
    ({"mesh.hairpinQueueSize": 4096, "mesh.maxSize": 81921}, "mesh-size", "mesh.maxSize"),
    ({"mesh.markre": {}}, "unknown-key", "mesh.markre"),
    ({"engine.env.SGLANG_ROCE_ALLREDUCE": 0}, "env-forbidden", "engine.env.SGLANG_ROCE_ALLREDUCE"),
    ({"engine.env.SGLANG_ROCE_MAX_SIZE": 81920}, "env-forbidden", "engine.env.SGLANG_ROCE_MAX_SIZE"),
    ({"engine.env.DSV41_ROCE_GATHER": 81920}, "env-forbidden", "engine.env.DSV41_ROCE_GATHER"),
    ({"engine.env.DSV41_ROCE_RING": 0}, "env-forbidden", "engine.env.DSV41_ROCE_RING"),
    ({"engine.env.B12X_ROCE_HCA": "a"}, "env-forbidden", "engine.env.B12X_ROCE_HCA"),
    ({"engine.env.B12X_ROCE_PEER_HCA_MAPS": "1=0/2"}, "env-forbidden", "engine.env.B12X_ROCE_PEER_HCA_MAPS"),
    ({"engine.headEnv.B12X_ROCE_PEER_HCA_MAP": "1=0/2"}, "env-forbidden", "engine.headEnv.B12X_ROCE_PEER_HCA_MAP"),
    ({"engine.env.B12X_ROCE_GID_INDEX": 4}, "env-forbidden", "engine.env.B12X_ROCE_GID_INDEX"),
    ({"engine.env.B12X_ROCE_OPPOSITE_PATHS": 4}, "env-forbidden", "engine.env.B12X_ROCE_OPPOSITE_PATHS"),
]


@pytest.mark.parametrize(("change", "code", "path"), ONE_MISSING, ids=[str(case[0]) for case in ONE_MISSING])
def test_one_condition_that_is_missing_is_one_mistake(change: dict[str, Any], code: str, path: str) -> None:
    assert refused(changed(mesh(), change)) == [(code, path)]


@pytest.mark.parametrize("name", ["SGLANG_ROCE_ALLREDUCE", "DSV41_ROCE_RING", "DSV41_ROCE_GATHER"])
def test_a_ring_without_mesh_takes_no_rocenante(name: str) -> None:
    assert refused(changed(ring(), {f"engine.env.{name}": 1})) == [("env-forbidden", f"engine.env.{name}")]


def test_a_switched_fabric_takes_rocenante_but_not_that_of_the_mesh() -> None:
    env = {"SGLANG_ROCE_ALLREDUCE": 1, "SGLANG_ROCE_MAX_SIZE": 2097152, "DSV41_ROCE_GATHER": 2097152}
    load(changed(switched(), {"engine.env": env}))
    for name in ("DSV41_ROCE_RING", "B12X_ROCE_PEER_HCA_MAPS", "B12X_ROCE_PEER_HCA_MAP"):
        assert refused(changed(switched(), {f"engine.env.{name}": 1})) == [("env-forbidden", f"engine.env.{name}")]


ACCEPTED: list[dict[str, Any]] = [
    {"mesh.hairpinQueueSize": "1024", "mesh.maxSize": "81920"},
    {"mesh.maxSize": 2097152, "mesh.gatherSize": 2097152, "mesh.allowLargeCap": "on"},
    {"mesh.marker": {"file": "~/marker", "sha256": SHA}},
    {"engine.gidIndex": 3},
    {"fabric.mtu": 4200},
    {"fabric.cabling": "reversed"},
    {"fabric.ipRelay": "off"},
    {"engine.env.B12X_ROCE_TWO_WAVE_THRESHOLD_BYTES": 196608},
    {"engine.env.B12X_ROCE_CACHE_DIR": "/state/b12x-roce"},
]


@pytest.mark.parametrize("change", ACCEPTED, ids=str)
def test_what_works_is_taken(change: dict[str, Any]) -> None:
    assert load(changed(mesh(), change)).mesh.enabled


def test_off_asks_for_nothing() -> None:
    """Turning it off is one line: what it needed may stay."""
    assert not load(changed(mesh(), {"mesh.enabled": "off"})).mesh.enabled
    load(changed(mesh(), {"mesh": {"enabled": "off"}, "engine.image": "engine:1", "fabric.plane1.enabled": "off"}))
