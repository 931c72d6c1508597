"""Nodes that die, come back, are installed anew, swap addresses, leave and join; states that are lost or doubled.

The tests share one stack of four nodes, in the order of this file: each leaves it up and whole.
"""

from __future__ import annotations

import copy
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab import api
from lab.snapshot import Snapshot, diff

from .conftest import NewRig
from .rig import Rig, Run, copy_checkout

NAMED_WITHIN_S = 15
ENGINES = "docker ps -aq --no-trunc --filter label=spark-fabric.stack"


@dataclass
class Fleet:
    """A stack that is up on a lab, and how the nodes were before."""

    rig: Rig
    lab: api.Handle
    before: dict[str, Snapshot]

    def starts(self) -> dict[str, str]:
        """Node -> when its engine was started."""
        return self.lab.everywhere(
            f"{ENGINES} | xargs -r docker inspect --format '{{{{.Id}}}} {{{{.State.StartedAt}}}}'"
        )

    def refused(self, *changes: tuple[str, object]) -> Run:
        """A preview with some settings changed for a while; it has to fail."""
        config = self.rig.config
        self.rig.config = copy.deepcopy(config)
        for path, value in changes:
            self.rig.set(path, value)
        try:
            return self.rig.pulumi("preview", ok=False)
        finally:
            self.rig.config = config

    def calls(self, since: int) -> list[str]:
        """What was called on the nodes that changes something beside containers."""
        return [f"{call.node}: {call.tool} {call.argv}" for call in self.lab.traces()[0] if call.began >= since]

    def logins(self, node: str) -> int:
        """How often somebody has come in as the stack's user."""
        command = "journalctl -q -t sshd | grep -c 'Accepted publickey for spark ' || :"
        return int(self.lab.run(node, command).stdout)


@pytest.fixture(scope="module")
def fleet(switched_lab: api.Handle, new_rig: NewRig) -> Iterator[Fleet]:
    """Four nodes on a switch, up."""
    before = switched_lab.snapshots()
    rig = new_rig(switched_lab, "nodes", "switched")
    rig.up()
    yield Fleet(rig, switched_lab, before)
    rig.fleet("revert", ok=None)  # for the next module, if a test has failed half-way


