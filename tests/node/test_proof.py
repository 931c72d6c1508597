"""What a node tells for the proof: counters of its functions, completions on the head, library and lines of a rank."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from node import elf
from node.counters import counters
from node.load import load
from node.loaded import loaded
from tests.node.helpers import OWNER
from tests.node.machine import Machine

PIP = "/opt/nccl/lib/libnccl.so.2"
LIBRARY = b"\x7fELF ... NCCL_IB_EXTENDED_IPV4_GIDS ..."
SPACE = "pid:[4026532001]"
KEY = "hunter2"

Json = dict[str, Any]


def port(machine: Machine, hca: str, sent: str, received: str) -> None:
    place = f"/sys/class/infiniband/{hca}/ports/1"
    machine.put(f"{place}/counters/port_xmit_data", f"{sent}\n")
    machine.put(f"{place}/counters/port_rcv_data", f"{received}\n")
    machine.put(f"{place}/state", "4: ACTIVE\n")
    machine.put(f"{place}/gids/3", "0000:0000:0000:0000:0000:ffff:0a0a:000a\n")
    machine.put(f"{place}/gid_attrs/types/3", "RoCE v2\n")


# counters


def test_counters_are_bytes_of_each_function_that_is_asked_for(machine: Machine) -> None:
    port(machine, "rocep1s0f0", "1000", "7")
    port(machine, "roceP2p1s0f0", "0", "0")
    seen = counters(machine, {"hcas": ["rocep1s0f0", "roceP2p1s0f0"], "gid_index": 3})["ports"]
    assert seen["rocep1s0f0"] == {
        "sent": 4000,
        "received": 28,
        "state": "4: ACTIVE",
        "gid": "0000:0000:0000:0000:0000:ffff:0a0a:000a",
        "gid_type": "RoCE v2",
    }
    assert seen["roceP2p1s0f0"]["sent"] == 0


def test_a_function_that_is_not_there_has_no_counters(machine: Machine) -> None:
    (seen,) = counters(machine, {"hcas": ["mlx5_9"], "gid_index": 3})["ports"].values()
    assert seen == {"sent": None, "received": None, "state": "", "gid": "", "gid_type": ""}


def test_counters_of_the_physical_port_are_not_looked_at(machine: Machine) -> None:
    """Both functions of a port show them: they would hide an idle plane and count every byte twice."""
    port(machine, "rocep1s0f0", "1", "1")
    read: list[str] = []
    text = machine.text

    def recorded(path: str) -> str | None:
        read.append(path)
        return text(path)

    machine.text = recorded  # type: ignore[method-assign]
    machine.hooks["ethtool"] = lambda argv: pytest.fail(f"{argv} was run")
    counters(machine, {"hcas": ["rocep1s0f0"], "gid_index": 3})
    assert read
    assert not any("phy" in path.rpartition("/")[2] for path in read)


# load


class Api(http.server.ThreadingHTTPServer):
    """An API that answers as told and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Json, str | None]] = []
        self.answers: list[tuple[int, str]] = []
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Api

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name is the library's
        """Nothing of it is a test's output."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/v1/chat/completions"
        self.server.asked.append((body, self.headers["Authorization"]))
        status, text = self.server.answers.pop(0) if self.server.answers else (200, "{}")
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())


@pytest.fixture
def api() -> Iterator[Api]:
    with Api() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def asked(api: Api, **more: object) -> Json:
    wanted = {"address": "127.0.0.1", "port": api.server_address[1], "model": "m", "requests": 3, "words": [50]}
    return {**wanted, "tokens": 4, "timeout": 30, **more}


def inspected(machine: Machine, answer: Json) -> None:
    """One container of ours runs, and docker tells this about it."""
    machine.containers = [
        {"id": "a", "name": "engine", "labels": {"spark-fabric.stack": OWNER.label()}, "state": "running"},
        {"id": "b", "name": "other", "labels": {"spark-fabric.stack": "x/y/z"}, "state": "running"},
    ]
    call = machine.docker_call

    def docker_call(method: str, path: str, timeout: float, body: bytes = b"") -> tuple[int, bytes]:
        if path == "/containers/a/json":
            return 200, json.dumps(answer).encode()
        return call(method, path, timeout)

    machine.docker_call = docker_call  # type: ignore[method-assign]


def test_completions_are_short_long_prompted_and_begin_each_in_its_own_way(machine: Machine, api: Api) -> None:
    found = load(machine, OWNER, asked(api))
    assert (found["answered"], found["error"], found["refused"]) == (3, "", False)
    prompts = [body["messages"][0]["content"] for body, _ in api.asked]
    assert len({prompt.split(" word")[0] for prompt in prompts}) == 3  # an engine remembers prompts
    assert all(prompt.count("word") == 50 for prompt in prompts)
    assert all((body["model"], body["max_tokens"]) == ("m", 4) for body, _ in api.asked)
    assert {key for _, key in api.asked} == {None}


def test_the_key_is_that_of_the_container_and_is_in_no_answer(machine: Machine, api: Api) -> None:
    inspected(machine, {"Config": {"Env": ["PATH=/bin", f"API_KEY={KEY}"]}, "State": {}})
    api.answers = [(500, f"wrong: Bearer {KEY}")]
    found = load(machine, OWNER, asked(api))
    assert [key for _, key in api.asked] == [f"Bearer {KEY}"]
    assert found["error"] == "status 500: wrong: Bearer [secret]"
    assert KEY not in json.dumps([found, machine.calls])


@pytest.mark.parametrize("key", [KEY, 'hunter"2'])
def test_no_part_of_a_key_is_left_where_an_answer_is_cut(machine: Machine, api: Api, key: str) -> None:
    inspected(machine, {"Config": {"Env": [f"API_KEY={key}"]}, "State": {}})
    for before in range(280, 300):
        api.answers = [(500, json.dumps("x" * before + key))]
        assert "hun" not in load(machine, OWNER, asked(api))["error"]


def test_the_first_failure_ends_it(machine: Machine, api: Api) -> None:
    api.answers = [(200, "{}"), (500, "no step finished")]
    found = load(machine, OWNER, asked(api))
    assert (found["answered"], found["error"]) == (1, "status 500: no step finished")
    assert not found["refused"]
    assert len(api.asked) == 2


def test_a_key_that_is_wanted_and_not_there_is_told_apart(machine: Machine, api: Api) -> None:
    api.answers = [(401, '{"error": "Unauthorized"}')]
    assert load(machine, OWNER, asked(api))["refused"]


def test_nobody_who_answers_is_an_error(machine: Machine) -> None:
    found = load(machine, OWNER, {**asked(Api()), "port": 1})
    assert found["answered"] == 0
    assert "refused" in found["error"]


def test_no_completion_is_begun_after_the_time_is_up(machine: Machine, api: Api) -> None:
    clock = iter([0.0, 0.0, 31.0, 31.0])
    machine.clock = lambda: next(clock)  # type: ignore[method-assign]
    found = load(machine, OWNER, asked(api))
    assert (found["answered"], found["error"]) == (1, "")


# loaded


def process(machine: Machine, pid: int, *paths: str, space: str = SPACE) -> None:
    machine.symlinks[f"/proc/{pid}/ns/pid"] = space
    rows = [f"7f0000000000-7f0000001000 r-xp 00000000 00:30 1234   {path}\n" for path in paths]
    machine.put(f"/proc/{pid}/maps", "".join([*rows, "7ffd0000-7ffe0000 rw-p 00000000 00:00 0\n"]))


@pytest.fixture
def rank(machine: Machine) -> Machine:
    """A rank of three processes, two of which have loaded one libnccl; another container has one too."""
    inspected(machine, {"Config": {"Env": []}, "State": {"Pid": 100}})
    process(machine, 100, "/usr/bin/python3")
    process(machine, 101, PIP, PIP, "/usr/lib/libnccl-net.so", "/usr/lib/libc.so.6")
    process(machine, 102, PIP)
    process(machine, 200, "/other/libnccl.so.2", space="pid:[1]")
    for pid in (101, 102):
        machine.files[f"/proc/{pid}/root{PIP}"] = machine.files["/proc/100/maps"]._replace(data=LIBRARY)
    machine.put(PIP, "the node's own file of that name is another one")
    return machine


def ask(machine: Machine, **desired: Any) -> Json:
    return loaded(machine, OWNER, {"strings": ["EXTENDED_IPV4_GIDS", "PRESERVE_PCI_DOMAIN"], **desired})


def test_the_library_is_read_as_the_rank_sees_it(rank: Machine) -> None:
    seen = ask(rank)
    assert seen["container"] == "engine"
    assert seen["libraries"] == [
        {
            "path": PIP,
            "sha256": hashlib.sha256(LIBRARY).hexdigest(),
            "strings": ["EXTENDED_IPV4_GIDS"],
            "processes": 2,
        }
    ]


def test_a_library_is_read_in_pieces(rank: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ask(rank)
    monkeypatch.setattr(elf, "PIECE", 7)  # its strings lie across several
    read = rank.read

    def small(path: str) -> bytes | None:
        assert not path.endswith(PIP), "a library may be larger than the memory that is left"
        return read(path)

    monkeypatch.setattr(rank, "read", small)
    assert ask(rank) == whole


def test_every_library_of_every_process_of_the_rank_is_told(rank: Machine) -> None:
    process(rank, 103, "/nccl/libnccl.so.2.30.7")
    assert [one["path"] for one in ask(rank)["libraries"]] == ["/nccl/libnccl.so.2.30.7", PIP]


def test_a_file_that_was_replaced_has_no_digest(rank: Machine) -> None:
    process(rank, 101, f"{PIP} (deleted)")
    process(rank, 102)
    (found,) = ask(rank)["libraries"]
    assert (found["path"], found["sha256"]) == (f"{PIP} (deleted)", None)


def test_a_rank_without_one_has_none(rank: Machine) -> None:
    process(rank, 101, "/usr/lib/libnccl-net.so")
    process(rank, 102, "/usr/lib/libnccl_static.a")
    assert ask(rank)["libraries"] == []


def test_lines_are_the_first_that_match_and_the_first_error_is_told(rank: Machine) -> None:
    log = (
        b"spark1:1:1 [0] NCCL INFO NET/IB ListenerRouting format=ipv4-v1 advertised=4 observed=4\n"
        b"NET/IB ListenerRouting format=legacy advertised=2 observed=4\n"
        b"spark1:1:1 [0] NCCL WARN something is odd\n"
        b"RuntimeError: NCCL error: unhandled system error\n"
    )
    call = rank.docker_call

    def docker_call(method: str, path: str, timeout: float, body: bytes = b"") -> tuple[int, bytes]:
        return (200, log) if path.startswith("/containers/a/logs") else call(method, path, timeout)

    rank.docker_call = docker_call  # type: ignore[method-assign]
    seen = ask(rank, lines={"listener": r"ListenerRouting .*advertised=\d", "trees": "Connected all trees"})
    assert seen["lines"]["listener"].endswith("advertised=4 observed=4")
    assert seen["lines"]["trees"] is None
    assert seen["first_error"] == "spark1:1:1 [0] NCCL WARN something is odd"


def test_a_container_that_has_ended_is_none(rank: Machine) -> None:
    rank.containers[0]["state"] = "exited"
    seen = ask(rank)
    assert (seen["container"], seen["libraries"]) == (None, [])


def test_a_docker_that_does_not_answer_is_told(machine: Machine) -> None:
    def dead(method: str, path: str, timeout: float, body: bytes = b"") -> tuple[int, bytes]:
        raise OSError("connection refused")

    machine.docker_call = dead  # type: ignore[method-assign]
    assert ask(machine)["docker_error"] == "connection refused"


def test_nothing_is_changed(rank: Machine, api: Api) -> None:
    port(rank, "rocep1s0f0", "1", "1")
    before = rank.snapshot()
    rank.steps.clear()
    counters(rank, {"hcas": ["rocep1s0f0"], "gid_index": 3})
    load(rank, OWNER, asked(api))
    ask(rank, lines={"x": "y"})
    assert rank.snapshot() == before
    assert rank.steps == []
