"""`python -m fleet pack`: what stands in the way, what each node is asked, how far it is, and how it ended."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fleet import __main__ as fleet
from fleet import engram, on_node
from fleet.engram import pack
from fleet.on_node import Answer, Link
from fleet.weights_settings import MODEL
from tests.unit import fakes
from tests.unit.oneshots import NAME, NODES, OWNER, Json, owned, runs, survey

GIB = 1 << 30
ID = "sha256:" + "1" * 64
VOLUMES = {"engine.volumes": ["/data/state:/state", "/data/engram:/engram", "/data/models:/models"]}
SPACE = {"free": 100 * GIB, "total": 900 * GIB, "files_free": 1 << 20, "files_total": 1 << 24}
PACK = "spark-fabric-test-pack"


def files(rank: int) -> list[str]:
    return [f"engram-l{layer}-r{rank}of4.bin" for layer in (1, 14)]


def folder() -> Json:
    own = {"owner": "0:0", "mode": "0755", "writable": True}
    return {"there": True, "space": dict(SPACE), "files": {}, "folder": own, "tables": {}}


@pytest.fixture
def raw() -> dict[str, Json]:
    """Four nodes of the stack with image and folders, and nothing packed."""
    nodes = owned()
    for node in nodes.values():
        node["docker"]["images"] = {"engine:1": ID}
        node["folders"] = {path: folder() for path in ("/data/state", "/data/engram", "/data/models")}
    return nodes


def is_packed(node: Json, rank: int) -> None:
    node["folders"]["/data/engram"]["files"] = dict.fromkeys(files(rank), 24 * GIB)


class Nodes:
    """Nodes that pack; `asked` has what each was, `lifelines` what holds it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.asked: dict[str, Json] = {}
        self.failing: dict[str, Answer] = {}
        self.lifelines: list[engram.Lifeline] = []
        self.slow = threading.Event()
        self.slow.set()
        patch.setattr(engram, "program", lambda _: b"")
        patch.setattr(on_node, "ask", self._ask)

    def _ask(
        self, verb: str, stack: str, link: Link, _: bytes, request: dict[str, Any], *, content: engram.Lifeline
    ) -> Answer:
        assert (verb, stack, request["owner"]) == ("pack-engram", "test", OWNER)
        desired = self.asked[link.name] = request["desired"]
        assert self.slow.wait(60)
        self.lifelines.append(content)
        if answer := self.failing.get(link.name):
            return answer
        sizes = dict.fromkeys(desired["files"], 24 * GIB)
        result = {"packed": True, "seconds": 61.0, "files": sizes, "said": "done: 24 GiB", "notes": []}
        return Answer(link.name, 0, result, "")

    @staticmethod
    def ended(lifeline: engram.Lifeline, within: float) -> bool:
        """Whether it ends within some seconds, so that the stdin of ssh is closed."""
        reader = threading.Thread(target=list, args=(lifeline.pieces(),), daemon=True)
        reader.start()
        reader.join(within)
        return not reader.is_alive()


def test_each_rank_that_has_none_is_packed_on_its_node_and_the_others_are_left(
    raw: dict[str, Json], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = Nodes(monkeypatch)
    is_packed(raw["spark1"], 0)
    is_packed(raw["spark3"], 2)
    raw["spark3"]["folders"]["/data/engram"]["files"]["engram-l14-r2of4.bin"] = 0
    assert pack(survey(raw, VOLUMES)) == []
    assert sorted(nodes.asked) == ["spark2", "spark3", "spark4"]
    assert nodes.asked["spark2"] == {
        "files": files(1),
        "folder": "/data/engram",
        "weights": {"source": "/data/models", "target": "/models"},
        "checkpoint": MODEL,
        "image": ID,
        "name": PACK,
        "rank": 1,
        "size": 4,
    }
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "spark1 /data/engram: holds the packed engram of rank 0: nothing was done",
        "packing on spark2, spark3, spark4",
    ]
    one = f"{files(1)[0]} (24.0 GiB), {files(1)[1]} (24.0 GiB)"
    assert f"spark2 /data/engram: packed in 61 s: {one}" in lines
    assert "spark2: done: 24 GiB" in lines


