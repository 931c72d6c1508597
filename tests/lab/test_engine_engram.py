"""The simulated packing of the engram: names, what is there already, and a checkpoint that is not whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import checkpoint, image
from lab.engine.engram import main


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A checkpoint, and where it is told to be."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name, content in checkpoint.files().items():
        (folder / name).write_bytes(content)
    return {"DSV41_SOURCE": str(folder)}


def test_both_layers_of_a_rank_are_packed_and_say_that_they_are_simulated(env: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "engram"
    out.mkdir()
    words = ["--rank", "2", "--tp", "4", "--out", str(out)]
    assert main(words, env) == 0
    files = sorted(out.iterdir())
    assert [file.name for file in files] == ["engram-l1-r2of4.bin", "engram-l14-r2of4.bin"]
    assert all('"simulated": true' in file.read_text() for file in files)
    times = [file.stat().st_mtime_ns for file in files]
    assert main(words, env) == 0
    assert [file.stat().st_mtime_ns for file in files] == times


def test_a_checkpoint_that_is_not_whole_and_other_words_fail(
    env: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (Path(env["DSV41_SOURCE"]) / checkpoint.NAMES[0]).unlink()
    assert main(["--rank", "0", "--tp", "4", "--out", str(tmp_path)], env) == 1
    assert "shards missing: [1]" in capsys.readouterr().err
    assert main(["--rank", "0"], env) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_it_has_the_real_programs_place_in_the_image() -> None:
    compile(image.PACKING, "pack_engram.py", "exec")
    assert image.PACKER == "opt/dsv41/scripts/pack_engram.py"
