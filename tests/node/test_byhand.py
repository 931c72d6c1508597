"""What the shell launcher has on a node is told as docker has it, and nothing is touched."""

import json
from typing import Any

from node import byhand
from tests.node.machine import Machine

MOUNTS = [
    {"Type": "bind", "Source": "/home/a/nccl", "Destination": "/nccl", "RW": False},
    {"Type": "volume", "Name": "weights", "Source": "/var/lib/docker/x", "Destination": "/models/m", "RW": True},
]
VOLUMES: list[dict[str, Any]] = [
    {"Name": "weights", "Driver": "local", "Options": {"type": "nfs", "o": "addr=10.0.0.1"}},
    {"Name": "dsv41-old", "Driver": "local", "Options": None},
    {"Name": "other", "Driver": "local", "Options": None},
]


def test_its_containers_and_volumes_are_told_and_nobody_elses(machine: Machine) -> None:
    told = {"Config": {"Image": "dsv41:1"}, "Mounts": MOUNTS}
    worker = {"id": "1", "name": "dsv41-worker", "labels": {}, "state": "running", "told": told}
    machine.containers = [worker, {"id": "2", "name": "other", "labels": {}, "state": "running"}]
    machine.volumes = VOLUMES
    before = machine.snapshot()
    found = byhand.by_hand(machine)
    assert found["containers"] == [
        {
            "name": "dsv41-worker",
            "state": "running",
            "image": "dsv41:1",
            "mounts": [
                {"source": "/home/a/nccl", "target": "/nccl", "volume": False, "read_only": True},
                {"source": "weights", "target": "/models/m", "volume": True, "read_only": False},
            ],
        }
    ]
    assert found["volumes"] == {
        "weights": {"driver": "local", "options": {"type": "nfs", "o": "addr=10.0.0.1"}},
        "dsv41-old": {"driver": "local", "options": {}},
    }
    assert machine.snapshot() == before
    json.dumps(found)


def test_a_docker_that_does_not_answer_is_told(machine: Machine) -> None:
    def dead(method: str, path: str, timeout: float, body: bytes = b"") -> tuple[int, bytes]:
        raise OSError("connection refused")

    machine.docker_call = dead  # type: ignore[method-assign]
    assert byhand.by_hand(machine) == {"containers": [], "volumes": {}, "docker_error": "connection refused"}
