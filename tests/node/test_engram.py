"""Packing the engram of a node's rank: the container, how it ends, and that nothing of it is left."""

import signal
from collections.abc import Callable
from typing import Any

import pytest

from fleet.on_node import LIMITS_S
from node import alive, lock
from node.docker import PACKS
from node.engram import LONGEST, RANKS, STEP, _told_to_end
from node.request import ENGINE_ALIVE, FAILED, OTHER_OWNER
from tests.node.helpers import OWNER, ask, refused, take
from tests.node.machine import Machine

FOLDER = "/data/engram"
FILES = [f"engram-l{layer}-r1of4.bin" for layer in (1, 14)]
IMAGE = "sha256:" + "1" * 64
NAME = "spark-fabric-lab-pack"
MODEL = "/models/DeepSeek-V4.1-Flash"
WANTED = {
    "files": FILES,
    "folder": FOLDER,
    "weights": {"source": "/data/model", "target": MODEL},
    "checkpoint": MODEL,
    "image": IMAGE,
    "name": NAME,
    "rank": 1,
    "size": 4,
}

pytestmark = pytest.mark.usefixtures("no_guard")


@pytest.fixture
def machine() -> Machine:
    """A node of ours with the image and an empty folder."""
    machine = Machine()
    take(machine)
    machine.make_folder(FOLDER)
    machine.images = {IMAGE: {"Id": IMAGE, "Architecture": "arm64"}}
    return machine


def ends(machine: Machine, code: int = 0, after: int = 3, files: tuple[str, ...] = tuple(FILES)) -> list[Any]:
    """Let the container end at a look, with some files written; what docker was told of it."""
    told: list[Any] = []

    def look(_: list[str]) -> None:
        (container,) = machine.containers
        told.append(container)
        if len(told) == after:
            container |= {"state": "exited", "exit_code": code}
            for name in files:
                machine.put(f"{FOLDER}/{name}", "packed")

    machine.hooks["sleep"] = look
    return told


def test_the_engram_is_packed_in_a_container_that_is_gone_afterwards(machine: Machine) -> None:
    told = ends(machine)
    answer = ask(machine, "pack-engram", "", WANTED)
    assert (answer["packed"], answer["seconds"], answer["said"]) == (True, 3.0, "ready")
    assert answer["files"] == dict.fromkeys(FILES, 6)
    assert machine.containers == []
    container = told[0]
    assert container["name"] == NAME
    assert container["labels"] == {"spark-fabric.pack": OWNER.label()}  # and none of a rank
    assert container["told"]["Image"] == IMAGE
    script = ["/opt/dsv41/scripts/pack_engram.py", "--rank", "1", "--tp", "4", "--out", "/engram"]
    assert container["told"]["Config"] == {
        "Image": IMAGE,
        "Entrypoint": ["python3"],
        "Cmd": script,
        "Env": [f"DSV41_SOURCE={MODEL}"],
        "Healthcheck": {"Test": ["NONE"]},
    }
    assert container["told"]["HostConfig"] == {
        "NetworkMode": "host",
        "Mounts": [
            {"Type": "bind", "Source": "/data/model", "Target": MODEL, "ReadOnly": True},
            {"Type": "bind", "Source": FOLDER, "Target": "/engram", "ReadOnly": False},
        ],
    }


def test_the_container_is_taken_for_no_rank_while_it_packs(machine: Machine) -> None:
    seen: list[list[str]] = []
    ends(machine)
    look = machine.hooks["sleep"]

    def also(argv: list[str]) -> None:
        seen.append(alive.reasons(machine))
        look(argv)

    machine.hooks["sleep"] = also
    ask(machine, "pack-engram", "", WANTED)
    assert seen == [[], [], []]


def test_files_that_are_there_are_not_packed_again_and_empty_ones_are(machine: Machine) -> None:
    machine.put(f"{FOLDER}/{FILES[0]}", "packed")
    machine.put(f"{FOLDER}/{FILES[1]}", "")
    ends(machine)
    assert ask(machine, "pack-engram", "", WANTED)["packed"]
    machine.hooks["sleep"] = lambda _: pytest.fail("something was begun")
    assert not ask(machine, "pack-engram", "", WANTED)["packed"]


def test_weights_in_a_docker_volume_are_mounted_where_it_is_there(machine: Machine) -> None:
    wanted = {**WANTED, "weights": {"source": "spark-fabric-weights", "target": MODEL}}
    failure = refused(machine, "pack-engram", "", wanted)
    assert "spark1: has no docker volume spark-fabric-weights with the checkpoint" in str(failure)
    assert machine.made == 0  # docker would have made an empty one
    machine.volumes = [{"Name": "spark-fabric-weights"}]
    told = ends(machine)
    ask(machine, "pack-engram", "", wanted)
    first = told[0]["told"]["HostConfig"]["Mounts"][0]
    assert first == {"Type": "volume", "Source": "spark-fabric-weights", "Target": MODEL, "ReadOnly": True}


