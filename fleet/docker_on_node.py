"""Docker's own program on a node, over ssh: what is asked about images there. Standard library only."""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

from fleet.on_node import Link

ASK_LIMIT_S = 30
ANOTHER_MACHINE = "Build it on such a machine, or for that platform."


class ImageError(Exception):
    """The image cannot be had or used; the message says why and what to do."""


@dataclass(frozen=True)
class Found:
    """An image of a node: its id, and docker's word for the machine that it is for ("" where that is not known)."""

    identity: str
    architecture: str


def command(config: Path, link: Link, words: str, *, root: bool = True) -> list[str]:
    """The command line that runs docker on a node, as root, or as the user who logs in."""
    remote = f"exec docker {words}"
    if root:
        remote = f'if [ "$(id -u)" = 0 ]; then {remote}; fi; exec sudo -n docker {words}'
    return ["ssh", "-F", str(config), "-o", "BatchMode=yes", "-T", link.name, remote]


def ask(
    config: Path, link: Link, words: str, limit: float | None = None, late: str = "docker has not answered within"
) -> subprocess.CompletedProcess[str]:
    """Run docker on a node to its end; raises ImageError, saying that it is `late`, after `limit` seconds.

    Without a limit it has to answer at once.
    """
    limit = limit or ASK_LIMIT_S
    try:
        return subprocess.run(
            command(config, link, words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ImageError(f"{link.name}: {late} {limit} s") from None


def told(config: Path, link: Link, words: str, limit: float | None = None) -> str:
    """What docker answers; raises ImageError when the node or its docker fails. `limit` as for `ask`."""
    done = ask(config, link, words, limit)
    if done.returncode:
        raise ImageError(f"{link.name}: {last_words(done.stderr)}")
    return done.stdout.strip()


def last_words(said: str) -> str:
    """The end of what a program said."""
    return said.strip()[-500:]


def present(config: Path, link: Link, ref: str) -> Found | None:
    """An image of a node, None without one; raises ImageError when the node or its docker fails."""
    words = f"image inspect --format '{{{{.Id}}}} {{{{.Architecture}}}}' {shlex.quote(ref)}"
    done = ask(config, link, words)
    if done.returncode == 0:
        identity, _, architecture = done.stdout.strip().partition(" ")
        return Found(identity, architecture)
    if "no such image" in done.stderr.lower():
        return None
    raise ImageError(f"{link.name}: {last_words(done.stderr)}")


def refuse_another_machine(config: Path, link: Link, ref: str, found: Found) -> None:
    """Raise ImageError for an image that is for another machine than the node."""
    here = told(config, link, "version --format '{{.Server.Arch}}'")
    if found.architecture not in ("", here):
        raise ImageError(f"{link.name}: {ref} is for {found.architecture}, and the node is {here}. {ANOTHER_MACHINE}")
