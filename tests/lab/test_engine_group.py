"""Three ranks of the simulated engine as plain processes, which meet over loopback."""

from __future__ import annotations

import json
import os
import platform
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import library
from lab.model import PACKAGE
from lab.shell import wait_for

RANKS = 3


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Group:
    """The ranks, and what they print. Without verbs devices they use the library's sockets."""

    def __init__(self, folder: Path, more: dict[str, str], own: dict[int, dict[str, str]]) -> None:
        self.folder, self.more, self.own = folder, more, own
        self.port, self.rendezvous = free_port(), free_port()
        self.library = folder / "libnccl.so.2"
        library.build(self.library, markers=library.KINDS["patched"])
        self.model = folder / "model"
        self.model.mkdir()
        (self.model / "config.json").write_text("{}")
        for number in (1, 2):
            (self.model / f"model-{number:05d}-of-00002.safetensors").write_bytes(bytes(64))
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, ranks: range = range(RANKS)) -> None:
        for rank in ranks:
            env = {
                "PATH": os.environ["PATH"], "PYTHONPATH": str(PACKAGE), "NODE_RANK": str(rank), "NNODES": str(RANKS),
                "TP_SIZE": str(RANKS), "EP_SIZE": str(RANKS), "DIST_INIT_ADDR": f"127.0.0.1:{self.rendezvous}",
                "HOST": "127.0.0.1", "SERVER_PORT": str(self.port), "MODEL_PATH": str(self.model),
                "STATE_PATH": str(self.folder / f"state{rank}"), "NCCL_PIP_SO": str(self.library),
                "NCCL_SOCKET_IFNAME": "lo", "NCCL_DEBUG": "INFO", "NCCL_SWITCHLESS_RING_ONLY": "1",
                "ENGINE_DEV_INFINIBAND": "/nonexistent", "ENGINE_PEER_S": "3", "ENGINE_WATCHDOG_S": "2",
                "ENGINE_RENDEZVOUS_S": "30", **self.more, **self.own.get(rank, {}),
            }  # fmt: skip
            with (self.folder / f"log{rank}").open("wb") as log:
                command = [sys.executable, "-m", "engine", "run"]
                process = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
            self.processes.append(process)

    def log(self, rank: int) -> str:
        return (self.folder / f"log{rank}").read_text(errors="replace")

    def ready(self) -> str:
        assert wait_for(lambda: "Ready: API" in self.log(0)), self.log(0)
        return self.log(0)

    def codes(self, seconds: float = 60) -> list[int]:
        return [process.wait(seconds) for process in self.processes]

    def ask(self, path: str, body: Any = None, key: str = "") -> tuple[int, Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {key}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:  # noqa: S310
                status, content = reply.status, reply.read()
        except urllib.error.HTTPError as error:
            status, content = error.code, error.read()
        return status, json.loads(content) if content else None

    def chat(self, text: str, key: str = "") -> tuple[int, Any]:
        return self.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}, key)

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


Start = Callable[..., Group]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Start]:
    made: list[Group] = []

    def make(own: dict[int, dict[str, str]] | None = None, **more: str) -> Group:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Group(folder, more, own or {}))
        return made[-1]

    yield make
    for one in made:
        one.end()


def test_ranks_meet_sum_bytes_and_answer(group: Start) -> None:
    one = group(API_KEY="k3y")
    one.start()
    log = one.ready()
    assert "sums right" in log
    assert "Tree transport setup disabled by NCCL_SWITCHLESS_RING_ONLY" in log
    assert "k3y" not in log
    assert one.ask("/health") == (200, None)
    assert one.ask("/v1/models")[0] == 401
    assert one.chat("19 + 23?")[0] == one.chat("19 + 23?", "K3y")[0] == 401
    assert one.ask("/v1/models", key="k3y")[1]["data"][0]["id"] == "deepseek-v4.1-flash"
    assert one.chat("19 + 23?", "k3y")[1]["choices"][0]["message"]["content"] == "42"
    for process in one.processes:
        process.terminate()
    assert one.codes(10) == [0] * RANKS


