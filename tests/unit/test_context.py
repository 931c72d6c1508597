"""A build context: what is in it, and when it is another one."""

from __future__ import annotations

import io
import os
import socket
import tarfile
from pathlib import Path
from typing import Any

import pytest

from fleet.context import Context, ContextError, Ignored, built_ref

BUILD = {"dockerfile": "Dockerfile", "args": {"A": "1"}, "secrets": {"TOKEN": "hunter2"}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A context with a file in a folder, a program and a link."""
    place = tmp_path / "context"
    (place / "below").mkdir(parents=True)
    (place / "Dockerfile").write_text("FROM base\nCOPY . /\n")
    (place / "below" / "data").write_text("data\n")
    (place / "run").write_text("#!/bin/sh\n")
    (place / "run").chmod(0o755)
    (place / "link").symlink_to("run")
    return place


def digest(folder: Path) -> str:
    return Context(folder, "Dockerfile").pack()


def packed(folder: Path, dockerfile: str = "Dockerfile") -> dict[str, tarfile.TarInfo]:
    buffer = io.BytesIO()
    context = Context(folder, dockerfile)
    assert context.pack(buffer) == context.pack()
    buffer.seek(0)
    with tarfile.open(fileobj=buffer) as tar:
        return {member.name: member for member in tar.getmembers()}


def test_what_is_sent_has_names_modes_and_links_and_no_owner(folder: Path) -> None:
    found = packed(folder)
    assert list(found) == ["Dockerfile", "below", "link", "run", "below/data"]
    assert (found["run"].mode, found["below/data"].mode, found["below"].isdir()) == (0o755, 0o644, True)
    assert found["link"].linkname == "run"
    assert {(one.uid, one.gid, one.uname) for one in found.values()} == {(0, 0, "")}


def test_the_same_context_elsewhere_and_later_has_the_same_digest(folder: Path, tmp_path: Path) -> None:
    before = digest(folder)
    (folder / "run").touch()
    assert digest(folder.rename(tmp_path / "moved")) == before


@pytest.mark.parametrize("how", ["content", "mode", "name", "link", "empty folder", "recipe"])
def test_whatever_reaches_the_image_is_in_the_digest(how: str, folder: Path) -> None:
    before = digest(folder)
    match how:
        case "content":
            (folder / "below" / "data").write_text("other")
        case "mode":
            (folder / "below" / "data").chmod(0o600)
        case "name":
            (folder / "below" / "data").rename(folder / "below" / "datum")
        case "link":
            (folder / "link").unlink()
            (folder / "link").symlink_to("below")
        case "empty folder":
            (folder / "empty").mkdir()
        case "recipe":
            (folder / "Dockerfile").write_text("FROM base:2\n")
    assert digest(folder) != before


# Docker's documentation of .dockerignore, and what `docker build` does with it.
@pytest.mark.parametrize(
    ("lines", "out", "stay"),
    [
        (["*/temp*"], ["a/temp", "a/temporary.txt"], ["temp", "a/b/temp"]),
        (["temp?"], ["tempa", "tempb/x"], ["temp", "a/tempa"]),
        (["**/*.go"], ["x.go", "a/b/x.go"], ["x.go.txt"]),
        (["a/**"], ["a/x", "a/b/x"], ["a", "b"]),
        (["a/**/z"], ["a/z", "a/b/c/z"], ["b/a/z"]),
        (["*.md", "!README.md"], ["a.md"], ["README.md", "a/b.md"]),
        (["*.md", "!README*.md", "README-secret.md"], ["README-secret.md"], ["README.md"]),
        (["!README.md", "*.md"], ["README.md"], []),
        (["/folder/"], ["folder", "folder/x"], ["a/folder"]),
        (["folder", "!folder/kept"], ["folder/x"], ["folder/kept"]),
        (["# note", "", "  spaced  "], ["spaced"], ["# note"]),
        (["[ab].txt", "[^ab].bin"], ["a.txt", "c.bin"], ["c.txt", "a.bin"]),
        (["a\\*"], ["a*"], ["ab"]),
        (["*"], ["x", "x/y", ".hidden"], ["Dockerfile"]),
        (["."], [], ["x"]),
    ],
)
def test_dockerignore_is_read_as_docker_reads_it(lines: list[str], out: list[str], stay: list[str]) -> None:
    ignored = Ignored(lines, ["Dockerfile"])
    assert [name for name in (*out, *stay) if ignored(name)] == out


def test_what_is_kept_out_counts_for_nothing(folder: Path) -> None:
    (folder / ".dockerignore").write_text("below\nlog*\n!log.kept\nDockerfile\n")
    before = digest(folder)
    (folder / "below" / "more").write_text("more")
    (folder / "log.1").write_text("more")
    assert digest(folder) == before
    assert list(packed(folder)) == [".dockerignore", "Dockerfile", "link", "run"]
    (folder / "log.kept").write_text("more")
    assert digest(folder) != before


def test_a_listing_of_the_recipes_own_goes_before(folder: Path) -> None:
    (folder / "recipes").mkdir()
    (folder / "recipes" / "other").write_text("FROM base\n")
    (folder / ".dockerignore").write_text("run\n")
    (folder / "recipes" / "other.dockerignore").write_text("*\n!link\n")
    assert list(packed(folder, "recipes/other")) == ["link", "recipes/other", "recipes/other.dockerignore"]


def test_sockets_are_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest(folder)
    monkeypatch.chdir(folder)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("socket")
        assert digest(folder) == before


def test_what_cannot_be_built_of_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ContextError, match="no-such is no folder"):
        Context(folder / "no-such", "Dockerfile")
    with pytest.raises(ContextError, match=r"holds no Dockerfile\.other"):
        Context(folder, "Dockerfile.other")
    context = Context(folder, "Dockerfile")
    real = Path.open

    def refused(path: Path, mode: str) -> io.IOBase:
        if path.name == "data":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, mode)  # type: ignore[return-value]

    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(ContextError, match="below/data cannot be read: Permission denied"):
        context.pack()


def test_the_name_of_what_is_built_follows_from_all_that_decides_about_it() -> None:
    name = built_ref("registry:5000/engine:canary", "1", BUILD)
    assert name.startswith("registry:5000/engine:canary-")
    assert len(name) == len("registry:5000/engine:canary-") + 12
    assert built_ref("registry:5000/engine:canary", "1", {**BUILD}) == name
    changes: list[dict[str, Any]] = [{"dockerfile": "other"}, {"args": {"A": "2"}}, {"args": {}}, {"secrets": {}}]
    others = {built_ref("registry:5000/engine:canary", "1", {**BUILD, **change}) for change in changes}
    others.add(built_ref("registry:5000/engine:canary", "2", BUILD))
    assert len({name, *others}) == 6


def test_a_renewed_secret_is_no_reason_to_build() -> None:
    assert built_ref("engine:1", "1", {**BUILD, "secrets": {"TOKEN": "other"}}) == built_ref("engine:1", "1", BUILD)


def test_a_long_tag_stays_one_that_docker_takes() -> None:
    tag = built_ref("engine:" + "t" * 128, "1", BUILD).removeprefix("engine:")
    assert len(tag + "-building") <= 128


def test_a_file_that_goes_while_the_context_is_read_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lstat = Path.lstat

    def gone(path: Path) -> os.stat_result:
        if path.name == "data":
            path.unlink()
        return lstat(path)

    monkeypatch.setattr(Path, "lstat", gone)
    with pytest.raises(ContextError, match="below/data cannot be read: No such file or directory"):
        digest(folder)


def test_what_git_keeps_is_left_out_unless_the_listing_lets_it_in(folder: Path) -> None:
    before = digest(folder)
    for place in (folder / ".git", folder / "below" / ".git"):
        place.mkdir()
        (place / "FETCH_HEAD").write_text("today")
    (folder / "below" / ".gitignore").write_text("*.o\n")
    assert {name for name in packed(folder) if ".git" in name} == {"below/.gitignore"}
    (folder / "below" / ".gitignore").unlink()
    assert digest(folder) == before
    (folder / ".dockerignore").write_text("!.git\n")
    assert {name for name in packed(folder) if ".git" in name} == {".git", ".git/FETCH_HEAD"}
