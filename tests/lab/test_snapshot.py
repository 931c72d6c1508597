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


def _booted(number: int, uuid: str, address: str, **link: object) -> Snapshot:
    """A node whose one port has a profile that NetworkManager made at the boot."""
    profile = f"Wired connection {number}:802-3-ethernet:yes:/run/Wired connection {number}.nmconnection:enp1s0f0np0"
    return {
        "links": {
            "enp1s0f0np0": {"mtu": 1500, "addresses": [f"{address}/64"], **link},
            "docker0": {"mac": f"02:42:{number:02}"},
        },
        "routes6": {f"local {address} dev enp1s0f0np0": 1},
        "profiles": {uuid: profile},
        "units": {"online.service": f"state {number}", "docker.service": "active/running"},
        "boot": {"id": uuid, "links": ["docker0"], "profiles": {uuid: "enp1s0f0np0"}, "units": r"online\.service"},
    }


def test_what_is_made_anew_at_a_boot_is_compared_within_one_boot_only() -> None:
    before = _booted(1, "9c1a-1", "fe80::1:2:3:4")
    after = _booted(12, "9c1a-2", "fe80::5:6:7:8")
    assert snapshot.diff(before, after) == []
    after["boot"]["id"] = before["boot"]["id"]
    assert {line.partition(":")[0] for line in snapshot.diff(before, after)} == {
        *("links", "routes6", "profiles", "units"),
    }


@pytest.mark.parametrize(
    "after",
    [
        _booted(2, "9c1a-2", "fe80::5:6:7:8", mtu=9000),
        _booted(2, "9c1a-2", "fe80::5a:abff:fe00:111"),
        _booted(2, "9c1a-2", "10.10.0.10"),
        {**_booted(2, "9c1a-2", "fe80::5:6:7:8"), "units": {}},
    ],
    ids=["mtu", "an address of the MAC", "an address of a plan", "another unit"],
)
def test_all_else_is_compared_between_boots_too(after: Snapshot) -> None:
    assert snapshot.diff(_booted(1, "9c1a-1", "fe80::1:2:3:4"), after)


def test_a_profile_that_is_missing_after_a_boot_is_a_difference() -> None:
    after = _booted(2, "9c1a-2", "fe80::5:6:7:8")
    after["profiles"], after["boot"]["profiles"] = {}, {}
    lines = snapshot.diff(_booted(1, "9c1a-1", "fe80::1:2:3:4"), after)
    assert any(line.startswith("profiles: of enp1s0f0np0: ") for line in lines)


def test_every_kind_of_difference_is_told() -> None:
    before: Snapshot = {"links": {"lo": {"mtu": 1500}}, "sysctl": {"net.a": "0"}}
    after: Snapshot = {"links": {"lo": {"mtu": 9000}}, "sysctl": {"net.a": "0", "net.b": "1"}}
    assert snapshot.diff(before, after) == [
        'links: lo: {"mtu": 1500} -> {"mtu": 9000}',
        'sysctl: net.b: absent -> "1"',
    ]