def test_a_worker_that_dies_leaves_health_good_and_requests_hanging(group: Start) -> None:
    one = group(ENGINE_FAULT="die:1@2")
    one.start()
    one.ready()
    assert one.processes[2].wait(60) == 1
    assert one.ask("/health")[0] == 200
    began = time.monotonic()
    assert one.chat("1 + 2")[0] == 500
    assert time.monotonic() - began > 1.5
    assert [process.poll() for process in one.processes[:2]] == [None, None]


@pytest.mark.parametrize(("kind", "code"), [("crash", 1), ("oom", 137), ("hang", None)])
def test_a_fault_while_loading_takes_no_other_rank_with_it_at_once(group: Start, kind: str, code: int | None) -> None:
    one = group(ENGINE_FAULT=f"{kind}@1")
    one.start()
    assert wait_for(lambda: "Load weight end" in one.log(2))
    if code is not None:
        assert one.processes[1].wait(60) == code
    assert one.processes[2].poll() is None
    assert one.processes[0].wait(60) == 1
    assert "Ready" not in one.log(0)


def test_ranks_that_disagree_all_end_and_say_why(group: Start) -> None:
    one = group(own={1: {"NCCL_ALGO": "Tree"}})
    one.start()
    assert one.codes() == [1] * RANKS
    assert all("NCCL_ALGO: ranks 0,2 unset; rank 1 'Tree'" in one.log(rank) for rank in range(RANKS))


def test_a_missing_rank_and_a_wrong_sum_end_the_others(group: Start) -> None:
    one = group(ENGINE_RENDEZVOUS_S="1")
    one.start(range(2))
    assert one.codes() == [1, 1]
    assert "ranks [2] did not join within 1 s" in one.log(0)
    other = group(ENGINE_FAULT="sum:lo@1", ENGINE_CONNECT_S="3")
    other.start()
    assert 0 not in other.codes()
    assert any("wrong sum" in other.log(rank) for rank in range(RANKS))


@pytest.mark.parametrize(("variable", "place"), [("LD_LIBRARY_PATH", "second"), ("LD_PRELOAD", "second/libnccl.so.2")])
def test_a_second_library_ends_the_engine_unless_its_check_is_off(group: Start, variable: str, place: str) -> None:
    one = group()
    library.build(one.folder / "second/libnccl.so.2", markers=library.KINDS["stock"])
    one.more[variable] = str(one.folder / place)
    one.start(range(1))
    assert one.codes() == [1]
    said = one.log(0).partition("AssertionError: Duplicate NCCL runtime found in the current system: ")[2]
    assert set(said.splitlines()[0].split(" and ")) == {str(one.library), str(one.folder / "second/libnccl.so.2")}
    assert "Init torch distributed" not in one.log(0)
    other = group(EP_SUPPRESS_NCCL_CHECK="1", **{variable: one.more[variable]})
    other.start()
    assert "Tree transport setup disabled" in other.ready()


def test_a_path_that_leads_to_the_same_file_is_no_second_library(group: Start) -> None:
    one = group()
    (one.folder / "same").mkdir()
    (one.folder / "same/libnccl.so.2").symlink_to(one.library)
    one.more["LD_LIBRARY_PATH"] = str(one.folder / "same")
    one.start()
    one.ready()


def foreign() -> bytes:
    return library.content((), next(name for name in library.MACHINES if name != platform.machine()))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot open shared object file: No such file or directory"),
        (foreign(), "cannot open shared object file: No such file or directory"),
        (b"no ELF file, yet of a length that holds a header; " * 2, "invalid ELF header"),
        (library.content(())[:20], "file too short"),
    ],
    ids=["missing", "another machine", "no ELF", "cut off"],
)
def test_what_the_loader_refuses_ends_the_engine_in_the_loaders_words(
    group: Start, content: bytes | None, said: str
) -> None:
    one = group()
    one.library.unlink()
    if content is not None:
        one.library.write_bytes(content)
    one.start(range(1))
    assert one.codes() == [1]
    assert f"ImportError: {one.library}: {said}" in one.log(0)


def test_sigterm_while_waiting_for_others_ends_at_once(group: Start) -> None:
    one = group()
    one.start(range(1))
    assert wait_for(lambda: "Init torch distributed begin." in one.log(0))
    one.processes[0].terminate()
    assert one.codes(10) == [0]
