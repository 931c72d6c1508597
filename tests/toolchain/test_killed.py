"""What a killed Pulumi leaves, and how the wrapper clears it, with the real CLI and plugins."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.toolchain.project import Project, alive, kill_group, wait_for
from toolchain import processes, state

ALONE = "echo $$ > pid; exec sleep 300"
# When its engine is gone the plugin kills the shell, but not what the shell has started.
WITH_CHILD = "sleep 300 & echo $! > pid; wait"


class Wrapped(Project):
    """A project run with the wrapper of this checkout, its state in the project."""

    def __init__(self, folder: Path, environment: dict[str, str], checkout: Path) -> None:
        super().__init__(folder, environment)
        self.wrapper = checkout / "pulumiw"
        self.backend = folder / ".pulumi-state"
        self.locks = self.backend / ".pulumi/locks/organization/trial/lab"

    def locked_by(self) -> list[int]:
        """The processes that hold the stack."""
        return [json.loads(path.read_text())["pid"] for path in self.locks.glob("*.json")]

    def pending(self) -> list[str]:
        """Names of the resources that a run has begun to change, by the state."""
        operations = self.state(self.backend).get("pending_operations") or []
        return [each["resource"]["urn"].rsplit("::", 1)[1] for each in operations]

    def start_slow_up(self, slow: str) -> tuple[subprocess.Popen[str], int]:
        """Start an up that has made one command and sits in another; returns it and that command's process."""
        # One after the other: else "done" may not be in the state yet when the other has begun.
        self.declare({"done": {"create": "echo done"}, "begun": {"create": slow, "opts": {"depends_on": ["done"]}}})
        pid = self.folder / "pid"
        pid.unlink(missing_ok=True)
        process = self.start(self.wrapper, "up", "--yes", "--skip-preview", "-s", "lab")
        wait_for(lambda: pid.exists() and pid.read_text().strip(), "the command of the up")
        wait_for(lambda: self.pending() == ["begun"], "the pending operation in state")
        return process, int(pid.read_text())


@pytest.fixture
def wrapped(tmp_path: Path, toolchain: dict[str, str], checkout: Path) -> Iterator[Wrapped]:
    """A project whose slow command, and all else that a test has started, is ended afterwards."""
    project = Wrapped(tmp_path / "p", toolchain, checkout)
    yield project
    pid = project.folder / "pid"
    if pid.exists() and alive(int(pid.read_text())):
        os.kill(int(pid.read_text()), signal.SIGKILL)


def children(mark: str) -> list[int]:
    """Processes that were started with this in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes() and alive(int(path.parent.name)):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def test_after_a_sigkill_the_next_command_clears_all_that_is_left(wrapped: Wrapped) -> None:
    process, command = wrapped.start_slow_up(WITH_CHILD)
    run = next((wrapped.backend / "runs").iterdir()).stem
    bystander = subprocess.Popen(["sleep", "300"], env={"SPARK_FABRIC_RUN": f"{run}0"})
    try:
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)
        # The damage: a lock, a plugin with its command, an operation that will never end.
        assert wrapped.locked_by() == [process.pid]
        assert alive(command)
        assert "pulumi-resource-command" in [processes.executable(pid) for pid in children(f"SPARK_FABRIC_RUN={run}\0")]
        assert wrapped.pending() == ["begun"]

        wrapped.declare({"done": {"create": "echo done"}})
        said = wrapped.run(wrapped.wrapper, "preview", "-s", "lab", "--expect-no-changes").stderr

        assert "ended what an earlier, killed run had left" in said
        assert "pulumi-resource-command" in said
        assert f"cleared a dead lock of stack lab: root@{os.uname().nodename} (pid {process.pid})" in said
        assert "cleared what a killed run had begun in stack lab and never ended: creating begun" in said
        assert wrapped.locked_by() == []
        assert not alive(command)
        assert children(f"SPARK_FABRIC_RUN={run}\0") == []
        assert wrapped.pending() == []
        assert [each["urn"].rsplit("::", 1)[1] for each in wrapped.state(wrapped.backend)["resources"]][-1] == "done"
        assert bystander.poll() is None, "only what the dead run had started is ended"
    finally:
        bystander.kill()
        bystander.wait()
        kill_group(process)
    assert wrapped.run(wrapped.wrapper, "preview", "-s", "lab", "--expect-no-changes").stderr == ""


def test_a_living_run_keeps_its_lock_its_plugins_and_its_operations_and_hears_ctrl_c(wrapped: Wrapped) -> None:
    process, command = wrapped.start_slow_up(ALONE)
    try:
        said = wrapped.run(wrapped.wrapper, "preview", "-s", "lab").stderr
        assert said == ""
        refused = wrapped.run(wrapped.wrapper, "up", "--yes", "--skip-preview", "-s", "lab", code=None)
        assert refused.returncode != 0
        assert f"(pid {process.pid})" in refused.stdout + refused.stderr
        assert wrapped.locked_by() == [process.pid]
        assert alive(command)
        assert wrapped.pending() == ["begun"]

        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode > 0, "pulumi ended by itself"
        assert not alive(command)
        assert wrapped.locked_by() == []
    finally:
        kill_group(process)


def lock(stack: state.Stack, pid: int, host: str) -> Path:
    """A lock as the CLI writes it."""
    stack.locks.mkdir(parents=True, exist_ok=True)
    path = stack.locks / "0a1b.json"
    entry = {"pid": pid, "username": "me", "hostname": host, "timestamp": "2026-01-01T00:00:00Z"}
    path.write_text(json.dumps(entry))
    path.with_name("0a1b.json.attrs").write_text("{}")
    return path


@pytest.fixture
def trial(tmp_path: Path) -> state.Stack:
    """A stack in a backend that only has locks."""
    return state.Stack(tmp_path / ".pulumi", "trial", "lab")


def test_the_lock_of_another_machine_is_left(trial: state.Stack) -> None:
    path = lock(trial, 1, "another-machine")
    assert not state.clear_dead_locks(trial)
    assert path.exists()


def test_a_lock_whose_number_another_program_has_now_is_dead(trial: state.Stack) -> None:
    path = lock(trial, os.getpid(), os.uname().nodename)
    assert state.clear_dead_locks(trial)
    assert list(path.parent.iterdir()) == []


def test_a_lock_that_a_pulumi_may_hold_is_left(trial: state.Stack, tmp_path: Path) -> None:
    pulumi = tmp_path / "pulumi"
    shutil.copyfile("/bin/sleep", pulumi)
    pulumi.chmod(0o755)
    holder = subprocess.Popen([pulumi, "60"])
    try:
        wait_for(lambda: processes.executable(holder.pid) == "pulumi", "the program in place of its starter")
        path = lock(trial, holder.pid, os.uname().nodename)
        assert not state.clear_dead_locks(trial)
        assert path.exists()
    finally:
        holder.kill()
        holder.wait()


def test_a_lock_that_cannot_be_read_is_left(trial: state.Stack) -> None:
    lock(trial, 1, "x").write_text("{")
    assert not state.clear_dead_locks(trial)
