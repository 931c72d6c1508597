"""What one module's tests leave on the nodes is not the next module's trouble."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import api
from lab.shell import LabError

from .conftest import Labs


class Nodes:
    """A lab that boots no machines."""

    def __init__(self) -> None:
        self.left: str | LabError = ""
        self.stopped = False

    def load_image(self) -> None:
        pass

    def stop(self) -> None:
        self.stopped = True

    def everywhere(self, command: str) -> dict[str, str]:
        assert "/var/lib/spark-fabric" in command
        if isinstance(self.left, LabError):
            raise self.left
        return {"spark1": "", "spark2": self.left}


@pytest.mark.parametrize("left", ["", "/var/lib/spark-fabric\n", LabError("spark2: no answer")])
def test_a_lab_is_lent_again_unless_something_was_left_on_it(
    left: str | LabError, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Nodes] = []

    def start(name: str, folder: Path, **wanted: object) -> Nodes:
        assert not list(folder.iterdir())
        started.append(Nodes())
        return started[-1]

    monkeypatch.delenv("LADDER_RING_LAB", raising=False)
    monkeypatch.setattr(api, "start", start)
    labs = Labs(tmp_path_factory)
    for _ in range(2):
        for lab in labs.lend("ring"):
            assert not lab.stopped  # type: ignore[attr-defined]
            started[0].left = left
    assert len(started) == (2 if left else 1)
    assert started[0].stopped == bool(left)
    labs.close()
    assert all(lab.stopped for lab in started)
