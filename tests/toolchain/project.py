"""A small Pulumi project in a temporary folder, whose commands are in a JSON file."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

# Declares one local.Command for each entry of commands.json: its arguments, and under "opts" its resource options.
PROGRAM = """
import json
import pathlib

import pulumi
from pulumi_command import local

made = {}
for name, entry in json.loads(pathlib.Path("commands.json").read_text()).items():
    opts = dict(entry.pop("opts", {}))
    opts["depends_on"] = [made[other] for other in opts.pop("depends_on", [])]
    timeouts = opts.pop("custom_timeouts", None)
    if timeouts:
        opts["custom_timeouts"] = pulumi.CustomTimeouts(**timeouts)
    made[name] = local.Command(name, **entry, opts=pulumi.ResourceOptions(**opts))
    pulumi.export(name, {"stdout": made[name].stdout, "stderr": made[name].stderr})
"""

Commands = Mapping[str, Mapping[str, Any]]


class Project:
    """A project named ``trial`` with one stack ``lab``."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.environment = dict(environment)
        folder.mkdir(parents=True, exist_ok=True)
        options = f"  options:\n    virtualenv: {sys.prefix}\n"
        (folder / "Pulumi.yaml").write_text(f"name: trial\nruntime:\n  name: python\n{options}")
        (folder / "Pulumi.lab.yaml").write_text("config: {}\n")
        (folder / "__main__.py").write_text(PROGRAM)
        self.declare({})

    def declare(self, commands: Commands) -> None:
        """Write what the program declares from now on."""
        (self.folder / "commands.json").write_text(json.dumps(commands))

    def start(self, *command: str | Path) -> subprocess.Popen[str]:
        """Start a command in the project as the leader of a process group, as a shell does."""
        return subprocess.Popen(
            [str(word) for word in command],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )

    def run(self, *command: str | Path, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run a command to its end and check its exit code (None: any)."""
        process = self.start(*command)
        out, err = process.communicate(timeout=60)
        assert code is None or process.returncode == code, f"exit code {process.returncode}\n{out}\n{err}"
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def state(self, backend: Path) -> dict[str, Any]:
        """The latest deployment of the stack, as a file backend holds it."""
        file = backend / ".pulumi/stacks/trial/lab.json"
        latest: dict[str, Any] = json.loads(file.read_text())["checkpoint"]["latest"]
        return latest


def wait_for(condition: Callable[[], object], what: str, seconds: float = 60) -> None:
    """Wait until a condition holds; fails with what was waited for."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not seen in {seconds} s: {what}"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def kill_group(process: subprocess.Popen[str]) -> None:
    """End a started command for good, whatever has become of it."""
    if process.poll() is None:
        os.killpg(process.pid, 9)
    process.communicate(timeout=60)
