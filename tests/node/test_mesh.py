"""The mesh on one node: driver, rules and routes, markers; there and back, and whatever happens in between."""

import copy
import io
import json
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from node import forwarding as flow
from node import guard, limits, lock, markers, meshunits, meshup, nic, sent
from node import observe as look
from node.digest import sha256
from node.request import Failure, Request
from node.run import Result
from tests.node import meshmachine
from tests.node.helpers import OWNER, ask, killed, refused, take
from tests.node.machine import MANAGEMENT
from tests.node.meshhelpers import OFF, STAGES, WANTED, forwarding, marks, meshed, planes
from tests.node.meshhelpers import nic as functions
from tests.node.meshmachine import BINARY, BINARY_TEXT, MeshMachine

pytestmark = pytest.mark.usefixtures("no_guard")

PORT, PCI, HCA = "enp1s0f0np0", "0000:01:00.0", "rocep1s0f0"
ONE, TWO = "enP2p1s0f0np0", "enP2p1s0f1np1"
ENGINE = {"id": "e", "name": "engine", "labels": {"spark-fabric.stack": OWNER.label()}, "state": "running"}
JUDGES = {"nic": nic, "forwarding": flow, "markers": markers}


@pytest.fixture
def machine() -> MeshMachine:
    """A machine as delivered, with the tools of a mesh."""
    return MeshMachine()


@pytest.fixture
def mesh(machine: MeshMachine) -> MeshMachine:
    """A machine whose mesh is up."""
    meshed(machine)
    machine.order.clear()
    return machine


def drift(machine: MeshMachine, stage: str) -> list[str]:
    """What a preview sees of a stage, from plain JSON as the operator's side gets it."""
    observed = json.loads(json.dumps(look.observe(machine, OWNER)))
    assert observed["errors"] == []
    return [deviation.text() for deviation in JUDGES[stage].deviations(WANTED[stage], observed)]


def up(machine: MeshMachine) -> None:
    """All stages of the mesh once more."""
    for stage in STAGES:
        ask(machine, "apply", stage, WANTED[stage])


def settled(machine: MeshMachine) -> dict[str, Any]:
    """A snapshot without our journal."""
    return {name: value for name, value in machine.snapshot().items() if not name.startswith("/var/lib/spark-fabric")}


def test_off_from_the_start_is_nothing_to_do(machine: MeshMachine) -> None:
    planes(machine)
    machine.steps.clear()
    for stage in STAGES:
        assert ask(machine, "apply", stage, OFF)["changed"] == []
    assert machine.steps == []


@pytest.mark.parametrize("dialect", ["6", "5", "text"])
def test_a_mesh_goes_up_stays_and_comes_down(machine: MeshMachine, dialect: str) -> None:
    machine.dialect = dialect
    before = machine.snapshot()
    planes(machine)
    bare = settled(machine)
    for stage in STAGES:
        assert ask(machine, "apply", stage, WANTED[stage])["changed"]
    assert {row["effective"]["hairpin_queue_size"] for row in machine.driver.values()} == {8192}
    assert [row["pref"] for rows in machine.flows.values() for row in rows] == [49159, 49165]
    assert [route["dst"] for route in machine.routes if route["protocol"] == "boot"] == ["10.10.1.11", "10.20.2.10"]
    assert sorted(hca for hca, row in machine.markers.items() if row["active"]) == ["roceP2p1s0f1", "rocep1s0f0"]
    machine.steps.clear()
    for stage in STAGES:
        assert drift(machine, stage) == []
        assert ask(machine, "apply", stage, WANTED[stage])["changed"] == []
    assert machine.steps == []
    for stage in reversed(STAGES):
        ask(machine, "apply", stage, OFF)
    assert settled(machine) == bare
    up(machine)
    ask(machine, "revert", "undo")
    assert machine.snapshot() == before


def test_rules_come_before_markers_and_go_after_them(mesh: MeshMachine) -> None:
    ask(mesh, "revert", "undo")
    first_rule = next(place for place, what in enumerate(mesh.order) if what.startswith("rule"))
    last_marker = max(place for place, what in enumerate(mesh.order) if what.startswith("marker"))
    assert last_marker < first_rule < mesh.order.index("reinit enP2p1s0f1np1")


# the driver


def test_one_function_at_a_time_and_its_marker_waits_for_its_own_stage(mesh: MeshMachine) -> None:
    ask(mesh, "apply", "nic", functions(4096))
    assert mesh.order == [
        *(f"marker {HCA} gone", f"reinit {PORT}", "reinit enp1s0f1np1", f"reinit {ONE}"),
        *("marker roceP2p1s0f1 gone", f"reinit {TWO}"),
    ]
    up_again = [ask(mesh, "apply", stage, WANTED[stage])["changed"] for stage in ("forwarding", "markers")]
    assert all(up_again)
    assert all(row["marking"] for row in mesh.markers.values() if row["active"])


