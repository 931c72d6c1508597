"""What is said on a machine that cannot run a lab, and the one limit that a lab raises."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from lab import host
from lab.shell import LabError


def test_another_system_is_told_of_the_offline_preview(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "release", lambda: {"ID": "fedora", "PRETTY_NAME": "Fedora 42"})
    with pytest.raises(LabError, match=r"this is Fedora 42.*offline preview"):
        host.require()


def test_a_derivative_of_ubuntu_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "release", lambda: {"ID": "linuxmint", "ID_LIKE": "ubuntu debian"})
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LabError, match="needs root"):
        host.require()


def test_missing_tools_are_named_with_the_line_that_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "release", lambda: {"ID": "debian"})
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool in ("ssh", "systemd-nspawn") else tool)
    with pytest.raises(LabError, match=r"systemd-nspawn, ssh\. .*apt-get install openssh-client systemd-container"):
        host.require()


def test_the_limit_is_raised_only_if_needed_and_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit, record = tmp_path / "limit", tmp_path / "record"
    limit.write_text("128\n")
    monkeypatch.setattr(host, "INOTIFY", limit)
    monkeypatch.setattr(host, "_inotify_instances", lambda: 60)
    host.make_room(3, record)
    assert (limit.read_text(), record.exists()) == ("128\n", False)
    host.make_room(4, record)
    host.make_room(100, record)
    assert int(limit.read_text()) > 1000
    host.give_back(record)
    assert (limit.read_text(), record.exists()) == ("128\n", False)
