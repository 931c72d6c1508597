"""Ways for an image to get on a node: from an archive, from another node, from a registry. Standard library only.

All three stream, so that nothing lies on this machine, and all three are docker's own: an image is there whole under
its name, or not at all. Docker's classic store writes all of an image to a temporary folder first, at `save` before it
sends the first byte and at `load` before it takes it in: both sides need room for one more. A stream that ends early
is ended here by killing the ssh that fills the node's docker, never by closing it in order: the node must not take a
part for all of it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from fleet.docker_on_node import ImageError, command, last_words, told
from fleet.on_node import Link

LIMIT_S = 4 * 3600  # an engine image is tens of gigabytes, and several copies share one line
STANDSTILL_S = 1200  # without a byte; docker writes all of an image to a disk before the first and after the last one
TELL_EVERY_S = 10
PIECE = 1 << 20  # bytes
ONE_LAYER_DONE = re.compile(r"^[0-9a-f]{12}: (Pull complete|Already exists)$")
ONE_LAYER = re.compile(r"^[0-9a-f]{12}: ")


@contextlib.contextmanager
def watched(
    who: str,
    doing: Callable[[], str],
    limit: float,
    *processes: subprocess.Popen[bytes],
    sent: Callable[[], int] | None = None,
) -> Iterator[None]:
    """While the body runs, tell every few seconds what is being done. Where it fails, the processes are killed.

    They are after `limit` seconds too, and once the number of bytes that are `sent` has not grown for STANDSTILL_S;
    ImageError is raised then.
    """
    over, began, late = threading.Event(), time.monotonic(), list[str]()

    def watch() -> None:
        last, moved = 0, began
        while not over.wait(min(TELL_EVERY_S, limit)):
            now = time.monotonic()
            print(f"{who}: {doing()}, {now - began:.0f} s", flush=True)
            if sent is None or sent() != last:
                last, moved = sent() if sent else 0, now
            if now - began >= limit:
                late.append(f"not done after {limit:.0f} s")
            elif now - moved >= STANDSTILL_S:
                late.append(f"nothing has moved for {STANDSTILL_S:.0f} s")
            if late:
                for process in processes:
                    process.kill()
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        for process in processes:
            if process.poll() is None:
                process.kill()
        watcher.join()
        if late:
            raise ImageError(f"{who}: {doing()}: {late[0]}, and ended")


def load(config: Path, link: Link, archive: Path) -> None:
    """Send an archive through `docker load`; raises ImageError when that fails."""
    size = archive.stat().st_size
    with archive.open("rb") as content:
        process = subprocess.Popen(
            command(config, link, "load -q"), stdin=content, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

        def sent() -> int:
            return os.lseek(content.fileno(), 0, os.SEEK_CUR)

        def doing() -> str:
            return f"{sent() * 100 // size} % of {archive.name} sent"

        with watched(link.name, doing, LIMIT_S, process, sent=sent):
            out, _ = process.communicate()
    if process.returncode:
        raise ImageError(f"{link.name}: docker load failed: {last_words(out.decode(errors='replace'))}")


def copy(from_config: Path, source: Link, config: Path, link: Link, ref: str) -> None:
    """Stream an image from one node to another, through this machine: nodes need no key for each other.

    Raises ImageError when either side fails.
    """
    size = max(int(told(from_config, source, f"image inspect --format '{{{{.Size}}}}' {shlex.quote(ref)}")), 1)
    sent = 0

    def doing() -> str:
        return f"{min(sent * 100 // size, 100)} % of {ref} sent from {source.name}"

    save = subprocess.Popen(
        command(from_config, source, f"save {shlex.quote(ref)}"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    filled = subprocess.Popen(
        command(config, link, "load -q"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert save.stdout
    assert save.stderr
    assert filled.stdin
    assert filled.stdout
    with watched(link.name, doing, LIMIT_S, save, filled, sent=lambda: sent):
        with contextlib.suppress(BrokenPipeError):  # docker load says why
            while piece := os.read(save.stdout.fileno(), PIECE):
                filled.stdin.write(piece)
                sent += len(piece)
            if save.wait():
                filled.kill()
                said = last_words(save.stderr.read().decode(errors="replace"))
                raise ImageError(f"{link.name}: docker save on {source.name} failed: {said}")
            filled.stdin.close()
        said = last_words(filled.stdout.read().decode(errors="replace"))
        if filled.wait():
            raise ImageError(f"{link.name}: docker load failed: {said}")


def pull(config: Path, link: Link, ref: str) -> None:
    """Have a node's docker pull an image, as the user who logs in: what `docker login` left there counts.

    Raises ImageError when that fails.
    """
    layers, done, last = set[str](), 0, ""
    process = subprocess.Popen(
        command(config, link, f"pull {shlex.quote(ref)}", root=False),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout
    with watched(link.name, lambda: f"pulling {ref}, {done} of {len(layers)} layers", LIMIT_S, process):
        for raw in process.stdout:
            last = raw.decode(errors="replace").strip() or last
            if ONE_LAYER.match(last):
                layers.add(last[:12])
                done += bool(ONE_LAYER_DONE.match(last))
        process.wait()
    if process.returncode:
        raise ImageError(f"{link.name}: docker pull failed: {last_words(last)}")
