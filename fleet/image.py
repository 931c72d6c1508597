"""Bring the engine's image to nodes that lack it. Run as `python3 -IS fleet/image.py`.

Environment as for `on_node.py`; stdin maps each node to {"ref", "id", "archive"}. The archive is one of `docker save`:
loading the same archive everywhere is what makes image ids equal. Old images are kept. With "target" too, the image
has to hold that file, since another one is going to lie over it: docker would make an empty one, and programs would
find their own elsewhere. "modules" are what variables need of it, by variable. An image that no node had in the preview
is first looked into here, before anything is stopped.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # -I leaves it out

from fleet import on_node

ASK_LIMIT_S = 30
LOOK_LIMIT_S = 60
LOAD_LIMIT_S = 3600  # an engine image is tens of gigabytes
TELL_EVERY_S = 10

SET_TARGET = "Set nccl.target to where this image has its libnccl.so.2."
IN_PATH = "The module is looked for in the image's PYTHONPATH."


class ImageError(Exception):
    """The archive cannot be used; the message says why and what to do."""


def archive_id(archive: Path, ref: str) -> str:
    """The id that an image has after `docker load` of this archive: the digest of its configuration.

    Raises ImageError when the file is no `docker save` archive or holds no image of that name.
    """
    try:
        with tarfile.open(archive) as tar:
            manifest = tar.extractfile("manifest.json")
            entries: list[dict[str, Any]] = json.load(manifest) if manifest else []
    except (OSError, KeyError, ValueError, tarfile.TarError) as error:
        raise ImageError(f"{archive}: not an archive of `docker save` ({error})") from error
    tags = {tag: entry for entry in entries for tag in entry.get("RepoTags") or []}
    if ref not in tags:
        raise ImageError(f"{archive}: holds {', '.join(sorted(tags)) or 'no tag'}, not {ref}. Save it under that tag.")
    config = Path(tags[ref]["Config"])  # "<digest>.json", or "blobs/sha256/<digest>" of newer versions
    return f"sha256:{config.name.removesuffix('.json')}"


def _docker(config: Path, link: on_node.Link, words: str) -> list[str]:
    """The command line that runs docker as root on a node."""
    remote = f'if [ "$(id -u)" = 0 ]; then exec docker {words}; fi; exec sudo -n docker {words}'
    return ["ssh", "-F", str(config), "-o", "BatchMode=yes", "-T", link.name, remote]


FIND_MODULE = (
    'IFS=:; for folder in $PYTHONPATH; do if [ -f "$folder/$1.py" ] || [ -d "$folder/$1" ]; '
    "then echo there; exit; fi; done; echo absent"
)


def _ask(config: Path, link: on_node.Link, words: str, limit: float, late: str) -> subprocess.CompletedProcess[str]:
    """Run docker on a node to its end; raises ImageError, saying that it is `late`, after `limit` seconds."""
    try:
        return subprocess.run(
            _docker(config, link, words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ImageError(f"{link.name}: {late} {limit} s") from None


def present(config: Path, link: on_node.Link, ref: str) -> str | None:
    """The id of an image on one node, None without one; raises ImageError when the node or its docker fails."""
    words = f"image inspect --format {{{{.Id}}}} {shlex.quote(ref)}"
    done = _ask(config, link, words, ASK_LIMIT_S, "docker has not answered within")
    if done.returncode == 0:
        return done.stdout.strip()
    if "no such image" in done.stderr.lower():
        return None
    raise ImageError(f"{link.name}: {done.stderr.strip()[-500:]}")


def holds(config: Path, link: on_node.Link, identity: str, path: str) -> bool:
    """Whether an image that is on a node holds a file; raises ImageError when it cannot be looked into."""
    return _look(config, link, identity, 'if [ -f "$1" ]; then echo there; else echo absent; fi', path)


def has_module(config: Path, link: on_node.Link, identity: str, module: str) -> bool:
    """Whether a folder of the image's PYTHONPATH has a module, `b12x/comm/roce` as a file or a folder.

    Raises ImageError when it cannot be looked into.
    """
    return _look(config, link, identity, FIND_MODULE, module)


def _look(config: Path, link: on_node.Link, identity: str, script: str, argument: str) -> bool:
    """What a script says in a container of the image, "there" or "absent"; the container is gone afterwards.

    It has no network and nothing of the node, and no image is pulled for it. Raises ImageError when it cannot be had.
    """
    look = ["--entrypoint", "/bin/sh", identity, "-c", script, "sh", argument]
    words = ["run", "--rm", "--pull", "never", "--network", "none", *look]
    late = "a container to look into the image has not ended in"
    done = _ask(config, link, shlex.join(words), LOOK_LIMIT_S, late)
    answer = done.stdout.strip()
    if done.returncode or answer not in ("there", "absent"):
        said = done.stderr.strip()[-500:] or f"exit status {done.returncode}"
        raise ImageError(f"{link.name}: the image cannot be looked into: {said}")
    return answer == "there"


def load(config: Path, link: on_node.Link, archive: Path) -> None:
    """Send the archive through `docker load`, telling the progress; raises ImageError when that fails."""
    began, size = time.monotonic(), archive.stat().st_size
    with archive.open("rb") as content:
        process = subprocess.Popen(
            _docker(config, link, "load -q"), stdin=content, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        while True:
            try:
                out, _ = process.communicate(timeout=TELL_EVERY_S)
                break
            except subprocess.TimeoutExpired:
                waited = time.monotonic() - began
                sent = os.lseek(content.fileno(), 0, os.SEEK_CUR)
                print(f"{link.name}: {sent * 100 // size} % of {archive.name} sent, {waited:.0f} s", flush=True)
                if waited > LOAD_LIMIT_S:
                    process.kill()
    if process.returncode:
        raise ImageError(f"{link.name}: docker load failed: {out.decode(errors='replace').strip()[-500:]}")


def ensure(stack: str, link: on_node.Link, wanted: dict[str, Any]) -> str:
    """Make sure that one node has the image; returns what was done, raises ImageError otherwise."""
    ref, identity, archive = wanted["ref"], wanted["id"], wanted.get("archive")
    config = on_node.ssh_config(stack, link)
    if present(config, link, ref) == identity:
        _refuse_without(config, link, wanted)
        return f"{link.name}: {ref} is there"
    if not archive:
        raise ImageError(
            f"{link.name}: {ref} with id {identity} is not there. Load it with `docker load` from the same archive as "
            f"on the other nodes, or set engine.image.archive"
        )
    load(config, link, on_node.ROOT / Path(archive).expanduser())
    seen = present(config, link, ref)
    if seen != identity:
        raise ImageError(f"{link.name}: after docker load {ref} has id {seen}, not {identity}")
    _refuse_without(config, link, wanted)
    return f"{link.name}: {ref} loaded"


def looks(wanted: Mapping[str, Any]) -> int:
    """How often an image is looked into."""
    return bool(wanted.get("target")) + len(set(wanted.get("modules", {}).values()))


def _refuse_without(config: Path, link: on_node.Link, wanted: dict[str, Any]) -> None:
    """Raise ImageError with everything that the image lacks."""
    ref, identity, target = wanted["ref"], wanted["id"], wanted.get("target")
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
    links = on_node.links_of_command(owner["stack"])

    def one(link: on_node.Link) -> bool:
        try:
            print(ensure(owner["stack"], link, desired[link.name]))
        except ImageError as error:
            print(error, file=sys.stderr)
            return False
        return True

    with ThreadPoolExecutor(max(1, len(links))) as pool:
        return 0 if all(list(pool.map(one, links))) else 1


if __name__ == "__main__":
    sys.exit(main())
