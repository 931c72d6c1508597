"""The ranks are one group: whatever happens to one of them, an `up` ends with all of one start, or changes nothing.

The tests share one stack, in the order of this file: each leaves it up and whole.
"""

from __future__ import annotations

import getpass
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from lab import api
from lab.snapshot import Snapshot

from .conftest import NewRig
from .killing import Running, program_points
from .rig import Rig

NAME = "spark-fabric-group"
NEW_IMAGE = "spark-engine:sim2"  # of the lab's variant 2
QUICK_S = 40  # well before the engine's readyTimeout of 60 s, on a busy machine too


@dataclass
class Group:
    """A stack that is up, the start that its engines are of, and how the nodes were before."""

    rig: Rig
    lab: api.Handle
    start: str
    before: dict[str, Snapshot]

    def starts(self) -> dict[str, str]:
        """Node -> id and start time of all containers with the stack's name or label."""
        listing = f"docker ps -aq --filter label=spark-fabric.stack; docker ps -aq --filter name={NAME}"
        shown = "docker inspect --format '{{.Id}} {{.State.StartedAt}}'"
        return self.lab.everywhere(f"{{ {listing}; }} | sort -u | xargs -r {shown}")

    def assert_put_back(self, why: str) -> None:
        """All ranks are those that served last, and a preview starts them anew, saying so and why."""
        self.rig.assert_one_group()
        assert self.rig.engines()["spark1"]["spark-fabric.start"] == self.start
        self.rig.assert_served()
        run = self.rig.pulumi("preview", "--diff")
        run.says(f"the engine that served last was put back: {why}", "spark1-engine")

    def up_with_a_new_start(self) -> None:
        """An `up` that replaces all ranks."""
        self.rig.up()
        self.rig.assert_one_group()
        start = self.rig.engines()["spark1"]["spark-fabric.start"]
        assert start != self.start
        self.start = start


@pytest.fixture(scope="module")
def group(ring_lab: api.Handle, new_rig: NewRig) -> Iterator[Group]:
    """Four engines on a ring."""
    before = ring_lab.snapshots()
    rig = new_rig(ring_lab, "group")
    rig.up()
    yield Group(rig, ring_lab, rig.engines()["spark1"]["spark-fabric.start"], before)
    rig.fleet("revert", ok=None)  # for the next module, if a test has failed half-way


def test_a_rank_that_ended_is_named_with_how_and_all_are_started_anew(group: Group) -> None:
    group.lab.run("spark3", f"docker kill {NAME} && docker wait {NAME}")
    group.rig.fleet("status", ok=None).says(f"rank 2 (spark3): {NAME} exited, exit code 137 (SIGKILL")
    steps = group.rig.preview()
    assert {name for name, step in steps.items() if "replace" in step.op} == {
        *("stop", "gate", "halt", "health"),
        *(f"{name}-engine" for name in group.lab.names),
    }
    group.up_with_a_new_start()
    group.rig.unchanged()


def test_a_foreign_container_with_our_name_is_refused_and_nothing_changes(group: Group) -> None:
    group.lab.run("spark2", f"docker rm -f {NAME} && docker create --name {NAME} spark-engine:sim")
    before = group.starts()
    run = group.rig.up(ok=False)
    run.says(f"spark2: has a container {NAME} that is not this stack's, wanted the name free")
    run.says("engine: rank 1 (spark2): no container")
    assert group.starts() == before


def test_a_removed_rank_starts_all_anew_here_with_a_profile_of_the_launcher(group: Group) -> None:
    more = {"jsonSchema": True, "toolCall": True, "thinking": True, "streams": 4, "cachedTokens": True}
    group.rig.set("engine.profile", "production-v2.3")
    group.rig.set("engine.smoke", more)
    group.lab.run("spark2", f"docker rm -f {NAME}")
    group.up_with_a_new_start()
    group.rig.fleet("smoke").says("smoke test passed", *more)
    for log in group.lab.everywhere(f"docker logs {NAME} 2>&1").values():
        assert "[moe_b12x_next] INFO: routed MoE at EP_SIZE=1" in log


def test_all_ranks_are_stopped_side_by_side(group: Group) -> None:
    first, second, *others = group.lab.names
    group.rig.set("engine.headEnv", {"ENGINE_POLL_S": "0.4"})
    with program_points(group.lab), group.lab.stopped_at(second, "program-engines") as point:
        run = Running(group.rig, "up", "--yes", "--skip-preview")
        run.until(point)
        for node in (first, *others):
            group.lab.run(node, f"timeout 20 docker wait {NAME}")
        assert set(group.rig.engines()) == {second}
    assert run.end() == 0, run.out[-6000:]
    group.rig.assert_one_group()
    group.start = group.rig.engines()[first]["spark-fabric.start"]


