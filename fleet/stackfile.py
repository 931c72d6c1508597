"""A stack's settings straight from its file, for the commands that run without Pulumi."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import Any

import yaml

from fleet.loading import load
from fleet.on_node import ROOT
from fleet.problems import Problem, ProblemsError
from fleet.settings import Settings
from fleet.stack import StackName

ENCRYPTED = "(encrypted)"


def read(stack: str, without: Container[str] = (), root: Path = ROOT) -> tuple[StackName, Settings]:
    """The names and settings of a stack, without the nodes in `without`.

    Raises ProblemsError when there is no such stack file or when its settings are wrong.
    """
    project = _yaml(root / "Pulumi.yaml")["name"]
    path = root / f"Pulumi.{stack}.yaml"
    if not path.exists():
        known = ", ".join(sorted(file.name.split(".")[1] for file in root.glob("Pulumi.*.yaml")))
        raise ProblemsError(
            [Problem("no-stack", f"stack {stack}", f"has no file {path.name}", f"one of: {known}", "Name it with -s.")]
        )
    config = _yaml(path).get("config") or {}
    prefix = f"{project}:"
    raw: dict[str, object] = {
        key.removeprefix(prefix): _readable(value) for key, value in config.items() if key.startswith(prefix)
    }
    nodes = raw.get("nodes")
    if isinstance(nodes, list):
        raw["nodes"] = [node for node in nodes if not (isinstance(node, dict) and node.get("name") in without)]
    return StackName(project, stack), load(raw)


def _readable(value: Any) -> Any:
    """A value of the config with a stand-in for what is encrypted: nothing that runs without Pulumi needs a secret."""
    if isinstance(value, list):
        return [_readable(one) for one in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"secure"}:
        return ENCRYPTED
    return {key: _readable(one) for key, one in value.items()}


def _yaml(path: Path) -> dict[str, Any]:
    value = yaml.safe_load(path.read_text())
    return value if isinstance(value, dict) else {}