def test_where_all_is_there_nothing_is_asked_even_under_an_engine(
    raw: dict[str, Json], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = Nodes(monkeypatch)
    for rank, node in enumerate(raw.values()):
        is_packed(node, rank)
    runs(raw, "spark1", 0)
    assert pack(survey(raw, VOLUMES)) == []
    assert not nodes.asked
    assert capsys.readouterr().out.count("nothing was done") == 4


def test_how_long_it_takes_is_told_while_it_does(
    raw: dict[str, Json], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = Nodes(monkeypatch)
    for rank, node in list(enumerate(raw.values()))[:3]:
        is_packed(node, rank)
    nodes.slow.clear()
    monkeypatch.setattr(engram, "TELL_EVERY_S", 0.05)
    threading.Timer(0.3, nodes.slow.set).start()
    assert pack(survey(raw, VOLUMES)) == []
    assert capsys.readouterr().out.count("packing for 0 s on spark4") >= 2


def test_a_node_that_fails_is_told_with_its_lines_and_the_others_go_on(
    raw: dict[str, Json], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes, found = Nodes(monkeypatch), survey(raw, VOLUMES)
    said = "spark3: packing ended with exit code 1; its last lines:\nOSError: Input/output error"
    nodes.failing["spark3"] = Answer("spark3", 1, None, said)
    nodes.failing["spark4"] = Answer("spark4", -9, None, "")
    monkeypatch.setattr(fleet, "_looked", lambda *_: (found, []))
    assert fleet.VERBS["pack"](NAME, found.plan.settings, list(found.links.values())) == fleet.FAILED
    out, err = capsys.readouterr()
    assert sorted(err.splitlines()) == [
        "spark3: OSError: Input/output error",
        "spark3: packing ended with exit code 1; its last lines:",
        "spark4: ended with status -9 and said nothing",
    ]
    assert out.count(": packed in 61 s") == 2


def test_everything_that_stands_in_the_way_is_told_at_once_and_nothing_is_begun(
    raw: dict[str, Json], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = Nodes(monkeypatch)
    raw["spark1"]["docker"]["images"] = {}
    raw["spark1"]["lock"] = {"holder": "anna@desk (pid 7)", "pid": 8, "since": 0.0}
    raw["spark2"]["docker"]["containers"].append({"name": PACK, "labels": {}, "state": "running"})
    raw["spark2"]["folders"]["/data/engram"]["space"]["free"] = 20 * GIB
    raw["spark3"]["folders"] |= {"/data/engram": {**folder(), "there": False, "folder": None}}
    raw["spark3"]["folders"]["/data/models"]["there"] = False
    raw["spark4"]["docker"] = None
    runs(raw, "spark2", 1)
    told = pack(survey(raw, VOLUMES))
    assert not nodes.asked
    for start in (
        "spark3 /data/engram: is no folder that is there, wanted that folder. Make it.",
        "spark1: is being changed by anna@desk (pid 7), wanted nobody at work there",
        "spark1: has no image engine:1, wanted the plan's image. `./pulumiw up -s test` brings it.",
        f"spark2: has a container {PACK} that is not this stack's, wanted the name free. Remove or rename it.",
        "spark3 /data/models: is not there, wanted a folder of weights",
        "spark4: docker does not answer",
        "spark2 /data/engram: has 20.0 GiB left, wanted 50.0 GiB to pack the engram",
        "spark2: rank 1 runs, in container spark-fabric-test, wanted no engine",
    ):
        assert any(line.startswith(start) for line in told), (start, told)
    assert len(told) == 8


def test_all_ranks_have_to_answer_and_be_ours(raw: dict[str, Json], monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes(monkeypatch)
    raw["spark3"]["owner"] = None
    silent, other = pack(survey(raw, VOLUMES, {"spark2": "No route to host"}))
    assert silent.startswith("spark2: does not answer (No route to host)")
    assert other.startswith("spark3: does not carry the mark of spark-fabric/test/default")
    assert not nodes.asked


def test_a_node_that_may_be_adopted_is_not_ours_yet(raw: dict[str, Json], monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes(monkeypatch)
    raw["spark3"]["owner"]["adoptable"] = True
    (line,) = pack(survey(raw, VOLUMES))
    assert line.startswith("spark3: was freed by `fleet adopt`")
    assert not nodes.asked


def test_what_a_killed_run_of_ours_left_is_left_to_its_node(
    raw: dict[str, Json], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = Nodes(monkeypatch)
    left = {"name": PACK, "labels": {"spark-fabric.pack": "spark-fabric/test/default"}, "state": "running"}
    raw["spark2"]["docker"]["containers"].append(left)
    assert pack(survey(raw, VOLUMES)) == []
    assert len(nodes.asked) == 4


def test_folders_that_a_look_could_not_have_are_told_with_its_words(
    raw: dict[str, Json], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = Nodes(monkeypatch)
    raw["spark3"] |= {"folders": None, "errors": ["folders: [Errno 5] Input/output error"]}
    (line,) = pack(survey(raw, VOLUMES))
    assert line.startswith("spark3 /data/engram: could not be looked at: folders: [Errno 5] Input/output error, wanted")
    assert not nodes.asked


@pytest.mark.parametrize(
    ("volumes", "said"), [([], "has nothing for /engram"), (["kept:/engram"], "the docker volume kept")]
)
def test_without_a_folder_for_it_nothing_is_packed(
    volumes: list[str], said: str, raw: dict[str, Json], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = Nodes(monkeypatch)
    (line,) = pack(survey(raw, {"engine.volumes": volumes}))
    assert said in line
    assert not nodes.asked


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (None, "cannot be looked at: it is on a file system of the network"),
        ({**folder(), "folder": {"owner": "0:0", "mode": "0755", "writable": False}}, "mounted read-only"),
    ],
)
def test_a_folder_that_cannot_be_used_is_told(
    found: Json | None, said: str, raw: dict[str, Json], monkeypatch: pytest.MonkeyPatch
) -> None:
    Nodes(monkeypatch)
    raw["spark4"]["folders"]["/data/engram"] = found
    (line,) = pack(survey(raw, VOLUMES))
    assert line.startswith("spark4 /data/engram: ")
    assert said in line


def test_what_an_ended_run_has_written_counts_as_room(raw: dict[str, Json], monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes(monkeypatch)
    begun = raw["spark2"]["folders"]["/data/engram"]
    begun["space"]["free"] = 20 * GIB
    begun["files"] = {files(1)[0]: 24 * GIB, f"{files(1)[1]}.partial": 10 * GIB}
    assert pack(survey(raw, VOLUMES)) == []
    assert "spark2" in nodes.asked


def test_the_weights_of_the_settings_are_mounted_where_the_engine_has_them(
    raw: dict[str, Json], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = Nodes(monkeypatch)
    weights = {"engine.weights": {"path": "/data/v4", "mount": "/models/v4"}, "engine.profile": "none"}
    assert pack(survey(raw, {"engine.volumes": ["/data/engram:/engram"], **weights})) == []
    assert nodes.asked["spark4"]["weights"] == {"source": "/data/v4", "target": "/models/v4"}
    assert nodes.asked["spark4"]["checkpoint"] == "/models/v4"


def test_workers_mount_the_volume_that_the_head_shares_once_it_is_there(
    raw: dict[str, Json], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = Nodes(monkeypatch)
    shared = {
        "engine.volumes": ["/data/engram:/engram"],
        "engine.weights": {"path": "/data/v4", "nfs": {"image": "n:1"}},
    }
    missing = pack(survey(raw, shared))
    assert [line.partition(",")[0] for line in missing] == [
        f"spark{number} spark-fabric-weights: is not there" for number in (2, 3, 4)
    ]
    for name in NODES[1:]:
        raw[name]["nfs"] = {"volumes": {"spark-fabric-weights": {"driver": "local", "options": {}, "labels": {}}}}
    assert pack(survey(raw, shared)) == []
    assert nodes.asked["spark1"]["weights"]["source"] == "/data/v4"
    assert nodes.asked["spark2"]["weights"]["source"] == "spark-fabric-weights"


def test_without_a_checkpoint_in_the_engine_nothing_is_packed(
    raw: dict[str, Json], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = Nodes(monkeypatch)
    told = pack(survey(raw, {"engine.volumes": ["/data/engram:/engram"]}))
    assert len(told) == 4
    assert f"mounts nothing at {MODEL}, wanted the checkpoint there" in told[0]
    assert not nodes.asked


def test_the_image_that_is_known_by_its_id_is_the_one(raw: dict[str, Json], monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes(monkeypatch)
    raw["spark2"]["docker"]["images"] = {"engine:1": "sha256:other"}
    (line,) = pack(survey(raw, VOLUMES, image_id=ID))
    assert line.startswith("spark2: has no image engine:1")
    raw["spark2"]["docker"]["images"] = {"another-tag:1": ID}
    assert pack(survey(raw, VOLUMES, image_id=ID)) == []
    assert {one["image"] for one in nodes.asked.values()} == {ID}


# Whose program ends


def test_nodes_are_let_go_when_the_command_is_interrupted(
    raw: dict[str, Json], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = Nodes(monkeypatch)

    def interrupted(*_: object) -> None:
        assert not any(nodes.ended(one, 0.1) for one in nodes.lifelines)
        raise KeyboardInterrupt

    monkeypatch.setattr(engram, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pack(survey(raw, VOLUMES))
    assert nodes.lifelines
    assert all(nodes.ended(one, 60) for one in nodes.lifelines)


PACKING = """
import pathlib, sys, time
sys.stdin.readline()
pathlib.Path({place!r}).write_text("packs")
sys.stdin.read()
pathlib.Path({place!r}).write_text("was let go")
"""
COMMAND = """
import signal
signal.alarm(300)
from pathlib import Path
from fleet import engram, on_node
from tests.unit.fakes import link, program
on_node.folder = lambda stack: Path({place!r}).parent / stack
on_node.ask("pack-engram", "test", link(1), program({packing!r}), {{}}, content=engram.Lifeline())
"""


def test_a_node_is_let_go_when_only_the_command_itself_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.install(tmp_path, monkeypatch)
    place = tmp_path / "said"
    command = COMMAND.format(place=str(place), packing=PACKING.format(place=str(place)))

    def says(text: str) -> bool:
        end = time.monotonic() + 100
        while not (place.exists() and place.read_text() == text) and time.monotonic() < end:
            time.sleep(0.05)
        return place.exists() and place.read_text() == text

    with subprocess.Popen([sys.executable, "-c", command], cwd=Path(__file__).parents[2]) as process:
        assert says("packs")
        time.sleep(0.3)
        assert place.read_text() == "packs"
        process.kill()
    assert says("was let go")