def test_a_leftover_that_the_state_does_not_know_is_removed(group: Group) -> None:
    label = group.rig.engines()["spark4"]["spark-fabric.stack"]
    # In the host's network as the engines are: docker's bridge would wake up, and stay as it then is.
    run = f"docker run -d --network host --name left --label spark-fabric.stack={label} spark-engine:sim"
    group.lab.run("spark4", run)
    group.up_with_a_new_start()
    assert group.lab.run("spark4", "docker ps -aq --filter name=^left$").stdout == ""


def test_an_image_that_one_node_lacks_is_a_problem_before_anything_changes(group: Group) -> None:
    for node in ("spark1", "spark2", "spark4"):
        group.lab.load_image(2, node)
    group.lab.run("spark3", f"docker rmi -f {NEW_IMAGE}", check=False)  # of another module's tests
    before = group.starts()
    with group.rig.changed("engine.image", NEW_IMAGE):
        run = group.rig.up(ok=False)
    run.says("1 problem(s); nothing was changed", f"spark3: has no image {NEW_IMAGE}", "set engine.image.archive")
    assert group.starts() == before


def test_an_image_that_one_node_lacks_is_loaded_from_the_archive(group: Group) -> None:
    built = group.lab.build_image(2)
    image = {"ref": NEW_IMAGE, "archive": str(built.archive)}
    group.rig.set("engine.image", image)
    group.up_with_a_new_start()
    ids = group.lab.everywhere(f"docker inspect --format '{{{{.Image}}}}' {NAME}")
    assert {text.strip() for text in ids.values()} == {built.images[NEW_IMAGE]}


@pytest.mark.parametrize(
    ("fault", "reason", "more"),
    [
        ("early@2", "rank 2 on spark3: exited, exit code 1", "first error of rank 2: [... simulated crash before the"),
        ("oom@1", "rank 1 on spark2: exited, exit code 137 (SIGKILL, as the kernel does for want of memory", ""),
        ("wrong", "spark1: smoke test arithmetic: 19 + 23 is answered with '43', wanted 42", ""),
        (
            "crash@2",
            "rank 2 on spark3: exited, exit code 1",
            "first error of rank 2: [... simulated crash while loading",
        ),
    ],
)
def test_an_engine_that_fails_says_why_first_and_at_once_then_the_lines_of_all(
    fault: str, reason: str, more: str, group: Group
) -> None:
    """Before the ranks meet, as they load, and as the first one answers."""
    with (
        group.rig.changed("engine.env.ENGINE_FAULT", fault),
        group.rig.changed("engine.headEnv", {"SKIP_SMOKE": "1"}),  # the image would find wrong answers by itself
    ):
        run = group.rig.up(ok=False)
    lines = [f"--- rank {rank} on spark{rank + 1} ---" for rank in range(4)]
    run.says(reason, *more.split("..."), *lines)
    assert run.out.index(reason) < run.out.index(lines[0])
    run.says(f"The engine that served last is kept on the nodes (start {group.start})")
    waited = [int(seconds) for seconds in re.findall(r"spark1: (\d+) s, health", run.out)]
    assert max(waited, default=0) < QUICK_S


def test_the_engine_that_served_last_is_brought_back_by_hand_and_the_preview_tells(group: Group) -> None:
    group.rig.fleet("rollback").says("serves deepseek-v4.1-flash")
    group.assert_put_back(f"as {getpass.getuser()}@")


def test_with_rollback_a_failed_up_brings_it_back_and_fails_with_the_first_cause(group: Group) -> None:
    group.rig.set("engine.onFailure", "rollback")
    image = group.lab.everywhere(f"docker inspect --format '{{{{.Image}}}}' {NAME}")
    with group.rig.changed("engine.env.ENGINE_FAULT", "crash@2"), group.rig.changed("engine.image", "spark-engine:sim"):
        run = group.rig.up(ok=False)
        run.says("simulated crash while loading", f"serves again (start {group.start})")
        reason = "rank 2 on spark3: exited, exit code 1"
        assert set(re.findall(r"rank \d on spark\d: exited, exit code \d+", run.out)) == {reason}
        group.assert_put_back(reason)
    assert group.lab.everywhere(f"docker inspect --format '{{{{.Image}}}}' {NAME}") == image
    group.up_with_a_new_start()
    group.rig.unchanged()
    group.rig.assert_served()


def test_without_its_state_a_running_fleet_is_put_back_as_it_was(group: Group) -> None:
    group.rig.environment = group.rig.environment | {"PULUMI_BACKEND_URL": "file:///no-such-backend"}
    group.rig.fleet("revert")
    assert group.starts() == dict.fromkeys(group.lab.names, "")
    group.rig.assert_as(group.before)
