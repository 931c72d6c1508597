"""Bringing the engine's image to a node: only where it lacks, from one place, and checked afterwards."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from fleet import bringing, docker_on_node, image, on_node
from fleet.archive import Archived, archived
from fleet.docker_on_node import ImageError
from fleet.image import ensure
from tests.unit import fakes
from tests.unit.fakes import FakeSsh, link

ID = "sha256:" + "1" * 64
REF = "engine:1"
# A docker of one image: `load` takes what comes and has the image from then on.
DOCKER = """
case "$remote" in
*"docker version"*) echo arm64 ;;
*"docker pull"*) {pull} ;;
*"docker save"*) {save} ;;
*.Size*) echo 1000 ;;
*"image inspect"*) test -e {there} && cat {there} && exit 0; echo "Error: No such image: engine:1" >&2; exit 1 ;;
*"docker load"*) cat >{there}.archive; {load} ;;
esac
"""


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSsh:
    """The stand-in for ssh."""
    return fakes.install(tmp_path, monkeypatch)


def archive(folder: Path, manifest: Any, **more: Any) -> Path:
    path = folder / "engine.tar"
    with tarfile.open(path, "w") as tar:
        for name, value in {"manifest.json": manifest, **more}.items():
            content = json.dumps(value).encode()
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


def docker(ssh: FakeSsh, there: Path, node: str = "spark1", **does: str) -> None:
    ssh.does(node, DOCKER.format(there=there, **{"load": "true", "pull": "true", "save": "true", **does}))


def wanted(path: Path | None = None) -> dict[str, Any]:
    return {"ref": REF, "id": ID, "archive": str(path) if path else None}


@pytest.mark.parametrize("config", ["1" * 64 + ".json", "blobs/sha256/" + "1" * 64])
def test_the_id_is_known_from_the_archive(config: str, tmp_path: Path) -> None:
    manifest = [{"Config": config, "RepoTags": [REF]}]
    assert archived(archive(tmp_path, manifest), REF) == Archived(ID, "")
    path = archive(tmp_path, manifest, **{config: {"architecture": "arm64"}})
    assert archived(path, REF) == Archived(ID, "arm64")


def test_an_archive_without_the_tag_names_those_that_it_holds(tmp_path: Path) -> None:
    path = archive(tmp_path, [{"Config": "x.json", "RepoTags": ["other:1", "another:2"]}, {"Config": "y.json"}])
    with pytest.raises(ImageError, match="holds another:2, other:1, not engine:1"):
        archived(path, REF)


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no tar")
    for path in (tmp_path / "text", tmp_path / "nothing"):
        with pytest.raises(ImageError, match="not an archive of `docker save`"):
            archived(path, REF)


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


def test_an_image_that_got_another_id_asks_how_the_dockers_keep_images(ssh: FakeSsh, tmp_path: Path) -> None:
    with pytest.raises(
        ImageError, match=r"engine:1 has id sha256:222.*not sha256:111.*\(docker info: Storage Driver\)"
    ):
        copy(ssh, tmp_path, load=f"echo sha256:{'2' * 64} arm64 >{tmp_path}/two")


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
    monkeypatch.setattr(docker_on_node, "ASK_LIMIT_S", 0.3)
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


def test_an_image_for_another_machine_is_refused_when_it_has_come(ssh: FakeSsh, tmp_path: Path) -> None:
    there = tmp_path / "there"
    docker(ssh, there, load=f"echo {ID} amd64 >{there}")
    with pytest.raises(ImageError, match="spark1: engine:1 is for amd64, and the node is arm64"):
        ensure("test", link(1), wanted(archive(tmp_path, [])))


COPIED = {"ref": REF, "from": "spark1"}


def copy(ssh: FakeSsh, folder: Path, **does: str) -> str:
    """Have spark2 copy the image from spark1, which has it."""
    (folder / "one").write_text(f"{ID} arm64")
    docker(ssh, folder / "one", save=does.get("save", "echo whole"))
    docker(ssh, folder / "two", "spark2", load=does.get("load", f"echo {ID} arm64 >{folder}/two"))
    return ensure("test", link(2), COPIED, link(1))


def test_an_image_is_copied_from_the_node_that_built_it(ssh: FakeSsh, tmp_path: Path) -> None:
    assert copy(ssh, tmp_path) == f"spark2: engine:1 copied, {ID}"
    assert (tmp_path / "two.archive").read_text() == "whole\n"
    (tmp_path / "two.archive").unlink()
    assert ensure("test", link(2), COPIED, link(1)) == f"spark2: engine:1 is there, {ID}"
    assert ensure("test", link(1), COPIED, link(1)) == f"spark1: engine:1 is there, {ID}"
    assert not (tmp_path / "two.archive").exists()


def test_another_image_of_that_name_is_replaced_by_that_of_the_builder(ssh: FakeSsh, tmp_path: Path) -> None:
    (tmp_path / "two").write_text("sha256:" + "2" * 64)
    assert copy(ssh, tmp_path) == f"spark2: engine:1 copied, {ID}"


def test_a_copy_that_ends_early_never_ends_in_order(ssh: FakeSsh, tmp_path: Path) -> None:
    """The node's docker is cut off, so that it cannot take a part for the whole."""
    load = f"echo in order >{tmp_path}/ended; echo {ID} >{tmp_path}/two"
    with pytest.raises(ImageError, match="spark2: docker save on spark1 failed: disk error"):
        copy(ssh, tmp_path, save="echo part; echo disk error >&2; exit 1", load=load)
    assert not (tmp_path / "ended").exists()


