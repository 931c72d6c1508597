"""Stack configs for tests: a ring of N, with changes written as config paths."""

import re
from collections.abc import Mapping
from typing import Any

DELETE = "<delete>"


LIBRARY = "/opt/nccl/libnccl.so.2.30.7"
"""On every node of `observed`; a library for rings."""

NO_PROFILE = {"engine.profile": "none"}
"""For a ring that has, or gets, another size than the engine's ring profile is made for."""


MARKER = {
    "onNode": "/opt/dsv41-mesh/bin/mlx5-rdma-tx-rewrite-probe",
    "sha256": "2828c07e4255c4962c77425be2c88969e7eb7dd4b1bf9e36485bc705bb5d6d64",
}


def _fleet(size: int) -> dict[str, Any]:
    nodes = [{"name": f"spark{number}", "address": f"192.168.1.{10 + number}"} for number in range(1, size + 1)]
    return {"nodes": nodes, "ssh": {"user": "nvidia"}, "engine": {"image": "engine:1", "allowAnonymous": True}}


def ring(size: int = 4, **sections: Any) -> dict[str, Any]:
    """The smallest ring config, spark1 … at 192.168.1.11 …, with whole sections added or replaced."""
    config = {**_fleet(size), "nccl": {"mode": "overlay", "library": {"onNode": LIBRARY}}}
    return {**(config if size == 4 else changed(config, NO_PROFILE)), **sections}


def mesh(**more: Any) -> dict[str, Any]:
    """The smallest ring config with the mesh, and more keys of its section."""
    engine = {"image": {"ref": "engine:1", "roceRing": True}, "allowAnonymous": True}
    return {**ring(), "engine": engine, "mesh": {"enabled": True, "marker": dict(MARKER), **more}}


def switched(size: int = 4, **fabric: Any) -> dict[str, Any]:
    """The same on a switch."""
    return {**_fleet(size), "fabric": {"topology": "switched", **fabric}}


def changed(config: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The config with values set at paths such as `nodes[2].address`, or deleted."""
    for path, value in changes.items():
        parts = [int(part) if part.isdigit() else part for part in re.findall(r"[^.\[\]]+", path)]
        here: Any = config
        for part in parts[:-1]:
            here = here.setdefault(part, {}) if isinstance(here, dict) else here[part]
        if value == DELETE:
            del here[parts[-1]]
        elif isinstance(here, list) and parts[-1] == len(here):
            here.append(value)
        else:
            here[parts[-1]] = value
    return config
