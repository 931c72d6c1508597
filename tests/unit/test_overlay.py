"""Whether the image has the file that the library lies over: one node is asked, once for each image."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from fleet import image, on_node, overlay
from fleet.docker_on_node import ImageError
from fleet.facts import parse
from fleet.image import ensure, holds, looks
from fleet.loading import load
from fleet.plan import Plan
from fleet.planner import agreed_image, make
from fleet.probe import Probe
from fleet.problems import Problem
from fleet.stack import StackName
from tests.unit import fakes, observed
from tests.unit.fakes import FakeSsh, link
from tests.unit.stacks import changed, ring, switched

STACK = StackName("spark-fabric", "test")
ID = "sha256:" + "1" * 64
TARGET = "/opt/lib/libnccl.so.2"
# A docker whose one image holds one file; it writes down what it is told to run.
DOCKER = """
echo "$remote" >>{folder}/asked
case "$remote" in
*"image inspect"*) echo {id} ;;
*"docker run"*) {run} ;;
esac
"""

Raw = dict[str, dict[str, Any]]


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSsh:
    """The stand-in for ssh."""
    return fakes.install(tmp_path, monkeypatch)


def docker(ssh: FakeSsh, folder: Path, run: str = "echo there", node: str = "spark1") -> None:
    ssh.does(node, DOCKER.format(folder=folder, id=ID, run=run))


def asked(folder: Path) -> list[str]:
    place = folder / "asked"
    return place.read_text().splitlines() if place.exists() else []


def raw(*having: int) -> Raw:
    nodes = observed.fleet(4)
    for number in having or range(1, 5):
        nodes[f"spark{number}"]["docker"]["images"] = {"engine:1": ID}
    return nodes


def told(nodes: Raw, config: dict[str, Any] | None = None) -> list[Problem]:
    settings = load(config or changed(ring(), {"nccl.target": TARGET}))
    facts = {name: parse(node) for name, node in nodes.items()}
    plan: Plan = make(settings, facts, STACK, image_id=agreed_image(settings, facts))
    return overlay.problems(plan, Probe(nodes, {}), {f"spark{number}": link(number) for number in range(1, 5)})


def test_the_container_that_looks_has_no_network_pulls_nothing_and_goes_away(ssh: FakeSsh, tmp_path: Path) -> None:
    docker(ssh, tmp_path)
    assert holds(on_node.ssh_config("test", link(1)), link(1), ID, "/opt/it's here")
    (command,) = asked(tmp_path)
    for part in ("run --rm --pull never --network none --entrypoint /bin/sh " + ID, "'/opt/it'\"'\"'s here'"):
        assert part in command
    assert not {"-v", "--mount", "--privileged", "--gpus", "--device"} & set(command.split())


def test_an_image_with_the_file_is_asked_once(ssh: FakeSsh, tmp_path: Path) -> None:
    docker(ssh, tmp_path)
    assert told(raw()) == []
    assert told(raw()) == []
    assert len(asked(tmp_path)) == 1
    assert told(raw(), changed(ring(), {"nccl.target": "/another"})) == []
    assert len(asked(tmp_path)) == 2


def test_an_image_without_the_file_is_told_every_time(ssh: FakeSsh, tmp_path: Path) -> None:
    docker(ssh, tmp_path, "echo absent")
    for _ in range(2):
        (problem,) = told(raw())
        assert (problem.code, problem.path) == ("overlay-target", "spark-fabric:nccl.target")
        assert f"is {TARGET}, and engine:1 holds no such file" in problem.text()
        assert "Set nccl.target to where this image has its libnccl.so.2." in problem.text()
    assert len(asked(tmp_path)) == 2


ALL_REDUCE = {"engine.env.SGLANG_ROCE_ALLREDUCE": 1, "engine.env.SPARK_PREFILL_TP_SPLIT": 0}


def test_what_variables_need_is_looked_for_in_an_image_that_nobody_knows(ssh: FakeSsh, tmp_path: Path) -> None:
    docker(ssh, tmp_path, "echo absent")
    (problem,) = told(raw(), changed(switched(), ALL_REDUCE))
    assert (problem.code, problem.path) == ("image-module", "spark-fabric:engine.env.SGLANG_ROCE_ALLREDUCE")
    assert "engine:1 has no module b12x/comm/roce, wanted an image with it: RoCEnante" in problem.text()
    docker(ssh, tmp_path)
    for _ in range(2):
        assert told(raw(), changed(switched(), ALL_REDUCE)) == []
    assert len(asked(tmp_path)) == 2
    assert "b12x/comm/roce" in asked(tmp_path)[-1]


def test_what_is_declared_is_not_looked_for(ssh: FakeSsh) -> None:
    assert told(raw(), changed(switched(), {"engine.profile": "production-v2.3"})) == []
    roce = {**ALL_REDUCE, "engine.image": {"ref": "engine:1", "roceRing": True}}
    assert told(raw(), changed(switched(), roce)) == []
    assert told(raw(), changed(switched(), {**ALL_REDUCE, "engine.profile": "none"})) == []
    assert ssh.calls() == []


@pytest.mark.parametrize(
    ("made", "there"),
    [("b/b12x/comm/roce/__init__.py", True), ("a/b12x/comm/roce.py", True), ("b/b12x/comm/other.py", False)],
)
def test_a_module_is_a_file_or_a_folder_in_any_folder_of_the_path(made: str, there: bool, tmp_path: Path) -> None:
    (tmp_path / made).parent.mkdir(parents=True)
    (tmp_path / made).touch()
    path = f"{tmp_path}/none:{tmp_path}/a:{tmp_path}/b"
    words = ["/bin/sh", "-c", image.FIND_MODULE, "sh", "b12x/comm/roce"]
    done = subprocess.run(words, env={"PYTHONPATH": path}, capture_output=True, text=True, check=True)
    assert done.stdout == ("there\n" if there else "absent\n")


def test_a_node_that_has_the_image_is_asked(ssh: FakeSsh, tmp_path: Path) -> None:
    docker(ssh, tmp_path, node="spark3")
    assert told(raw(3, 4)) == []
    assert ssh.calls() == ["spark3"]


def test_nobody_is_asked_where_there_is_nothing_to_know(ssh: FakeSsh) -> None:
    nobody_has_it = observed.fleet(4)
    assert told(nobody_has_it) == []
    assert told(raw(), switched()) == []
    assert ssh.calls() == []


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ('echo "exec: /bin/sh: no such file" >&2; exit 127', "exec: /bin/sh: no such file"),
        ('echo "sudo: a password is required" >&2; exit 1', "sudo: a password is required"),
        ("exit 0", "exit status 0"),
    ],
)
def test_an_image_that_cannot_be_looked_into_is_told_and_not_taken_for_one_without_the_file(
    run: str, said: str, ssh: FakeSsh, tmp_path: Path
) -> None:
    docker(ssh, tmp_path, run)
    (problem,) = told(raw())
    assert (problem.code, problem.path) == ("image-look", "spark1")
    assert said in problem.text()


def test_a_container_that_does_not_end_is_told(ssh: FakeSsh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "LOOK_LIMIT_S", 0.3)
    docker(ssh, tmp_path, "exec sleep 20")
    with pytest.raises(ImageError, match=r"spark1: a container to look into the image has not ended in 0\.3 s"):
        holds(on_node.ssh_config("test", link(1)), link(1), ID, TARGET)


def test_an_up_looks_into_the_image_of_every_node(ssh: FakeSsh, tmp_path: Path) -> None:
    wanted = {"ref": "engine:1", "id": ID, "archive": None, "target": TARGET}
    docker(ssh, tmp_path)
    assert ensure("test", link(1), wanted) == "spark1: engine:1 is there"
    docker(ssh, tmp_path, "echo absent")
    with pytest.raises(ImageError, match=f"spark1: engine:1 holds no file {TARGET}, to lie over"):
        ensure("test", link(1), wanted)
    assert ensure("test", link(1), {**wanted, "target": None}) == "spark1: engine:1 is there"


ONE_SHOT = {"SGLANG_ROCE_ALLREDUCE": "b12x/comm/roce", "DSV41_ROCE_GATHER": "b12x/comm/roce"}


def test_an_up_that_brings_the_image_tells_everything_that_it_lacks(ssh: FakeSsh, tmp_path: Path) -> None:
    """No node had it in the preview, so nobody could look into it then."""
    wanted = {"ref": "engine:1", "id": ID, "archive": "image.tar", "target": TARGET, "modules": ONE_SHOT}
    docker(ssh, tmp_path)
    assert ensure("test", link(1), wanted) == "spark1: engine:1 is there"
    assert len(asked(tmp_path)) == 1 + looks(wanted) == 3
    docker(ssh, tmp_path, "echo absent")
    with pytest.raises(ImageError) as raised:
        ensure("test", link(1), wanted)
    of_target, of_module = str(raised.value).splitlines()
    assert of_target.startswith(f"spark1: engine:1 holds no file {TARGET}, to lie over. Set nccl.target to ")
    assert of_module.startswith(
        "spark1: engine:1 has no module b12x/comm/roce, for SGLANG_ROCE_ALLREDUCE and DSV41_ROCE_GATHER."
    )


def test_the_plan_has_an_up_look_for_what_variables_need_unless_that_is_ignored() -> None:
    def needed(more: dict[str, Any]) -> Any:
        return make(load(changed(switched(), {**ALL_REDUCE, **more})), None, STACK).image.get("modules")

    assert needed({}) == {"SGLANG_ROCE_ALLREDUCE": "b12x/comm/roce"}
    assert needed({"preflight.ignore": ["image-module"]}) is None
    assert needed({"engine.env.SGLANG_ROCE_ALLREDUCE": 0}) is None
    of_head = {"engine.env.SGLANG_ROCE_ALLREDUCE": 1, "engine.headEnv.SGLANG_ROCE_ALLREDUCE": 0}
    assert needed(of_head) == {"SGLANG_ROCE_ALLREDUCE": "b12x/comm/roce"}
