"""What a node refuses about the mesh. Each refusal names node, object, what was seen and what is wanted."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from node.run import Result
from tests.node.helpers import OWNER, refused
from tests.node.meshhelpers import OFF, WANTED, forwarding, marks, meshed, nic
from tests.node.meshmachine import BINARY, MeshMachine

pytestmark = pytest.mark.usefixtures("no_guard")

PORT, PCI, HCA = "enp1s0f0np0", "0000:01:00.0", "rocep1s0f0"
ONE, TWO = "enP2p1s0f0np0", "enP2p1s0f1np1"
ENGINE = {"id": "e", "name": "engine", "labels": {"spark-fabric.stack": OWNER.label()}, "state": "running"}

Spoil = Callable[[MeshMachine], None]


def _set(**values: Any) -> Spoil:
    def spoil(machine: MeshMachine) -> None:
        for name, value in values.items():
            assert hasattr(machine, name)
            setattr(machine, name, value)

    return spoil


def _flow(pref: int, **more: Any) -> Spoil:
    def spoil(machine: MeshMachine) -> None:
        machine.qdiscs[ONE] = "clsact"
        machine.add_flow(ONE, pref, "02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:03", TWO, **more)

    return spoil


def _relay_table(machine: MeshMachine) -> None:
    machine.qdiscs[ONE] = "clsact"
    row = {"kind": "flower", "pref": 11, "handle": 1, "protocol": 0x88B5, "skip_sw": True, "in_hw": True}
    machine.flows[ONE] = [row | {"actions": [("mirred", TWO)]}]


def _file(path: str, text: str) -> Spoil:
    return lambda machine: machine.put(path, text)


def _unreadable(tool: str, words: str) -> Spoil:
    def spoil(machine: MeshMachine) -> None:
        machine.hooks[tool] = lambda argv: Result(1, "", "no answer") if words in " ".join(argv) else None

    return spoil


def _route(**values: str) -> Spoil:
    def spoil(machine: MeshMachine) -> None:
        route = {"dst": "10.10.1.11", "dev": PORT, "gateway": "10.10.0.99", "protocol": "static"}
        machine.routes.append(route | values)

    return spoil


def _cable_out(machine: MeshMachine) -> None:
    machine.links[PORT]["carrier"] = False


def _other_card(machine: MeshMachine) -> None:
    machine.links[ONE]["mac"] = "02:5a:ab:00:09:99"


def _process(command: str) -> Spoil:
    return lambda machine: machine.put("/proc/4711/cmdline", command.replace(" ", "\0"))


def _user(machine: MeshMachine) -> None:
    machine.queue_pairs = [{"ifname": HCA, "pid": 4711, "comm": "ib_write_bw", "type": "RC"}]


BY_HAND = "[Unit]\nDescription=mesh\n[Service]\nExecStart=/opt/dsv41-mesh/mesh-up.sh\n"

# What is applied before, what spoils it, what is asked for, the exit code, and what the refusal says.
CASES: dict[str, tuple[tuple[str, ...], Spoil, tuple[str, Any], int, tuple[str, ...]]] = {
    "queue pairs of somebody": (
        (),
        _user,
        ("nic", nic()),
        9,
        ("process 4711 (ib_write_bw) has queue pairs on rocep1s0f0", "plan wants", "stop the engine"),
    ),
    "a process on the GPU": (
        (),
        _set(gpu=["811, python3"]),
        ("nic", nic()),
        9,
        ("process 811, python3 uses the GPU", "stop the engine"),
    ),
    "a GPU that cannot be asked": (
        (),
        lambda machine: machine.hooks.update({"nvidia-smi": lambda _: Result(9, "", "no driver")}),
        ("nic", nic()),
        9,
        ("nvidia-smi cannot tell who uses the GPU: no driver",),
    ),
    "a tool that cannot tell who uses RDMA": (
        (),
        _unreadable("rdma", "resource show pd"),
        ("nic", nic()),
        9,
        ("it cannot be told who has memory: rdma -j resource show pd: no answer", "stop the engine"),
    ),
    "driver values while rules stand": (
        ("nic", "forwarding"),
        lambda _: None,
        ("nic", OFF),
        9,
        ("rules of the mesh stand, which need the driver's values: revert the stage forwarding first",),
    ),
    "driver values under a filter of others": (
        ("nic",),
        _flow(10, protocol=0x0800),
        ("nic", OFF),
        9,
        (f"{ONE} (0002:01:00.0): has a filter of others (pref 10, flower), which its re-initialisation would remove",),
    ),
    "an engine": ((), _set(containers=[ENGINE]), ("nic", nic()), 9, ("engine container engine", "is running")),
    "another steering mode": (
        (),
        _set(steering="smfs"),
        ("nic", nic()),
        1,
        (f"{PORT} ({PCI}): flow_steering_mode is smfs, plan wants hmfs",),
    ),
    "another eswitch mode": (
        (),
        _set(eswitch="switchdev"),
        ("nic", nic()),
        1,
        (f"{PORT} ({PCI}): the mode of its eswitch is switchdev, plan wants legacy",),
    ),
    "offload that cannot be switched on": (
        ("nic",),
        lambda machine: machine.offload.update({PORT: "off [fixed]"}),
        ("nic", nic()),
        1,
        (f"{PORT} ({PCI}): hw-tc-offload is off [fixed], plan wants on",),
    ),
    "a function whose re-initialisation failed": (
        ("nic",),
        lambda machine: machine.driver[PCI].update(failed=True),
        ("nic", nic()),
        1,
        (f"{PORT} ({PCI}): its last re-initialisation failed, plan wants a function that works: boot the node",),
    ),
    "a counter that cannot be read": (
        (),
        _unreadable("devlink", "-s -j dev show"),
        ("nic", nic()),
        1,
        (f"{PORT} ({PCI}): cannot be read (reinits, reload_failed)", "plan wants hairpin_num_queues 4"),
    ),
    "values that cannot be read": (
        (),
        _unreadable("devlink", "param show"),
        ("nic", nic()),
        1,
        (f"{PORT} ({PCI}): cannot be read (hairpin_num_queues, hairpin_queue_size)",),
    ),
    "a filter of others on a function that must be re-initialised": (
        (),
        _flow(10, protocol=0x0800),
        ("nic", nic()),
        1,
        (f"{ONE} (0002:01:00.0): has a filter of others (pref 10, flower)", "leave the mesh off"),
    ),
    "a port that is not complete before": (
        (),
        _cable_out,
        ("nic", nic()),
        1,
        (f"{PORT} ({PCI}): no carrier, port 1: DOWN instead of ACTIVE", "Is the cable in"),
    ),
    "a driver that refuses": (
        (),
        _set(reload_fault={PCI: "refused"}),
        ("nic", nic()),
        1,
        (f"{PORT} ({PCI}): devlink dev reload pci/{PCI}", "Device or resource busy", "stopped here"),
    ),
    "a function that does not come back": (
        (),
        _set(reload_fault={PCI: "cable"}),
        ("nic", nic()),
        12,
        (f"{PORT} ({PCI}): did not come back within 40 s", "no address 10.10.0.10/24", "MTU 1500 instead of 9000"),
    ),
    "a re-initialisation that was not counted": (
        (),
        _set(reload_fault={PCI: "uncounted"}),
        ("nic", nic()),
        12,
        (f"{PORT} ({PCI}): is back, but its values are not in effect", "re-initialisations 0 -> 0"),
    ),
    "a re-initialisation with a flag": (
        (),
        _set(reload_fault={PCI: "flagged"}),
        ("nic", nic()),
        12,
        (f"{PORT} ({PCI}): is back, but its values are not in effect", "reload_failed True"),
    ),
    "an ingress qdisc of others": (
        ("nic",),
        _set(qdiscs={ONE: "ingress"}),
        ("forwarding", forwarding()),
        1,
        (f"{ONE}: has a qdisc ingress at its ingress, plan wants clsact, or none",),
    ),
    "a filter of others at our preference": (
        ("nic",),
        _flow(49159),
        ("forwarding", forwarding()),
        1,
        (
            f"{ONE} pref 49159: there is flower 0x88b5 handle 49159",
            "plan wants restore-rank1-to-rank3",
            "it is not ours",
        ),
    ),
    "a filter of others with our handle": (
        ("nic",),
        _flow(7, handle=49159),
        ("forwarding", forwarding()),
        1,
        (f"{ONE} pref 49159: there is flower 0x88b5 handle 49159", "it is not ours"),
    ),
    "a filter of others for marked frames": (
        ("nic",),
        _flow(7),
        ("forwarding", forwarding()),
        1,
        (f"{ONE} pref 7: there is flower", "which takes marked frames too, plan wants rules of the mesh only"),
    ),
    "the universal relay table": (
        ("nic",),
        _relay_table,
        ("forwarding", forwarding()),
        1,
        ("universal relay table: filter flower 0x88b5 handle 1", f"on {ONE} pref 11, plan wants none beside the mesh"),
    ),
    "a route of the universal relay table": (
        ("nic",),
        _route(protocol="82", dst="10.10.9.9"),
        ("forwarding", forwarding()),
        1,
        (f"universal relay table: route to 10.10.9.9/32 of protocol 82 on {PORT}, plan wants none",),
    ),
    "a unit of the universal relay table": (
        ("nic",),
        _set(installed={"sparkring-fabric.service"}),
        ("forwarding", forwarding()),
        1,
        ("universal relay table: unit sparkring-fabric.service, plan wants none",),
    ),
    "another route to the same port": (
        ("nic",),
        _route(),
        ("forwarding", forwarding()),
        1,
        (f"10.10.1.11/32: route is via 10.10.0.99 dev {PORT} src any, plan wants via 10.10.0.11", "it is not ours"),
    ),
    "another card than planned for": (
        ("nic",),
        _other_card,
        ("forwarding", forwarding()),
        1,
        (f"{ONE}: MAC is 02:5a:ab:00:09:99, plan wants 02:5a:ab:00:01:13", "run up again"),
    ),
    "a rule from one PCI domain to the other": (
        ("nic",),
        lambda _: None,
        ("forwarding", forwarding(egress=PORT)),
        1,
        (f"{ONE} pref 49159: from PCI domain 0002 to 0000 ({PORT}), plan wants one",),
    ),
    "a rule that the card does not take": (
        ("nic",),
        _set(not_in_hw={49165}),
        ("forwarding", forwarding()),
        12,
        (f"{TWO} pref 49165: rule is accepted, but not in hardware, plan wants restore-rank3-to-rank1",),
    ),
    "rules while a marker runs": (
        ("nic", "forwarding", "markers"),
        lambda _: None,
        ("forwarding", OFF),
        9,
        ("dsv41-mesh-marker@rocep1s0f0.service is active, none is wanted before rules go",),
    ),
    "rules while a marker is between two starts": (
        ("nic", "forwarding", "markers"),
        lambda machine: machine.markers[HCA].update(active=False, state="activating"),
        ("forwarding", OFF),
        9,
        ("dsv41-mesh-marker@rocep1s0f0.service is activating, none is wanted before rules go",),
    ),
    "rules while nobody tells how a marker is": (
        ("nic", "forwarding", "markers"),
        lambda machine: machine.hooks.update({"systemctl": lambda _: Result(1, "", "Failed to connect to bus")}),
        ("forwarding", OFF),
        9,
        ("rocep1s0f0.service is in a state that systemd does not tell (Failed to connect to bus)",),
    ),
    "no marker binary": (
        ("nic", "forwarding"),
        lambda machine: machine.drop(BINARY),
        ("markers", WANTED["markers"]),
        1,
        (f"{BINARY}: the marker binary is missing, plan wants sha256",),
    ),
    "another marker binary": (
        ("nic", "forwarding"),
        lambda machine: machine.put(BINARY, "something else"),
        ("markers", WANTED["markers"]),
        1,
        (f"{BINARY}: sha256 is ", "plan wants "),
    ),
    "an installation by hand": (
        ("nic", "forwarding"),
        _file("/etc/systemd/system/dsv41-mesh.service", BY_HAND),
        ("markers", WANTED["markers"]),
        1,
        ("dsv41-mesh.service: is of an installation by hand, plan wants ours", "systemctl disable --now dsv41-mesh"),
    ),
    "a binary installed by hand": (
        ("nic", "forwarding"),
        _file("/opt/dsv41-mesh/bin/mlx5-rdma-tx-rewrite-probe", "another build"),
        ("markers", WANTED["markers"]),
        1,
        ("/opt/dsv41-mesh/bin/mlx5-rdma-tx-rewrite-probe: has sha256 ", "it is not ours; remove it"),
    ),
    "a marker of nobody": (
        ("nic", "forwarding"),
        _process("/home/ann/mlx5-rdma-tx-rewrite-probe --device rocep1s0f0 --attach"),
        ("markers", WANTED["markers"]),
        1,
        (
            "process 4711: runs /home/ann/mlx5-rdma-tx-rewrite-probe --device rocep1s0f0",
            "plan wants markers of the mesh",
        ),
    ),
    "a marker that dies": (
        ("nic", "forwarding"),
        _set(marker_fault={HCA: "dies"}),
        ("markers", WANTED["markers"]),
        1,
        ("dsv41-mesh-marker@rocep1s0f0.service: has not said that it is attached, plan wants it attached and managed",),
    ),
    "a marker that is not managed": (
        ("nic", "forwarding"),
        _set(marker_fault={HCA: json.dumps({"device": HCA, "attached": True, "source_port": 65535})}),
        ("markers", WANTED["markers"]),
        1,
        ("dsv41-mesh-marker@rocep1s0f0.service: says managed None, action None, plan wants it attached and managed",),
    ),
    "markers before rules": (
        ("nic",),
        lambda _: None,
        ("markers", marks()),
        1,
        ("forwarding is not applied, plan wants it applied on this node before any marker",),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_node_refuses_by_name(case: str) -> None:
    applied, spoil, (stage, desired), code, texts = CASES[case]
    machine = MeshMachine()
    meshed(machine, applied)
    spoil(machine)
    failure = refused(machine, "apply", stage, desired)
    assert failure.code == code, str(failure)
    for text in texts:
        assert text in str(failure), str(failure)


EARLY = [case for case, (_, _, (stage, _), code, _) in CASES.items() if code in (1, 9) and stage != "markers"]
LATE = {"a port that is not complete before", "a driver that refuses"}


@pytest.mark.parametrize("case", [case for case in EARLY if case not in LATE])
def test_what_is_refused_beforehand_changes_nothing(case: str) -> None:
    applied, spoil, (stage, desired), _, _ = CASES[case]
    machine = MeshMachine()
    meshed(machine, applied)
    spoil(machine)
    before = machine.snapshot()
    refused(machine, "apply", stage, desired)
    assert machine.snapshot() == before


def test_functions_after_one_that_failed_are_not_touched() -> None:
    machine = MeshMachine()
    meshed(machine, ())
    machine.reload_fault = {"0000:01:00.1": "cable"}
    refused(machine, "apply", "nic", nic())
    assert [row["reinits"] for row in machine.driver.values()] == [1, 1, 0, 0]


def test_rules_that_the_card_refused_leave_nothing_of_that_run_behind() -> None:
    """F075"""
    machine = MeshMachine()
    meshed(machine, ("nic",))
    before = {name: value for name, value in machine.snapshot().items() if "journal" not in name}
    machine.not_in_hw = {49165}
    assert "forwarding was taken back at once" in str(refused(machine, "apply", "forwarding", forwarding()))
    assert {name: value for name, value in machine.snapshot().items() if "journal" not in name} == before


def test_there_are_enough_refusals() -> None:
    assert len(CASES) >= 25
