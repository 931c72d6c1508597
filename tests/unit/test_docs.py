"""The docs speak of what is there: links, files, targets, commands, keys, messages, exit codes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from fleet.__main__ import parser as fleet_parser
from fleet.catalogue import every_key
from fleet.loading import load
from fleet.on_node import UNREACHABLE
from fleet.picture import picture
from fleet.planner import make
from fleet.settings import Settings
from fleet.stack import StackName
from fleet.verdicts import CODES
from lab.__main__ import parser as lab_parser
from node import request
from tests.unit.stacks import changed
from tests.unit.test_reference import stack

ROOT = Path(__file__).parents[2]
OURS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted((ROOT / "docs").glob("*.md"))
PAGES = [*OURS, ROOT / "lab" / "README.md", ROOT / "toolchain" / "README.md"]
FOLDERS = "bench|components|docs|fleet|lab|node|tests|toolchain|.ci"
# What a span of code begins with when it is something to type, and not something that is said.
TYPED = re.compile(
    r"(\./|\.venv/|[A-Z_]+=|-"
    r"|(sudo|python3?|pulumi|make|docker|ssh(-keygen)?|systemctl|journalctl|netplan|cp|for|curl|up) )"
)
# What varies in a message.
NAMES = re.compile(
    r"…|spark\d|spark-fabric-\w+|enp\w+|ib_write_bw|anna@desk|\(pid \d+\)|\(applying\)|\brunning\b|\d+|\bring\b"
)


def page(path: Path) -> str:
    return str(path.relative_to(ROOT))


def spans(path: Path) -> list[str]:
    """What stands between backticks, outside of blocks."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text)]


def code(path: Path) -> str:
    """All code of a page: spans, blocks, indented blocks."""
    text = path.read_text()
    blocks = re.findall(r"^```.*?\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    return "\n".join([*spans(path), *blocks, *re.findall(r"^    .*$", text, flags=re.MULTILINE)])


def anchors(path: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", path.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", PAGES, ids=page)
def test_relative_links_lead_somewhere(path: Path) -> None:
    text = path.read_text()
    links = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r"^\[[^\]]+\]: (\S+)$", text, flags=re.MULTILINE)
    for link in links:
        if re.match(r"https?:", link):
            continue
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("path", OURS, ids=page)
def test_named_files_and_folders_exist(path: Path) -> None:
    for span in spans(path):
        if re.fullmatch(rf"({FOLDERS})/[\w./-]*|Pulumi\.[\w-]+\.yaml|\./[\w]+", span):
            assert (ROOT / span).exists(), span


@pytest.mark.parametrize("path", PAGES, ids=page)
def test_make_has_the_targets(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = re.findall(r"^(?:sudo )?make ([a-z-]+)", code(path), flags=re.MULTILINE)
    assert set(named) <= targets


def verbs(parser: object) -> set[str]:
    actions = parser._actions  # type: ignore[attr-defined]
    return {name for action in actions for name in (action.choices or ()) if isinstance(action.choices, dict)}


@pytest.mark.parametrize("path", PAGES, ids=page)
def test_modules_and_their_commands_exist(path: Path) -> None:
    known = {"fleet": verbs(fleet_parser()), "lab": verbs(lab_parser())}
    for module, word in re.findall(r"python3? -m ([\w.]+)(?: (\w[\w-]*))?", code(path)):
        place = ROOT / module.replace(".", "/")
        if module in ("pytest", "venv"):
            continue
        assert place.with_suffix(".py").exists() or (place / "__main__.py").exists(), module
        assert not word or word in known.get(module, {word}), f"{module} {word}"


def test_every_command_of_fleet_is_in_the_readme_and_in_operations() -> None:
    for name in ("README.md", "docs/operations.md"):
        text = (ROOT / name).read_text()
        assert {verb for verb in verbs(fleet_parser()) if f"python -m fleet {verb}" not in text} == set(), name


@pytest.mark.parametrize("path", OURS, ids=page)
def test_named_keys_are_keys(path: Path) -> None:
    keys = {key for key, _ in every_key()}
    sections = "|".join(Settings.model_fields)
    for key in re.findall(rf"(?<![\w/.-])(?:{sections})(?:\[\])?\.[\w.\[\]]+", re.sub(r"-m \S+", "", code(path))):
        place = re.sub(r"\[\d+\]", "[]", key.rstrip("."))
        free = re.sub(r"\.(env|headEnv|args|secrets)\.\w+$", r".\1", place)
        assert place.endswith((".py", ".json")) or free in keys or key in CODES, key


@cache
def said() -> str:
    """Every text in the sources of the product."""
    found = []
    for folder in ("fleet", "node", "components"):
        for source in (ROOT / folder).rglob("*.py"):
            nodes = ast.walk(ast.parse(source.read_text()))
            found += [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return "\n".join(" ".join(text.split()) for text in found)


def messages() -> Iterator[str]:
    for span in spans(ROOT / "docs" / "operations.md"):
        if " " in span and not TYPED.match(span) and not re.match(r"[\w.]+: \w+$", span):
            yield span


# Of Pulumi, and of a plan that Pulumi refuses.
NOT_OURS = {"the stack is currently locked", "violates plan"}


@pytest.mark.parametrize("message", sorted(set(messages()) - NOT_OURS))
def test_a_message_in_operations_is_one_of_ours(message: str) -> None:
    parts = [part.strip(" .,:;()'") for part in NAMES.split(message)]
    missing = [part for part in parts if len(part) > 3 and part not in said()]
    assert not missing


def test_the_exit_codes_are_those_of_the_node_program() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    table = {int(code) for code in re.findall(r"^\| (\d+) \|", text, flags=re.MULTILINE)}
    names = "OK FAILED BAD_REQUEST ENGINE_ALIVE OTHER_OWNER LOCKED READ_BACK NEWER_SCHEMA".split()
    assert table == {*(getattr(request, name) for name in names), UNREACHABLE}


def test_the_picture_in_the_readme_is_that_of_the_ring() -> None:
    settings = load(changed(stack("ring"), {"engine.allowAnonymous": True}))
    assert picture(make(settings, None, StackName("spark-fabric", "ring"))) in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("path", PAGES, ids=page)
def test_nothing_of_one_machine_or_registry_is_in_a_page(path: Path) -> None:
    text = path.read_text()
    assert not re.findall(r"(?<![\w.])/(?:root|home|tmp|work|Users)/\S+", text)
    assert not re.findall(r"\b(?:docker\.io|ghcr\.io|quay\.io|nvcr\.io|pypi\.org|proxy\.golang\.org)\b", text)
