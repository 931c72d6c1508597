"""What a killed run has left where a container or a volume is to be made."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Callable
from typing import Any

import pulumi

from components.remote import Owner
from fleet.on_node import ROOT, Link, as_json

HOOK_LIMIT_S = 120


def clear_leftover(
    link: Link, owner: Owner, verb: str, desired: dict[str, Any] | None = None
) -> Callable[[pulumi.ResourceHookArgs], Any]:
    """A hook for just before something is created: a killed run may have left one that the state does not know.

    `verb` of the node program removes it. It waits in a thread of its own: Pulumi's one event loop serves the hooks of
    all nodes, and registers resources.
    """

    async def hook(_: pulumi.ResourceHookArgs) -> None:
        owner_json = await owner.as_json().future()
        done = await asyncio.to_thread(
            subprocess.run,
            ["python3", "-IS", str(ROOT / "fleet" / "on_node.py"), verb],
            input=json.dumps({link.name: desired or {}}),
            env=os.environ | {"FLEET_LINKS": as_json([link]), "FLEET_OWNER": str(owner_json), "FLEET_STAGE": "engines"},
            capture_output=True,
            text=True,
            timeout=HOOK_LIMIT_S,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{link.name}: what is left there cannot be removed: {done.stderr.strip()[-1000:]}")

    return hook