@pytest.fixture(scope="module")
def other_checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another copy of the checkout."""
    return copy_checkout(tmp_path_factory.mktemp("other") / "spark-fabric")


def test_an_upgrade_of_the_program_restarts_nothing_and_writes_nothing(fleet: Fleet, other_checkout: Path) -> None:
    for name in ("__init__", "plane", "archive"):
        source = other_checkout / "node" / f"{name}.py"
        source.write_text(f"{source.read_text()}\n# A later version says more here.\n")
    upgraded = Rig(fleet.lab, other_checkout, fleet.rig.environment, fleet.rig.stack, fleet.rig.config)
    starts, before = fleet.starts(), fleet.lab.snapshots()
    upgraded.unchanged()
    upgraded.up()
    after = fleet.lab.snapshots()
    assert [line for name in before for line in diff(before[name], after[name], times=True)] == []
    assert fleet.starts() == starts


def test_a_targeted_stage_is_refused_while_the_engine_runs(fleet: Fleet) -> None:
    starts, began = fleet.starts(), time.time_ns()
    with fleet.rig.changed("fabric.mtu", 4200):
        run = fleet.rig.up("--target", "**spark2-plane0", ok=False)
    run.says(
        "engine container spark-fabric-nodes",
        "stop the engine on all nodes first (pulumi up does, without --target)",
    )
    assert fleet.calls(since=began) == []
    assert fleet.starts() == starts
    fleet.rig.unchanged()


def test_swapped_addresses_are_refused_before_anything_runs_on_the_wrong_node(fleet: Fleet) -> None:
    logins = {node: fleet.logins(node) for node in ("spark2", "spark3")}
    two, three = (fleet.lab.address(node) for node in ("spark2", "spark3"))
    run = fleet.refused(("nodes.1.address", three), ("nodes.2.address", two))
    for name in ("spark2", "spark3"):
        run.says(f"{name} (spark@")
    assert run.out.count("the host key is not the expected one") == 2
    assert {node: fleet.logins(node) for node in logins} == logins


def test_an_entry_that_vanished_at_once_is_refused_with_the_way_to_go(fleet: Fleet) -> None:
    run = fleet.refused(("nodes", fleet.rig.config["nodes"][:3]))
    run.says("spark-fabric:nodes: has no spark4 any more")
    run.says("Put it back as `state: leaving`, run `up`, then remove it")


def test_a_rotated_key_changes_nothing_under_the_engine(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> None:
    key, keys = tmp_path_factory.mktemp("key") / "new", "/home/spark/.ssh/authorized_keys"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    fleet.lab.everywhere(f"cp -p {keys} /root/keys; echo '{key.with_suffix('.pub').read_text().strip()}' >{keys}")
    starts, began = fleet.starts(), time.time_ns()
    with fleet.rig.changed("ssh.identity", str(key)):
        assert {step.op for step in fleet.rig.preview().values()} <= {"update"}
        fleet.rig.up()
    assert fleet.calls(since=began) == []
    assert fleet.starts() == starts
    fleet.lab.everywhere(f"mv /root/keys {keys}")


def test_a_node_leaves_in_two_steps_and_joins_again(fleet: Fleet) -> None:
    rig = fleet.rig
    entry = dict(rig.config["nodes"][3])
    rig.set("nodes.3.state", "leaving")
    rig.up()
    rig.assert_one_group(3)
    del rig.config["nodes"][3]
    starts = fleet.starts()
    rig.up()
    assert fleet.starts() == starts
    rig.assert_as({"spark4": fleet.before["spark4"]})
    rig.config["nodes"].append(entry)
    rig.up()
    rig.assert_one_group(4)
    rig.unchanged()


def test_a_dead_node_is_named_fast_and_left_out_until_it_is_back(fleet: Fleet) -> None:
    rig = fleet.rig
    fleet.lab.run("spark2", "ip link set enp1s0f0np0 mtu 1500")
    fleet.lab.kill("spark4")
    run = rig.pulumi("preview", ok=False)
    run.says("1 problem(s); nothing was changed")
    run.says("spark4 (spark@")
    run.says("python -m fleet forget spark4")
    run.says("spark2 plane0: enp1s0f0np0: MTU is 1500, plan wants 9000")
    assert run.seconds < NAMED_WITHIN_S

    said = rig.fleet("forget", "spark4").out
    for thing in (
        "spark4-plane0",
        "/etc/netplan/41-spark-fabric-plane0.yaml",
        "enp1s0f0np0: address 10.10.0.13/24, MTU 9000",
        "container spark-fabric-nodes",
        "spark-node.pyz revert",
    ):
        assert thing in said
    rig.up()
    assert fleet.lab.run("spark2", "cat /sys/class/net/enp1s0f0np0/mtu").stdout.strip() == "9000"
    fleet.lab.boot("spark4")
    rig.assert_one_group(3)

    assert "no longer skipped" in rig.fleet("remember", "spark4").out
    rig.up()
    rig.assert_one_group(4)
    rig.unchanged()


def test_a_node_that_was_installed_anew_is_refused_until_its_key_is_trusted(
    fleet: Fleet, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rig, lab = fleet.rig, fleet.lab
    trusted = rig.config["ssh"]["knownHosts"]
    outdated = tmp_path_factory.mktemp("known") / "known_hosts"
    shutil.copy(trusted, outdated)
    lab.reset("spark2", new_host_key=True)
    lab.load_image(node="spark2")
    fleet.before["spark2"] = lab.snapshot("spark2")
    run = fleet.refused(("ssh.knownHosts", str(outdated)))
    run.says("spark2 (spark@")
    run.says("the host key is not the expected one")
    run.says("spark2 was installed anew")
    rig.up()
    rig.assert_one_group(4)
    rig.unchanged()


def test_the_same_stack_from_another_state_is_refused_and_does_no_harm(fleet: Fleet, lost_state: Rig) -> None:
    starts, began = fleet.starts(), time.time_ns()
    run = lost_state.up(ok=False)
    run.says("held by the same stack nodes from another state")
    run.says("fleet adopt")
    lost_state.destroy()
    lost_state.assert_empty()
    assert fleet.calls(since=began) == []
    assert fleet.starts() == starts
    fleet.rig.unchanged()


def test_a_fleet_whose_state_is_lost_is_adopted_without_a_change_of_its_fabric(fleet: Fleet, lost_state: Rig) -> None:
    began = time.time_ns()
    lost_state.fleet("adopt")
    lost_state.up()
    lost_state.assert_one_group(4)
    assert fleet.calls(since=began) == []
    lost_state.unchanged()
    starts = fleet.starts()
    fleet.rig.destroy(ok=False).says("held by the same stack nodes from another state")
    assert fleet.starts() == starts


def test_destroy_succeeds_on_a_node_that_was_installed_anew(fleet: Fleet, lost_state: Rig) -> None:
    fleet.lab.reset("spark3")
    fleet.lab.load_image(node="spark3")
    fleet.before["spark3"] = fleet.lab.snapshot("spark3")
    lost_state.destroy()
    lost_state.assert_empty()
    lost_state.assert_as(fleet.before)


@pytest.fixture(scope="module")
def lost_state(fleet: Fleet, new_rig: NewRig, other_checkout: Path) -> Rig:
    """The same stack in another checkout, with a state of its own that is empty."""
    return new_rig(fleet.lab, fleet.rig.stack, "switched", other_checkout)


@pytest.mark.parametrize("dead", ["spark2", "spark1"], ids=["worker", "head"])
def test_a_fleet_with_a_dead_node_is_destroyed_once_it_is_forgotten(
    dead: str, switched_lab: api.Handle, new_rig: NewRig
) -> None:
    before = switched_lab.snapshots()
    rig = new_rig(switched_lab, f"dead-{dead}", "switched")
    rig.config = rig.base("switched", size=2)
    rig.up()
    switched_lab.kill(dead)
    run = rig.destroy(ok=False)
    run.says(f"{dead} (spark@")
    run.says(f"python -m fleet forget {dead}")
    rig.fleet("forget", dead)
    rig.destroy()
    rig.assert_empty()
    switched_lab.boot(dead)
    other = "spark1" if dead == "spark2" else "spark2"
    rig.assert_as({other: before[other]})
    if dead == "spark2":  # by hand on the node, as `forget` said
        switched_lab.run(dead, f"docker rm -f $({ENGINES})")
        switched_lab.run(dead, f"sudo python3 /var/lib/spark-fabric/{rig.stack}/spark-node.pyz revert", user="spark")
    else:  # or from here
        rig.fleet("remember", dead)
        rig.fleet("revert", dead)
    rig.assert_as(before)
