"""Bring the engine's image to nodes that lack it. Run as `python3 -IS fleet/image.py`.

Environment as for `on_node.py`; stdin maps each node to what it wants: {"ref"} and one of

"id", "archive"   the image with this id, from an archive of `docker save`: loading the same one everywhere is what
                  makes ids equal. Without an archive the image has to be there.
"from"            the image that the named node has, copied from there. That node is in FLEET_LINKS too.
"pull"            what a registry has under the ref, which ends with a digest.

Old images are kept. With "target" too, the image has to hold that file, since another one is going to lie over it:
docker would make an empty one, and programs would find their own elsewhere. "modules" are what variables need of it, by
variable. An image that no node had in the preview is first looked into here, before anything is stopped.

The provider's `docker.RemoteImage` does none of this: it pulls with the registry credentials of this machine instead of
the node's, tells no progress, and does not see that an image is gone.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # -I leaves it out

from fleet import bringing, on_node
from fleet.docker_on_node import Found, ImageError, ask, last_words, present, refuse_another_machine
from fleet.on_node import Link

LOOK_LIMIT_S = 60

SET_TARGET = "Set nccl.target to where this image has its libnccl.so.2."
SAME_STORE = "Do all dockers keep images the same way (docker info: Storage Driver)? Containerd's store has other ids."
IN_PATH = "The module is looked for in the image's PYTHONPATH."


FIND_MODULE = (
    'IFS=:; for folder in $PYTHONPATH; do if [ -f "$folder/$1.py" ] || [ -d "$folder/$1" ]; '
    "then echo there; exit; fi; done; echo absent"
)


def holds(config: Path, link: Link, identity: str, path: str) -> bool:
    """Whether an image that is on a node holds a file; raises ImageError when it cannot be looked into."""
    return _look(config, link, identity, 'if [ -f "$1" ]; then echo there; else echo absent; fi', path)


def has_module(config: Path, link: Link, identity: str, module: str) -> bool:
    """Whether a folder of the image's PYTHONPATH has a module, `b12x/comm/roce` as a file or a folder.

    Raises ImageError when it cannot be looked into.
    """
    return _look(config, link, identity, FIND_MODULE, module)


def _look(config: Path, link: Link, identity: str, script: str, argument: str) -> bool:
    """What a script says in a container of the image, "there" or "absent"; the container is gone afterwards.

    It has no network and nothing of the node, and no image is pulled for it. Raises ImageError when it cannot be had.
    """
    look = ["--entrypoint", "/bin/sh", identity, "-c", script, "sh", argument]
    words = ["run", "--rm", "--pull", "never", "--network", "none", *look]
    late = "a container to look into the image has not ended in"
    done = ask(config, link, shlex.join(words), LOOK_LIMIT_S, late)
    answer = done.stdout.strip()
    if done.returncode or answer not in ("there", "absent"):
        said = last_words(done.stderr) or f"exit status {done.returncode}"
        raise ImageError(f"{link.name}: the image cannot be looked into: {said}")
    return answer == "there"


def ensure(stack: str, link: Link, wanted: Mapping[str, Any], source: Link | None = None) -> str:
    """Make sure that one node has the image; returns what was done, raises ImageError otherwise.

    `source` is the node that "from" names.
    """
    ref, config = wanted["ref"], on_node.ssh_config(stack, link)
    identity: str | None = wanted.get("id")
    if "from" in wanted:
        identity = _at(stack, wanted["from"], source, ref).identity
    found = present(config, link, ref)
    brought = None
    if found is None or identity not in (None, found.identity):
        brought = _bring(stack, link, wanted, source)
        found = present(config, link, ref)
        if found is None or identity not in (None, found.identity):
            has = found.identity if found else None
            hint = f". {SAME_STORE}" if found else ""
            raise ImageError(f"{link.name}: after docker {brought} {ref} has id {has}, not {identity}{hint}")
        refuse_another_machine(config, link, ref, found)
    _refuse_without(config, link, wanted, found.identity)
    said = f"{link.name}: {ref} {DONE[brought] if brought else 'is there'}"
    return said if "id" in wanted else f"{said}, {found.identity}"


DONE = {"load": "loaded", "pull": "pulled", "save and load": "copied"}


def _at(stack: str, name: str, source: Link | None, ref: str) -> Found:
    """The image on the node that the others have it from."""
    if source is None:
        raise ImageError(f"{name} has the image, and was forgotten. Set engine.image.build.node to another node.")
    found = present(on_node.ssh_config(stack, source), source, ref)
    if found is None:
        raise ImageError(f"{name}: {ref} is not there any more. Run up again: it is built anew.")
    return found


def _bring(stack: str, link: Link, wanted: Mapping[str, Any], source: Link | None) -> str:
    """Bring the image; how is the answer. Raises ImageError where nobody has it."""
    ref, config = wanted["ref"], on_node.ssh_config(stack, link)
    if source is not None and source.name != link.name:
        bringing.copy(on_node.ssh_config(stack, source), source, config, link, ref)
        return "save and load"
    if wanted.get("pull"):
        bringing.pull(config, link, ref)
        return "pull"
    if not wanted.get("archive"):
        raise ImageError(
            f"{link.name}: {ref} with id {wanted['id']} is not there. Load it with `docker load` from the same archive "
            f"as on the other nodes, or set engine.image.archive"
        )
    bringing.load(config, link, on_node.ROOT / Path(wanted["archive"]).expanduser())
    return "load"


def looks(wanted: Mapping[str, Any]) -> int:
    """How often an image is looked into."""
    return bool(wanted.get("target")) + len(set(wanted.get("modules", {}).values()))


def _refuse_without(config: Path, link: Link, wanted: Mapping[str, Any], identity: str) -> None:
    """Raise ImageError with everything that the image lacks."""
    ref, target = wanted["ref"], wanted.get("target")
    lacks = []
    if target and not holds(config, link, identity, target):
        lacks.append(f"holds no file {target}, to lie over. {SET_TARGET}")
    needed: dict[str, str] = wanted.get("modules", {})
    for module in sorted(set(needed.values())):
        if not has_module(config, link, identity, module):
            names = " and ".join(name for name, of in needed.items() if of == module)
            lacks.append(f"has no module {module}, for {names}. {IN_PATH}")
    if lacks:
        raise ImageError("\n".join(f"{link.name}: {ref} {one}" for one in lacks))


def main() -> int:
    """Entry point: 0 when every node has the image."""
    owner = json.loads(os.environ["FLEET_OWNER"])
    desired: dict[str, dict[str, Any]] = json.load(sys.stdin)
    links = {link.name: link for link in on_node.links_of_command(owner["stack"])}

    def work(link: Link) -> str:
        wanted = desired[link.name]
        return ensure(owner["stack"], link, wanted, links.get(wanted.get("from", "")))

    return on_node.on_each([link for name, link in links.items() if name in desired], work, ImageError)


if __name__ == "__main__":
    sys.exit(main())
