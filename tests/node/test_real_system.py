"""The parts that touch a real machine: files, processes, locks, the guard, the command line."""

import contextlib
import hashlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from node import guard, httpcall, lock, observe, pack
from node.management import Management
from node.request import LINE, Failure, parse, say
from node.run import run
from node.system import Meta, System

OWNER = {"project": "p", "stack": "lab", "fleet_id": "f", "state_id": "s"}


def _meta(mode: int, mtime: int = 0) -> Meta:
    return Meta(mode, os.geteuid(), os.getegid(), mtime)


def test_a_file_is_replaced_whole_with_its_mode_and_time(tmp_path: Path) -> None:
    system = System(str(tmp_path))
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/.x.spark-fabric-new").write_text("of a run that was killed")
    system.write("/etc/x", b"one", _meta(0o600))
    system.write("/etc/x", b"two", _meta(0o644, 1_000_000_000))
    assert (tmp_path / "etc/x").read_bytes() == b"two"
    found = system.meta("/etc/x")
    assert found is not None
    assert (found.mode, found.mtime_ns) == (0o644, 1_000_000_000)
    assert system.names("/etc") == ["x"]


def test_a_symbolic_link_in_our_way_is_replaced_and_not_followed(tmp_path: Path) -> None:
    system = System(str(tmp_path))
    (tmp_path / "secret").write_text("theirs")
    (tmp_path / "x").symlink_to(tmp_path / "secret")
    (tmp_path / ".y.spark-fabric-new").symlink_to(tmp_path / "secret")
    system.write("/x", b"ours", _meta(0o600))
    system.write("/y", b"ours", _meta(0o600))
    assert (tmp_path / "secret").read_text() == "theirs"


def test_folders_go_only_when_they_are_empty(tmp_path: Path) -> None:
    system = System(str(tmp_path))
    system.make_folder("/a/b", 0o700)
    system.write("/a/b/c", b"", _meta(0o600))
    assert not system.remove_folder("/a/b")
    system.remove("/a/b/c")
    assert system.remove_folder("/a/b")
    assert system.remove_folder("/a/b")


def test_programs_run_with_umask_022_and_without_our_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """F025"""
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    old = os.umask(0o077)
    try:
        assert run(["sh", "-c", "umask; echo $LC_ALL"], 5).out.split() == ["0022", "C"]
    finally:
        os.umask(old)


def test_programs_are_killed_for_their_time_and_missing_ones_are_told() -> None:
    assert run(["sleep", "5"], 0.1).rc == 124
    missing = run(["no-such-program"], 1)
    assert missing.rc == 127
    assert missing.reason() == "no-such-program is not installed"


def test_parallel_calls_keep_their_order_and_raise_the_first_error() -> None:
    system = System()
    assert system.parallel([lambda: 1, lambda: 2, lambda: 3]) == [1, 2, 3]

    def fail() -> int:
        raise Failure(1, "no")

    with pytest.raises(Failure):
        system.parallel([lambda: 1, fail])


def test_the_lock_is_free_again_when_its_process_is_killed(tmp_path: Path) -> None:
    """F117"""
    (tmp_path / "run/lock").mkdir(parents=True)
    system = System(str(tmp_path))
    child = os.fork()
    if child == 0:
        with lock.held(system, "a run that dies"):
            time.sleep(300)
        os._exit(0)
    end = time.monotonic() + 60
    while (lock.observe(system) or {"pid": 0})["pid"] != child and time.monotonic() < end:
        time.sleep(0.01)
    seen = lock.observe(system)
    assert seen is not None
    assert (seen["holder"], seen["pid"]) == ("a run that dies", child)
    with pytest.raises(Failure, match="a run that dies"), lock.held(system, "another", wait=0.1):
        pass
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with lock.held(system, "another", wait=1):
        assert (lock.observe(system) or {})["holder"] == "another"
    assert lock.observe(system) is None


def test_a_run_whose_caller_is_gone_does_not_begin(tmp_path: Path) -> None:
    (tmp_path / "run/lock").mkdir(parents=True)
    system = System(str(tmp_path))
    reader, writer = os.pipe()
    output = os.dup(1)
    os.dup2(writer, 1)
    try:
        with lock.held(system, "somebody who reads"):
            pass
        os.close(reader)
        with pytest.raises(Failure, match="nothing was changed"), lock.held(system, "nobody"):
            pass
    finally:
        os.dup2(output, 1)
        os.close(output)
        os.close(writer)
    assert lock.observe(system) is None


