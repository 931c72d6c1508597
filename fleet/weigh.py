"""Read the files of a checkpoint on all nodes and hold them against a manifest. Run as `python3 -IS fleet/weigh.py`.

Environment as for `on_node.py`; stdin maps each node to {"path", "files": {name: sha256}}. What a node has read once,
and what has not changed since, it does not read again: `node/receipts.py`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # -I leaves it out

from fleet import on_node
from node.pack import program

LIMIT_S = 3 * 3600  # for all of it: half a terabyte at 50 MB/s


class WeighError(Exception):
    """A node cannot read its files, or has others; the message has a line for each."""


def weigh(owner: dict[str, str], link: on_node.Link, packed: bytes, wanted: dict[str, Any]) -> str:
    """Have one node read what it has not read yet, telling the progress. Raises WeighError."""
    files: dict[str, str] = wanted["files"]
    request = {
        "owner": owner,
        "node": link.name,
        "stage": "weights",
        "holder": on_node.holder(),
        "desired": {"path": wanted["path"], "files": sorted(files)},
    }
    end = time.monotonic() + LIMIT_S
    while True:
        answer = on_node.ask("weigh", owner["stack"], link, packed, request)
        if answer.status or answer.result is None:
            raise WeighError(answer.text or f"{link.name}: exit status {answer.status}")
        result = answer.result
        if not result["left"]:
            break
        if time.monotonic() > end:
            raise WeighError(f"{link.name}: {result['left']} files are not read after {LIMIT_S} s")
        print(f"{link.name}: {len(files) - result['left']} of {len(files)} files read", flush=True)
    at = f"{link.name} {wanted['path']}"
    wrong = [f"{at}/{name}: cannot be read" for name in result["missing"]]
    for name, sha256 in sorted(result["read"].items()):
        if sha256 != files[name]:
            wrong.append(f"{at}/{name}: has the sha256 {sha256}, wanted {files[name]}")
    if wrong:
        raise WeighError("\n".join(wrong))
    return f"{link.name}: {len(files)} files are those of the manifest"


def main() -> int:
    """Entry point: 0 when every node has the files of its manifest."""
    owner = json.loads(os.environ["FLEET_OWNER"])
    desired: dict[str, dict[str, Any]] = json.load(sys.stdin)
    links = on_node.links_of_command(owner["stack"])
    packed = program(on_node.ROOT / on_node.STATE)
    return on_node.on_each(links, lambda link: weigh(owner, link, packed, desired[link.name]), WeighError)


if __name__ == "__main__":
    sys.exit(main())
