"""The digest of a desired state."""

import hashlib
import json
from typing import Any


def canonical(value: Any) -> str:
    """`value` as compact JSON with sorted keys: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def digest(desired: dict[str, Any]) -> str:
    """The sha256 of a desired state as 64 hex digits.

    The rendered "text" is left out: a changed comment in it, or a newer program, is no change of what is wanted.
    """
    meaning = {key: value for key, value in desired.items() if key != "text"}
    return hashlib.sha256(canonical(meaning).encode()).hexdigest()


def sha256(data: bytes) -> str:
    """The sha256 of `data` as 64 hex digits."""
    return hashlib.sha256(data).hexdigest()