def test_values_that_another_tool_had_set_come_back(machine: MeshMachine) -> None:
    """F073"""
    for row in machine.driver.values():
        row["shown"]["hairpin_queue_size"] = row["effective"]["hairpin_queue_size"] = 4096
        row["reinits"] = 2
    meshed(machine)
    assert {row["effective"]["hairpin_queue_size"] for row in machine.driver.values()} == {8192}
    ask(machine, "revert", "undo")
    assert {row["effective"]["hairpin_queue_size"] for row in machine.driver.values()} == {4096}


def test_values_that_are_only_shown_are_put_in_effect(machine: MeshMachine) -> None:
    planes(machine)
    for row in machine.driver.values():
        row["shown"]["hairpin_queue_size"] = 8192
    assert "was not re-initialised since the boot" in "\n".join(_nic_drift(machine))
    ask(machine, "apply", "nic", functions())
    assert {row["effective"]["hairpin_queue_size"] for row in machine.driver.values()} == {8192}


def test_values_that_somebody_set_again_after_a_re_initialisation_of_his_own_are_put_in_effect(
    mesh: MeshMachine,
) -> None:
    """They are shown, and the counter is above zero: only the journal tells that they are not what is in effect."""
    assert _nic_drift(mesh) == []
    row = mesh.driver[PCI]
    row["shown"]["hairpin_queue_size"] = 1024
    mesh.run(["devlink", "dev", "reload", f"pci/{PCI}", "action", "driver_reinit"])
    row["shown"]["hairpin_queue_size"] = 8192
    (line,) = _nic_drift(mesh)
    assert line == (
        f"{PORT} ({PCI}): shows hairpin_num_queues 4, hairpin_queue_size 8192, but somebody re-initialised it after "
        "they were put in effect, plan wants hairpin_num_queues 4, hairpin_queue_size 8192 in effect"
    )
    assert ask(mesh, "apply", "nic", functions())["changed"]
    assert row["effective"]["hairpin_queue_size"] == 8192
    assert [what for what in mesh.order if what.startswith("reinit")][-1] == f"reinit {PORT}"
    assert _nic_drift(mesh) == []


def test_values_from_before_us_that_are_only_shown_are_put_in_effect_by_a_revert(mesh: MeshMachine) -> None:
    row = mesh.driver[PCI]
    row["shown"]["hairpin_queue_size"] = 1024
    ask(mesh, "revert", "markers")
    ask(mesh, "revert", "forwarding")
    ask(mesh, "revert", "nic")
    assert {one["effective"]["hairpin_queue_size"] for one in mesh.driver.values()} == {1024}


def test_a_function_that_had_the_values_before_us_is_watched_from_then_on(machine: MeshMachine) -> None:
    for row in machine.driver.values():
        row["shown"]["hairpin_queue_size"] = row["effective"]["hairpin_queue_size"] = 8192
        row["reinits"] = 3
    machine.offload[PORT] = "off"  # so that there is something to do
    planes(machine)
    ask(machine, "apply", "nic", functions())
    assert _nic_drift(machine) == []
    assert machine.order == []
    machine.run(["devlink", "dev", "reload", f"pci/{PCI}", "action", "driver_reinit"])
    assert ["somebody re-initialised it" in line for line in _nic_drift(machine)] == [True]


def test_a_boot_begins_to_count_anew(mesh: MeshMachine) -> None:
    ask(mesh, "apply", "nic", functions(4096))
    ask(mesh, "apply", "nic", functions())
    assert mesh.driver[PCI]["reinits"] > 2
    mesh.boot()
    assert mesh.driver[PCI]["reinits"] == 1
    assert _nic_drift(mesh) == []
    mesh.run(["devlink", "dev", "reload", f"pci/{PCI}", "action", "driver_reinit"])
    assert len(_nic_drift(mesh)) == 1


def _nic_drift(machine: MeshMachine) -> list[str]:
    observed = look.observe(machine, OWNER, with_mesh=True)
    return [deviation.text() for deviation in nic.deviations(functions(), observed)]


def test_offload_that_was_off_is_switched_on_and_off_again(machine: MeshMachine) -> None:
    planes(machine)
    before = settled(machine)
    for row in machine.driver.values():
        row["shown"]["hairpin_queue_size"] = row["effective"]["hairpin_queue_size"] = 8192
        row["reinits"] = 1
    machine.offload[PORT] = "off"
    ask(machine, "apply", "nic", functions())
    assert machine.offload[PORT] == "on"
    assert machine.order == []
    ask(machine, "revert", "nic")
    assert machine.offload[PORT] == "off"
    assert settled(machine)["links"] == before["links"]


