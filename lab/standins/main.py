"""Which module is which tool, and how a tool ends."""

from __future__ import annotations

import importlib
import sys

from .system import ToolError

MARKER = "mlx5-rdma-tx-rewrite-probe"
TOOLS = {
    "tc": "tc",
    "devlink": "devlink",
    "ethtool": "ethtool",
    "rdma": "rdma",
    "ibv_devinfo": "ibv",
    "ibdev2netdev": "ibv",
    "ib_write_lat": "perftest",
    "ib_write_bw": "perftest",
    "lab-agent": "agent",
}


def main(name: str, argv: list[str]) -> int:
    """Run a tool, and return its exit status."""
    module = importlib.import_module(f"{__package__}.{'marker' if name == MARKER else TOOLS[name]}")
    try:
        return int(module.main(name, argv))
    except ToolError as error:
        sys.stdout.flush()
        if error.text:
            print(error.text, file=sys.stderr)
        return error.status
    except BrokenPipeError:
        return 141
