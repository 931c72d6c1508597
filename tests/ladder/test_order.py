"""No engine runs anywhere in the fleet while the fabric of any node changes, whatever the change is.

Judged only by what the nodes wrote down themselves (`witness.py`); the first tests show that this judge can say no.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest

from lab import api
from lab.shell import wait_for
from lab.snapshot import diff
from lab.trace import Call

from .conftest import NewRig
from .operations import logged_up, planned
from .rig import Rig, Step
from .witness import Record, Witness, is_disruptive, watching

PLANE_0, PLANE_1 = "enp1s0f", "enP2p1s0f"


@dataclass
class Fleet:
    """A stack that is up, and the nodes' own record of what happens to it."""

    rig: Rig
    witness: Witness

    @property
    def nodes(self) -> list[str]:
        """The nodes with a rank, head first."""
        return [node["name"] for node in self.rig.config["nodes"] if node.get("state") != "leaving"]

    def up(
        self, before: list[str] | None = None, *, disruptive: bool = True, preview: Mapping[str, Step] | None = None
    ) -> Record:
        """`up`: all engines are replaced together, none sees a disruption, and nothing is done but what was previewed.

        `before`: the nodes that ran an engine, where it was not the same ones.
        """
        since = time.time_ns()
        _, done = logged_up(self.rig)
        record = self.witness.record(since)
        assert preview is None or done.kinds == planned(preview)
        if disruptive:
            record.assert_disruption_without_engine()
        else:
            assert not record.disturbances
        record.assert_all_replaced(since, before or self.nodes, self.nodes)
        self.rig.assert_one_group(len(self.nodes))
        return record


def _fleet(rig: Rig) -> Iterator[Fleet]:
    with rig.leaving_no_trace(), watching(rig.lab) as witness:
        rig.up()
        yield Fleet(rig, witness)


@pytest.fixture(scope="module")
def ring(ring_lab: api.Handle, new_rig: NewRig) -> Iterator[Fleet]:
    """Four nodes in a ring."""
    yield from _fleet(new_rig(ring_lab, "order-ring", "ring"))


@pytest.fixture(scope="module")
def switched(switched_lab: api.Handle, new_rig: NewRig) -> Iterator[Fleet]:
    """Four nodes on a switch."""
    yield from _fleet(new_rig(switched_lab, "order-switched", "switched"))


def call(text: str) -> Call:
    """A call as the trace has it."""
    tool, verb, *argv = text.split()
    return Call("spark1", tool, verb, argv, "python3", 0, [])


@pytest.mark.parametrize(
    "text",
    [
        "nmcli connection-up connection up netplan-enp1s0f0np0",
        "nmcli connection-reload connection reload",
        "nmcli device-reapply device reapply enp1s0f0np0",
        "netplan apply apply",
        "netplan generate generate",
        "ip addr-del address del 10.10.0.10/24 dev enp1s0f0np0",
        "ip link-set link set enp1s0f0np0 mtu 1500",
        "ip route-replace route replace 10.10.1.0/24 via 10.10.0.11",
        "sysctl w -w net.ipv4.ip_forward=1",
        "iptables I -I DOCKER-USER 1 -j ACCEPT",
        "systemctl restart restart spark-fabric-relay.service",
        "systemctl restart restart NetworkManager",
        "systemctl stop stop dsv41-mesh-marker@rocep1s0f0.service",
        "tc qdisc-del qdisc del dev enp1s0f0np0 clsact",
        "tc filter-del filter del dev enp1s0f0np0 ingress pref 49152",
        "devlink dev-reload dev reload pci/0000:01:00.0 action driver_reinit",
        "devlink dev-param-set dev param set pci/0000:01:00.0 name hairpin_queue_size value 8192 cmode driverinit",
        "ethtool K -K enp1s0f0np0 hw-tc-offload on",
        "marker detach rocep1s0f0",
    ],
)
def test_calls_that_an_engine_may_feel_are_disruptive(text: str) -> None:
    assert is_disruptive(call(text))


@pytest.mark.parametrize("text", ["systemctl start start session-1.scope", "systemctl daemon-reload daemon-reload"])
def test_calls_that_no_engine_feels_are_not_disruptive(text: str) -> None:
    assert not is_disruptive(call(text))


