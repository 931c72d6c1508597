"""The engine's image, pulled and built: the same on every node before an engine stops, and the old one stays.

The tests share one stack, in the order of this file: each leaves it up and whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab import api, trace
from lab.snapshot import Snapshot

from .conftest import NewRig
from .killing import Running
from .registry import serving
from .rig import Rig, Run

NAME = "spark-fabric-images"
REF = "built-engine:test"
VARIANT = 2
WRAPPER = "/usr/local/sbin/docker"
PART = "/run/part-of-an-image"
# Stands before docker, and stops a `docker load` in the middle of what it is sent.
SCRIPT = f"""#!/bin/sh
if [ "$1" = load ] && [ -e {trace.BREAK}/docker-load ]; then
    head -c 3000000 >{PART}
    mkdir -p {trace.BROKEN}
    echo $$ >{trace.BROKEN}/docker-load
    while [ -e {trace.BREAK}/docker-load ]; do sleep 0.02; done
    rm {trace.BROKEN}/docker-load
    cat {PART} - | /usr/bin/docker "$@"
    exit
fi
exec /usr/bin/docker "$@"
"""
RECIPE = "FROM spark-engine:sim\nARG WORD\nCOPY . /opt/built/\nLABEL word=$WORD\n"
SECRET = "hunter2-of-the-build"  # to be found nowhere


@dataclass
class Fleet:
    """A stack whose image is built of `context`."""

    rig: Rig
    lab: api.Handle
    context: Path
    before: dict[str, Snapshot]
    built: str = ""  # the name of the first image that was built

    def starts(self) -> set[str]:
        return {labels["spark-fabric.start"] for labels in self.rig.engines().values()}

    def ids(self, ref: str) -> set[str]:
        """The ids of an image, "" where it is missing."""
        shown = self.lab.everywhere(f"docker image inspect --format '{{{{.Id}}}}' {ref} 2>/dev/null || :")
        return {text.strip() for text in shown.values()}

    def running(self) -> set[str]:
        """The ids of the images that the ranks run."""
        shown = self.lab.everywhere(f"docker inspect --format '{{{{.Image}}}}' {NAME}")
        return {text.strip() for text in shown.values()}

    def ref(self) -> str:
        """The name of the image that the ranks run."""
        shown = self.lab.run("spark2", f"docker inspect --format '{{{{.Config.Image}}}}' {NAME}").stdout
        return shown.strip()

    def told(self, run: Run) -> dict[str, str]:
        """What an `up` did about the image, by node; nothing of nodes that had it."""
        return dict(re.findall(rf"(\w+): {REF}-\w+ (built|copied back|copied)\b", run.out))

    def output(self) -> set[str]:
        return set(json.loads(self.rig.pulumi("stack", "output", "imageIds", "--json").out).values())


@pytest.fixture(scope="module")
def fleet(ring_lab: api.Handle, new_rig: NewRig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Nodes without the image."""
    # A recipe's RUN wakes docker's bridge, which stays as it then is: that is docker's, and not what is looked at here.
    ring_lab.run("spark1", "docker run --rm --entrypoint /usr/bin/true spark-engine:sim")
    before = ring_lab.snapshots()
    context = tmp_path_factory.mktemp("context")
    (context / "Dockerfile").write_text(RECIPE)
    (context / ".dockerignore").write_text("*.log\n")
    (context / "data").write_bytes(bytes(range(256)) * 20_000)
    rig = new_rig(ring_lab, "images")
    yield Fleet(rig, ring_lab, context, before)
    rig.fleet("revert", ok=None)  # for the next module, if a test has failed half-way
    ring_lab.everywhere(
        "docker images --format '{{.Repository}}:{{.Tag}} {{.Repository}}@{{.Digest}}' | tr ' ' '\\n' "
        "| grep -e ^built-engine: -e ^127.0.0.1:.*@sha256 | grep -v '<none>' | xargs -r docker rmi -f"
    )


def test_an_image_is_pulled_by_digest_on_every_node(fleet: Fleet) -> None:
    built = fleet.lab.build_image(VARIANT)
    with serving(fleet.lab, built.archive) as ref:
        fleet.rig.set("engine.image", {"ref": ref, "pull": True})
        fleet.rig.up()
    fleet.rig.assert_one_group()
    assert fleet.ids(ref) == fleet.running() == fleet.output() == set(built.images.values())
    fleet.rig.unchanged()  # now that the id is known


