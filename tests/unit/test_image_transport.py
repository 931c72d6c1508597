"""Bringing the engine's image to a node: only where it lacks, from one archive, and checked afterwards."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from fleet import image, on_node
from fleet.image import ImageError, archive_id, ensure
from tests.unit import fakes
from tests.unit.fakes import FakeSsh, link

ID = "sha256:" + "1" * 64
REF = "engine:1"
# A docker of one image: `load` takes what comes and has the image from then on.
DOCKER = """
case "$remote" in
*"image inspect"*) test -e {there} && cat {there} && exit 0; echo "Error: No such image: engine:1" >&2; exit 1 ;;
*"docker load"*) cat >{there}.archive; {load} ;;
esac
"""


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSsh:
    """The stand-in for ssh."""
    return fakes.install(tmp_path, monkeypatch)


def archive(folder: Path, manifest: Any) -> Path:
    path = folder / "engine.tar"
    with tarfile.open(path, "w") as tar:
        content = json.dumps(manifest).encode()
        entry = tarfile.TarInfo("manifest.json")
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    return path


def docker(ssh: FakeSsh, there: Path, load: str = "true") -> None:
    ssh.does("spark1", DOCKER.format(there=there, load=load))


def wanted(path: Path | None = None) -> dict[str, Any]:
    return {"ref": REF, "id": ID, "archive": str(path) if path else None}


@pytest.mark.parametrize("config", ["1" * 64 + ".json", "blobs/sha256/" + "1" * 64])
def test_the_id_is_known_from_the_archive(config: str, tmp_path: Path) -> None:
    assert archive_id(archive(tmp_path, [{"Config": config, "RepoTags": [REF]}]), REF) == ID


def test_an_archive_without_the_tag_names_those_that_it_holds(tmp_path: Path) -> None:
    path = archive(tmp_path, [{"Config": "x.json", "RepoTags": ["other:1", "another:2"]}, {"Config": "y.json"}])
    with pytest.raises(ImageError, match="holds another:2, other:1, not engine:1"):
        archive_id(path, REF)


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no tar")
    for path in (tmp_path / "text", tmp_path / "nothing"):
        with pytest.raises(ImageError, match="not an archive of `docker save`"):
            archive_id(path, REF)


def test_an_image_that_is_there_is_not_sent(ssh: FakeSsh, tmp_path: Path) -> None:
    (tmp_path / "there").write_text(ID)
    docker(ssh, tmp_path / "there")
    assert ensure("test", link(1), wanted(tmp_path / "no-such.tar")) == "spark1: engine:1 is there"
    assert len(ssh.calls()) == 1


@pytest.mark.parametrize("before", [None, "sha256:" + "2" * 64])
def test_a_missing_or_another_image_is_loaded(before: str | None, ssh: FakeSsh, tmp_path: Path) -> None:
    there = tmp_path / "there"
    if before:
        there.write_text(before)
    docker(ssh, there, load=f"echo {ID} >{there}")
    path = archive(tmp_path, [])
    assert ensure("test", link(1), wanted(path)) == "spark1: engine:1 loaded"
    assert (tmp_path / "there.archive").read_bytes() == path.read_bytes()


def test_an_archive_that_does_not_bring_the_image_is_told(ssh: FakeSsh, tmp_path: Path) -> None:
    docker(ssh, tmp_path / "there")
    with pytest.raises(ImageError, match="spark1: after docker load engine:1 has id None"):
        ensure("test", link(1), wanted(archive(tmp_path, [])))


def test_a_load_that_fails_is_told_in_dockers_words(ssh: FakeSsh, tmp_path: Path) -> None:
    docker(ssh, tmp_path / "there", load="echo no space left; exit 1")
    with pytest.raises(ImageError, match="spark1: docker load failed: no space left"):
        ensure("test", link(1), wanted(archive(tmp_path, [])))


def test_without_an_archive_it_is_said_what_to_do(ssh: FakeSsh, tmp_path: Path) -> None:
    docker(ssh, tmp_path / "there")
    with pytest.raises(ImageError, match=r"set engine\.image\.archive"):
        ensure("test", link(1), wanted())


def test_a_docker_that_fails_is_not_taken_for_a_missing_image(ssh: FakeSsh) -> None:
    ssh.does("spark1", "echo Cannot connect to the Docker daemon >&2; exit 1")
    with pytest.raises(ImageError, match="spark1: Cannot connect"):
        ensure("test", link(1), wanted())


def test_a_docker_that_does_not_answer_is_told(ssh: FakeSsh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "ASK_LIMIT_S", 0.3)
    ssh.does("spark1", "exec sleep 20")
    with pytest.raises(ImageError, match=r"spark1: docker has not answered within 0\.3 s"):
        ensure("test", link(1), wanted())


def test_every_node_is_tried_and_each_failure_told(
    ssh: FakeSsh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "there").write_text(ID)
    docker(ssh, tmp_path / "there")
    for name in ("spark2", "spark3"):
        ssh.does(name, "echo Error: No such image >&2; exit 1")
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps({f"spark{number}": wanted() for number in (1, 2, 3)})))
    monkeypatch.setenv("FLEET_LINKS", on_node.as_json([link(1), link(2), link(3)]))
    monkeypatch.setenv("FLEET_OWNER", '{"stack": "test"}')
    assert image.main() == 1
    out, err = capsys.readouterr()
    assert out == "spark1: engine:1 is there\n"
    assert sorted(line.split(":")[0] for line in err.splitlines()) == ["spark2", "spark3"]