class _Lost(Management):
    """A management address that is gone while a file exists."""

    def __init__(self, mark: Path) -> None:
        super().__init__(frozenset())
        object.__setattr__(self, "mark", mark)

    def missing(self, system: System) -> list[str]:  # noqa: ARG002
        return ["gone"] if self.mark.exists() else []  # type: ignore[attr-defined]


def _fast(monkeypatch: pytest.MonkeyPatch, gone: float = 0.2) -> None:
    for name, value in (("GONE", gone), ("AFTER", 0.4), ("_STEP", 0.02)):
        monkeypatch.setattr(guard, name, value)


def test_the_guard_acts_when_its_run_was_killed_and_the_address_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fast(monkeypatch)
    gone, done = tmp_path / "gone", tmp_path / "done"
    child = os.fork()
    if child == 0:
        with guard.armed(System(), _Lost(gone), done.touch):
            gone.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    end = time.monotonic() + 60
    while not done.exists() and time.monotonic() < end:
        time.sleep(0.02)
    assert done.exists()


def test_the_guard_lets_a_run_alone_that_ends_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fast(monkeypatch, gone=3)  # which the run below is much quicker than
    gone, done = tmp_path / "gone", tmp_path / "done"
    with guard.armed(System(), _Lost(gone), done.touch):
        gone.touch()
    time.sleep(3.5)
    assert not done.exists()


