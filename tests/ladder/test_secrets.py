"""The API key is in the environment of rank 0's container and nowhere else, whatever a run writes, logs or shows.

Everything is searched for the key itself, byte by byte, with Pulumi's most talkative logs among it.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lab import api

from .conftest import NewRig
from .operations import ENGINE_LOG
from .rig import Rig, Run

KEY = f"sk-{secrets.token_hex(12)}"
HEAD = "spark1"
LOUD = ("-v=11", "--logtostderr", "--logflow")
STORES = ("/var/lib/docker/", "/var/lib/containerd/", "/run/docker/", "/run/containerd/")
"""Where docker keeps containers and what they were told, for root alone."""


@dataclass
class ProcessLists:
    """Every command line that was seen on this machine, and so on all nodes: they are simulated on it."""

    seen: set[bytes] = field(default_factory=set)
    rounds: int = 0

    def look(self) -> None:
        for place in Path("/proc").iterdir():
            if place.name.isdigit():
                try:
                    self.seen.add((place / "cmdline").read_bytes())
                except OSError:
                    continue  # it has ended
        self.rounds += 1


@contextmanager
def watched() -> Iterator[ProcessLists]:
    """Look at all process lists ten times a second while the body runs."""
    lists, over = ProcessLists(), threading.Event()

    def look() -> None:
        while not over.wait(0.1):
            lists.look()

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield lists
    finally:
        over.set()
        watcher.join()


@dataclass
class Fleet:
    """A stack that is up with a key, and what its first `up` said and showed."""

    rig: Rig
    lab: api.Handle
    began: float
    run: Run
    lists: ProcessLists
    events: str


@pytest.fixture(scope="module")
def fleet(ring_lab: api.Handle, new_rig: NewRig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Four engines, the first with a key, brought up and measured with all that Pulumi can log."""
    rig = new_rig(ring_lab, "secrets")
    rig.config["proof"] = {"enabled": True, "minimum": "1m"}
    rig.encrypt("engine.headEnv.API_KEY", KEY)
    assert KEY not in str(rig.config)
    log = tmp_path_factory.mktemp("events") / "up.json"
    with rig.leaving_no_trace():
        began = time.time()
        with watched() as lists:
            words = ("up", "--yes", "--skip-preview", *LOUD, f"--event-log={log}")
            run = rig.pulumi(*words, env=ENGINE_LOG)
        yield Fleet(rig, ring_lab, began, run, lists, log.read_text())


def test_the_key_is_asked_for_and_is_the_one_that_was_set(fleet: Fleet) -> None:
    ask = "curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:8888/v1/models"
    assert fleet.lab.run(HEAD, ask).stdout in ("401", "403")
    assert fleet.lab.run(HEAD, f"{ask} -H @-", stdin=f"Authorization: Bearer {KEY}").stdout == "200"
    fleet.rig.fleet("smoke").says("smoke test passed", "models, arithmetic")


def test_it_is_in_no_log_of_the_run(fleet: Fleet) -> None:
    assert "spark1-engine" in fleet.events
    assert len(fleet.run.out) > 1_000_000, "nothing of the most talkative logs"
    lines = [line for line in (fleet.run.out + fleet.events).splitlines() if KEY in line]
    assert not lines, lines[:5]


def test_it_is_in_no_process_list(fleet: Fleet) -> None:
    on_nodes = [one for one in fleet.lists.seen if one.startswith(b"timeout\0-k\x0010\0")]
    assert {one.split(b"\0")[-2] for one in on_nodes} > {b"apply", b"engines"}, "the nodes' own processes were not seen"
    assert not [one for one in fleet.lists.seen if KEY.encode() in one]


def test_it_is_in_nothing_that_pulumi_and_this_program_keep(fleet: Fleet) -> None:
    rig = fleet.rig
    places = [rig.checkout, Path(rig.environment["PULUMI_BACKEND_URL"].removeprefix("file://"))]
    files = [file for place in places for file in place.rglob("*") if file.is_file() and ".venv" not in file.parts]
    assert any(file.name == "secrets.json" for file in files), "the state was not searched"
    assert not [file for file in files if KEY.encode() in file.read_bytes()]


def test_it_is_in_nothing_that_is_shown(fleet: Fleet) -> None:
    rig = fleet.rig
    with rig.changed("engine.env.ENGINE_LOAD_S", 0.3):
        shown = [rig.pulumi("preview", "--json")]
    shown += [rig.pulumi("stack", "export"), rig.pulumi("stack", "output", "--json")]
    shown += [rig.fleet(*words, ok=None) for words in (("status", "--env"), ("doctor", "--json"))]
    assert not [run.words for run in shown if KEY in run.out]


def test_on_the_nodes_only_the_container_of_rank_0_has_it(fleet: Fleet) -> None:
    changed = f"-newermt @{fleet.began - 1:.0f}"
    find = rf"find / \( -path /proc -o -path /sys -o -path /dev \) -prune -o -type f {changed} -print0"
    for node, listing in fleet.lab.everywhere(f"{find} | xargs -0 -r grep -lF {KEY}", check=False).items():
        files = listing.split()
        assert bool(files) == (node == HEAD), (node, files)
        assert [file for file in files if not file.startswith(STORES)] == []


def test_no_journal_and_no_log_of_a_container_has_it(fleet: Fleet) -> None:
    logs = "for c in $(docker ps -aq); do docker logs $c 2>&1; done; journalctl --no-pager -o verbose"
    for node, text in fleet.lab.everywhere(logs).items():
        assert len(text.splitlines()) > 100, node
        assert KEY not in text, node


def test_only_processes_of_that_container_have_it_in_their_environment(fleet: Fleet) -> None:
    holders = f"grep -lF {KEY} /proc/[0-9]*/environ 2>/dev/null"
    groups = f"for file in $({holders}); do head -1 ${{file%environ}}cgroup; done"
    for node, text in fleet.lab.everywhere(groups).items():
        lines = text.splitlines()
        assert bool(lines) == (node == HEAD), (node, lines)
        assert all("docker" in line for line in lines), lines


def test_a_key_that_lies_open_in_the_stack_file_is_refused(fleet: Fleet) -> None:
    with fleet.rig.changed("engine.headEnv.API_KEY", "an-open-one"):
        run = fleet.rig.pulumi("preview", ok=False)
    run.says("engine.headEnv.API_KEY: is in the stack file as it is, wanted it encrypted", "config set --secret")
