"""The stack config: what is accepted, what is refused, and how it is said."""

import json
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet.loading import SettingsError, load
from fleet.scalars import Gpus
from fleet.topology import Kind
from tests.unit.stacks import changed, ring, switched

WRONG: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "wrong_configs.yaml").read_text())
HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGm8jTWGuS9gN0aZ3Ek1v8vq2m0a1Rk7mEPgqk0OQ5pV"


@pytest.mark.parametrize("case", WRONG, ids=lambda case: " ".join(case["change"]))
def test_each_mistake_gives_exactly_one_clear_problem(case: dict[str, Any]) -> None:
    with pytest.raises(SettingsError) as raised:
        load(changed(ring(), case["change"]))
    found = [(problem.code, problem.path) for problem in raised.value.problems]
    wanted = [(code, f"spark-fabric:{path}") for code, path, _ in case["problems"]]
    assert sorted(found) == sorted(wanted), str(raised.value)
    texts = {problem.path: problem.text() for problem in raised.value.problems}
    for _, path, part in case["problems"]:
        assert part in texts[f"spark-fabric:{path}"]


def test_there_are_at_least_thirty_wrong_configs() -> None:
    assert len(WRONG) >= 30


def test_a_minimal_ring_gets_the_defaults() -> None:
    settings = load(ring())
    assert settings.fabric.topology is Kind.RING
    assert settings.fabric.mtu == 9000
    assert settings.fabric.plane0.pool == IPv4Network("10.10.0.0/16")
    assert settings.fabric.plane1.pool == IPv4Network("10.20.0.0/16")
    assert settings.fabric.ip_relay
    assert settings.engine.gpus is Gpus.REQUEST
    assert settings.engine.shm_size == 32 << 30
    assert not settings.engine.privileged


def test_json_texts_are_read_as_pulumi_passes_them() -> None:
    config = changed(ring(), {"engine.env": {"A": 1, "B": 0.8, "C": "x y"}, "fabric.ipRelay": "off"})
    settings = load({key: json.dumps(value) for key, value in config.items()})
    assert settings == load(config)
    assert settings.engine.env == {"A": "1", "B": "0.8", "C": "x y"}
    assert not settings.fabric.ip_relay


@pytest.mark.parametrize("off", [False, "off", "false", "Off"])
def test_a_switch_takes_what_yaml_makes_of_off(off: object) -> None:
    settings = load(changed(ring(), {"fabric.plane1.enabled": off, "fabric.plane1.pool": "10.99.0.0/16"}))
    assert settings.fabric.on == (0,)


def test_gpus_off_survives_a_yaml_that_reads_it_as_false() -> None:
    assert load(changed(ring(), {"engine.gpus": False})).engine.gpus is Gpus.OFF


def test_a_plane_keeps_its_default_pool_when_only_switched() -> None:
    assert load(changed(ring(), {"fabric.plane1": {"enabled": True}})).fabric.plane1.pool == IPv4Network("10.20.0.0/16")


def test_numbers_may_be_quoted() -> None:
    assert load(changed(ring(), {"fabric.mtu": "4200", "ssh.port": "2222"})).fabric.mtu == 4200


def test_image_and_volumes_have_a_short_form() -> None:
    config = changed(
        ring(), {"engine.volumes": ["/a:/b", "named:/c:ro"], "engine.image": {"ref": "a/b:1", "archive": "b.tar"}}
    )
    engine = load(config).engine
    assert (engine.image.ref, engine.image.archive) == ("a/b:1", "b.tar")
    assert [(volume.source, volume.target, volume.read_only) for volume in engine.volumes] == [
        ("/a", "/b", False),
        ("named", "/c", True),
    ]


def test_a_volume_may_be_keys_with_owner_and_mode() -> None:
    volume = {"source": "/a", "target": "/b/", "readOnly": "on", "owner": "1000:1000", "mode": "750"}
    (found,) = load(changed(ring(), {"engine.volumes": [volume]})).engine.volumes
    assert found.model_dump() == {
        "source": "/a", "target": "/b", "read_only": True, "owner": "1000:1000", "mode": "750"
    }  # fmt: skip


@pytest.mark.parametrize("ref", ["a", "a:1", "h.example:5000/a/b_c:1.2-x", "a/b@sha256:" + "0" * 64, "A-host/a:1"])
def test_image_references_are_accepted(ref: str) -> None:
    assert load(changed(ring(), {"engine.image": ref})).engine.image.ref in (ref, f"{ref}:latest")


def test_a_host_key_loses_its_comment() -> None:
    assert load(changed(ring(), {"nodes[0].hostKey": f"{HOST_KEY} root@spark1"})).nodes[0].host_key == HOST_KEY


def test_leaving_nodes_have_no_rank_and_the_order_of_the_others_stays() -> None:
    settings = load(changed(ring(5), {"nodes[1].state": "leaving"}))
    assert [node.name for node in settings.ranks] == ["spark1", "spark3", "spark4", "spark5"]


def test_two_nodes_are_enough_on_a_switch() -> None:
    assert len(load(switched(2)).ranks) == 2


def test_a_rail_has_room_for_245_nodes() -> None:
    nodes = [{"name": f"n{k}", "address": f"192.168.{k // 250}.{k % 250 + 1}"} for k in range(245)]
    load({**switched(), "nodes": nodes})
    with pytest.raises(SettingsError, match="room for 245 nodes"):
        load({**switched(), "nodes": [*nodes, {"name": "one-more", "address": "192.168.9.9"}]})


def test_a_disabled_plane_may_have_a_pool_that_would_not_do() -> None:
    load(changed(ring(), {"fabric.plane1": {"enabled": False, "pool": "192.168.0.0/16"}}))
