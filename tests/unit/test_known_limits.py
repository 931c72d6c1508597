"""The table of reports in docs/known-limits.md: every one of them, with tests that are there or a reason."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "known-limits.md"
REPORTS = [f"F{number:03}" for number in range(1, 151, 2)]  # the numbers have gaps
ROW = re.compile(r"^\| (F\d{3}) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
OF_OTHER_TOOLS = re.compile(r"\b(mst|mst(flint|config|fwreset|fwmanager)|mlx(config|fwmanager|fwreset)|flint)\b")


@cache
def functions_of(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def rows() -> list[tuple[str, str]]:
    """Number and last column of each row."""
    return [(number, shown) for number, _, _, shown in ROW.findall(PAGE.read_text())]


def test_every_report_has_one_row() -> None:
    assert [number for number, _ in rows()] == REPORTS


@pytest.mark.parametrize(("number", "shown"), rows(), ids=[number for number, _ in rows()])
def test_what_shows_it_is_there_or_the_reason_is(number: str, shown: str) -> None:
    named = TEST.findall(shown)
    assert shown.count("::") == len(named), "a test that is not written as path::name"
    for path, name in named:
        assert name in functions_of(path), f"{path}::{name}"
    assert named or len(shown.split()) > 4, "neither a test nor a reason"


def test_tests_that_name_a_report_are_in_its_row() -> None:
    shown = dict(rows())
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and (said := re.match(r"F\d{3}\b", ast.get_docstring(node) or "")):
                assert f"{path.relative_to(ROOT)}::{node.name}" in shown[said[0]], said[0]


def test_the_cards_own_tools_are_never_called() -> None:
    """F045"""
    for folder in ("node", "fleet", "components"):
        for source in (ROOT / folder).rglob("*.py"):
            texts = [one.value for one in ast.walk(ast.parse(source.read_text())) if isinstance(one, ast.Constant)]
            assert not [text for text in texts if isinstance(text, str) and OF_OTHER_TOOLS.search(text)], source
