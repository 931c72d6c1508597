"""What a snapshot sees, and what it calls a difference."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lab import snapshot
from lab.api import SCOPE
from lab.snapshot import Scope, Snapshot


def test_the_shipped_scope_is_readable_and_covers_what_is_promised() -> None:
    scope = Scope.parse(SCOPE.read_text())
    assert {"/etc", "/usr/local", "/opt", "/var/lib"} <= set(scope.trees)
    skipped = scope.matcher("skip")
    assert skipped.fullmatch("/var/lib/docker/image/x")
    assert skipped.fullmatch("/var/lib/NetworkManager/timestamps")
    assert not skipped.fullmatch("/etc/netplan/01-mgmt.yaml")
    assert not skipped.fullmatch("/var/lib/spark-fabric/lab/journal.json")


@pytest.mark.parametrize("line", ["skip /etc/x", "tree", "hide /etc/x  why"])
def test_a_rule_without_its_reason_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="not a rule"):
        Scope.parse(line)


def test_files_folders_and_links_are_seen_with_mode_and_owner(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(mode=0o750)
    (tmp_path / "a" / "file").write_text("x")
    (tmp_path / "a" / "file").chmod(0o600)
    (tmp_path / "a" / "link").symlink_to("file")
    (tmp_path / "a" / "folderlink").symlink_to(tmp_path)
    (tmp_path / "a" / "left-out").write_text("x")
    scope = Scope.parse(f"tree {tmp_path}\nskip {tmp_path}/a/left-*  why")
    found = snapshot.files(scope)
    assert sorted(Path(path).name for path in found) == sorted(["a", "file", "link", "folderlink", tmp_path.name])
    owner = f"{os.getuid()}:{os.getgid()}"
    assert found[f"{tmp_path}/a/file"][1:3] == ["0600", owner]
    assert found[f"{tmp_path}/a"][:3] == ["folder", "0750", owner]
    assert found[f"{tmp_path}/a/link"][0] == "-> file"


def test_times_count_only_if_wanted(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    scope = Scope.parse(f"tree {tmp_path}")
    before = {"files": snapshot.files(scope)}
    os.utime(file, ns=(1, 1))
    after = {"files": snapshot.files(scope)}
    assert snapshot.diff(before, after) == []
    assert len(snapshot.diff(before, after, times=True)) == 1


def test_every_kind_of_difference_is_told() -> None:
    before: Snapshot = {"links": {"lo": {"mtu": 1500}}, "sysctl": {"net.a": "0"}}
    after: Snapshot = {"links": {"lo": {"mtu": 9000}}, "sysctl": {"net.a": "0", "net.b": "1"}}
    assert snapshot.diff(before, after) == [
        'links: lo: {"mtu": 1500} -> {"mtu": 9000}',
        'sysctl: net.b: absent -> "1"',
    ]
