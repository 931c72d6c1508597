"""./pulumiw: the environment that Pulumi gets, and that it is out of the way then. Pulumi is a stand-in here."""

import json
import os
import shutil
import signal
import socket
import sys
from pathlib import Path

import pytest

from tests.toolchain.fakes import Machine
from tests.toolchain.project import Project, kill_group, wait_for
from toolchain import environment
from toolchain.provide import Toolchain

DUMP = """python3 -c 'import json, os, sys; print(json.dumps({"args": sys.argv[1:], "env": dict(os.environ)}))' "$@" """


class Wrapped(Project):
    """A project in which the wrapper meets a stand-in for Pulumi that prints its arguments and environment."""

    def __init__(self, folder: Path, machine: Machine, wrapper: Path) -> None:
        self.machine, self.wrapper = machine, wrapper
        machine.plugins()
        machine.pulumi(script=DUMP)
        super().__init__(folder, {"PATH": os.environ["PATH"], "HOME": str(folder), **self.places()})

    def places(self) -> dict[str, str]:
        """Where the stand-in machine has its things."""
        return {"XDG_CACHE_HOME": str(self.machine.cache), "PULUMI_HOME": str(self.machine.home)}

    def seen(self, *words: str, **more: str) -> dict[str, str]:
        """The environment that Pulumi sees for a command line, with some more variables set."""
        self.environment |= more
        done = self.run(self.wrapper, *words)
        said = json.loads(done.stdout.splitlines()[-1])
        assert said["args"] == list(words)
        return dict(said["env"])


@pytest.fixture
def wrapped(tmp_path: Path, machine: Machine, checkout: Path) -> Wrapped:
    """The wrapper of this checkout on a bare machine with an installed Pulumi."""
    return Wrapped(tmp_path / "p", machine, checkout / "pulumiw")


def test_state_is_kept_in_the_project_and_needs_no_passphrase(wrapped: Wrapped) -> None:
    seen = wrapped.seen("whoami")
    assert seen["PULUMI_BACKEND_URL"] == f"file://{wrapped.folder}/.pulumi-state"
    assert (wrapped.folder / ".pulumi-state").stat().st_mode & 0o777 == 0o700
    assert seen["PULUMI_CONFIG_PASSPHRASE"] == ""
    assert seen["PULUMI_SKIP_UPDATE_CHECK"] == "true"


def test_commands_find_the_python_of_the_wrapper_first(wrapped: Wrapped, checkout: Path) -> None:
    found = shutil.which("python3", path=wrapped.seen("whoami")["PATH"])
    assert found == str(checkout / ".venv/bin/python3")