def test_an_image_is_built_on_one_node_and_copied_to_the_others(fleet: Fleet) -> None:
    build = {"context": str(fleet.context), "args": {"WORD": "first"}}
    fleet.rig.set("engine.image", {"ref": REF, "build": build})
    began = fleet.starts()
    run = fleet.rig.up()
    assert fleet.told(run) == {"spark1": "built", **dict.fromkeys(fleet.lab.names[1:], "copied")}
    assert fleet.starts() != began
    fleet.built = fleet.ref()
    assert fleet.built.startswith(f"{REF}-")
    assert fleet.ids(fleet.built) == fleet.running() == fleet.output()
    word = fleet.lab.run("spark4", f"docker image inspect --format '{{{{.Config.Labels.word}}}}' {fleet.built}").stdout
    assert word == "first\n"
    (fleet.context / "some.log").write_text("of no account")
    fleet.rig.unchanged()


@contextmanager
def stopped_in_a_load(lab: api.Handle, node: str) -> Iterator[api.BreakPoint]:
    """A node whose docker stops in the middle of a load."""
    lab.run(node, f"cat >{WRAPPER} && chmod 755 {WRAPPER}", stdin=SCRIPT)
    try:
        with lab.stopped_at(node, "docker-load") as point:
            yield point
    finally:
        lab.run(node, f"rm -f {WRAPPER} {PART}")


def test_a_run_that_is_killed_in_a_copy_stopped_nothing_and_the_next_one_completes_it(fleet: Fleet) -> None:
    image, starts = fleet.running(), fleet.starts()
    more = "RUN --mount=type=secret,id=TOKEN sha256sum /run/secrets/TOKEN > /opt/built/sum\n"
    (fleet.context / "Dockerfile").write_text(RECIPE + more)
    fleet.rig.encrypt("engine.image.build.secrets.TOKEN", SECRET)  # with BuildKit, then; the first was without
    steps = fleet.rig.preview()
    assert {name for name, step in steps.items() if step.op == "create"} == set()
    assert {name for name, step in steps.items() if step.op == "update"} == {
        "image-build",
        *(f"{name}-image" for name in fleet.lab.names),
    }
    with stopped_in_a_load(fleet.lab, "spark3") as point:
        run = Running(fleet.rig, "up", "--yes", "--skip-preview")
        run.until(point)
        run.kill("everything")
    assert (fleet.starts(), fleet.running()) == (starts, image)
    done = fleet.rig.up()
    assert fleet.told(done).keys() >= {"spark3"}
    assert "built" not in fleet.told(done).values()
    assert fleet.starts() != starts
    assert fleet.ref() != fleet.built
    assert fleet.ids(fleet.ref()) == fleet.running() != image
    assert fleet.ids(fleet.built) == image  # the old one stays
    shown = fleet.lab.everywhere(f"docker history --no-trunc {fleet.ref()}; docker inspect {NAME}")
    backend = Path(fleet.rig.environment["PULUMI_BACKEND_URL"].removeprefix("file://"))
    files = [path.read_text(errors="replace") for path in backend.rglob("*") if path.is_file()]
    assert any("image-build" in text for text in files)
    assert not [text for text in (*shown.values(), *files, run.out, done.out) if SECRET in text]


def test_the_engine_of_the_image_before_is_brought_back(fleet: Fleet) -> None:
    """Back from the first image, which the builder has lost meanwhile: it gets that from another node, unbuilt."""
    last = fleet.running()
    (fleet.context / "Dockerfile").write_text(RECIPE)
    fleet.rig.set("engine.image.build.secrets", {})
    fleet.lab.run("spark1", f"docker rmi -f {fleet.built}")
    with fleet.rig.changed("engine.env.ENGINE_FAULT", "crash@2"), fleet.rig.changed("engine.onFailure", "rollback"):
        run = fleet.rig.up(ok=False)
    assert fleet.told(run) == {"spark1": "copied back"}
    run.says("simulated crash while loading", "serves again")
    assert "" not in fleet.ids(fleet.built)
    assert fleet.running() == last


def test_a_destroy_leaves_the_nodes_as_they_were(fleet: Fleet) -> None:
    fleet.rig.destroy()
    fleet.rig.assert_empty()
    assert "" not in fleet.ids("spark-engine:sim")
    fleet.rig.assert_as(fleet.before)