def test_a_port_that_networkmanager_forgot_is_brought_up_with_the_planes_profile(machine: MeshMachine) -> None:
    planes(machine)
    machine.reload_fault = {PCI: "lost"}
    ask(machine, "apply", "nic", functions())
    assert machine.links[PORT]["addresses"] == ["10.10.0.10/24"]
    assert machine.text(f"/proc/sys/net/ipv4/conf/{PORT}/arp_ignore") == "1"


def test_what_is_there_at_the_very_last_look_is_a_success(machine: MeshMachine) -> None:
    """F077"""
    planes(machine)
    machine.reload_fault = {PCI: "cable"}
    began: list[float] = []

    def sleep(_: list[str]) -> None:
        if machine.links[PORT]["carrier"]:
            return
        began.append(machine.time)
        if machine.time - began[0] > limits.RETURN - 0.5:
            machine.links[PORT]["carrier"] = True
            machine._autoconnect()

    machine.hooks["sleep"] = sleep
    ask(machine, "apply", "nic", functions())
    assert len(began) > 100


def test_a_gid_that_moved_is_brought_back_by_giving_the_address_again(mesh: MeshMachine) -> None:
    mesh.drifted = {PORT}
    mesh._sysfs()
    assert drift(mesh, "nic") == [f"{PORT} ({PCI}): RoCE v2 GID of 10.10.0.10 is at index 4, plan wants 3"]
    mesh.containers = [ENGINE]
    assert refused(mesh, "apply", "nic", functions()).code == 9
    mesh.containers = []
    ask(mesh, "apply", "nic", functions())
    assert drift(mesh, "nic") == []
    assert mesh.order == []
    ask(mesh, "apply", "forwarding", forwarding())  # the route went with the address
    assert [drift(mesh, stage) for stage in STAGES] == [[], [], []]


def test_a_gid_that_moves_at_a_reinitialisation_is_brought_back_at_once(machine: MeshMachine) -> None:
    planes(machine)
    machine.drift_next = {PORT}
    ask(machine, "apply", "nic", functions())
    assert _nic_drift(machine) == []


# rules and routes


def test_what_was_there_with_the_same_meaning_is_adopted_and_stays(machine: MeshMachine) -> None:
    """F079"""
    rule, route = forwarding()["rules"][0], forwarding()["routes"][0]
    planes(machine)
    machine.qdiscs[ONE] = "clsact"
    macs = (rule["src_mac"], rule["dst_mac"], rule["new_dst_mac"])
    ask(machine, "apply", "nic", functions())
    machine.qdiscs[ONE] = "clsact"
    machine.add_flow(ONE, rule["pref"], *macs, TWO)
    theirs = {"dst": "10.10.1.11", "dev": PORT, "gateway": route["via"], "prefsrc": route["src"], "protocol": "static"}
    machine.routes.append(theirs)
    machine.order.clear()
    for stage in ("forwarding", "markers"):
        ask(machine, "apply", stage, WANTED[stage])
    assert "rule 49159" not in machine.order
    for stage in ("markers", "forwarding"):
        ask(machine, "revert", stage)
    assert machine.qdiscs == {ONE: "clsact"}
    assert [row["pref"] for row in machine.flows[ONE]] == [49159]
    assert theirs in machine.routes
    assert not machine.flows.get(TWO)


def test_an_adopted_rule_is_not_replaced_when_the_plan_changes(machine: MeshMachine) -> None:
    rule = forwarding()["rules"][0]
    meshed(machine, ("nic",))
    machine.qdiscs[ONE] = "clsact"
    machine.add_flow(ONE, rule["pref"], rule["src_mac"], rule["dst_mac"], rule["new_dst_mac"], TWO)
    ask(machine, "apply", "forwarding", forwarding())
    failure = refused(machine, "apply", "forwarding", forwarding(new_dst_mac="02:5a:ab:00:04:77"))
    assert "was there before us and the plan wants another: remove it by hand" in str(failure)


def test_missing_rules_and_routes_are_drift_and_come_back_under_an_engine(mesh: MeshMachine) -> None:
    mesh.containers = [ENGINE]
    mesh.flows[ONE] = []
    mesh.routes = [route for route in mesh.routes if route["dst"] != "10.10.1.11"]
    assert drift(mesh, "forwarding") == [
        f"{ONE} pref 49159: rule is missing, plan wants {forwarding()['rules'][0]['name']}",
        f"10.10.1.11/32: route is missing, plan wants via 10.10.0.11 dev {PORT} src 10.10.0.10",
    ]
    ask(mesh, "apply", "forwarding", forwarding())
    assert drift(mesh, "forwarding") == []
    assert mesh.order == ["rule 49159"]


