"""The stand-ins on the disk that all nodes share."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import debian, tools
from lab.model import Node


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    layer = tmp_path_factory.mktemp("layer")
    (layer / tools.COMMANDS).mkdir(parents=True)
    tools.install(layer, debian.ensure_root(tmp_path_factory.mktemp("log")), [Node("x", 2, 1)])
    return layer


def test_every_module_comes_with_its_byte_code(layer: Path) -> None:
    home = layer / tools.HOME / "standins"
    modules = {path.stem for path in home.glob("*.py")}
    assert {"tc", "devlink", "marker", "framewalk"} <= modules
    assert {path.name.partition(".")[0] for path in (home / "__pycache__").glob("*.pyc")} == modules


def test_commands_lead_to_the_stand_ins(layer: Path) -> None:
    for tool in ("tc", "devlink", "ethtool", "rdma", "ib_write_lat"):
        assert (layer / tools.COMMANDS / tool).resolve() == (layer / tools.HOME / "standin").resolve()


def test_nodes_know_each_other(layer: Path) -> None:
    assert '"spark1": "198.18.2.11"' in (layer / tools.HOME / "nodes.json").read_text()


def test_neither_stand_ins_nor_walk_import_the_product() -> None:
    allowed: tuple[str, ...] = (
        "from __future__",
        "from .",
        "from typing",
        "from collections",
        "from dataclasses",
        "from pathlib",
    )
    allowed += ("from itertools", "from concurrent")
    for path in tools.SOURCE.glob("*.py"):
        for line in path.read_text().splitlines():
            if line.startswith("from "):
                assert line.startswith(allowed), f"{path.name}: {line}"
            if line.startswith("import "):
                assert line.split()[1] not in ("components", "fleet", "node", "lab"), f"{path.name}: {line}"