def test_a_hand_on_the_fabric_of_one_node_is_seen_beside_every_engine_of_the_fleet(ring: Fleet) -> None:
    lab, since = ring.rig.lab, time.time_ns()
    lab.run("spark2", "ip address add 192.0.2.1/32 dev enp1s0f0np0; ip address del 192.0.2.1/32 dev enp1s0f0np0")
    disturbed = ring.witness.record(since).disturbed()
    for engine in ring.witness.record(since).lives:
        assert any("spark2: ip address add 192.0.2.1/32" in line and str(engine) in line for line in disturbed)
        assert any("spark2: kernel address: " in line and str(engine) in line for line in disturbed)
    assert len(ring.witness.record(since).lives) == len(lab.names)


def test_a_value_written_straight_to_the_kernel_is_seen(ring: Fleet) -> None:
    since = time.time_ns()
    path = "/proc/sys/net/ipv4/conf/enp1s0f0np0/arp_ignore"
    ring.rig.lab.run("spark2", f"v=$(cat {path}); echo $v > {path}")
    seen = "spark2: kernel value: ipv4/conf/enp1s0f0np0/arp_ignore"
    assert wait_for(lambda: any(seen in line for line in ring.witness.record(since).disturbed()))


def test_addresses_of_another_pool(ring: Fleet) -> None:
    ring.rig.set("fabric.plane1.pool", "10.30.0.0/16")
    record = ring.up()
    assert not record.naming(PLANE_0)


def test_plane_1_off_and_on_again_touches_nothing_of_plane_0(ring: Fleet) -> None:
    lab = ring.rig.lab
    for enabled in (False, True):
        before, active = lab.snapshots(), activations(lab, PLANE_0)
        ring.rig.set("fabric.plane1.enabled", enabled)
        record = ring.up(preview=ring.rig.preview())
        assert record.naming(PLANE_1)
        assert record.naming(PLANE_0) == []
        assert activations(lab, PLANE_0) == active
        after = lab.snapshots()
        for node in before:
            changed = diff(before[node], after[node], times=True)
            assert [line for line in changed if "plane0" in line or PLANE_0 in line] == []


def test_env_of_the_head_replaces_the_group_and_leaves_the_fabric_alone(ring: Fleet) -> None:
    ring.rig.set("engine.headEnv", {"ENGINE_POLL_S": "0.4"})
    ring.up(disruptive=False)


def test_another_image_replaces_the_group_and_leaves_the_fabric_alone(ring: Fleet) -> None:
    ring.rig.lab.load_image(variant=2)
    ring.rig.set("engine.image", "spark-engine:sim2")
    ring.up(disruptive=False)


def test_another_order_of_ranks(ring: Fleet) -> None:
    first, *others = ring.rig.config["nodes"]
    ring.rig.set("nodes", [*others, first])
    ring.up()
    ring.rig.assert_served()


def test_disruptive_drift_is_repaired_without_engine(ring: Fleet) -> None:
    find = "ip -o -4 address show dev enp1s0f0np0 | awk '{print $4}'"
    ring.rig.lab.run("spark3", f"rm /etc/netplan/41-spark-fabric-plane0.yaml; ip address del $({find}) dev enp1s0f0np0")
    steps = ring.rig.preview()
    assert steps["spark3-plane0"].op == "update"
    assert {name for name in steps if "plane" in name} == {"spark3-plane0"}
    ring.up(preview=steps)
    ring.rig.unchanged()


def test_ranks_that_swap_places_on_a_switch(switched: Fleet) -> None:
    first, second, *others = switched.rig.config["nodes"]
    switched.rig.set("nodes", [second, first, *others])
    switched.up()
    switched.rig.assert_served()


def test_a_node_leaves_in_two_steps_and_joins_again(switched: Fleet) -> None:
    rig, everybody = switched.rig, switched.nodes
    *staying, leaving = rig.config["nodes"]

    rig.set("nodes", [*staying, {**leaving, "state": "leaving"}])
    switched.up(everybody, preview=rig.preview())
    rig.unchanged()

    rig.set("nodes", staying)
    since = time.time_ns()
    rig.up()
    rig.unchanged()
    record = switched.witness.record(since)
    assert not record.disturbances
    rig.assert_one_group()

    rig.set("nodes", [*staying, leaving])
    switched.up([node["name"] for node in staying])
    rig.unchanged()


def activations(lab: api.Handle, netdevs: str) -> dict[str, list[str]]:
    """Node -> each active profile on such ports, with the name that NetworkManager gave this activation."""
    shown = lab.everywhere("nmcli -t -f UUID,DEVICE,ACTIVE-PATH connection show --active")
    return {node: sorted(line for line in text.splitlines() if f":{netdevs}" in line) for node, text in shown.items()}
