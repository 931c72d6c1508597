"""What an archive of `docker save` holds, read without a docker."""

from __future__ import annotations

import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.docker_on_node import ImageError


@dataclass(frozen=True)
class Archived:
    """An image in an archive: the id that it has after `docker load`, which is the digest of its configuration, and
    docker's word for the machine that it is for ("" where that is not told)."""

    identity: str
    architecture: str


def archived(archive: Path, ref: str) -> Archived:
    """The image of that name in an archive.

    Raises ImageError when the file is no `docker save` archive or holds no image of that name.
    """
    try:
        with tarfile.open(archive) as tar:
            entries: list[dict[str, Any]] = _json_in(tar, "manifest.json") or []
            tags = {tag: entry for entry in entries for tag in entry.get("RepoTags") or []}
            if ref not in tags:
                held = ", ".join(sorted(tags)) or "no tag"
                raise ImageError(f"{archive}: holds {held}, not {ref}. Save it under that tag.")
            config = str(tags[ref]["Config"])  # "<digest>.json", or "blobs/sha256/<digest>" of newer versions
            there = config in tar.getnames()
            architecture = str((_json_in(tar, config) or {}).get("architecture", "")) if there else ""
    except (OSError, KeyError, ValueError, tarfile.TarError) as error:
        raise ImageError(f"{archive}: not an archive of `docker save` ({error})") from error
    return Archived(f"sha256:{Path(config).name.removesuffix('.json')}", architecture)


def _json_in(tar: tarfile.TarFile, name: str) -> Any:
    member = tar.extractfile(name)
    return json.load(member) if member else None
