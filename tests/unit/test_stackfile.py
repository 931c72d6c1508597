"""Reading a stack's settings without Pulumi."""

from pathlib import Path

import pytest
import yaml

from fleet import stackfile
from fleet.problems import ProblemsError
from tests.unit.stacks import ring


def written(root: Path, **extra: object) -> Path:
    (root / "Pulumi.yaml").write_text("name: spark-fabric\n")
    config = {f"spark-fabric:{key}": value for key, value in {**ring(), **extra}.items()}
    (root / "Pulumi.test.yaml").write_text(yaml.safe_dump({"config": config, "encryptionsalt": "v1:x"}))
    return root


def test_an_encrypted_value_needs_no_passphrase(tmp_path: Path) -> None:
    root = written(tmp_path, engine={"image": "engine:1", "headEnv": {"API_KEY": {"secure": "v1:abc"}, "A": "1"}})
    name, settings = stackfile.read("test", root=root)
    assert (name.project, name.stack) == ("spark-fabric", "test")
    assert settings.engine.head_env == {"API_KEY": stackfile.ENCRYPTED, "A": "1"}


def test_a_section_that_is_encrypted_as_a_whole_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProblemsError, match="spark-fabric:ssh"):
        stackfile.read("test", root=written(tmp_path, ssh={"secure": "v1:abc"}))


def test_lost_nodes_are_left_out(tmp_path: Path) -> None:
    _, settings = stackfile.read("test", without={"spark2"}, root=written(tmp_path))
    assert [node.name for node in settings.nodes] == ["spark1", "spark3", "spark4"]


def test_a_stack_without_a_file_names_those_that_have_one(tmp_path: Path) -> None:
    with pytest.raises(ProblemsError, match="test"):
        stackfile.read("other", root=written(tmp_path))
