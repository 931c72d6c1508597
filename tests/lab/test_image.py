"""The engine's image: the same bytes from the same input, and ids that differ where they should."""

from __future__ import annotations

import json
import sys
import tarfile
from pathlib import Path

import pytest

from lab import debian, image, loading


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return debian.ensure_root(tmp_path_factory.mktemp("log"))


def test_two_builds_are_byte_identical(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)  # as for most people
    one, other = (image.build(root, tmp_path / name) for name in ("one", "other"))
    assert one.archive.read_bytes() == other.archive.read_bytes()
    assert one.images == other.images == loading.images_in(one.archive)
    assert len({*one.images.values()}) == len(image.FLAVOURS)
    began = one.archive.stat().st_mtime_ns
    assert image.build(root, tmp_path / "one").archive.stat().st_mtime_ns == began


def test_the_library_alone_makes_the_flavours_differ(root: Path, tmp_path: Path) -> None:
    built = image.build(root, tmp_path / "flavours")
    with tarfile.open(built.archive) as archive:
        manifest = json.load(archive.extractfile("manifest.json") or sys.exit("no manifest"))
        layers = {entry["RepoTags"][0]: entry["Layers"] for entry in manifest}
        kinds = {}
        for tag, paths in layers.items():
            with tarfile.open(fileobj=archive.extractfile(paths[-1])) as layer:
                kinds[tag] = [file.name for file in layer if file.isfile()]
    assert len({tuple(paths[:-1]) for paths in layers.values()}) == 1
    assert kinds == {
        "spark-engine:sim": [image.LIBRARY], "spark-engine:stock": [image.LIBRARY], "spark-engine:bare": [],
    }  # fmt: skip


def test_variants_differ_in_their_configuration_only() -> None:
    one, two = (image.configuration([b""], "arm64", variant) for variant in (1, 2))
    assert one != two
    one["config"].pop("Labels")
    two["config"].pop("Labels")
    assert one == two


def test_layers_do_not_depend_on_the_order_of_files() -> None:
    assert image.pack({"a/b": b"1", "a": None}) == image.pack({"a": None, "a/b": b"1"})