def test_a_rule_that_somebody_changed_is_only_replaced_at_a_standstill(mesh: MeshMachine) -> None:
    mesh.flows[ONE] = []
    mesh.add_flow(ONE, 49159, "02:5a:ab:00:02:14", "02:5a:ab:00:01:13", "02:00:00:00:00:77", TWO)
    assert "pref 49159: there is flower 0x88b5 handle 49159 dst_mac 02:5a:ab:00:01:13" in drift(mesh, "forwarding")[0]
    mesh.containers = [ENGINE]
    assert refused(mesh, "apply", "forwarding", forwarding()).code == 9
    mesh.containers = []
    destroyed = mesh.copy()
    ask(mesh, "apply", "forwarding", forwarding())
    assert drift(mesh, "forwarding") == []
    for stage in ("markers", "forwarding"):
        ask(destroyed, "revert", stage)
    assert not destroyed.flows.get(ONE)


def test_a_filter_of_others_at_the_preference_of_a_rule_of_ours_is_refused_and_stays(mesh: MeshMachine) -> None:
    mesh.flows[ONE] = []
    mesh.add_flow(ONE, 49159, "02:5a:ab:00:02:14", "02:5a:ab:00:01:13", "02:00:00:00:00:77", TWO)
    mesh.flows[ONE][0]["handle"] = 1
    theirs = dict(mesh.flows[ONE][0])
    assert "pref 49159: there is flower 0x88b5 handle 1 dst_mac 02:5a:ab:00:01:13" in drift(mesh, "forwarding")[0]
    failure = refused(mesh, "apply", "forwarding", forwarding())
    assert failure.code == 1
    assert "it is not ours; remove it or leave the mesh off" in str(failure)
    assert "enP2p1s0f0np0 (0002:01:00.0): has a filter of others (pref 49159" in str(
        refused(mesh, "apply", "nic", functions(4096))
    )
    for stage in ("markers", "forwarding"):
        ask(mesh, "revert", stage)
    assert mesh.flows == {ONE: [theirs]}


def test_a_filter_of_others_that_came_after_the_look_stays_too(mesh: MeshMachine) -> None:
    mesh.flows[ONE] = []

    def late(argv: list[str]) -> None:
        if "-b" not in argv and not mesh.flows[ONE]:  # the look is one batch, the step asks for its port alone
            mesh.add_flow(ONE, 49159, "02:5a:ab:00:02:14", "02:5a:ab:00:01:13", "02:00:00:00:00:77", TWO)
            mesh.flows[ONE][0]["handle"] = 1

    mesh.hooks["tc"] = late
    assert "is not what we put there: remove it by hand" in str(refused(mesh, "apply", "forwarding", forwarding()))
    assert [row["handle"] for row in mesh.flows[ONE]] == [1]


def test_a_route_of_ours_that_a_killed_change_left_is_still_ours(mesh: MeshMachine) -> None:
    moved = forwarding()
    moved["routes"][0]["via"] = "10.10.0.12"
    at = 0
    while killed(hurt := mesh.copy(), at, "apply", "forwarding", copy.deepcopy(moved)):
        ask(hurt, "apply", "forwarding", copy.deepcopy(moved))
        assert [row["gateway"] for row in hurt.routes if row["dst"] == "10.10.1.11"] == ["10.10.0.12"]
        at += 1
    assert at > 4


def test_each_route_that_stands_in_the_way_is_told(mesh: MeshMachine) -> None:
    for via, metric in (("10.10.0.98", 50), ("10.10.0.99", 60)):
        mesh.routes.append({"dst": "10.10.1.11", "dev": PORT, "gateway": via, "protocol": "static", "metric": metric})
    found = drift(mesh, "forwarding")
    assert len(found) == 2
    for via, line in zip(("10.10.0.98", "10.10.0.99"), found, strict=True):
        assert f"route is via {via} dev {PORT} src any" in line
        assert f"ip route del 10.10.1.11/32 via {via} dev {PORT}" in line


def test_a_rule_that_left_the_hardware_is_named_and_put_there_again(mesh: MeshMachine) -> None:
    mesh.flows[ONE][0]["in_hw"] = False
    assert drift(mesh, "forwarding")[0].startswith(
        f"{ONE} pref 49159: rule is not in hardware, plan wants restore-rank1"
    )
    ask(mesh, "apply", "forwarding", forwarding())
    assert mesh.order == ["rule 49159 gone", "rule 49159"]


def test_a_plan_with_another_mac_replaces_that_rule_and_no_other(mesh: MeshMachine) -> None:
    ask(mesh, "apply", "forwarding", forwarding(new_dst_mac="02:5a:ab:00:04:77"))
    assert mesh.order == ["rule 49159 gone", "rule 49159"]
    for stage in ("markers", "forwarding"):
        ask(mesh, "revert", stage)
    assert mesh.flows == {}


