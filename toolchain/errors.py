"""The one exception of this package, and its one way to speak."""

import sys
import time

_START = time.monotonic()


class ToolchainError(Exception):
    """What was seen and what to do, for a person; the message is printed without a traceback."""


def say(text: str) -> None:
    """Print one progress line with the seconds since the start, on stderr so that stdout stays Pulumi's."""
    print(f"[{time.monotonic() - _START:4.0f} s] {text}", file=sys.stderr, flush=True)


def note(text: str) -> None:
    """Print one line about something the wrapper did."""
    print(f"pulumiw: {text}", file=sys.stderr, flush=True)
