"""The config schema, the reference and the stack files agree with the models."""

from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet.catalogue import every_key
from fleet.loading import SettingsError, load
from fleet.planner import make
from fleet.problems import NAMESPACE
from fleet.reference import reference
from fleet.settings import Settings
from fleet.stack import StackName
from fleet.topology import Kind
from tests.unit.stacks import changed

ROOT = Path(__file__).parents[2]
STACKS = {"ring": Kind.RING, "switched": Kind.SWITCHED, "lab": Kind.RING, "lab-switched": Kind.SWITCHED}


def project() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((ROOT / "Pulumi.yaml").read_text())
    return content


def stack(name: str) -> dict[str, object]:
    config = yaml.safe_load((ROOT / f"Pulumi.{name}.yaml").read_text())["config"]
    return {key.removeprefix(f"{NAMESPACE}:"): value for key, value in config.items()}


def test_the_reference_is_current() -> None:
    text = (ROOT / "docs" / "config.md").read_text()
    assert text == reference(), "renew it: python -m fleet.reference > docs/config.md"


def test_every_key_has_a_meaning_and_a_line_in_the_reference() -> None:
    text = reference()
    for path, field in every_key():
        assert field.description, path
        assert f"`{path}`" in text or path in Settings.model_fields


def test_pulumi_declares_each_top_level_key_with_type_and_meaning() -> None:
    declared = {key: value for key, value in project()["config"].items() if ":" not in key}
    assert set(declared) == set(Settings.model_fields)
    for key, field in Settings.model_fields.items():
        assert declared[key]["description"] == field.description
        assert declared[key]["type"] == ("array" if key == "nodes" else "object")
        assert ("default" in declared[key]) == (not field.is_required())


def test_the_project_has_the_name_of_the_namespace_and_no_default_docker() -> None:
    assert project()["name"] == NAMESPACE
    assert project()["config"]["pulumi:disable-default-providers"]["value"] == ["docker"]


@pytest.mark.parametrize(("name", "kind"), STACKS.items())
def test_the_stack_files_can_be_planned(name: str, kind: Kind) -> None:
    config = stack(name)
    if not name.startswith("lab"):
        with pytest.raises(SettingsError) as raised:
            load(config)
        assert [one.code for one in raised.value.problems] == ["api-key"]
        changed(config, {"engine.headEnv.API_KEY": "hunter2"})
    plan = make(load(config), None, StackName(NAMESPACE, name))
    assert plan.topology.kind is kind
    assert len(plan.ranks) == 4
    assert plan.warnings == ()


@pytest.mark.parametrize("name", ["lab", "lab-switched"])
def test_the_lab_stacks_hold_no_generated_key(name: str) -> None:
    settings = load(stack(name))
    assert all(node.host_key is None for node in settings.nodes)
    assert all(node.address in IPv4Network("198.18.0.0/24") for node in settings.nodes)