@pytest.mark.parametrize(("code", "said"), [(1, "exit code 1; its"), (137, "exit code 137 (killed; out of memory?)")])
def test_a_program_that_fails_is_told_with_its_last_lines(code: int, said: str, machine: Machine) -> None:
    ends(machine, code, files=())
    failure = refused(machine, "pack-engram", "", WANTED)
    assert failure.code == FAILED
    assert f"spark1: packing ended with {said}" in failure.lines[0]
    assert failure.lines[1:] == ("loading", "ready")
    assert machine.containers == []


def test_a_file_that_is_left_out_is_told_by_name(machine: Machine) -> None:
    ends(machine, files=(FILES[0],))
    failure = refused(machine, "pack-engram", "", WANTED)
    assert f"spark1 {FOLDER}: has no {FILES[1]}, although packing ended well" in failure.lines[0]


def _gone(machine: Machine) -> None:
    machine.caller_gone = lambda: len(machine.containers) > 0  # type: ignore[method-assign]


def _let_go(machine: Machine) -> None:
    machine.let_go = lambda: len(machine.containers) > 0  # type: ignore[method-assign]


def _slow(machine: Machine) -> None:
    machine.hooks["sleep"] = lambda _: setattr(machine, "time", machine.time + LONGEST)


def _silent(machine: Machine) -> None:
    real = machine.docker_call

    def call(method: str, path: str, timeout: float, body: bytes = b"") -> tuple[int, bytes]:
        if method == "GET" and path.startswith("/containers/made"):
            raise OSError("timed out")
        return real(method, path, timeout, body)

    machine.docker_call = call  # type: ignore[method-assign]


def _ended(machine: Machine) -> None:
    machine.hooks["sleep"] = lambda _: signal.raise_signal(signal.SIGTERM)


def _ended_in(way: str) -> Callable[[Machine], None]:
    """Told to end while docker answers a call."""

    def happens(machine: Machine) -> None:
        real = machine.docker_call

        def call(method: str, path: str, timeout: float, body: bytes = b"") -> tuple[int, bytes]:
            answer = real(method, path, timeout, body)
            if way in path:
                signal.raise_signal(signal.SIGTERM)
            return answer

        machine.docker_call = call  # type: ignore[method-assign]

    return happens


@pytest.mark.parametrize(
    ("happens", "said"),
    [
        (_gone, "whoever asked is gone: packing was ended; run it again"),
        (_let_go, "whoever asked is gone: packing was ended; run it again"),
        (_slow, f"packing was ended after {LONGEST} s"),
        (_silent, "docker does not answer: timed out"),
        (_ended, "was told to end: packing was ended"),
        (_ended_in("/create"), "was told to end: packing was ended"),
        (_ended_in("/start"), "was told to end: packing was ended"),
    ],
)
def test_the_container_is_gone_whatever_happens(
    happens: Callable[[Machine], None], said: str, machine: Machine
) -> None:
    happens(machine)
    assert f"spark1: {said}" in str(refused(machine, "pack-engram", "", WANTED))
    assert (machine.made, machine.containers) == (1, [])


def test_who_is_told_to_end_before_the_start_starts_nothing(machine: Machine) -> None:
    _ended_in("/create")(machine)
    refused(machine, "pack-engram", "", WANTED)
    assert not any(call[-1].endswith("/start") for call in machine.calls)


