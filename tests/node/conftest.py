"""A machine for every test."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from node import guard
from tests.node.machine import Machine


@pytest.fixture
def machine() -> Machine:
    """A machine as delivered."""
    return Machine()


@pytest.fixture
def no_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """No second process; the guard has tests of its own."""

    def armed(*_: Any) -> AbstractContextManager[None]:
        return nullcontext()

    monkeypatch.setattr(guard, "armed", armed)