def test_the_guard_does_nothing_about_a_run_that_merely_died(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fast(monkeypatch)
    done = tmp_path / "done"
    child = os.fork()
    if child == 0:
        with guard.armed(System(), _Lost(tmp_path / "gone"), done.touch):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    time.sleep(0.7)
    assert not done.exists()


def test_http_over_a_socket_that_talks_something_else_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        httpcall.call(str(tmp_path / "none"), "GET", "/", 1)


def test_a_server_is_known_by_its_header(tmp_path: Path) -> None:
    place = str(tmp_path / "socket")
    answers = (
        b"HTTP/1.0 200 OK\r\nX: y\r\nserver: Docker/28.1 (linux)\r\n\r\nServer: no",
        b"HTTP/1.0 200 OK\r\n\r\nOK",
    )
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(place)
        server.listen()
        for answer, known in zip(answers, ("Docker/28.1 (linux)", ""), strict=True):

            def serve(answer: bytes = answer) -> None:
                connection, _ = server.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(answer)

            thread = threading.Thread(target=serve)
            thread.start()
            assert httpcall.server(place, "/_ping", 5) == known
            thread.join()


def test_an_answer_that_comes_in_drops_ends_with_its_time(tmp_path: Path) -> None:
    place, stop = str(tmp_path / "socket"), threading.Event()

    def drip(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection, contextlib.suppress(OSError):
            while not stop.wait(0.05):
                connection.sendall(b"H")

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(place)
        server.listen()
        thread = threading.Thread(target=drip, args=(server,))
        thread.start()
        killer = threading.Timer(60, stop.set)
        killer.start()
        began = time.monotonic()
        with pytest.raises(OSError, match="timed out"):
            httpcall.call(place, "GET", "/", 0.3)
        assert time.monotonic() - began < 30
        stop.set()
        thread.join()
        killer.cancel()


def _program(folder: Path) -> Path:
    place = folder / "spark-node.pyz"
    place.write_bytes(pack.program(folder / "cache"))
    return place


def _call(folder: Path, verb: str, text: str) -> tuple[int, dict[str, Any], str]:
    command = [sys.executable, "-IS", str(_program(folder)), verb]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)
    answer: dict[str, Any] = {}
    with contextlib.suppress(ValueError):
        answer = json.loads(done.stdout)
    return done.returncode, answer, done.stderr


@pytest.mark.parametrize(
    ("verb", "text", "reason"),
    [
        ("dance", "{}", "is no verb"),
        ("apply", "no json", "is not JSON"),
        ("apply", "[]", "is not a JSON object"),
        ("apply", "{}", "has no owner"),
        ("apply", json.dumps({"owner": {**OWNER, "stack": "../etc"}}), "owner.stack"),
        ("apply", json.dumps({"owner": {**OWNER, "state_id": ""}}), "owner.state_id"),
        ("apply", json.dumps({"owner": OWNER, "desired": [1]}), "desired is not"),
    ],
)
def test_a_bad_request_ends_with_3_and_the_reason(tmp_path: Path, verb: str, text: str, reason: str) -> None:
    code, answer, errors = _call(tmp_path, verb, text)
    assert code == 3
    assert answer["ok"] is False
    assert reason in errors


def test_the_zipped_program_observes_this_machine(tmp_path: Path) -> None:
    code, answer, _ = _call(tmp_path, "observe", json.dumps({"owner": OWNER}))
    assert code == 0
    assert answer["schema"] == 1
    assert {"links", "hcas", "routes", "netplan", "nm", "docker", "errors"} <= answer.keys()


def test_lines_stay_below_what_readers_can_take(capsys: pytest.CaptureFixture[str]) -> None:
    say("ä" * 10_000)
    assert len(capsys.readouterr().err.encode()) <= LINE + 10


def test_a_request_keeps_what_it_says() -> None:
    request = parse(json.dumps({"owner": OWNER, "node": "spark1", "stage": "plane0", "desired": None, "force": True}))
    assert (request.node, request.stage, request.desired, request.force) == ("spark1", "plane0", {}, True)
    assert request.owner.label() == "p/lab/f"


def test_the_same_sources_give_the_same_program(tmp_path: Path) -> None:
    one, two = pack.program(tmp_path / "one"), pack.program(tmp_path / "two")
    assert one == two
    assert pack.program(tmp_path / "one") == one
    assert len(list((tmp_path / "one").iterdir())) == 1


def test_another_python_version_takes_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.MAGIC_NUMBER", b"\0\0\r\n")
    code, _, errors = _call(tmp_path, "dance", "{}")
    assert code == 3
    assert "is no verb" in errors


@pytest.mark.parametrize(
    ("mode", "user", "found"), [(0o660, "nobody", "nobody"), (0o666, "nobody", None), (0o660, "root", None)]
)
def test_a_user_whom_docker_shuts_out_is_seen(tmp_path: Path, mode: int, user: str, found: str | None) -> None:
    system = System(str(tmp_path))
    socket = system.path(system.docker_socket)
    socket.parent.mkdir(parents=True)
    socket.touch()
    socket.chmod(mode)
    assert observe._shut_out(system, user) == found


def test_a_stream_becomes_a_file_whole_or_not_at_all(tmp_path: Path) -> None:
    system = System(str(tmp_path))
    data = os.urandom(3_000_000)
    digest = hashlib.sha256(data).hexdigest()
    system.receive("/x", io.BytesIO(data + b"of the next file"), len(data), digest, _meta(0o644))
    assert (tmp_path / "x").read_bytes() == data
    assert system.sha256("/x") == digest
    for content in (data[:-1], bytes(len(data))):
        with pytest.raises(OSError, match=r"bytes came|what came is"):
            system.receive("/x", io.BytesIO(content), len(data), digest, _meta(0o644))
        assert system.names("/") == ["x"]
        assert (tmp_path / "x").read_bytes() == data


def test_only_regular_files_are_opened_and_a_pipe_holds_nobody_up(tmp_path: Path) -> None:
    system = System(str(tmp_path))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("file")
    assert [system.open_to_read(path) for path in ("/pipe", "/", "/none", "/link")] == [None] * 4
    (tmp_path / "file").write_bytes(b"x")
    assert system.sha256("/link") == hashlib.sha256(b"x").hexdigest()
    assert system.open_no_link("/link") is None
    file = system.open_no_link("/file")
    assert file
    with file:
        assert file.read() == b"x"


def test_a_file_comes_in_through_the_command_line_behind_its_request() -> None:
    """`install` leaves what follows the first line to whoever puts files in place."""
    request = {"owner": OWNER, "node": "spark1", "stage": "no-such-stage", "desired": {}}
    script = (
        "import sys; from node import __main__, changes\n"
        "changes.change = lambda system, verb, request: {'verb': verb, 'came': request.content.read().decode()}\n"
        "sys.exit(__main__.main(['install']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps(request).encode() + b"\nbytes\nof a file",
        capture_output=True,
        cwd=Path(__file__).parents[2],
        check=True,
    )
    assert json.loads(done.stdout) == {"ok": True, "verb": "install", "came": "bytes\nof a file"}


def test_who_packs_knows_when_it_is_let_go_by_its_stdin() -> None:
    program = (
        "import signal, time\n"
        "signal.alarm(120)\n"
        "from node.__main__ import _request\n"
        "from node.system import System\n"
        "system = System()\n"
        "print(_request(system, 'pack-engram').node, system.let_go(), flush=True)\n"
        "while not system.let_go(): time.sleep(0.02)\n"
        "print('let go', flush=True)\n"
    )
    owner = {"project": "p", "stack": "s", "fleet_id": "f", "state_id": "i"}
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=Path(__file__).parents[2]) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(json.dumps({"owner": owner, "node": "spark1"}) + "\n")
        process.stdin.flush()
        assert process.stdout.readline() == "spark1 False\n"
        process.stdin.close()
        assert process.stdout.read() == "let go\n"
