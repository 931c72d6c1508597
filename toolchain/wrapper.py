"""``./pulumiw``: run Pulumi with everything it needs, after clearing what a killed run left.

The process becomes ``pulumi`` at the end, so signals, exit codes and the terminal are Pulumi's own.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from toolchain import arguments, environment, provide, runs, state
from toolchain.errors import ToolchainError, note

# Verbs that start plugins: before them leftovers are cleared, and they leave a record of their run.
_OPERATIONS = frozenset({"up", "preview", "destroy", "refresh", "import"})
# Verbs for which a stack that has a file but no state is made.
_BEGINNING = frozenset({"up", "preview"})


def main(words: Sequence[str]) -> int:
    """Run one Pulumi command; returns an exit code only when Pulumi could not be started."""
    try:
        _run(words)
    except ToolchainError as error:
        print(f"pulumiw: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _run(words: Sequence[str]) -> NoReturn:
    checkout = Path(__file__).resolve().parent.parent
    line = arguments.parse(words, Path.cwd())
    file = arguments.project_file(line.folder)
    if not file:
        # From elsewhere the wrapper means the checkout that it lies in.
        os.chdir(checkout)
        file = arguments.project_file(checkout)
    project = file.parent if file else checkout
    toolchain = provide.provide()
    variables = environment.make(toolchain, project, line.verb, os.environ)
    if file and line.verb in _OPERATIONS and not line.help:
        records = project / environment.STATE_FOLDER / "runs"
        runs.end_dead(records)
        stack = _stack(line, file, variables)
        if stack:
            _prepare(stack, line, project, toolchain.cli, variables)
        variables |= runs.begin(records)
    os.execve(toolchain.cli, [str(toolchain.cli), *words], variables)  # noqa: S606  # no shell is wanted


def _stack(line: arguments.Line, file: Path, variables: Mapping[str, str]) -> state.Stack | None:
    """The stack that a command is about, if its state lies in a file backend."""
    backend, project = environment.backend_folder(variables), arguments.project_name(file)
    if not backend or not project:
        return None
    home = Path(variables.get("PULUMI_HOME") or provide.user_home())
    name = line.stack or arguments.selected_stack(home, project, file, variables)
    return state.Stack(backend, project, arguments.short_name(name)) if name else None


def _prepare(stack: state.Stack, line: arguments.Line, project: Path, cli: Path, variables: Mapping[str, str]) -> None:
    """Clear what a killed run left in state, or make the stack."""
    if stack.exists():
        if state.clear_dead_locks(stack):
            state.clear_pending(stack, cli, project, variables)
    elif line.verb in _BEGINNING and (project / f"Pulumi.{stack.name}.yaml").exists():
        made = subprocess.run(
            [cli, "stack", "init", stack.name, "--no-select", "--non-interactive"],
            cwd=project,
            env=dict(variables),
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            raise ToolchainError(f"stack {stack.name} could not be made: {made.stderr.strip()}")
        note(f"made the stack {stack.name} (state in {stack.backend.parent})")
