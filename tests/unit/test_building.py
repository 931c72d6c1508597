"""Building the image on one node: once, of what the plan was made of, and no value where it can be read."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from fleet import bringing, building, on_node
from fleet.building import header, provide
from fleet.context import Context, built_ref
from fleet.docker_on_node import ImageError
from tests.unit import fakes
from tests.unit.fakes import FakeSsh, link

ID = "sha256:" + "1" * 64
LINKS = {f"spark{number}": link(number) for number in (1, 2, 3)}
# Docker, as a program of the node that builds. `images` holds a file for each image, by name.
DOCKER = """#!/bin/sh
cd {folder}
echo "$*" >>commands
while [ "$2" = inspect ] && [ $# -gt 3 ]; do last=$#; eval "ref=\\${{$last}}"; set -- image inspect "$ref"; done
case "$1 $2" in
"image inspect") cat "images/$3" 2>/dev/null || {{ echo "Error: No such image: $3" >&2; exit 1; }} ;;
"version --format") echo arm64 ;;
"tag "*) mv "images/$2" "images/$3"; cp "images/$3" "images/$2" ;;
"image ls") ls images | sed 's/^[^:]*$/&:latest/' ;;
"rmi "*) shift; for name; do rm "images/$name"; done; {rmi} ;;
"build "*) env >environment; cat >context.tar; {build} ;;
esac
"""
BUILDS = f'echo "Step 2/3 : RUN x"; echo "{ID} arm64" >"images/$3"'


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSsh:
    """The stand-in for ssh."""
    return fakes.install(tmp_path, monkeypatch)


@pytest.fixture
def wanted(tmp_path: Path) -> dict[str, Any]:
    """A build with an arg and a secret."""
    folder = tmp_path / "context"
    folder.mkdir()
    (folder / "Dockerfile").write_text("FROM base\n")
    return named(
        {
            "context": str(folder),
            "dockerfile": "Dockerfile",
            "args": {"PIP_INDEX": "https://user:hunter1@index"},
            "secrets": {"TOKEN": "hunter2\nhunter3"},
        }
    )


def named(build: dict[str, Any]) -> dict[str, Any]:
    context = Context(Path(build["context"]), build["dockerfile"]).pack()
    return {**build, "ref": built_ref("engine:1", context, build)}


def docker(ssh: FakeSsh, folder: Path, build: str = BUILDS, rmi: str = "true") -> Path:
    """Docker on spark1; the others have no image. The folder with what it was told."""
    (folder / "images").mkdir(exist_ok=True)
    program = ssh.folder / "docker"
    program.write_text(DOCKER.format(folder=folder, build=build, rmi=rmi))
    program.chmod(0o755)
    for name in ("spark2", "spark3"):
        ssh.does(name, "echo Error: No such image >&2; exit 1")
    return folder


def test_an_image_is_built_once(ssh: FakeSsh, tmp_path: Path, wanted: dict[str, Any]) -> None:
    place = docker(ssh, tmp_path)
    assert provide("test", LINKS, "spark1", wanted) == f"spark1: {wanted['ref']} built"
    assert [file.name for file in (place / "images").iterdir()] == [wanted["ref"]]
    with tarfile.open(place / "context.tar") as tar:
        assert tar.getnames() == ["Dockerfile"]
    (place / "context.tar").unlink()
    assert provide("test", LINKS, "spark1", wanted) == f"spark1: {wanted['ref']} is there"
    assert not (place / "context.tar").exists()


def test_no_value_is_in_a_command_or_told(
    ssh: FakeSsh,
    tmp_path: Path,
    wanted: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = docker(ssh, tmp_path, 'env | sed s/^/says:/; echo "and $SPARK_FABRIC_SECRET_0"; exit 1')
    monkeypatch.setattr(bringing, "TELL_EVERY_S", 0.01)
    with pytest.raises(ImageError) as raised:
        provide("test", LINKS, "spark1", wanted)
    environment = (place / "environment").read_text()
    for value in ("https://user:hunter1@index", "hunter2", "hunter3"):
        assert value in environment
    told = f"{raised.value}{capsys.readouterr()}{(place / 'commands').read_text()}"
    assert "hunter" not in told
    assert "and [secret]" in told
    assert f"docker build of {wanted['ref']} failed" in told
    assert list((place / "images").iterdir()) == []


def test_args_and_secrets_are_named_for_docker(wanted: dict[str, Any]) -> None:
    told = header(wanted)
    line = " ".join(told["words"])
    assert "--build-arg PIP_INDEX --secret id=TOKEN,env=SPARK_FABRIC_SECRET_0 -" in line
    assert told["env"]["DOCKER_BUILDKIT"] == "1"
    assert "DOCKER_BUILDKIT" not in header({**wanted, "secrets": {}})["env"]  # whichever builder is there


def test_a_node_that_lost_the_image_gets_it_back_from_another(
    ssh: FakeSsh, tmp_path: Path, wanted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    docker(ssh, tmp_path, "exit 1")
    ssh.does("spark3", f"echo {ID} arm64")
    copied: list[tuple[str, str]] = []
    monkeypatch.setattr(bringing, "copy", lambda _, source, __, to, ___: copied.append((source.name, to.name)))
    assert provide("test", LINKS, "spark1", wanted) == f"spark1: {wanted['ref']} copied back from spark3"
    assert copied == [("spark3", "spark1")]


def test_a_context_that_changed_meanwhile_gets_no_name(ssh: FakeSsh, tmp_path: Path, wanted: dict[str, Any]) -> None:
    place = docker(ssh, tmp_path)
    (Path(wanted["context"]) / "more").touch()
    with pytest.raises(ImageError, match=r"was changed after this run had begun\. Run it again\."):
        provide("test", LINKS, "spark1", wanted)
    assert list((place / "images").iterdir()) == []


def test_what_killed_runs_have_left_is_taken_away(ssh: FakeSsh, tmp_path: Path, wanted: dict[str, Any]) -> None:
    """Of this run's own context it is built over, and of another one nobody would ever ask for it."""
    place = docker(ssh, tmp_path)
    others = ["engine:1-0123456789ab", "engine:2-0123456789ab-building", "engine:1-mine-building", "my-engine:1"]
    left = [f"{wanted['ref']}-building", "engine:1-0123456789ab-building"]
    for name in (*others, *left):
        (place / "images" / name).write_text(f"{ID} arm64\n")
    assert provide("test", LINKS, "spark1", wanted) == f"spark1: {wanted['ref']} built"
    assert {file.name for file in (place / "images").iterdir()} == {wanted["ref"], *others}


