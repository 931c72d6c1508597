"""The operator's marker program: where it is on the nodes, and what the file on this side is."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.operator_file import OperatorFile
from node.nccl import THEIRS
from node.sent import SENT, place

PROGRAM = "mlx5-rdma-tx-rewrite-probe"

QUALIFIED = "2828c07e4255c4962c77425be2c88969e7eb7dd4b1bf9e36485bc705bb5d6d64"
"""SHA-256 of what sparkring and the launcher's authors both got from sparkring f16b5f4 (Ubuntu 24.04, rdma-core 50)."""


class MarkerError(Exception):
    """The local file is not the one that the settings speak of; `seen` completes "PATH …", `wanted` "wanted …"."""

    def __init__(self, seen: str, wanted: str) -> None:
        super().__init__(f"{seen}, wanted {wanted}")
        self.seen, self.wanted = seen, wanted


@dataclass(frozen=True)
class Marker:
    """The program as a desired state names it. `size` in bytes is of a file that is sent, once somebody has read it."""

    path: str
    sha256: str
    sent: bool = False
    size: int | None = None

    def to_json(self) -> dict[str, Any]:
        """As the node program takes it: with "source" "sent" it comes along, with "node" it is only read."""
        where = {"source": SENT, "size": self.size} if self.sent else {"source": THEIRS}
        return {"path": self.path, "sha256": self.sha256, **where}


def on_nodes(file: OperatorFile, stack: str, size: int | None) -> Marker:
    """Where the program is on every node: where the operator has put it, or below the stack's folder if it is sent."""
    if file.on_node is not None:
        return Marker(file.on_node, file.sha256)
    return Marker(place(stack, "marker", file.sha256, PROGRAM), file.sha256, sent=True, size=size)


def size_of(path: Path, sha256: str) -> int:
    """The size in bytes of the local file. Raises MarkerError where it cannot be read, or is another one."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise MarkerError(f"cannot be read ({error.strerror})", "the marker program") from None
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise MarkerError(f"has the sha256 {found[:12]}…", f"{sha256[:12]}…, as mesh.marker.sha256 says")
    return len(content)
