"""A rank's container as plain values: everything that docker is told, and nothing about how."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fleet.engine_settings import Volume
from fleet.flags import Flag
from fleet.scalars import Gpus

DEVICES = ("/dev/infiniband",)
CAPABILITIES = ("CAP_IPC_LOCK",)
ULIMITS = {"memlock": -1, "stack": 64 << 20}
"""Bytes, soft and hard alike; -1 is no limit. RDMA pins memory."""


@dataclass(frozen=True)
class ContainerPlan:
    """One rank's container, without the labels that name the group and its start."""

    node: str
    rank: int
    name: str
    image: str
    image_id: str | None
    env: Mapping[str, Flag]
    devices: tuple[str, ...]
    capabilities: tuple[str, ...]
    ulimits: Mapping[str, int]
    shm_size: int
    privileged: bool
    gpus: Gpus
    volumes: tuple[Volume, ...]
    labels: Mapping[str, str]
    stop_timeout: int  # seconds
    log_driver: str | None  # None: the daemon's own
    log_options: Mapping[str, str]
    healthcheck: Mapping[str, Any] | None  # None: that of the image
    by_name: bool = False  # the name alone says which image it is, also while no node has it
    weights: str | None = None  # digest of what is known of them: other weights are another engine
    network_mode: str = "host"
    ipc_mode: str = "host"
    restart: str = "no"

    @property
    def runs(self) -> str:
        """The image as docker is told it: by its id, so that another tag for the same image is no change.

        By name where its id is known only once it was brought: a preview then shows what will run, and to learn the id
        is no change.
        """
        return self.image if self.by_name else self.image_id or self.image

    @property
    def envs(self) -> list[str]:
        """The environment as docker takes it, sorted by name."""
        return [f"{name}={flag.value}" for name, flag in sorted(self.env.items())]

    def arguments(self) -> dict[str, Any]:
        """Everything that makes two containers different, as JSON values."""
        return {
            "node": self.node,
            "rank": self.rank,
            "name": self.name,
            "image": self.runs,
            "env": self.envs,
            "devices": list(self.devices),
            "capabilities": list(self.capabilities),
            "ulimits": dict(self.ulimits),
            "shm_size": self.shm_size,
            "privileged": self.privileged,
            "gpus": self.gpus.value,
            "volumes": [volume.model_dump(exclude={"owner", "mode"}) for volume in self.volumes],
            "labels": dict(self.labels),
            "network_mode": self.network_mode,
            "ipc_mode": self.ipc_mode,
            "restart": self.restart,
            "stop_timeout": self.stop_timeout,
            "log": [self.log_driver, dict(self.log_options)],
            "healthcheck": dict(self.healthcheck) if self.healthcheck else None,
            **({"weights": self.weights} if self.weights else {}),
        }
