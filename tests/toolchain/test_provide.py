"""Where Pulumi comes from: PATH, downloads, the cache, a build; and what is said when there is no way."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.toolchain.fakes import PINNED, Machine
from toolchain import cache, provide
from toolchain.errors import ToolchainError


def test_an_installed_pulumi_with_its_plugins_is_used_as_it_is(machine: Machine) -> None:
    installed = machine.pulumi()
    machine.plugins()
    assert provide.provide() == provide.Toolchain(installed, own_cli=False, home=None)
    provide.provide()
    assert machine.called("pulumi version") == 1, "the version is remembered"
    assert machine.called("pulumi plugin") == 0


def test_an_installed_pulumi_downloads_its_own_plugins(machine: Machine) -> None:
    installed = machine.pulumi()
    assert provide.provide() == provide.Toolchain(installed, own_cli=False, home=None)
    assert machine.called(f"pulumi plugin install resource command {PINNED.command}") == 1
    assert machine.called(f"pulumi plugin install resource docker {PINNED.docker}") == 1


def test_plugins_are_built_for_an_installed_pulumi_that_cannot_download_them(machine: Machine) -> None:
    installed = machine.pulumi(script="exit 1")
    machine.go()
    found = provide.provide()
    assert (found.cli, found.own_cli) == (installed, False)
    assert found.home
    assert provide.plugin_file(found.home, "docker", PINNED.docker).read_text() == "built\n"
    provide.provide()
    assert machine.called("go build") == 2, "no CLI is built, and nothing twice"
    assert machine.called("pulumi plugin") == 1, "a download is not tried at every run"


def test_an_old_pulumi_is_not_used_and_that_is_said(machine: Machine, capfd: pytest.CaptureFixture[str]) -> None:
    machine.pulumi(version="3.100.0")
    machine.go()
    assert provide.provide().own_cli
    assert "3.100.0 is not used" in capfd.readouterr().err


def test_everything_is_built_once_for_all_checkouts(machine: Machine) -> None:
    machine.go()
    found = provide.provide()
    assert found.own_cli
    assert found.cli.is_relative_to(machine.cache / "spark-fabric/toolchain")
    assert {path.name for path in found.cli.parent.iterdir() if not path.name.startswith(".")} == {
        "pulumi",
        "pulumi-language-python",
        "pulumi-language-python-exec",
    }
    assert provide.provide() == found
    assert machine.called("go build") == 4


def test_builds_at_the_same_time_wait_for_each_other(machine: Machine) -> None:
    machine.go(build='sleep 0.1; echo built > "$out"')
    started = [
        subprocess.Popen([sys.executable, "-m", "toolchain"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    done = [process.communicate(timeout=60) for process in started]
    assert [process.returncode for process in started] == [0, 0, 0]
    assert len({out for out, _ in done}) == 1
    assert machine.called("go build") == 4
    assert any("waiting for another build" in err for _, err in done)


def test_a_killed_build_leaves_nothing_that_is_taken_for_whole(machine: Machine) -> None:
    machine.go(build='echo half > "$out"; touch ' + str(machine.home.parent / "half") + "; sleep 300")
    process = subprocess.Popen([sys.executable, "-m", "toolchain"], stderr=subprocess.DEVNULL, process_group=0)
    deadline = time.monotonic() + 60
    while not (machine.home.parent / "half").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    subprocess.run(["kill", "-KILL", "--", f"-{process.pid}"], check=True)
    process.wait()
    assert list(cache.folder().glob(".new-*")), "the damage is there"
    machine.go()
    assert provide.provide().cli.read_text() == "built\n"
    assert not list(cache.folder().glob(".new-*"))


def test_changed_sources_are_another_part(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "part/main.go").write_text("package main")
    before = cache.digest([tmp_path / "part"], "1")
    assert cache.digest([tmp_path / "part"], "2") != before
    (tmp_path / "part/main.go").write_text("package main // changed")
    assert cache.digest([tmp_path / "part"], "1") != before


def test_no_go_is_said_with_both_ways_out(machine: Machine) -> None:
    with pytest.raises(ToolchainError, match=rf"no `go` on PATH.*{PINNED.go}.*Or install Pulumi itself"):
        provide.provide()


def test_an_old_go_that_may_not_fetch_a_newer_one_is_said(machine: Machine) -> None:
    machine.go(version="1.19.8")
    with pytest.raises(ToolchainError, match=rf"Go is 1\.19\.8.*{PINNED.go}"):
        provide.provide()
    machine.go(version="1.21.0", switching="auto")
    assert provide.provide().own_cli


@pytest.mark.parametrize(
    ("output", "meaning"),
    [
        ("dial tcp: lookup proxy.example on 10.0.0.1:53: no such host", "proxy could not be reached"),
        ("reading https://proxy.example/x.mod: 403 Forbidden", "proxy could not be reached"),
        ("module lookup disabled by GOPROXY=off", "proxy could not be reached"),
        ("write $WORK/b001/_pkg_.a: no space left on device", "disk is full"),
        ("verifying module: checksum mismatch", "do not match the pinned checksums"),
        ("compile: signal: killed", "out of memory"),
    ],
)
def test_a_failed_build_shows_its_last_lines_and_what_they_mean(machine: Machine, output: str, meaning: str) -> None:
    machine.go(build=f"echo '{output}' >&2; exit 1")
    with pytest.raises(ToolchainError) as caught:
        provide.provide()
    assert output in str(caught.value)
    assert meaning in str(caught.value)
    assert not list(cache.folder().glob("*/pulumi"))


def test_too_little_room_is_said_before_the_build(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.go()
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 2e8}))
    with pytest.raises(ToolchainError, match=r"0\.2 GB free"):
        provide.provide()
    assert machine.called("go build") == 0


def test_a_cache_that_cannot_be_written_is_said(machine: Machine) -> None:
    machine.cache.write_text("a file where the folder should be")
    with pytest.raises(ToolchainError, match=r"cannot be written.*Set XDG_CACHE_HOME"):
        provide.provide()