@pytest.mark.parametrize("refusals", [1, 9])
def test_a_revert_that_failed_goes_on_where_the_node_is_lost(mesh: MeshMachine, refusals: int) -> None:
    """The guard is told that the run is done, so what still stands would keep the address away for ever."""
    ask(mesh, "revert", "markers")
    address, left = mesh.links[MANAGEMENT]["addresses"], [Result(2, "", "bus is away")] * refusals

    def tc(argv: list[str]) -> Result | None:
        if "delete" not in argv or not left:
            return None
        mesh.links[MANAGEMENT]["addresses"] = []
        return left.pop()

    def ip(argv: list[str]) -> None:
        if "del" in argv:
            mesh.links[MANAGEMENT]["addresses"] = address

    mesh.hooks |= {"tc": tc, "ip": ip}
    if refusals == 1:
        (note,) = ask(mesh, "revert", "forwarding")["notes"]
        assert note.startswith("forwarding was reverted at the second try; at the first: ")
        assert not any(mesh.flows.values())
    else:
        failure = str(refused(mesh, "revert", "forwarding"))
        assert failure.count("bus is away") == 2
        assert "the rest of forwarding was undone" in failure
    assert mesh.links[MANAGEMENT]["addresses"] == address


def test_what_others_put_there_since_is_left_and_told(mesh: MeshMachine) -> None:
    ask(mesh, "revert", "markers")
    mesh.flows[ONE][0] |= {"dst_mac": "02:00:00:00:00:55", "handle": 1}
    mesh.egress[TWO] = [dict(mesh.flows[TWO][0])]
    notes = "\n".join(ask(mesh, "revert", "forwarding")["notes"])
    assert f"{ONE} pref 49159: flower 0x88b5 handle 1 dst_mac 02:00:00:00:00:55" in notes
    assert f"{ONE}: its clsact stays" in notes
    assert f"{TWO}: its clsact stays" in notes
    assert mesh.qdiscs.keys() == {ONE, TWO}