def test_a_copy_that_the_node_does_not_take_is_told_in_dockers_words(ssh: FakeSsh, tmp_path: Path) -> None:
    many = "head -c 3000000 /dev/zero"
    with pytest.raises(ImageError, match="spark2: docker load failed: no space left"):
        copy(ssh, tmp_path, save=many, load="echo no space left; exit 1")


def test_a_copy_needs_its_source(ssh: FakeSsh, tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"spark1 has the image, and was forgotten. Set engine\.image\.build\.node"):
        ensure("test", link(2), COPIED, None)
    docker(ssh, tmp_path / "one")
    with pytest.raises(ImageError, match="spark1: engine:1 is not there any more"):
        ensure("test", link(2), COPIED, link(1))


def test_a_copy_tells_its_progress_and_is_cut_off_at_its_limit(
    ssh: FakeSsh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bringing, "TELL_EVERY_S", 0.1)
    monkeypatch.setattr(bringing, "LIMIT_S", 0.5)
    with pytest.raises(ImageError, match="spark2: 50 % of engine:1 sent from spark1: not done after"):
        copy(ssh, tmp_path, save="head -c 500 /dev/zero; exec sleep 20")
    assert "spark2: 50 % of engine:1 sent from spark1, 0 s" in capsys.readouterr().out


def test_a_copy_that_stands_still_is_ended_and_a_slow_one_is_not(
    ssh: FakeSsh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bringing, "TELL_EVERY_S", 0.1)
    monkeypatch.setattr(bringing, "STANDSTILL_S", 1)
    slow = "for piece in 1 2 3 4 5; do echo $piece; sleep 0.4; done"
    assert copy(ssh, tmp_path, save=slow) == f"spark2: engine:1 copied, {ID}"
    (tmp_path / "two").unlink()
    with pytest.raises(ImageError, match="spark2: 50 % of engine:1 sent from spark1: nothing has moved for 1 s, and"):
        copy(ssh, tmp_path, save="head -c 500 /dev/zero; exec sleep 20")


def test_an_archive_that_stands_still_is_ended(ssh: FakeSsh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bringing, "TELL_EVERY_S", 0.1)
    monkeypatch.setattr(bringing, "STANDSTILL_S", 0.3)
    docker(ssh, tmp_path / "there", load="exec sleep 20")
    with pytest.raises(ImageError, match=r"100 % of engine\.tar sent: nothing has moved"):
        ensure("test", link(1), wanted(archive(tmp_path, [])))


def test_a_pull_has_the_whole_time_since_docker_does_not_tell_what_it_takes(
    ssh: FakeSsh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bringing, "TELL_EVERY_S", 0.05)
    monkeypatch.setattr(bringing, "STANDSTILL_S", 0.1)
    there, ref = tmp_path / "there", f"engine@{ID}"
    docker(ssh, there, pull=f"sleep 0.5; echo {ID} arm64 >{there}")
    assert ensure("test", link(1), {"ref": ref, "pull": True}) == f"spark1: {ref} pulled, {ID}"


def test_an_image_is_pulled_by_the_user_who_logs_in(
    ssh: FakeSsh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bringing, "TELL_EVERY_S", 0.2)
    there, ref = tmp_path / "there", f"engine@{ID}"
    layers = "echo 0123456789ab: Pulling fs layer; echo 0123456789ab: Pull complete; echo ba9876543210: Waiting"
    docker(ssh, there, pull=f'echo "$remote" >{there}.asked; {layers}; sleep 0.5; echo {ID} arm64 >{there}')
    assert ensure("test", link(1), {"ref": ref, "pull": True}) == f"spark1: {ref} pulled, {ID}"
    assert (tmp_path / "there.asked").read_text() == f"exec docker pull {ref}\n"
    assert f"spark1: pulling {ref}, 1 of 2 layers, 0 s" in capsys.readouterr().out
    assert ensure("test", link(1), {"ref": ref, "pull": True}) == f"spark1: {ref} is there, {ID}"


def test_a_pull_that_fails_is_told_in_dockers_words(ssh: FakeSsh, tmp_path: Path) -> None:
    docker(ssh, tmp_path / "there", pull="echo Error response from daemon: unauthorized >&2; exit 1")
    with pytest.raises(ImageError, match="spark1: docker pull failed: Error response from daemon: unauthorized"):
        ensure("test", link(1), {"ref": f"engine@{ID}", "pull": True})


def test_only_the_node_that_wants_it_is_brought_an_image(
    ssh: FakeSsh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (1, 2):
        (tmp_path / str(number)).write_text(ID)
        docker(ssh, tmp_path / str(number), f"spark{number}")
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps({"spark2": COPIED})))
    monkeypatch.setenv("FLEET_LINKS", on_node.as_json([link(1), link(2)]))
    monkeypatch.setenv("FLEET_OWNER", '{"stack": "test"}')
    assert image.main() == 0
    assert capsys.readouterr().out == f"spark2: engine:1 is there, {ID}\n"
