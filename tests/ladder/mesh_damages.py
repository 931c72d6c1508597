"""What can be damaged of a mesh behind the program's back, how it is done, and what has to be said of it.

Data for `test_mesh_damage.py`, in the form of `damages.py`. In the lab's ring spark1 and spark4 pass on in plane 1, and
spark2 and spark3 in plane 0. Of a driver a function without rules is harmed, so that nothing else goes with it.

Elsewhere: an installation by hand, another marker program, a card that was replaced: test_mesh_order. A process of
others that marks, other modes of the card: tests/node/test_mesh_refusals.
"""

from __future__ import annotations

from lab import api

from .damages import F0, F0B, F1, F1B, Damage, Told

STACK = "meshdamage"

SERVICE = "dsv41-mesh.service"
PROGRAM = "/opt/dsv41-mesh/bin/mlx5-rdma-tx-rewrite-probe"
UNIT = "/etc/systemd/system/dsv41-mesh-marker@.service"
FAULTS = "/var/local/lab/faults"
DIES = f"{FAULTS}/marker-dies.rocep1s0f1"
OTHER_MAC = "02:00:00:00:00:99"
TAKE_ON = "action mirred egress redirect dev"
MARKED = "0x88b5"
FIRST = f"{F0} (0000:01:00.0)"


def marker(hca: str) -> str:
    """The unit of a marker."""
    return f"dsv41-mesh-marker@{hca}.service"


def driver(pci: str, queue: int) -> str:
    """A command that has the driver show another size of a function's queues."""
    return f"devlink dev param set pci/{pci} name hairpin_queue_size value {queue} cmode driverinit"


def rule(verb: str, netdev: str, number: int, handle: int, rest: str = "") -> str:
    """A command about one filter for marked frames."""
    place = f"tc filter {verb} dev {netdev} ingress protocol {MARKED} pref {number} handle {handle} flower"
    return f"{place} skip_sw {rest}" if rest else place


def gone(unit: str, state: str) -> Told:
    """What is said of a marker that does not run."""
    return Told("markers.down", unit, f"is {state}")


IN_PLACE = (
    Damage(
        "boot unit disabled",
        "spark1",
        f"systemctl disable {SERVICE}",
        "markers",
        (Told("markers.enabled", SERVICE, "is not enabled"),),
    ),
    Damage(
        "unit of the markers with another mode",
        "spark2",
        f"chmod 0600 {UNIT}",
        "markers",
        (Told("file.mode", UNIT, "mode and owner are 0600 0:0"),),
    ),
    Damage(
        "marker program that cannot be run",
        "spark3",
        f"chmod 0644 {PROGRAM}",
        "markers",
        (Told("markers.binary-mode", PROGRAM, "has mode 0644"),),
    ),
)
"""Repaired under a running engine."""

KILLED = Damage(
    "marker killed",
    "spark4",
    f"systemctl kill -s KILL {marker('rocep1s0f1')}",
    "",
    (Told("marker-flaps", "", f"{marker('rocep1s0f1')}: died and was started again 1 times"),),
    undo=f"systemctl reset-failed {marker('rocep1s0f1')}",
)
"""Back before anybody looks, with a gap behind it: told, and nothing follows."""

REFUSED = (
    Damage(
        "foreign rule at our preference",
        "spark1",
        rule("add", F0B, 49159, 7, f"src_mac {OTHER_MAC} {TAKE_ON} {F1B}"),
        "",
        (Told("forwarding.foreign-rule", f"{F0B} pref 49159", f"there is flower 0x88b5 handle 7 src_mac {OTHER_MAC}"),),
        undo=rule("del", F0B, 49159, 7),
    ),
    Damage(
        "foreign rule that takes marked frames",
        "spark2",
        rule("add", F1, 9, 1, f"src_mac {OTHER_MAC} {TAKE_ON} {F0}"),
        "",
        (Told("forwarding.foreign-rule", f"{F1} pref 9", f"there is flower 0x88b5 handle 1 src_mac {OTHER_MAC}"),),
        undo=rule("del", F1, 9, 1),
    ),
    Damage(
        "foreign route to an opposite node",
        "spark3",
        f"ip route add 10.10.0.10/32 via 10.10.2.11 dev {F0} metric 7",
        "",
        (
            Told("forwarding.foreign-route", "10.10.0.10/32", f"route is via 10.10.2.11 dev {F0} src any"),
            Told("route-overlap", F0, "has a route to 10.10.0.10/32, which overlaps 10.10.0.0/24 of plane 0"),
        ),
        undo="ip route del 10.10.0.10/32 metric 7",
    ),
    Damage(
        "hardware offload off for good",
        "spark4",
        f"mkdir -p {FAULTS} && touch {FAULTS}/offload-fixed.{F0}",
        "",
        (Told("nic.offload", FIRST, "hw-tc-offload is off [fixed]"),),
        undo=f"rm {FAULTS}/offload-fixed.{F0}",
    ),
)
"""In the way of any change, until it is taken away."""