def test_a_docker_that_is_busy_for_a_while_ends_nothing(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    ends(machine, after=100)
    real, silent = machine.docker_call, iter(range(60))

    def call(method: str, path: str, *more: Any) -> tuple[int, bytes]:
        if method == "GET" and path.endswith("made-1/json") and next(silent, None) is not None:
            message = "timed out"
            raise OSError(message)
        return real(method, path, *more)

    monkeypatch.setattr(machine, "docker_call", call)
    assert ask(machine, "pack-engram", "", WANTED)["seconds"] == 100.0


def test_a_container_that_does_not_start_is_removed(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    real = machine.docker_call

    def call(method: str, path: str, *more: Any) -> tuple[int, bytes]:
        return (500, b"no such device") if path.endswith("/start") else real(method, path, *more)

    monkeypatch.setattr(machine, "docker_call", call)
    assert "docker cannot start made-1" in str(refused(machine, "pack-engram", "", WANTED))
    assert machine.containers == []


def test_one_that_cannot_be_removed_is_told_with_what_to_do(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    ends(machine)
    real = machine.docker_call

    def call(method: str, path: str, *more: Any) -> tuple[int, bytes]:
        return (500, b"device is busy") if method == "DELETE" else real(method, path, *more)

    monkeypatch.setattr(machine, "docker_call", call)
    (note,) = ask(machine, "pack-engram", "", WANTED)["notes"]
    assert f"spark1: container {NAME} may be there still" in note
    assert note.endswith(f"sudo docker rm -f {NAME}")


def test_one_that_somebody_removes_meanwhile_is_told(machine: Machine) -> None:
    machine.hooks["sleep"] = lambda _: machine.containers.clear()
    assert "somebody removed the container while it packed" in str(refused(machine, "pack-engram", "", WANTED))


@pytest.mark.parametrize("labels", [{}, {PACKS: "spark-fabric/lab/another"}])
def test_a_name_that_others_have_is_refused_and_left(labels: dict[str, str], machine: Machine) -> None:
    machine.containers = [{"id": "1", "name": NAME, "labels": labels, "state": "running"}]
    failure = refused(machine, "pack-engram", "", WANTED)
    assert f"spark1: has a container {NAME} that is not this stack's, and is running" in str(failure)
    assert len(machine.containers) == 1


def test_what_a_killed_run_left_is_removed_and_told(machine: Machine) -> None:
    machine.containers = [{"id": "1", "name": NAME, "labels": {PACKS: OWNER.label()}, "state": "running"}]
    told = ends(machine)
    answer = ask(machine, "pack-engram", "", WANTED)
    assert answer["packed"]
    assert answer["notes"] == [f"container {NAME}: removed, left by a packing that was ended"]
    assert told[0]["id"] == "made-1"
    assert machine.containers == []


@pytest.mark.parametrize(("labels", "left"), [({PACKS: OWNER.label()}, 0), ({}, 1)])
def test_what_docker_made_without_saying_so_is_removed_and_what_others_made_is_left(
    labels: dict[str, str], left: int, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = machine.docker_call

    def call(method: str, path: str, *more: Any) -> tuple[int, bytes]:
        if "/create" not in path:
            return real(method, path, *more)
        machine.containers.append({"id": "2", "name": NAME, "labels": labels, "state": "created"})
        if not labels:
            return real(method, path, *more)
        message = "timed out"
        raise OSError(message)

    monkeypatch.setattr(machine, "docker_call", call)
    failure = refused(machine, "pack-engram", "", WANTED)
    assert "timed out" in str(failure) or "the name is in use" in str(failure)
    assert len(machine.containers) == left


def test_a_rank_that_starts_meanwhile_ends_it(machine: Machine) -> None:
    rank = {"id": "7", "name": "spark-fabric-lab", "labels": {"spark-fabric.stack": OWNER.label()}, "state": "running"}
    machine.hooks["sleep"] = lambda _: machine.containers.append(rank) if rank not in machine.containers else None
    began = machine.time
    failure = refused(machine, "pack-engram", "", WANTED)
    assert failure.code == ENGINE_ALIVE
    assert failure.lines[0] == "spark1: engine container spark-fabric-lab is running, wanted no engine"
    assert "packing was ended" in failure.lines[1]
    assert machine.containers == [rank]
    assert machine.time - began == RANKS * STEP


def _without_log(machine: Machine) -> None:
    real = machine.docker_call

    def call(method: str, path: str, timeout: float, body: bytes = b"") -> tuple[int, bytes]:
        if "/logs" in path:
            message = "timed out"
            raise OSError(message)
        return real(method, path, timeout, body)

    machine.docker_call = call  # type: ignore[method-assign]


def test_a_log_that_cannot_be_had_hides_nothing(machine: Machine) -> None:
    _without_log(machine)
    ends(machine, code=1, files=())
    failed = "spark1: packing ended with exit code 1; its last lines:"
    assert refused(machine, "pack-engram", "", WANTED).lines == (failed,)
    _slow(machine)
    assert refused(machine, "pack-engram", "", WANTED).lines == (f"spark1: packing was ended after {LONGEST} s",)
    ends(machine)
    answer = ask(machine, "pack-engram", "", WANTED)
    assert (answer["packed"], answer["said"]) == (True, "")


def test_nothing_is_packed_while_a_rank_of_the_stack_runs(machine: Machine) -> None:
    labels = {"spark-fabric.stack": OWNER.label()}
    machine.containers = [{"id": "1", "name": "spark-fabric-lab", "labels": labels, "state": "running"}]
    assert refused(machine, "pack-engram", "", WANTED).code == ENGINE_ALIVE
    assert machine.made == 0


def test_a_node_without_folder_or_image_or_mark_is_refused(machine: Machine) -> None:
    assert "spark1 /none: is no folder" in str(refused(machine, "pack-engram", "", {**WANTED, "folder": "/none"}))
    machine.images = {}
    assert f"spark1: has no image {IMAGE}" in str(refused(machine, "pack-engram", "", WANTED))
    assert refused(Machine(), "pack-engram", "", WANTED).code == OTHER_OWNER


def test_it_ends_by_itself_before_the_limit_of_whoever_asks() -> None:
    looks = 10 + 2 * 10  # the container, all of them, and a rank among these
    log, removal = 2 * 10, 60
    assert lock.WAIT + LONGEST + STEP + looks + log + removal < LIMITS_S["pack-engram"] - 30


def test_a_signal_is_what_it_was_once_the_container_is_gone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with _told_to_end() as told:
        signal.raise_signal(signal.SIGTERM)
    assert told == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is before
