"""Loading: the checkpoint must be there and readable; nothing of it is kept."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

SHARD = re.compile(r"model-(\d+)-of-(\d+)\.safetensors")
PROBE = 4096


class WeightsError(Exception):
    """The checkpoint is incomplete or cannot be read."""


def check_config(directory: Path) -> None:
    """What SKIP_PREPARE=1 leaves to check before anything starts."""
    config = directory / "config.json"
    try:
        json.loads(config.read_text())
    except OSError as error:
        raise WeightsError(f"{config}: {error.strerror}") from None
    except ValueError as error:
        raise WeightsError(f"{config}: {error}") from None


def shards(directory: Path) -> list[Path]:
    """All shards, of which none may be missing."""
    found = sorted(directory.glob("model-*-of-*.safetensors"))
    matches = [match for file in found if (match := SHARD.fullmatch(file.name))]
    if not matches:
        raise WeightsError(f"{directory}: no model-*-of-*.safetensors")
    totals = {int(match[2]) for match in matches}
    numbers = {int(match[1]) for match in matches}
    if len(totals) != 1:
        raise WeightsError(f"{directory}: shards of different sets: {sorted(totals)}")
    missing = set(range(1, totals.pop() + 1)) - numbers
    if missing:
        raise WeightsError(f"{directory}: shards missing: {sorted(missing)}")
    return found


def load(directory: Path, seconds: float, say: Callable[[str], None]) -> int:
    """Read the ends of every shard, in about the given time."""
    files = shards(directory)
    began, told, total = time.monotonic(), -1, 0
    for number, file in enumerate(files, 1):
        try:
            size = file.stat().st_size
            with file.open("rb") as stream:
                stream.read(PROBE)
                stream.seek(max(0, size - PROBE))
                stream.read(PROBE)
        except OSError as error:
            raise WeightsError(f"{file}: {error.strerror}") from None
        if not size:
            raise WeightsError(f"{file}: SafetensorError: Error while deserializing header: empty")
        total += size
        time.sleep(max(0.0, began + seconds * number / len(files) - time.monotonic()))
        percent = number * 100 // len(files)
        if percent // 10 > told // 10:
            told = percent
            say(f"Loading safetensors checkpoint shards: {percent:3d}% Completed | {number}/{len(files)}")
    return total
