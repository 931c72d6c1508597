"""The kernel's refusals, as tc passes them on."""

from __future__ import annotations

from .state import State
from .system import ToolError


def refuses(text: str) -> ToolError:
    """An answer of the kernel to a command about qdiscs."""
    return ToolError(text, 2)


def refuses_filter(text: str) -> ToolError:
    """An answer of the kernel to a command about filters: tc adds a line of its own."""
    return refuses(f"{text}\nWe have an error talking to the kernel")


def said(state: State, recorded: str, kernel: str) -> str:
    """One of the two texts that are known for the same refusal."""
    return recorded if state.dialect.errors == "recorded" else kernel
