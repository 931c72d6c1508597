"""Sending files to a node: only what it wants, in pieces, and never what has changed meanwhile."""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from fleet import on_node, sending
from fleet.sending import SLOWEST, Files, SendingError
from node.sent import Sent
from tests.unit import fakes
from tests.unit.fakes import FakeSsh, link, program

DATA = os.urandom(3_000_000)
SHA256 = hashlib.sha256(DATA).hexdigest()
PATH = f"/var/lib/spark-fabric/test/nccl/{SHA256}/libnccl.so.2"
# A node that has one file, or none: it says what it wants, and puts what comes into that file.
NODE = """
import json, pathlib, sys
place, stdin = pathlib.Path({place!r}), sys.stdin.buffer
with open({place!r} + ".verbs", "a") as verbs:
    print(sys.argv[1], file=verbs)
if sys.argv[1] == "wants":
    path = json.loads(stdin.read())["desired"]["path"]
    print(json.dumps({{"ok": True, "wants": [] if place.exists() else [path]}}))
elif sys.argv[1] == "install":
    request = json.loads(stdin.readline())
    {install}
else:
    stdin.read()
    print(json.dumps({{"ok": True, "changed": []}}))
"""
TAKES = 'place.write_bytes(stdin.read()); print(json.dumps({"ok": True, "changed": ["put there"]}))'
REFUSES = 'print("an engine runs", file=sys.stderr); print(json.dumps({"ok": False})); sys.exit(9)'


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSsh:
    """The stand-in for ssh."""
    return fakes.install(tmp_path, monkeypatch)


@pytest.fixture
def file(tmp_path: Path, ssh: FakeSsh) -> Path:
    """The operator's file, as a preview has seen it."""
    path = tmp_path / "libnccl.so.2.30.7"
    path.write_bytes(DATA)
    sending.remember("test", {SHA256: path})
    return path


def desired(**more: Any) -> dict[str, Any]:
    return {"state": "on", "source": "sent", "path": PATH, "sha256": SHA256, "size": len(DATA), **more}


def applied(folder: Path, install: str = TAKES) -> on_node.Answer:
    packed = program(NODE.format(place=str(folder / "there"), install=install))
    return sending.apply("test", link(1), packed, {"node": "spark1", "desired": desired()})


def verbs(folder: Path) -> list[str]:
    return (folder / "there.verbs").read_text().split()


def test_a_file_that_is_not_there_is_sent_with_the_apply(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = applied(tmp_path)
    assert (answer.status, answer.result) == (0, {"ok": True, "changed": ["put there"]})
    assert (tmp_path / "there").read_bytes() == DATA
    assert verbs(tmp_path) == ["wants", "install"]
    assert "spark1: libnccl.so.2.30.7 sent, 2.9 MiB in" in capsys.readouterr().out


def test_a_file_that_is_there_is_not_sent_again(file: Path, tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(DATA)
    file.unlink()  # nor looked at
    assert applied(tmp_path).status == 0
    assert verbs(tmp_path) == ["wants", "apply"]


def test_a_refusal_counts_although_the_node_takes_no_more(file: Path, tmp_path: Path) -> None:
    answer = applied(tmp_path, REFUSES)
    assert (answer.status, answer.text) == (9, "an engine runs")


def test_a_silent_node_is_told_before_anything_is_sent(file: Path, ssh: FakeSsh, tmp_path: Path) -> None:
    ssh.answers("spark1", None, status=255, said="No route to host")
    answer = applied(tmp_path)
    assert not answer.reached
    assert ssh.calls() == ["spark1"]


def test_a_file_that_changed_since_the_preview_is_not_sent(file: Path, tmp_path: Path) -> None:
    file.write_bytes(DATA + b"x")
    answer = applied(tmp_path)
    assert (answer.status, verbs(tmp_path)) == (1, ["wants"])
    assert "has changed since the preview, run again" in answer.text


def test_a_file_that_is_gone_or_unknown_is_told(file: Path, ssh: FakeSsh) -> None:
    wanted = Sent(PATH, SHA256, len(DATA))
    assert sending.local("test", wanted) == file
    file.unlink()
    with pytest.raises(SendingError, match=r"libnccl\.so\.2\.30\.7 cannot be sent: No such file"):
        sending.local("test", wanted)
    with pytest.raises(SendingError, match="run a preview first"):
        sending.local("other", wanted)


def test_what_is_known_of_other_files_is_kept_while_they_are_there(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "marker"
    other.write_bytes(b"x")
    sending.remember("test", {"1" * 64: other})
    listing = on_node.folder("test") / sending.LISTING
    assert json.loads(listing.read_text()) == {SHA256: str(file), "1" * 64: str(other)}
    other.unlink()
    sending.remember("test", {})
    assert json.loads(listing.read_text()) == {SHA256: str(file)}


def test_progress_is_told_while_it_takes_long(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sending, "TELL_EVERY_S", 0.0)
    content = Files("spark1", [(file, len(DATA))])
    assert b"".join(content.pieces()) == DATA
    assert max(map(len, content.pieces())) <= sending.PIECE
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "spark1: 34 % of libnccl.so.2.30.7 sent"
    assert content.seconds == len(DATA) // SLOWEST + 1


def test_the_command_sends_what_its_stdin_wants(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        sending, "program", lambda _: program(NODE.format(place=str(tmp_path / "there"), install=TAKES))
    )
    monkeypatch.setattr(sys, "argv", ["on_node.py", "apply"])
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps({"spark1": desired()})))
    monkeypatch.setenv("FLEET_LINKS", on_node.as_json([link(1)]))
    monkeypatch.setenv("FLEET_OWNER", '{"stack": "test"}')
    assert on_node.main() == 0
    assert (tmp_path / "there").read_bytes() == DATA
    assert "spark1: put there" in capsys.readouterr().out