DISRUPTIVE = (
    Damage(
        "queue size back to 1024",
        "spark1",
        driver("0000:01:00.0", 1024),
        "nic",
        (Told("nic.queues", FIRST, "hairpin_queue_size is 1024"),),
    ),
    Damage(
        "boot unit stopped",
        "spark1",
        f"systemctl stop {SERVICE}",
        "markers",
        (
            Told("markers.service", SERVICE, "is inactive (dead)"),
            gone(marker("rocep1s0f0"), "inactive (dead)"),
            gone(marker("roceP2p1s0f1"), "inactive (dead)"),
        ),
    ),
    Damage(
        "queue size shown and not in effect",
        "spark2",
        f"{driver('0002:01:00.0', 1024)} && devlink dev reload pci/0002:01:00.0 action driver_reinit && "
        f"{driver('0002:01:00.0', 8192)}",
        "nic",
        (
            Told(
                "nic.pending",
                f"{F0B} (0002:01:00.0)",
                "shows hairpin_num_queues 4, hairpin_queue_size 8192, but somebody re-initialised it",
            ),
        ),
    ),
    Damage(
        "rule with another MAC",
        "spark2",
        rule("del", F1, 49152, 49152) + " && " + rule("add", F1, 49152, 49152, f"src_mac {OTHER_MAC} {TAKE_ON} {F0}"),
        "forwarding",
        (Told("forwarding.rule", f"{F1} pref 49152", f"there is flower 0x88b5 handle 49152 src_mac {OTHER_MAC}"),),
    ),
    Damage(
        "rule removed",
        "spark2",
        rule("del", F0, 49162, 49162),
        "forwarding",
        (Told("forwarding.rule-missing", f"{F0} pref 49162", "rule is missing"),),
    ),
    Damage(
        "marker program changed",
        "spark2",
        f"echo '# changed' >>{PROGRAM}",
        "markers",
        (Told("markers.binary", PROGRAM, "has sha256 "),),
    ),
    Damage(
        "hardware offload off",
        "spark3",
        f"ethtool -K {F1B} hw-tc-offload off",
        "nic",
        (Told("nic.offload", f"{F1B} (0002:01:00.1)", "hw-tc-offload is off"),),
    ),
    Damage(
        "rule shown and not in hardware",
        "spark3",
        "",  # the rule is put there again while the card takes none
        "forwarding",
        (Told("forwarding.software", f"{F1} pref 49156", "rule is not in hardware"),),
    ),
    Damage(
        "route to the opposite node removed",
        "spark3",
        "ip route del 10.10.0.10/32",
        "forwarding",
        (Told("forwarding.route-missing", "10.10.0.10/32", "route is missing"),),
    ),
    Damage(
        "marker stopped",
        "spark3",
        f"systemctl stop {marker('rocep1s0f1')}",
        "markers",
        (gone(marker("rocep1s0f1"), "inactive (dead)"),),
    ),
    Damage(
        "GID at index 4",
        "spark4",
        f"mkdir -p {FAULTS} && touch {FAULTS}/gid4.{F0} && nmcli connection down netplan-{F0} && "
        f"nmcli connection up netplan-{F0} && rm {FAULTS}/gid4.{F0}",
        "nic",
        (Told("nic.gid", FIRST, "RoCE v2 GID of 10.10.3.10 is at index 4"),),
    ),
    Damage(
        "marker flapping",
        "spark4",
        f"touch {DIES} && until systemctl is-failed -q {marker('rocep1s0f1')}; do sleep 0.3; done && rm {DIES}",
        "markers",
        (gone(marker("rocep1s0f1"), "failed (failed), started again "),),
        also=(("spark4", Told("marker-flaps", "", f"{marker('rocep1s0f1')}: died and was started again ")),),
    ),
    Damage(
        "unit of the markers changed",
        "spark4",
        f"sed -i s/RestartSec=2/RestartSec=9/ {UNIT}",
        "markers",
        (Told("file.text", UNIT, "has another content"),),
    ),
)
"""Repaired while no engine runs."""


def put_again(lab: api.Handle, node: str, netdev: str) -> None:
    """Put a rule of a port there once more, as it was, while the card takes none."""
    called = [call.argv for call in lab.trace(node)[0] if call.tool == "tc" and call.verb == "filter-add"]
    words = next(argv for argv in reversed(called) if netdev in argv[: argv.index("ingress")])
    pref = words[words.index("pref") + 1]
    lab.set_fault(node, f"not-in-hw.{pref}")
    lab.run(node, f"tc filter del dev {netdev} ingress protocol {MARKED} pref {pref} && tc {' '.join(words)}")
    lab.clear_fault(node, f"not-in-hw.{pref}")
