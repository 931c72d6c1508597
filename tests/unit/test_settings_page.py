"""docs/settings.md: current, complete, and true."""

import re
from pathlib import Path

import pytest

from fleet import launcher, profiles
from fleet.settings_page import page
from tests.unit.test_launcher import LISTED
from tests.unit.test_profiles import LISTS

TEXT = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()


def rows() -> dict[str, list[str]]:
    """The table of every setting, by setting."""
    table = TEXT[TEXT.index("## Every setting") :]
    cells = [line.strip("|\n ").split(" | ") for line in table.splitlines() if line.startswith("| `")]
    return {row[0].strip("`"): row[1:] for row in cells}


def test_the_page_is_current() -> None:
    assert page() == TEXT, "renew it: python -m fleet.settings_page > docs/settings.md"


def test_every_setting_of_the_launcher_has_a_row() -> None:
    there = rows()
    for name in LISTED:
        known = launcher.setting(name)
        assert known
        assert known.name in there, name


def test_every_variable_of_the_launchers_containers_has_a_row() -> None:
    assert {name for one in LISTS for name in one["values"]} <= rows().keys()


def test_every_row_has_a_key_and_says_who_gets_it() -> None:
    for name, row in rows().items():
        assert len(row) == 5, name
        assert row[1], name
        assert row[4], name


@pytest.mark.parametrize(
    ("name", "profiles_tell", "auto", "who"),
    [
        ("API_KEY", "", "", "rank 0"),
        ("WARMUP", "`1`, others nothing", "`1`, others nothing", "rank 0"),
        ("CONTEXT_LENGTH", "`1048576`", "", "all ranks"),
        ("NCCL_ALGO", "`Ring`; switch: –", "`Ring`; switch: –", "all ranks: ring, mesh"),
        ("DSV41_DRAFT_TAU", "`1`; production: `0.7`", "", "all ranks"),
        ("DSV41_SERIAL_WEIGHT_LOAD", "`1`; switch: `0`", "`1`; switch: –", "all ranks"),
        ("SGLANG_RUST_BUILD_MODE", "`never`; base: –", "", "all ranks"),
        ("NODE_RANK", "the rank's own", "the rank's own", "all ranks"),
        ("NFS_OPTS", "", "", "–"),
        ("DSV41_ROCE_GATHER", "switch –; production: `2097152` / ring – / mesh `262144`", "–; mesh: `262144`",
         "all ranks: switch, mesh"),
    ],
)  # fmt: skip
def test_a_row_says_what_is_told_and_to_whom(name: str, profiles_tell: str, auto: str, who: str) -> None:
    assert rows()[name][2:] == [profiles_tell, auto, who]


def test_every_profile_and_capability_is_on_the_page() -> None:
    for whole in profiles.WHOLE.values():
        assert re.search(rf"^\| `{re.escape(whole.name)}` \| `{re.escape(whole.build.recipe)}` \|", TEXT, re.MULTILINE)
    for need in profiles.NEEDS:
        assert f"| `{need.name}` | {profiles.CAPABILITIES[need.capability].what} |" in TEXT
