"""The one edit of Pulumi's state that we ever make: taking a dead node out of it."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

from fleet.on_node import ROOT

# What a resource of a node is called, after the node's name; the empty one is the node's component.
SUFFIXES = ("", "-undo", "-node", "-image", "-fabric", "-plane0", "-plane1", "-relay", "-docker", "-engine")
LIMIT_S = 300


class StateError(Exception):
    """Pulumi's state could not be read or written; the message is Pulumi's own."""


def pulumi() -> str:
    """The Pulumi of this checkout: the wrapper where it keeps the state, else the one on PATH."""
    if (ROOT / ".pulumi-state").exists():
        return str(ROOT / "pulumiw")
    return shutil.which("pulumi") or str(ROOT / "pulumiw")


def _run(stack: str, verb: str, stdin: str | None = None) -> str:
    done = subprocess.run(
        [pulumi(), "stack", verb, "-s", stack],
        cwd=ROOT,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode:
        raise StateError(f"pulumi stack {verb} failed: {done.stderr.strip()[-1000:]}")
    return done.stdout


def without_node(exported: dict[str, Any], node: str) -> tuple[dict[str, Any], list[str]]:
    """An exported state without a node's resources and without every reference to them; and their names."""
    names = {node + suffix for suffix in SUFFIXES}
    deployment = exported["deployment"]
    resources = deployment.get("resources") or []
    gone = {resource["urn"] for resource in resources if resource["urn"].rsplit("::", 1)[-1] in names}

    def scrub(value: Any) -> Any:
        if isinstance(value, list):
            return [scrub(one) for one in value if not (isinstance(one, str) and one in gone)]
        if isinstance(value, dict):
            return {key: scrub(one) for key, one in value.items()}
        return value

    deployment["resources"] = [scrub(resource) for resource in resources if resource["urn"] not in gone]
    pending = deployment.get("pending_operations") or []
    deployment["pending_operations"] = [one for one in pending if one["resource"]["urn"] not in gone]
    return exported, sorted(urn.rsplit("::", 1)[-1] for urn in gone)


def forget(stack: str, node: str) -> list[str]:
    """Take a node's resources out of the stack's state and return their names. Raises StateError."""
    exported, names = without_node(json.loads(_run(stack, "export")), node)
    if names:
        _run(stack, "import", json.dumps(exported))
    return names
