"""Fixtures of the toolchain's tests."""

import os
from pathlib import Path

import pytest

from tests.toolchain.fakes import Machine


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A bare machine."""
    result = Machine(tmp_path, monkeypatch)
    # What the language host's module brings along.
    executor = tmp_path / "python/cmd/pulumi-language-python-exec"
    executor.parent.mkdir(parents=True)
    executor.write_text("executor")
    assert os.environ["PATH"].startswith(str(result.bin))
    return result
