"""tc: what hangs at the ingress of the fabric ports is simulated, all else is the real tc's."""

from __future__ import annotations

import itertools
import json
import shlex
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from . import filters, qdiscs, system
from .model import BY_NETDEV
from .state import State
from .system import ToolError
from .words import Words, is_show, matches

FOREIGN_KINDS = {"u32", "matchall", "bpf", "basic", "fw", "route", "cgroup", "flow"}


@dataclass(frozen=True)
class Options:
    """What stands before the object."""

    json: bool = False
    pretty: bool = False
    stats: bool = False
    batch: str | None = None
    force: bool = False
    foreign: bool = False  # an option that only the real tool knows

    def dump(self, value: Any) -> None:
        """Print a document as JSON."""
        separators = None if self.pretty else (",", ":")
        print(json.dumps(value, indent=4 if self.pretty else None, separators=separators))


def _options(words: Words) -> Options:
    options = Options()
    while words.peek().startswith("-") and words.peek() != "-":
        word = "-" + words.take().lstrip("-")
        if word in ("-j", "-json"):
            options = replace(options, json=True)
        elif word in ("-p", "-pretty"):
            options = replace(options, pretty=True)
        elif len(word) > 1 and matches(word, "-statistics"):
            options = replace(options, stats=True)
        elif word in ("-b", "-batch"):
            options = replace(options, batch=words.take() if words else "-")
        elif word in ("-force", "-f"):
            options = replace(options, force=True)
        elif not (len(word) > 1 and matches(word, "-details")):
            options = replace(options, foreign=True)
    return options


def _device(words: Iterable[str]) -> str:
    return next((after for word, after in itertools.pairwise(words) if word == "dev"), "")


def _is_ours(words: list[str]) -> bool:
    """Whether this command is about what is simulated."""
    if not words:
        return False
    thing, rest = words[0], words[1:]
    dev = _device(rest)
    if matches(thing, "qdisc"):
        if is_show(rest[0] if rest else "show"):
            return dev in BY_NETDEV or not dev
        return dev in BY_NETDEV and any(word in (*qdiscs.KINDS, qdiscs.PARENT) for word in rest)
    if matches(thing, "filter"):
        at_ingress = "ingress" in rest or any(parent in rest for parent in filters.INGRESS_PARENTS)
        return dev in BY_NETDEV and at_ingress and not FOREIGN_KINDS & set(rest)
    return False


def _command(state: State, options: Options, words: list[str]) -> None:
    dev = _device(words)
    if dev and not state.netdev_exists(dev):
        raise ToolError(f'Cannot find device "{dev}"', 1)
    part = qdiscs if matches(words[0], "qdisc") else filters
    part.command(state, options, words[1:])


def _batch(state: State, options: Options) -> int:
    name = options.batch or "-"
    text = sys.stdin.read() if name == "-" else Path(name).read_text()
    status = 0
    for place, line in enumerate(text.splitlines(), 1):
        words = shlex.split(line, comments=True)
        if words and not _batched(state, options, words):
            print(f"Command failed {name}:{place}", file=sys.stderr)
            status = 1
            if not options.force:
                break
    return status


def _batched(state: State, options: Options, words: list[str]) -> bool:
    """Run one line of a batch; False if it failed."""
    try:
        if _is_ours(words):
            _command(state, options, words)
            return True
    except ToolError as error:
        print(error.text, file=sys.stderr)
        return False
    sys.stdout.flush()
    return subprocess.run([system.real("tc") or "tc", *words], check=False).returncode == 0


def main(_: str, argv: list[str]) -> int:
    """Entry point."""
    words = Words(argv)
    options = _options(words)
    if options.batch is not None and not options.foreign:
        return _batch(State(), options)
    if options.foreign or not _is_ours(words.rest):
        system.become("tc", argv)
    _command(State(), options, words.rest)
    return 0
