"""What the product relies on in local.Command, tried with whichever command plugin is installed.

The same statements hold for the official plugin and for ours (toolchain/README.md has the differences).
"""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.toolchain.project import Commands, Project, alive, kill_group, wait_for


class Stack(Project):
    """The project with its state, used by all tests in their order."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.backend = folder / "backend"
        self.backend.mkdir(parents=True)
        super().__init__(folder, environment | {"PULUMI_BACKEND_URL": f"file://{self.backend}"})
        self.run("pulumi", "stack", "init", "lab")

    def preview(self, commands: Commands) -> dict[str, dict[str, Any]]:
        """The planned step of each command by its name."""
        self.declare(commands)
        steps = json.loads(self.run("pulumi", "preview", "--json", "-s", "lab").stdout).get("steps", [])
        return {step["urn"].rsplit("::", 1)[1]: step for step in steps if "command:local" in step["urn"]}

    def up(self, commands: Commands, code: int = 0, *more: str) -> str:
        """Run an up and return what it printed."""
        self.declare(commands)
        done = self.run("pulumi", "up", "--yes", "--skip-preview", "-s", "lab", *more, code=code)
        return done.stdout + done.stderr

    def outputs(self, name: str) -> dict[str, Any]:
        """The recorded outputs of a command; empty when it is not in state."""
        urn = f"urn:pulumi:lab::trial::command:local:Command::{name}"
        found: list[dict[str, Any]] = self.state(self.backend).get("resources", [])
        return next((each["outputs"] for each in found if each["urn"] == urn), {})

    def log(self) -> list[str]:
        """What the commands wrote since the last call."""
        file = self.folder / "log"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return lines


@pytest.fixture(scope="module")
def stack(toolchain: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Stack:
    """One stack for the whole file: each test goes on from where the one before has left it."""
    return Stack(tmp_path_factory.mktemp("command") / "p", toolchain | {"OUTSIDE": "from the shell"})


def logs(what: str) -> str:
    return f"echo {what} >> log"


FIRST: dict[str, dict[str, Any]] = {
    "env": {"create": 'echo "$GIVEN, $OUTSIDE"; echo oops >&2', "environment": {"GIVEN": "from the program"}},
    "stdin": {"create": "cat", "stdin": "line 1\nline 2\n"},
    "folder": {"create": "pwd", "dir": "/"},
    "shell": {"create": "print(6 * 7)", "interpreter": ["python3", "-c"]},
    "long": {"create": "head -c 60000 /dev/zero | tr '\\0' x", "logging": "none"},
    "undo": {"delete": logs("undo-deleted")},
    "updated": {"create": "echo one", "update": 'echo "two after $PULUMI_COMMAND_STDOUT"', "stdin": "a"},
    "forgetful": {
        "create": "echo one",
        "update": 'echo "two after ${PULUMI_COMMAND_STDOUT-nothing}"',
        "stdin": "a",
        "add_previous_output_in_env": False,
    },
    "no-update": {"create": logs("no-update-created"), "environment": {"A": "1"}},
    "new-delete": {"create": logs("new-delete-created"), "delete": "true"},
    "ignored": {"create": "true", "update": logs("ignored-updated"), "stdin": "a"},
    "trigger": {"create": logs("trigger-created"), "delete": logs("trigger-deleted"), "triggers": ["1"]},
    "before": {
        "create": logs("before-created"),
        "delete": logs("before-deleted"),
        "opts": {"delete_before_replace": True, "replacement_trigger": "1"},
    },
}

SECOND: dict[str, dict[str, Any]] = {
    **FIRST,
    "updated": {**FIRST["updated"], "stdin": "b"},
    "forgetful": {**FIRST["forgetful"], "stdin": "b"},
    "no-update": {**FIRST["no-update"], "environment": {"A": "2"}},
    "new-delete": {**FIRST["new-delete"], "delete": logs("new-delete-deleted")},
    "ignored": {**FIRST["ignored"], "stdin": "b", "opts": {"ignore_changes": ["stdin"]}},
    "trigger": {**FIRST["trigger"], "triggers": ["2"]},
    "before": {**FIRST["before"], "opts": {"delete_before_replace": True, "replacement_trigger": "2"}},
}


def test_create_runs_with_environment_stdin_folder_and_interpreter(stack: Stack) -> None:
    stack.up(FIRST)
    assert stack.outputs("env")["stdout"] == "from the program, from the shell"
    assert stack.outputs("env")["stderr"] == "oops"
    assert stack.outputs("stdin")["stdout"] == "line 1\nline 2"
    assert stack.outputs("folder")["stdout"] == "/"
    assert stack.outputs("shell")["stdout"] == "42"
    assert stack.outputs("long")["stdout"] == "x" * 60000
    assert sorted(stack.log()) == ["before-created", "new-delete-created", "no-update-created", "trigger-created"]


def test_a_command_with_only_a_delete_is_in_state_and_has_run_nothing(stack: Stack) -> None:
    assert stack.outputs("undo")["stdout"] == ""


def test_preview_of_changes_plans_updates_and_replacements(stack: Stack) -> None:
    steps = stack.preview(SECOND)
    assert {name: step["op"] for name, step in steps.items() if step["op"] != "same"} == {
        "updated": "update",
        "forgetful": "update",
        "no-update": "update",
        "new-delete": "update",
        "trigger": "replace",
        "before": "replace",
    }
    assert steps["updated"]["diffReasons"] == ["stdin"]
    assert list(steps["updated"]["detailedDiff"]) == ["stdin"]
    assert list(steps["no-update"]["detailedDiff"]) == ["environment.A"]
    assert steps["trigger"]["diffReasons"] == ["triggers"]
    assert steps["trigger"]["detailedDiff"]["triggers[0]"]["kind"] == "update-replace"
    assert stack.log() == []


def test_changes_update_in_place_or_replace(stack: Stack) -> None:
    stack.up(SECOND)
    assert stack.outputs("updated")["stdout"] == "two after one"
    assert stack.outputs("forgetful")["stdout"] == "two after nothing"
    log = stack.log()
    # Without an update text create runs again, in place; a new delete text alone is an update as well.
    assert {"no-update-created", "new-delete-created"} <= set(log)
    assert [line for line in log if line.startswith("trigger")] == ["trigger-created", "trigger-deleted"]
    assert [line for line in log if line.startswith("before")] == ["before-deleted", "before-created"]
    assert len(log) == 6


def test_nothing_changed_is_nothing_to_do(stack: Stack) -> None:
    assert [name for name, step in stack.preview(SECOND).items() if step["op"] != "same"] == []
    assert stack.log() == []


def test_failures_name_command_and_output_and_change_no_state(stack: Stack) -> None:
    began = time.monotonic()
    said = stack.up(
        {
            **SECOND,
            "updated": {**SECOND["updated"], "update": "echo said-before-failing; exit 3", "stdin": "c"},
            "failing": {"create": "echo seen-on-stdout; echo seen-on-stderr >&2; exit 4"},
            "slow": {"create": "exec sleep 300", "opts": {"custom_timeouts": {"create": "1s"}}},
        },
        1,
        "--continue-on-error",
    )
    assert time.monotonic() - began < 100
    assert 'exit status 4: running "echo seen-on-stdout; echo seen-on-stderr >&2; exit 4":' in said
    assert "seen-on-stderr" in said
    assert "exit status 3: running" in said
    assert 'signal: killed: running "exec sleep 300"' in said
    assert stack.outputs("failing") == stack.outputs("slow") == {}
    assert stack.outputs("updated")["stdout"] == "two after one"


def test_a_failed_update_is_a_change_the_next_time_too(stack: Stack) -> None:
    retried = {**SECOND, "updated": {**SECOND["updated"], "stdin": "c"}}
    assert stack.preview(retried)["updated"]["op"] == "update"


def test_ctrl_c_kills_the_running_command(stack: Stack) -> None:
    stack.declare({**SECOND, "waiting": {"create": "echo $$ > pid; exec sleep 300"}})
    process = stack.start("pulumi", "up", "--yes", "--skip-preview", "-s", "lab")
    try:
        wait_for(lambda: (stack.folder / "pid").exists() and (stack.folder / "pid").read_text().strip(), "the command")
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode != 0
        assert not alive(int((stack.folder / "pid").read_text()))
    finally:
        kill_group(process)
    assert stack.outputs("waiting") == {}


def test_destroy_runs_the_recorded_delete_texts(stack: Stack) -> None:
    stack.declare({})
    stack.run("pulumi", "destroy", "--yes", "--skip-preview", "-s", "lab")
    assert sorted(stack.log()) == ["before-deleted", "new-delete-deleted", "trigger-deleted", "undo-deleted"]
    assert not stack.state(stack.backend).get("resources")
    assert not stack.state(stack.backend).get("pending_operations")
