"""The wrapper reads verb, folder and stack off a command line as Pulumi does."""

import hashlib
import json
from pathlib import Path

import pytest

from toolchain import arguments

HERE = Path("/somewhere")


@pytest.mark.parametrize(
    ("words", "verb", "stack"),
    [
        (["up", "-s", "lab"], "up", "lab"),
        (["preview", "--stack=lab", "--diff"], "preview", "lab"),
        (["-s", "lab", "down", "--yes"], "destroy", "lab"),
        (["up", "-slab"], "up", "lab"),
        (["pre"], "preview", None),
        (["--color", "never", "-v", "9", "refresh"], "refresh", None),
        (["--logtostderr", "update", "-y"], "up", None),
        (["stack", "output", "-s", "lab"], "stack", "lab"),
        (["up", "-s"], "up", ""),
        ([], "", None),
        (["--version"], "", None),
    ],
)
def test_verb_and_stack_are_found(words: list[str], verb: str, stack: str | None) -> None:
    line = arguments.parse(words, HERE)
    assert (line.verb, line.stack, line.folder) == (verb, stack, HERE)


@pytest.mark.parametrize("words", [["-C", "sub", "up"], ["--cwd=sub", "up"], ["up", "-Csub"]])
def test_the_folder_is_relative_to_where_the_user_is(words: list[str]) -> None:
    assert arguments.parse(words, HERE).folder == HERE / "sub"


def test_words_after_two_dashes_are_not_pulumi_s() -> None:
    assert arguments.parse(["env", "run", "--", "up", "-s", "lab"], HERE).stack is None


def test_the_project_is_the_nearest_one_upwards(tmp_path: Path) -> None:
    deep = tmp_path / "a/b"
    deep.mkdir(parents=True)
    (tmp_path / "Pulumi.yaml").write_text('# a comment\nname: "fleet-1" # ours\nruntime: python\n')
    file = arguments.project_file(deep)
    assert file == tmp_path / "Pulumi.yaml"
    assert arguments.project_name(file) == "fleet-1"


def test_the_selected_stack_is_the_one_of_this_project_and_backend(tmp_path: Path) -> None:
    file = tmp_path / "Pulumi.yaml"
    key = hashlib.sha1(str(file).encode(), usedforsecurity=False).hexdigest()
    noted = tmp_path / f"workspaces/trial-{key}-workspace.json"
    noted.parent.mkdir()
    noted.write_text(json.dumps({"stacks": {"file:///here": "organization/trial/ring"}}))
    assert arguments.selected_stack(tmp_path, "trial", file, {"PULUMI_BACKEND_URL": "file:///here"}) == "ring"
    assert arguments.selected_stack(tmp_path, "trial", file, {"PULUMI_BACKEND_URL": "file:///there"}) is None
    assert arguments.selected_stack(tmp_path, "trial", file, {"PULUMI_STACK": "a/b/lab"}) == "lab"
    assert arguments.selected_stack(tmp_path, "other", file, {}) is None