def test_no_other_python_s_folder_goes_before_the_user_s(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3")
    found = Toolchain(machine.bin / "pulumi", own_cli=False, home=None)
    assert environment.make(found, machine.bin, "login", {"PATH": "/home/bin:/usr/bin"})["PATH"] == "/home/bin:/usr/bin"


def test_an_installed_pulumi_keeps_its_own_home_and_downloads(wrapped: Wrapped) -> None:
    seen = wrapped.seen("whoami")
    assert seen["PULUMI_HOME"] == str(wrapped.machine.home)
    assert "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION" not in seen


def test_our_plugins_come_with_our_home_and_the_user_s_login(wrapped: Wrapped) -> None:
    wrapped.machine.go()
    wrapped.machine.pulumi(script=f'case "$1" in plugin) exit 1;; esac\n{DUMP}')
    wrapped.environment["PULUMI_HOME"] = str(wrapped.folder / "empty")
    seen = wrapped.seen("whoami")
    assert seen["PULUMI_HOME"].startswith(str(wrapped.machine.cache))
    assert seen["PULUMI_CREDENTIALS_PATH"] == str(wrapped.folder / "empty")
    assert seen["PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION"] == "true"


def test_a_backend_that_the_user_has_chosen_is_used(wrapped: Wrapped) -> None:
    assert wrapped.seen("whoami", PULUMI_BACKEND_URL="s3://bucket")["PULUMI_BACKEND_URL"] == "s3://bucket"


def test_a_login_is_a_choice_too(wrapped: Wrapped) -> None:
    (wrapped.machine.home / "credentials.json").write_text('{"current": "https://api.example"}')
    assert "PULUMI_BACKEND_URL" not in wrapped.seen("whoami")


def test_login_itself_sees_no_backend(wrapped: Wrapped) -> None:
    assert "PULUMI_BACKEND_URL" not in wrapped.seen("login", "file:///elsewhere")


def test_a_passphrase_of_the_user_is_left_alone(wrapped: Wrapped) -> None:
    assert "PULUMI_CONFIG_PASSPHRASE" not in wrapped.seen("whoami", PULUMI_CONFIG_PASSPHRASE_FILE="/a/file")
    assert wrapped.seen("whoami", PULUMI_CONFIG_PASSPHRASE="mine")["PULUMI_CONFIG_PASSPHRASE"] == "mine"


def test_a_shell_s_docker_settings_do_not_reach_the_fleet(wrapped: Wrapped) -> None:
    seen = wrapped.seen("whoami", DOCKER_HOST="tcp://x", DOCKER_CONTEXT="y", DOCKER_SSH_OPTS="z")
    assert not {"DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_SSH_OPTS"} & set(seen)


def test_a_dead_agent_is_not_used_and_a_living_one_is(wrapped: Wrapped, tmp_path: Path) -> None:
    path = str(tmp_path / "agent")
    with socket.socket(socket.AF_UNIX) as agent:
        agent.bind(path)
        agent.listen()
        assert wrapped.seen("whoami", SSH_AUTH_SOCK=path)["SSH_AUTH_SOCK"] == path
    assert "SSH_AUTH_SOCK" not in wrapped.seen("whoami", SSH_AUTH_SOCK=path)
    assert f"no SSH agent answers at SSH_AUTH_SOCK={path}" in wrapped.run(wrapped.wrapper, "whoami").stderr


def test_operations_are_marked_as_a_run(wrapped: Wrapped) -> None:
    assert "SPARK_FABRIC_RUN" not in wrapped.seen("whoami")
    run = wrapped.seen("preview", "-s", "other")["SPARK_FABRIC_RUN"]
    assert [path.stem for path in (wrapped.folder / ".pulumi-state/runs").iterdir()] == [run]
    again = wrapped.seen("preview", "-s", "other")["SPARK_FABRIC_RUN"]
    assert [path.stem for path in (wrapped.folder / ".pulumi-state/runs").iterdir()] == [again], "the ended one is gone"


def test_a_missing_stack_is_made_only_when_it_has_a_file(wrapped: Wrapped) -> None:
    wrapped.seen("preview", "-s", "typo")
    wrapped.seen("destroy", "-s", "lab")
    wrapped.seen("preview", "-s", "lab", "--help")
    assert wrapped.machine.called("pulumi stack init") == 0
    wrapped.seen("preview", "-s", "lab")
    assert wrapped.machine.called("pulumi stack init lab --no-select") == 1


def test_from_elsewhere_the_checkout_is_meant(wrapped: Wrapped, tmp_path: Path, checkout: Path) -> None:
    wrapped.machine.pulumi(script="pwd")
    for name in ("Pulumi.yaml", "Pulumi.lab.yaml"):
        (wrapped.folder / name).unlink()
    wrapped.environment["PULUMI_BACKEND_URL"] = f"file://{tmp_path}"
    assert wrapped.run(wrapped.wrapper, "version").stdout.strip() == "v9.9.9"
    assert wrapped.run(wrapped.wrapper, "whoami").stdout.strip() == str(checkout)


@pytest.mark.parametrize("code", [0, 1, 255])
def test_the_exit_code_is_pulumi_s(wrapped: Wrapped, code: int) -> None:
    wrapped.machine.pulumi(script=f"exit {code}")
    wrapped.run(wrapped.wrapper, "stack", "ls", code=code)


def test_signals_go_to_pulumi_itself(wrapped: Wrapped) -> None:
    wrapped.machine.pulumi(script=f"echo $$ > {wrapped.folder}/pid; exec sleep 300")
    process = wrapped.start(wrapped.wrapper, "stack", "ls")
    try:
        wait_for(lambda: (wrapped.folder / "pid").exists() and (wrapped.folder / "pid").read_text(), "the stand-in")
        assert int((wrapped.folder / "pid").read_text()) == process.pid
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGTERM
    finally:
        kill_group(process)


def test_without_a_way_to_pulumi_the_reason_is_printed(wrapped: Wrapped) -> None:
    (wrapped.machine.bin / "pulumi").unlink()
    done = wrapped.run(wrapped.wrapper, "version", code=1)
    assert done.stderr.startswith("pulumiw: There is no `go` on PATH")
    assert "Traceback" not in done.stderr


def test_it_costs_less_than_150_ms(wrapped: Wrapped) -> None:
    wrapped.machine.pulumi(script="exit 0")
    costs = []
    for _ in range(5):
        process = wrapped.start(wrapped.wrapper, "preview", "-s", "lab")
        # Processor time and not the clock's: other tests may keep the machine busy.
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        process.communicate()
        assert process.returncode == 0
        costs.append(used.ru_utime + used.ru_stime)
    assert min(costs) < 0.15, costs