def test_a_slow_card_stays_within_what_guard_and_caller_wait(
    machine: MeshMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []

    def armed(*arguments: Any) -> AbstractContextManager[None]:
        given.append(arguments[3])
        return nullcontext()

    monkeypatch.setattr(guard, "armed", armed)
    meshed(machine, ())
    monkeypatch.setattr(meshmachine, "RELOAD_S", limits.RELOAD - 1)
    began = machine.time
    ask(machine, "apply", "nic", functions())
    took = machine.time - began
    assert given[-1] == limits.seconds("nic", functions())
    assert limits.BASE < took < given[-1]
    began = machine.time
    ask(machine, "revert", "nic")
    assert machine.time - began < given[-1] == limits.seconds("nic", OFF)


def test_values_of_others_after_a_boot_are_no_half_done_work_of_ours(machine: MeshMachine) -> None:
    meshed(machine, ())
    at = 0
    while killed(hurt := machine.copy(), at, "apply", "nic", functions()):
        entry = json.loads(hurt.text("/var/lib/spark-fabric/lab/journal.json") or "{}")["stages"].get("nic")
        if entry and any("begun" in operation for operation in entry["undo"]):
            break
        at += 1
    assert isinstance(hurt, MeshMachine)
    hurt.boot()
    hurt.driver[PCI]["shown"]["hairpin_queue_size"] = 2048
    assert "neither ours nor as it was: left as it is" in "".join(ask(hurt, "revert", "nic")["notes"])
    assert [row["reinits"] for row in hurt.driver.values()] == [0, 0, 0, 0]


def test_a_marker_between_two_starts_is_stopped_before_its_function_goes(mesh: MeshMachine) -> None:
    mesh.markers[HCA].update(active=False, state="activating")
    ask(mesh, "apply", "nic", functions(4096))
    assert ["systemctl", "stop", f"dsv41-mesh-marker@{HCA}.service"] in mesh.calls


# markers and units


def test_a_dead_marker_is_started_again_under_an_engine(mesh: MeshMachine) -> None:
    mesh.containers = [ENGINE]
    mesh.markers[HCA].update(active=False, state="failed", restarts=5)
    unit = f"dsv41-mesh-marker@{HCA}.service"
    assert drift(mesh, "markers") == [f"{unit}: is failed (dead), started again 5 times, plan wants active"]
    assert markers.flapping(look.observe(mesh, OWNER)) == [
        f"{unit}: died and was started again 5 times; see journalctl -u {unit}"
    ]
    ask(mesh, "apply", "markers", marks())
    assert mesh.order == [f"marker {HCA}"]
    assert drift(mesh, "markers") == []


def test_a_mode_is_put_right_without_a_restart_of_any_marker(mesh: MeshMachine) -> None:
    """An engine may run meanwhile: no marker may go for a moment."""
    mesh.put(meshunits.BINARY, BINARY_TEXT, 0o644)
    mesh.put(f"{meshunits.UNITS}/{meshunits.MARKER}", mesh.text(f"{meshunits.UNITS}/{meshunits.MARKER}") or "", 0o600)
    mesh.containers = [ENGINE]
    ask(mesh, "apply", "markers", marks())
    assert mesh.order == []
    assert drift(mesh, "markers") == []


def test_the_rules_of_a_port_that_is_away_went_with_it(mesh: MeshMachine) -> None:
    ask(mesh, "revert", "markers")
    del mesh.links["enP2p1s0f0np0"]
    answer = ask(mesh, "revert", "forwarding")
    assert "enP2p1s0f0np0 is not there (cable out?): its rules went with it" in answer["notes"]


def test_another_binary_restarts_the_markers_and_only_at_a_standstill(mesh: MeshMachine) -> None:
    mesh.put(BINARY, "a newer marker", 0o755)
    mesh.containers = [ENGINE]
    assert refused(mesh, "apply", "markers", marks("a newer marker")).code == 9
    assert mesh.order == []
    mesh.containers = []
    ask(mesh, "apply", "markers", marks("a newer marker"))
    assert {row["binary"] for row in mesh.markers.values() if row["active"]} == {"a newer marker"}
    ask(mesh, "revert", "markers")
    assert not mesh.exists(meshunits.BINARY)


def test_fewer_markers_stop_the_others(mesh: MeshMachine) -> None:
    ask(mesh, "apply", "markers", marks(hcas=(HCA,)))
    assert [hca for hca, row in mesh.markers.items() if row["active"]] == [HCA]


def test_the_same_files_of_somebody_else_are_adopted_and_stay(machine: MeshMachine) -> None:
    meshed(machine, ("nic", "forwarding"))
    for path, (text, mode) in meshunits.files(marks()).items():
        machine.put(path, text.replace("# Written by spark-fabric", "# mine"), mode)
    before = settled(machine)
    ask(machine, "apply", "markers", marks())
    ask(machine, "revert", "markers")
    assert settled(machine) == before


@pytest.mark.parametrize("by_hand", [False, True])
def test_units_of_ours_without_a_journal_are_removed_when_the_mesh_is_off(mesh: MeshMachine, by_hand: bool) -> None:
    if by_hand:
        mesh.put(meshunits.BY_HAND[0], "of an older set-up")
    for name in [name for name in mesh.files if name.startswith("/var/lib/spark-fabric")]:
        mesh.drop(name)
    take(mesh)
    ask(mesh, "apply", "markers", OFF)
    assert not [path for path in meshunits.PATHS if mesh.exists(path)]
    assert not [hca for hca, row in mesh.markers.items() if row["active"]]
    assert meshunits.SERVICE not in mesh.units
    assert mesh.exists(meshunits.BINARY) == mesh.exists(meshunits.HOME) == by_hand  # what may be another's stays


def test_our_markers_disturb_no_change_and_other_users_of_rdma_do(mesh: MeshMachine) -> None:
    mesh.symlinks["/proc/4000/fd/3"] = "/dev/infiniband/uverbs0"
    mesh.put("/proc/4000/cmdline", f"{meshunits.BINARY}\0--device\0{HCA}")
    unit = f"0::/system.slice/system-dsv41.slice/dsv41-mesh-marker@{HCA}.service\n"
    mesh.put("/proc/4000/cgroup", unit)
    assert look.observe(mesh, OWNER)["rdma_users"] == []
    ask(mesh, "apply", "nic", functions(4096))
    mesh.put("/proc/4000/cgroup", "0::/user.slice\n")
    assert look.observe(mesh, OWNER)["rdma_users"][0]["pid"] == 4000
    assert refused(mesh, "apply", "nic", functions()).code == 9
    assert drift(mesh, "markers")[0].startswith("process 4000: runs")


def test_who_shares_a_device_with_a_marker_is_named(mesh: MeshMachine) -> None:
    rows = [{"ifname": HCA, "pid": 7, "comm": "ib_send_bw"}, {"ifname": "rocep1s0f1", "pid": 8, "comm": "x"}]
    mesh.queue_pairs = rows
    found = markers.sharing(marks(), look.observe(mesh, OWNER, with_mesh="full"))
    assert len(found) == 1
    assert found[0].startswith(f"process 7 (ib_send_bw) has queue pairs on {HCA}, where every RDMA packet with UDP")


# boots


def test_a_boot_brings_everything_back_in_order(mesh: MeshMachine) -> None:
    mesh.boot()
    assert mesh.order[:4] == [f"reinit {netdev}" for netdev in (PORT, "enp1s0f1np1", ONE, TWO)]
    assert mesh.order[4:] == ["rule 49159", "rule 49165", f"marker {HCA}", "marker roceP2p1s0f1"]
    assert [drift(mesh, stage) for stage in STAGES] == [[], [], []]
    assert all(ask(mesh, "apply", stage, WANTED[stage])["changed"] == [] for stage in STAGES)


def test_a_boot_in_between_is_undone_too(machine: MeshMachine) -> None:
    before = machine.snapshot()
    meshed(machine)
    machine.boot()
    ask(machine, "revert", "undo")
    assert machine.snapshot() == before


def test_a_boot_that_cannot_bring_the_mesh_up_says_why(mesh: MeshMachine) -> None:
    mesh.links[PORT]["carrier"] = False
    mesh.boot()
    assert not [hca for hca, row in mesh.markers.items() if row["active"]]
    found = [line for line in drift(mesh, "markers") if line.startswith("dsv41-mesh.service")]
    assert len(found) == 1
    assert f"is inactive (dead): {PORT} ({PCI}): no carrier" in found[0]
    assert "waited 120 s" in found[0]


def test_no_marker_starts_at_a_boot_where_a_rule_cannot_be_put_in_hardware(mesh: MeshMachine) -> None:
    mesh.not_in_hw = {49165}
    mesh.boot()
    assert not [hca for hca, row in mesh.markers.items() if row["active"]]
    assert "pref 49165: rule is accepted, but not in hardware" in "\n".join(drift(mesh, "markers"))
    mesh.not_in_hw = set()
    up(mesh)
    assert [drift(mesh, stage) for stage in STAGES] == [[], [], []]


def test_a_revert_that_a_boot_interrupted_starts_no_marker(mesh: MeshMachine) -> None:
    path = "/var/lib/spark-fabric/lab/journal.json"
    journal = json.loads(mesh.text(path) or "")
    journal["stages"]["forwarding"]["status"] = "reverting"
    mesh.put(path, json.dumps(journal))
    mesh.boot()
    assert not [hca for hca, row in mesh.markers.items() if row["active"]]
    assert "forwarding was being reverted" in (mesh.text(meshunits.WHY) or "")


# looking


def test_the_mesh_is_only_looked_at_where_there_is_one(machine: MeshMachine) -> None:
    planes(machine)
    assert look.observe(machine, OWNER)["mesh"] is None
    assert look.observe(machine, OWNER, with_mesh=True)["mesh"]["functions"][PCI]["netdev"] == PORT
    ask(machine, "apply", "nic", functions())
    assert look.observe(machine, OWNER)["mesh"]["functions"][PCI]["reinits"] == 1


def test_a_look_at_a_mesh_that_is_as_it_should_be_is_cheap(mesh: MeshMachine) -> None:
    calls: Counter[str] = Counter()
    tools = ("tc", "devlink", "ethtool", "rdma", "systemctl")

    def count(argv: list[str]) -> None:
        calls.update([argv[0]])

    for tool in tools:
        mesh.hooks[tool] = count
    look.observe(mesh, OWNER)
    assert calls == {"tc": 1, "devlink": 2, "ethtool": 2, "systemctl": 1}


def test_a_tool_that_does_not_answer_is_an_error_and_no_reason_to_act(mesh: MeshMachine) -> None:
    mesh.hooks["tc"] = lambda _: Result(127, "", "tc is not installed")
    observed = look.observe(mesh, OWNER)
    assert observed["mesh"] is None
    assert observed["errors"] == ["tc qdisc show: tc is not installed"]
    found = [judge.deviations(WANTED[stage], observed) for stage, judge in JUDGES.items()]
    assert all(deviation.foreign for deviations in found for deviation in deviations)


def sent_marks(text: str = BINARY_TEXT) -> dict[str, Any]:
    """The markers of rank 0 with a binary that comes along."""
    data = text.encode()
    path = sent.place("lab", "marker", sha256(data), "mlx5-rdma-tx-rewrite-probe")
    wanted = marks(text)
    wanted["binary"] |= {"path": path, "source": "sent", "size": len(data)}
    return wanted


def install(machine: MeshMachine, text: str = BINARY_TEXT, content: str | None = None) -> dict[str, Any]:
    """Send what the node wants, as the operator's side does."""
    wanted = sent_marks(text)
    if not sent.wants(machine, wanted)["wants"]:
        return ask(machine, "apply", "markers", wanted)
    data = (text if content is None else content).encode()
    return ask(machine, "install", "markers", wanted, content=io.BytesIO(data))


@pytest.fixture
def without_marker(machine: MeshMachine) -> MeshMachine:
    """A machine that lacks only its markers, and on which the operator has put no binary."""
    machine.remove(BINARY)
    meshed(machine, ("nic", "forwarding"))
    return machine


def test_a_binary_that_is_sent_comes_with_its_stage_and_leaves_no_trace(without_marker: MeshMachine) -> None:
    before = settled(without_marker)
    assert sent.wants(without_marker, sent_marks()) == {"wants": [sent_marks()["binary"]["path"]]}
    install(without_marker)
    assert {row["binary"] for row in without_marker.markers.values() if row["active"]} == {BINARY_TEXT}
    assert ask(without_marker, "apply", "markers", sent_marks())["changed"] == []
    ask(without_marker, "revert", "markers")
    assert settled(without_marker) == before
    assert not without_marker.exists(sent_marks()["binary"]["path"])


def test_another_binary_that_is_sent_takes_the_place_of_the_first(without_marker: MeshMachine) -> None:
    install(without_marker)
    install(without_marker, "a newer marker")
    assert {row["binary"] for row in without_marker.markers.values() if row["active"]} == {"a newer marker"}
    assert sent.wants(without_marker, sent_marks())["wants"] == [sent_marks()["binary"]["path"]]  # the first has gone


@pytest.mark.parametrize("sent_copy", ["there", "gone too"])
def test_a_binary_that_somebody_removed_is_put_back_from_what_was_sent(
    without_marker: MeshMachine, sent_copy: str
) -> None:
    install(without_marker)
    without_marker.remove(meshunits.BINARY)
    if sent_copy != "there":
        without_marker.remove(sent_marks()["binary"]["path"])
    install(without_marker)
    assert without_marker.text(meshunits.BINARY) == BINARY_TEXT


@pytest.mark.parametrize("hand", ["removes it", "puts the wanted one there"])
def test_markers_that_run_a_file_that_is_gone_are_started_with_the_one_that_is_wanted(
    mesh: MeshMachine, hand: str
) -> None:
    mesh.remove(meshunits.BINARY)
    if hand != "removes it":
        mesh.put(meshunits.BINARY, "a newer marker", 0o755)
    mesh.put(BINARY, "a newer marker", 0o755)
    ask(mesh, "apply", "markers", marks("a newer marker"))
    assert {row["binary"] for row in mesh.markers.values() if row["active"]} == {"a newer marker"}
    assert mesh.order.count(f"marker {HCA}") == 1


def test_a_marker_that_a_killed_run_left_with_the_old_file_is_drift(mesh: MeshMachine) -> None:
    mesh.put(BINARY, "a newer marker", 0o755)
    at = 0
    while killed(hurt := mesh.copy(), at, "apply", "markers", marks("a newer marker")):
        ask(hurt, "apply", "markers", marks("a newer marker"))
        assert isinstance(hurt, MeshMachine)
        running = {row["binary"] for row in hurt.markers.values() if row["active"]}
        assert running == {"a newer marker"}, f"after a kill at {at}"
        at += 1
    mesh.markers[HCA].update(binary="an older marker", file=0)
    seen, wanted = (sha256(text.encode())[:12] for text in ("an older marker", BINARY_TEXT))
    (found,) = drift(mesh, "markers")
    assert f"{HCA}.service: runs a file that was replaced since, with sha256 {seen}, plan wants {wanted}" in found


def test_a_binary_that_comes_changed_is_attached_nowhere(without_marker: MeshMachine) -> None:
    other = "x" * len(BINARY_TEXT)
    failure = refused(without_marker, "install", "markers", sent_marks(), content=io.BytesIO(other.encode()))
    assert "it has changed since the preview" in str(failure)
    assert not any(row["active"] for row in without_marker.markers.values())


# the boot unit


BOOT_UNIT = Request(OWNER, "spark1", "", {}, "the boot unit")


def test_under_a_run_the_boot_unit_gives_up_before_that_run_does(mesh: MeshMachine) -> None:
    mesh.links[PORT]["carrier"] = False
    began, mesh.lock_holder = mesh.time, "an up"
    with pytest.raises(Failure, match=r"no carrier(.|\n)*waited 30 s: is the cable in"):
        meshup.up(mesh, BOOT_UNIT)
    assert mesh.time - began + lock.WAIT < limits.MESH_UP
    began, mesh.lock_holder = mesh.time, None
    with pytest.raises(Failure, match="waited 120 s"):
        meshup.up(mesh, BOOT_UNIT)
    assert mesh.time - began >= meshup.WAIT


def test_a_mesh_that_was_taken_away_meanwhile_does_not_come_up(mesh: MeshMachine) -> None:
    mesh.flows.clear()
    mesh.lock_holder = "a destroy"

    def slept(_: list[str]) -> None:
        if mesh.lock_holder:  # it ends while we wait for the lock
            mesh.lock_holder = None
            ask(mesh, "revert", "undo")

    mesh.hooks["sleep"] = slept
    with pytest.raises(Failure, match="nic is not in the journal: the mesh stays down"):
        meshup.up(mesh, BOOT_UNIT)
    assert not any(row["active"] for row in mesh.markers.values())
    assert not any(mesh.flows.values())
