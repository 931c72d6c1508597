"""The table of the launcher's settings: complete, true to the launcher, and the same as in the docs."""

from pathlib import Path
from typing import Any

import yaml

from fleet import launcher
from fleet.catalogue import every_key
from fleet.launcher import SETTINGS, Way, setting

ROOT = Path(__file__).parents[2]
LISTS: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "launcher_settings.yaml").read_text())
LISTED = {name: default for one in LISTS for name, default in one["settings"].items()}


def test_no_setting_of_the_launcher_is_missing() -> None:
    assert [name for name in LISTED if setting(name) is None] == []


def test_no_setting_is_there_that_the_launcher_does_not_have() -> None:
    assert SETTINGS.keys() - {one.name for one in map(setting, LISTED) if one} == set()


def test_the_defaults_are_the_launchers() -> None:
    wrong = {
        name: (one.default, default)
        for name, default in LISTED.items()
        for one in [setting(name)]
        if one and one.default != ("" if default is None else str(default))
    }
    assert wrong == {}


def test_a_setting_goes_to_keys_that_there_are() -> None:
    keys = {key for key, _ in every_key()}
    named = {key for one in SETTINGS.values() for key in one.to.split(", ") if key}
    assert named - keys == set()
    assert all(one.to for one in launcher.of_way(Way.KEY))
    assert all(one.why.endswith(".") for one in SETTINGS.values())


def test_a_number_in_a_name_is_any_number() -> None:
    assert setting("WORKER7_IP") is setting("WORKER12_IP") is SETTINGS["WORKER<n>_IP"]
    assert setting("WORKER_IP") is None


def test_the_docs_have_the_table() -> None:
    page = (ROOT / "docs" / "migrating.md").read_text()
    assert launcher.table() in page, "renew it: python -m fleet.launcher"