def test_what_cannot_be_taken_away_hides_no_error_and_is_none(
    ssh: FakeSsh, tmp_path: Path, wanted: dict[str, Any]
) -> None:
    docker(ssh, tmp_path, BUILDS.replace("arm64", "amd64"), rmi="exit 1")
    with pytest.raises(ImageError, match="is for amd64, and the node is arm64"):
        provide("test", LINKS, "spark1", wanted)
    docker(ssh, tmp_path, rmi="exit 1")
    assert provide("test", LINKS, "spark1", wanted) == f"spark1: {wanted['ref']} built"


def test_what_is_not_told_are_secrets_and_what_is_like_them(wanted: dict[str, Any]) -> None:
    args = {"VERSION": "1.2.3", "HF_TOKEN": "hunter4", "INDEX": "https://user:hunter1@index/simple", "AT": "a@b"}
    assert building.not_to_be_told({**wanted, "args": args}) == ["hunter2\nhunter3", "hunter4", "user:hunter1"]


def test_a_secret_that_ends_with_a_space_is_not_told(ssh: FakeSsh, tmp_path: Path, wanted: dict[str, Any]) -> None:
    docker(ssh, tmp_path, 'echo "it is $SPARK_FABRIC_SECRET_0"; exit 1')
    with pytest.raises(ImageError) as raised:
        provide("test", LINKS, "spark1", named({**wanted, "secrets": {"TOKEN": "hunter2 "}}))
    assert "it is [secret]" in str(raised.value)
    assert "hunter" not in str(raised.value)


def test_an_image_for_another_machine_gets_no_name(ssh: FakeSsh, tmp_path: Path, wanted: dict[str, Any]) -> None:
    place = docker(ssh, tmp_path, BUILDS.replace("arm64", "amd64"))
    with pytest.raises(ImageError, match=r"spark1: engine:1-\w+ is for amd64, and the node is arm64"):
        provide("test", LINKS, "spark1", wanted)
    assert list((place / "images").iterdir()) == []


def test_what_another_run_has_named_meanwhile_is_not_built(
    ssh: FakeSsh, tmp_path: Path, wanted: dict[str, Any]
) -> None:
    """Whoever comes to the lock second looks again. Of a killed run nothing is named, and it builds anew."""
    place = docker(ssh, tmp_path, "exit 1")
    late = f'case "$remote" in *fcntl*) echo {ID} arm64 >"{place}/images/{wanted["ref"]}" ;; esac; exec sh -c "$remote"'
    ssh.does("spark1", late)
    assert provide("test", LINKS, "spark1", wanted) == f"spark1: {wanted['ref']} built"
    assert not (place / "context.tar").exists()


def test_a_context_that_is_gone_is_told(ssh: FakeSsh, tmp_path: Path, wanted: dict[str, Any]) -> None:
    docker(ssh, tmp_path)
    with pytest.raises(ImageError, match="no-such is no folder"):
        provide("test", LINKS, "spark1", {**wanted, "context": str(tmp_path / "no-such")})


def test_the_program_fails_with_what_stands_in_the_way(
    ssh: FakeSsh, wanted: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps({"spark1": wanted})))
    monkeypatch.setenv("FLEET_LINKS", on_node.as_json(list(LINKS.values())))
    monkeypatch.setenv("FLEET_OWNER", '{"stack": "test"}')
    monkeypatch.setenv("FLEET_LOST", "spark1")
    assert building.main() == 1
    assert "spark1 builds the image, and was forgotten. Set engine.image.build.node" in capsys.readouterr().err
    assert ssh.calls() == []


def test_a_context_that_cannot_be_read_to_its_end_is_no_smaller_one(
    ssh: FakeSsh, tmp_path: Path, wanted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node is cut off in the middle, and what was sent until then gets no name."""
    place = docker(ssh, tmp_path)
    taken = f"cat >/dev/null; touch {place}/ended"
    ssh.does("spark1", f'case "$remote" in *fcntl*) {taken} ;; *) exec sh -c "$remote" ;; esac')
    lstat = Path.lstat

    def unreadable(path: Path) -> os.stat_result:
        if path.name == "Dockerfile":
            raise OSError(5, "Input/output error", str(path))
        return lstat(path)

    monkeypatch.setattr(Path, "lstat", unreadable)
    with pytest.raises(
        ImageError, match=r"the context cannot be sent: .*Dockerfile cannot be read: Input/output error"
    ):
        provide("test", LINKS, "spark1", wanted)
    assert not (place / "ended").exists()
    assert list((place / "images").iterdir()) == []
