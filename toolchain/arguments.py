"""The little of Pulumi's command line that the wrapper has to understand."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

# Global flags whose value is the next word.
_WITH_VALUE = frozenset({"-C", "--cwd", "--color", "-v", "--verbose", "--tracing", "--profiling", "--memprofilerate"})
_ALIASES = {"update": "up", "pre": "preview", "down": "destroy", "dn": "destroy"}


class Line(NamedTuple):
    """A command line: which verb, in which folder, on which stack (None: the selected one)."""

    verb: str
    folder: Path
    stack: str | None
    help: bool


def parse(words: Sequence[str], here: Path) -> Line:
    """Read the verb, ``--cwd`` and ``--stack`` of a Pulumi command line."""
    verb, folder, stack = "", here, None
    iterator = iter(words)
    for word in iterator:
        if word == "--":
            break
        name, equals, value = word.partition("=")
        if name in {"-s", "--stack", "-C", "--cwd"}:
            value = value if equals else next(iterator, "")
            if name in {"-s", "--stack"}:
                stack = value
            else:
                folder = here / value
        elif re.match(r"-[sC].", word) and not word.startswith("--"):
            stack, folder = (word[2:], folder) if word[1] == "s" else (stack, here / word[2:])
        elif word in _WITH_VALUE:
            next(iterator, None)
        elif not verb and not word.startswith("-"):
            verb = _ALIASES.get(word, word)
    return Line(verb, folder, stack, any(word in {"-h", "--help"} for word in words))


def project_file(folder: Path) -> Path | None:
    """The ``Pulumi.yaml`` that Pulumi would use in this folder."""
    for top in (folder, *folder.parents):
        for name in ("Pulumi.yaml", "Pulumi.yml"):
            if (top / name).is_file():
                return top / name
    return None


def project_name(file: Path) -> str:
    """The ``name`` of a Pulumi.yaml, read without a YAML parser: a plain scalar at the first level."""
    match = re.search(r"""^name:\s*["']?([\w.-]+)""", file.read_text("utf-8"), re.MULTILINE)
    return match[1] if match else ""


def selected_stack(home: Path, project: str, file: Path, environment: Mapping[str, str]) -> str | None:
    """The stack that Pulumi uses when none is named: PULUMI_STACK, or what ``pulumi stack select`` noted."""
    name = environment.get("PULUMI_STACK")
    if not name:
        key = hashlib.sha1(str(file).encode(), usedforsecurity=False).hexdigest()
        try:
            noted = json.loads((home / "workspaces" / f"{project}-{key}-workspace.json").read_text("utf-8"))
            name = (noted.get("stacks") or {}).get(environment.get("PULUMI_BACKEND_URL", "")) or noted.get("stack")
        except (OSError, ValueError, AttributeError):
            return None
    return short_name(name) if name else None


def short_name(stack: str) -> str:
    """The stack's own name out of ``organization/project/stack``."""
    return stack.rsplit("/", 1)[-1]
