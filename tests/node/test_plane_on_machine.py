"""Planes on a machine of files and stand-ins: what is there afterwards, and what is not."""

import json

import pytest

from node import observe
from node.digest import digest, sha256
from node.plane import deviations, sysctl_path
from node.run import Result
from tests.node.helpers import OWNER, ask, plane, plane_off, refused, relay, take
from tests.node.machine import FABRIC, MANAGEMENT, Machine

pytestmark = pytest.mark.usefixtures("no_guard")

PORTS = ("enp1s0f0np0", "enp1s0f1np1")
UNREADABLE = "network: {ethernets: ["
RIVAL = "/etc/NetworkManager/system-connections/lan.nmconnection"


def _rival(netdev: str) -> str:
    return (
        f"# mine\n[connection]\nid=lan\nuuid=11111111-2222-3333-4444-555555555555\ninterface-name={netdev}\n\n[ipv4]\n"
    )


def test_a_plane_brings_up_its_ports_and_touches_no_other(machine: Machine) -> None:
    take(machine)
    others = {name: dict(link) for name, link in machine.links.items() if name not in PORTS}
    answer = ask(machine, "apply", "plane0", plane())
    assert machine.links["enp1s0f0np0"]["addresses"] == ["10.10.0.10/24"]
    assert machine.links["enp1s0f0np0"]["mtu"] == 9000
    assert machine.links["enp1s0f0np0"]["inet6"] == ["fe80::5a:abff:fe00:111/64"]
    assert {name: dict(link) for name, link in machine.links.items() if name not in PORTS} == others
    assert not any("apply" in call for call in machine.calls)
    assert answer["generation"] == 2


def test_an_unchanged_apply_writes_nothing_and_activates_nothing(machine: Machine) -> None:
    take(machine)
    for stage, desired in (("plane0", plane()), ("plane1", plane(1)), ("relay", relay())):
        ask(machine, "apply", stage, desired)
    before = machine.snapshot()
    machine.calls.clear()
    machine.steps.clear()
    for stage, desired in (("plane0", plane()), ("plane1", plane(1)), ("relay", relay())):
        answer = ask(machine, "apply", stage, desired)
        assert answer["changed"] == []
    assert machine.snapshot() == before
    assert machine.calls == []
    assert machine.steps == []


def test_another_comment_in_the_file_writes_nothing(machine: Machine) -> None:
    take(machine)
    ask(machine, "apply", "plane0", plane())
    before = machine.snapshot()
    assert ask(machine, "apply", "plane0", plane(comment="a newer program says more"))["changed"] == []
    assert machine.snapshot() == before


def test_everything_is_as_before_after_the_undo(machine: Machine) -> None:
    before = machine.snapshot()
    take(machine)
    for stage, desired in (("plane0", plane()), ("plane1", plane(1)), ("relay", relay())):
        ask(machine, "apply", stage, desired)
    ask(machine, "apply", "plane0", plane(mtu=8000))
    machine.calls.clear()
    start = machine.time
    ask(machine, "revert", "undo")
    assert machine.snapshot() == before
    # The former profiles start by themselves; starting them again would wait for a DHCP server that is not there.
    assert not any("up" in call for call in machine.calls)
    assert machine.time - start < 1


@pytest.mark.parametrize(("netdev", "waits"), [(PORTS[0], True), ("enP7s7", False)])
def test_a_plane_is_off_once_the_kernel_is_done_with_the_addresses_of_its_ports(
    machine: Machine, netdev: str, waits: bool
) -> None:
    take(machine)
    ask(machine, "apply", "plane0", plane())
    machine.put("/proc/net/if_inet6", f"fe80000000000000005aaafffe010110 03 40 20 40 {netdev}\n")
    start = machine.time
    ask(machine, "apply", "plane0", plane_off())
    assert (machine.time - start > 10) == waits


def test_a_plane_that_is_switched_off_leaves_the_other_alone(machine: Machine) -> None:
    take(machine)
    ask(machine, "apply", "plane0", plane())
    one = machine.snapshot()
    ask(machine, "apply", "plane1", plane(1))
    ask(machine, "apply", "plane1", plane_off(1))
    two = machine.snapshot()
    changed = {name for name in one if one[name] != two.get(name)} | (two.keys() - one.keys())
    assert {name for name in changed if "/lab/" not in name} == set()
    assert ask(machine, "apply", "plane1", plane_off(1))["changed"] == []


def test_files_of_a_lost_journal_are_removed_by_a_plane_that_is_off(machine: Machine) -> None:
    before = machine.snapshot()
    take(machine)
    ask(machine, "apply", "plane0", plane())
    journal = "/var/lib/spark-fabric/lab/journal.json"
    state = json.loads(machine.text(journal) or "")
    state["stages"] = {}
    machine.put(journal, json.dumps(state))
    ask(machine, "apply", "plane0", plane_off())
    assert not machine.exists(plane()["file"])
    assert machine.links["enp1s0f0np0"]["addresses"] == []
    ask(machine, "revert", "undo")
    after = machine.snapshot()
    assert after["links"] == before["links"]


def test_a_file_in_our_place_comes_back_with_mode_and_time(machine: Machine) -> None:
    machine.put(sysctl_path(plane()), "# mine\n", 0o640)
    before = machine.snapshot()
    take(machine)
    ask(machine, "apply", "plane0", plane())
    ask(machine, "apply", "plane0", plane(mtu=8000))
    ask(machine, "revert", "undo")
    assert machine.snapshot() == before


def test_a_file_that_was_edited_since_stays_and_ours_lies_beside_it(machine: Machine) -> None:
    take(machine)
    ask(machine, "apply", "plane0", plane())
    path = sysctl_path(plane())
    written = machine.read(path)
    machine.put(path, "# edited\n")
    answer = ask(machine, "revert", "undo")
    assert machine.text(path) == "# edited"
    assert machine.read(path + ".spark-fabric-saved") == written
    assert any("was edited since" in note for note in answer["notes"])


@pytest.mark.parametrize("edited", [False, True])
def test_a_saved_version_that_is_gone_is_told_and_stops_nothing_else(machine: Machine, edited: bool) -> None:
    path = sysctl_path(plane())
    machine.put(path, "# mine\n", 0o640)
    take(machine)
    ask(machine, "apply", "plane0", plane())
    machine.drop("/var/lib/spark-fabric/lab/blobs/" + sha256(b"# mine\n"))
    if edited:
        machine.put(path, "# edited\n")
    answer = ask(machine, "revert", "undo")
    (note,) = (note for note in answer["notes"] if note.startswith(path))
    assert ("the version of the journal is lost" if edited else "what was there before us is lost") in note
    assert machine.text(path) == ("# edited" if edited else None)
    assert not machine.exists("/var/lib/spark-fabric")
    assert not machine.exists(plane()["file"])


def test_an_edited_netplan_file_keeps_its_address_and_the_revert_ends(machine: Machine) -> None:
    take(machine)
    ask(machine, "apply", "plane0", plane())
    path = plane()["file"]
    machine.put(path, plane()["text"] + "# edited\n", 0o600)
    answer = ask(machine, "revert", "undo")
    assert machine.links["enp1s0f0np0"]["addresses"] == ["10.10.0.10/24"]
    assert any("10.10.0.10/24 stays" in note for note in answer["notes"])


def test_foreign_profiles_are_quieted_and_come_back_byte_for_byte(machine: Machine) -> None:
    machine.put(RIVAL, _rival("enp1s0f0np0"), 0o600)
    machine._reload()
    before = machine.snapshot()
    take(machine)
    ask(machine, "apply", "plane0", plane())
    assert "autoconnect=false" in (machine.text(RIVAL) or "")
    assert machine.active["enp1s0f0np0"] in machine.profiles
    assert machine.profiles[machine.active["enp1s0f0np0"]]["name"] == "netplan-enp1s0f0np0"
    ask(machine, "revert", "undo")
    assert machine.snapshot() == before


def test_a_profile_of_the_management_port_is_left_alone(machine: Machine) -> None:
    machine.put(RIVAL, _rival(MANAGEMENT), 0o600)
    machine._reload()
    take(machine)
    ask(machine, "apply", "plane0", plane())
    assert machine.text(RIVAL) == _rival(MANAGEMENT).strip()


def test_networkmanagers_own_stanza_is_set_aside_and_comes_back(machine: Machine) -> None:
    uuid = "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"
    stanza = (
        f"network:\n  ethernets:\n    NM-{uuid}:\n      renderer: NetworkManager\n      match: {{name: enp1s0f0np0}}\n"
    )
    machine.put(f"/etc/netplan/90-NM-{uuid}.yaml", stanza, 0o600)
    machine._generate([])
    machine._reload()
    before = machine.snapshot()
    take(machine)
    ask(machine, "apply", "plane0", plane())
    assert not machine.exists(f"/etc/netplan/90-NM-{uuid}.yaml")
    ask(machine, "revert", "undo")
    assert machine.snapshot() == before


def test_a_stanza_that_appeared_while_ours_was_on_goes_with_it(machine: Machine) -> None:
    """F003: what NetworkManager wrote down of our address would bring it back at the next boot."""
    before = machine.snapshot()
    take(machine)
    ask(machine, "apply", "plane0", plane())
    ask(machine, "apply", "plane1", plane(1))
    uuid = "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"
    stanza = f"network:\n  ethernets:\n    NM-{uuid}:\n      match: {{name: enP2p1s0f0np0}}\n"
    stanza += "      addresses: [10.20.0.10/24]\n"
    machine.put(f"/etc/netplan/90-NM-{uuid}.yaml", stanza, 0o600)
    ask(machine, "revert", "undo")
    assert machine.snapshot() == before


def test_a_stanza_that_appeared_and_is_somebody_elses_is_kept_beside(machine: Machine) -> None:
    take(machine)
    ask(machine, "apply", "plane0", plane())
    path = "/etc/netplan/90-NM-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee.yaml"
    stanza = "network:\n  ethernets:\n    NM-x:\n      match: {name: enp1s0f0np0}\n      addresses: [192.168.7.1/24]\n"
    machine.put(path, stanza, 0o600)
    ask(machine, "revert", "undo")
    assert not machine.exists(path)
    assert machine.text(path + ".spark-fabric-saved") == stanza.strip()


def test_a_hand_made_file_for_our_port_is_refused_before_anything_is_written(machine: Machine) -> None:
    """F021"""
    machine.put("/etc/netplan/40-cx7.yaml", "network: {ethernets: {enp1s0f0np0: {mtu: 9000}}}\n", 0o600)
    take(machine)
    before = machine.snapshot()
    failure = refused(machine, "apply", "plane0", plane())
    assert "40-cx7.yaml" in str(failure)
    assert machine.snapshot() == before
    ask(machine, "apply", "plane0", {**plane(), "setAside": ["/etc/netplan/40-cx7.yaml"]})
    ask(machine, "revert", "plane0")
    assert machine.exists("/etc/netplan/40-cx7.yaml")


def test_ports_are_found_by_pattern_and_by_mac_and_not_in_comments(machine: Machine) -> None:
    take(machine)
    for stanza, hit in (
        ("    all:\n      match: {name: 'enp1s0*'}\n", True),
        ("    x:\n      match: {macaddress: '02:5A:AB:00:01:11'}\n", True),
        ("    # enp1s0f0np0:\n    eno1:\n      mtu: 1500\n", False),
        ("    enp1s0f0np00:\n      mtu: 1500\n", False),
    ):
        machine.put("/etc/netplan/50-x.yaml", "network:\n  ethernets:\n" + stanza, 0o600)
        assert (not ask(machine, "check", "plane0", plane())["ok"]) is hit


def test_a_file_that_netplan_refuses_is_never_written(machine: Machine) -> None:
    """F005: an error in any file would stop all interfaces at the next boot."""
    take(machine)
    desired = plane()
    desired["ports"][0]["routes"][0]["to"] = "10.10.1.0/33"
    desired["text"] = desired["text"].replace("10.10.1.0/24", "10.10.1.0/33")
    before = machine.snapshot()
    assert not ask(machine, "check", "plane0", desired)["ok"]
    assert "netplan refuses" in str(refused(machine, "apply", "plane0", desired))
    assert machine.snapshot() == before


def test_a_renderer_for_the_whole_node_is_refused(machine: Machine) -> None:
    machine.put("/etc/netplan/01-mgmt.yaml", f"network:\n  ethernets:\n    {MANAGEMENT}:\n      dhcp4: false\n", 0o600)
    desired = plane()
    desired["text"] = desired["text"].replace("  version: 2", "  version: 2\n  renderer: NetworkManager")
    machine._generate([])
    take(machine)
    answer = ask(machine, "check", "plane0", desired)
    assert any("renderer" in problem for problem in answer["problems"])
    assert ask(machine, "check", "all", {"plane0": plane(), "plane1": plane(1)})["problems"] == []


def test_a_netplan_edit_that_nobody_applied_yet_is_refused(machine: Machine) -> None:
    machine.drop("/etc/netplan/01-mgmt.yaml")
    take(machine)
    assert "netplan apply" in str(refused(machine, "apply", "plane0", plane()))
    assert machine.links[MANAGEMENT]["addresses"]


@pytest.mark.parametrize(("lost", "other"), [(0, 1), (1, 0)])
def test_a_file_of_ours_that_somebody_removed_does_not_stop_the_other_plane(
    machine: Machine, lost: int, other: int
) -> None:
    take(machine)
    for number in (0, 1):
        ask(machine, "apply", f"plane{number}", plane(number))
    machine.remove(plane(lost)["file"])
    both = {f"plane{number}": plane(number) for number in (lost, other)}
    assert ask(machine, "check", "all", both)["problems"] == []
    assert ask(machine, "apply", f"plane{lost}", plane(lost))["changed"]
    assert ask(machine, "apply", f"plane{other}", plane(other))["changed"] == []


def test_the_management_address_may_blink(machine: Machine) -> None:
    """F001: it is gone for nine looks and there at the tenth."""
    take(machine)
    link, address = machine.links[MANAGEMENT], machine.links[MANAGEMENT]["addresses"]
    looks = 0

    def up(argv: list[str]) -> Result | None:
        if "up" in argv:
            link["addresses"] = []
        return None

    def look(_: list[str]) -> Result | None:
        nonlocal looks
        looks += 1
        if looks == 10:
            link["addresses"] = address
        return None

    machine.hooks = {"nmcli": up, "sleep": look}
    start = machine.time
    ask(machine, "apply", "plane0", plane())
    assert machine.time - start < 1.5
    assert machine.links["enp1s0f0np0"]["addresses"] == ["10.10.0.10/24"]


@pytest.mark.parametrize("fails", [False, True])
def test_the_stage_is_taken_back_when_the_management_address_stays_away(machine: Machine, fails: bool) -> None:
    """Also where the step that took it away has failed."""
    take(machine)

    def up(argv: list[str]) -> Result | None:
        if "up" not in argv or not machine.links[MANAGEMENT]["addresses"]:
            return None
        machine.links[MANAGEMENT]["addresses"] = []
        return Result(4, "", "Connection activation failed") if fails else None

    machine.hooks = {"nmcli": up}
    failure = refused(machine, "apply", "plane0", plane())
    assert ("activation failed" if fails else "198.18.0.11/24 is gone") in str(failure)
    assert "plane0 was taken back at once" in str(failure)
    assert not machine.exists(plane()["file"])


def test_a_revert_that_loses_the_node_says_so(machine: Machine) -> None:
    take(machine)
    ask(machine, "apply", "plane0", plane())

    def down(argv: list[str]) -> Result | None:
        if "reload" in argv:
            machine.links[MANAGEMENT]["addresses"] = []
        return None

    machine.hooks = {"nmcli": down}
    failure = refused(machine, "revert", "plane0")
    assert "198.18.0.11/24 is gone" in str(failure)
    assert "plane0 was reverted, and the management address stayed away" in str(failure)


def test_ipv6_is_switched_on_again_where_it_was_on(machine: Machine) -> None:
    """F023"""
    take(machine)
    ask(machine, "apply", "plane0", plane())
    machine.put("/proc/sys/net/ipv6/conf/enp1s0f0np0/disable_ipv6", "1")
    ask(machine, "revert", "undo")
    assert machine.text("/proc/sys/net/ipv6/conf/enp1s0f0np0/disable_ipv6") == "0"


def test_a_port_that_is_gone_does_not_stop_the_revert(machine: Machine) -> None:
    """F017"""
    take(machine)
    ask(machine, "apply", "plane1", plane(1))
    del machine.links["enP2p1s0f0np0"]
    machine.active.pop("enP2p1s0f0np0")
    for name in ("arp_ignore", "arp_announce"):
        machine.drop(f"/proc/sys/net/ipv4/conf/enP2p1s0f0np0/{name}")
    answer = ask(machine, "revert", "undo")
    assert not machine.exists(plane(1)["file"])
    assert any("cable out" in note for note in answer["notes"])


def test_addresses_without_a_profile_come_back(machine: Machine) -> None:
    machine.unmanaged.add("enp1s0f0np0")
    machine.active.pop("enp1s0f0np0")
    machine.links["enp1s0f0np0"].update(addresses=["192.168.9.1/24"], mtu=4000)
    machine.links["enp1s0f0np0"]["inet6"] = ["fe80::5a:abff:fe00:111/64"]
    machine.put("/proc/sys/net/ipv6/conf/enp1s0f0np0/addr_gen_mode", "0")
    machine._kernel_routes()
    machine.routes.append({"dst": "10.9.0.0/16", "dev": "enp1s0f0np0", "gateway": "192.168.9.2", "protocol": "boot"})
    before = machine.snapshot()
    take(machine)
    ask(machine, "apply", "plane0", plane())
    assert machine.links["enp1s0f0np0"]["addresses"] == ["10.10.0.10/24"]
    ask(machine, "revert", "undo")
    assert machine.snapshot() == before


def test_an_address_that_was_there_by_itself_is_left_at_the_end(machine: Machine) -> None:
    machine.unmanaged.add("enp1s0f0np0")
    machine.active.pop("enp1s0f0np0")
    machine.links["enp1s0f0np0"]["addresses"] = ["10.10.0.10/24"]
    machine.links["enp1s0f0np0"]["inet6"] = ["fe80::5a:abff:fe00:111/64"]
    machine.put("/proc/sys/net/ipv6/conf/enp1s0f0np0/addr_gen_mode", "0")
    machine._kernel_routes()
    before = machine.snapshot()
    take(machine)
    ask(machine, "apply", "plane0", plane())
    ask(machine, "revert", "undo")
    assert machine.snapshot() == before


def test_a_stanza_of_the_same_name_as_ours_comes_back_in_effect(machine: Machine) -> None:
    theirs = "/etc/netplan/40-cx7.yaml"
    lines = ["network:", "  ethernets:", "    enp1s0f0np0:", "      renderer: NetworkManager", "      mtu: 4000"]
    machine.put(theirs, "\n".join([*lines, "      addresses: [192.168.5.1/24]", ""]), 0o600)
    machine._generate([])
    machine._reload()
    machine._up("netplan-enp1s0f0np0", "enp1s0f0np0")
    before = machine.snapshot()
    take(machine)
    ask(machine, "apply", "plane0", {**plane(), "setAside": [theirs]})
    assert machine.links["enp1s0f0np0"]["addresses"] == ["10.10.0.10/24"]
    ask(machine, "revert", "undo")
    assert machine.snapshot() == before


def test_a_port_without_carrier_fails_with_the_reason(machine: Machine) -> None:
    take(machine)
    machine.links["enp1s0f0np0"]["carrier"] = False
    failure = refused(machine, "apply", "plane0", plane())
    assert "is the cable in" in str(failure)
    machine.links["enp1s0f0np0"]["carrier"] = True
    ask(machine, "apply", "plane0", plane())


def _small_mtu(machine: Machine) -> None:
    """From now on somebody sets the MTU back at once."""

    def up(argv: list[str]) -> Result | None:
        if argv[:1] == ["ip"]:
            machine.links["enp1s0f0np0"]["mtu"] = 1500
        return None

    machine.hooks = {"ip": up}


def _tries(machine: Machine) -> tuple[int, str]:
    seen = observe.observe(machine, OWNER, ("journal",))["journal"]["stages"]["plane0"]
    return seen["failures"], seen["status"]


def test_a_change_that_does_not_stay_is_counted_and_names_what_differs(machine: Machine) -> None:
    take(machine)
    _small_mtu(machine)
    for tries in (1, 2):
        failure = refused(machine, "apply", "plane0", plane())
        assert failure.code == 12
        assert "enp1s0f0np0: MTU is 1500, plan wants 9000" in str(failure)
        assert _tries(machine) == (tries, "applying")


def test_tries_are_counted_anew_for_another_plan_and_once_the_operator_says_so(machine: Machine) -> None:
    take(machine)
    _small_mtu(machine)
    refused(machine, "apply", "plane0", plane())
    refused(machine, "apply", "plane0", plane())
    refused(machine, "apply", "plane0", plane(mtu=4200))
    assert _tries(machine) == (1, "applying")
    assert ask(machine, "retry", "node")["changed"] == ["plane0: may be tried again"]
    assert _tries(machine) == (0, "applying")
    assert ask(machine, "retry", "node")["changed"] == []
    machine.hooks = {}
    ask(machine, "apply", "plane0", plane(mtu=4200))
    assert _tries(machine) == (0, "applied")


def test_a_change_that_could_not_be_made_is_no_try(machine: Machine) -> None:
    take(machine)
    machine.links["enp1s0f0np0"]["carrier"] = False
    refused(machine, "apply", "plane0", plane())
    assert _tries(machine) == (0, "applying")


def test_an_edit_of_our_file_is_told_from_a_file_that_is_to_change(machine: Machine) -> None:
    take(machine)
    ask(machine, "apply", "plane0", plane())
    path = plane()["file"]
    machine.put(path, (machine.text(path) or "") + "# by hand\n", 0o600)

    def codes(mtu: int) -> set[str]:
        seen = observe.observe(machine, OWNER)
        return {one.code for one in deviations(plane(mtu=mtu), seen) if one.subject == path}

    assert codes(9000) == {"file.edited"}
    assert codes(4200) == {"file.edited"}
    ask(machine, "apply", "plane0", plane())
    assert codes(9000) == set()
    assert codes(4200) == {"file.text"}


def test_drift_is_repaired_with_the_least_that_is_needed(machine: Machine) -> None:
    take(machine)
    ask(machine, "apply", "plane0", plane())
    machine.calls.clear()
    machine.routes = [route for route in machine.routes if route["protocol"] != "static"]
    machine.put("/proc/sys/net/ipv4/conf/enp1s0f1np1/arp_ignore", "0")
    ask(machine, "apply", "plane0", plane())
    assert not any("up" in call for call in machine.calls)
    assert [call for call in machine.calls if "reapply" in call]
    assert machine.text("/proc/sys/net/ipv4/conf/enp1s0f1np1/arp_ignore") == "1"


def test_a_route_that_goes_before_ours_is_drift_and_one_that_comes_after_it_is_none(machine: Machine) -> None:
    take(machine)
    ask(machine, "apply", "plane0", plane())
    planned = next(route for route in machine.routes if route["protocol"] == "static")
    planned["metric"] = 107
    rival = {**planned, "gateway": "10.10.0.99", "protocol": "boot", "metric": 200}
    machine.routes.append(rival)
    assert deviations(plane(), observe.observe(machine, OWNER)) == []
    del rival["metric"]  # as `ip route replace` makes one
    (found,) = deviations(plane(), observe.observe(machine, OWNER))
    assert found.code == "route.missing"
    assert f"via 10.10.0.99 {planned['dev']}, via {planned['gateway']} {planned['dev']}" in found.seen


def test_a_file_of_ours_that_netplan_cannot_read_any_more_is_repaired(machine: Machine) -> None:
    take(machine)
    ask(machine, "apply", "plane0", plane())
    ask(machine, "apply", "plane1", plane(1))
    before = machine.text(plane()["file"])
    machine.put(plane()["file"], f"# Written by spark-fabric\n{UNREADABLE}", 0o600)
    assert ask(machine, "check", "plane1", plane(1))["ok"]
    assert observe.observe(machine, OWNER)["netplan_broken"] is None
    ask(machine, "apply", "plane0", plane())
    assert machine.text(plane()["file"]) == before


@pytest.mark.parametrize("broken", [True, False])
def test_the_repair_of_one_plane_leaves_the_other_up_whose_file_is_damaged_too(machine: Machine, broken: bool) -> None:
    take(machine)
    ask(machine, "apply", "plane0", plane())
    ask(machine, "apply", "plane1", plane(1))
    active, text = dict(machine.active), machine.text(plane(1)["file"])
    machine.drop(plane(0)["file"])
    machine.drop(plane(1)["file"])
    if broken:
        machine.put(plane(1)["file"], UNREADABLE, 0o600)
    answer = ask(machine, "apply", "plane0", plane())
    assert machine.active == active
    assert machine.text(plane(1)["file"]) == text
    assert f"{plane(1)['file']}: written, since all files are loaded at once" in answer["changed"]
    assert ask(machine, "apply", "plane1", plane(1))["changed"] == []


def test_a_file_of_others_that_netplan_cannot_read_is_seen_when_it_is_new(machine: Machine) -> None:
    take(machine)
    ask(machine, "apply", "plane0", plane())
    machine.calls.clear()
    assert observe.observe(machine, OWNER)["netplan_broken"] is None
    machine.put("/etc/netplan/70-theirs.yaml", UNREADABLE, 0o600)
    assert "netplan refuses" in observe.observe(machine, OWNER)["netplan_broken"]
    machine.drop("/etc/netplan/70-theirs.yaml")
    assert observe.observe(machine, OWNER)["netplan_broken"] is None
    assert machine.calls == []


def test_drift_after_an_upgrade_is_repaired_without_writing_the_file_anew(machine: Machine) -> None:
    take(machine)
    ask(machine, "apply", "plane0", plane())
    before = machine.text(plane()["file"])
    for _ in range(2):
        machine.routes = [route for route in machine.routes if route["protocol"] != "static"]
        ask(machine, "apply", "plane0", plane(comment="Another comment."))
        assert machine.text(plane()["file"]) == before
        assert ask(machine, "apply", "plane0", plane())["changed"] == []


def test_the_journal_shows_digest_and_what_was_written(machine: Machine) -> None:
    take(machine)
    ask(machine, "apply", "plane0", plane())
    seen = observe.observe(machine, OWNER, ("journal",))["journal"]["stages"]["plane0"]
    assert seen["digest"] == digest(plane())
    assert set(seen["written"]) == {plane()["file"], sysctl_path(plane())}
    assert "undo" not in seen


def test_the_full_observation_satisfies_the_plan(machine: Machine) -> None:
    take(machine)
    ask(machine, "apply", "plane0", plane())
    seen = json.loads(json.dumps(observe.observe(machine, OWNER)))
    assert deviations(plane(), seen) == []
    assert seen["ssh"] == {"address": "198.18.0.11", "netdev": MANAGEMENT}
    assert set(seen["hcas"]) == {hca for hca, _ in FABRIC.values()}
    assert seen["errors"] == []


def test_an_address_beside_ours_is_drift_and_goes(machine: Machine) -> None:
    """F041"""
    take(machine)
    ask(machine, "apply", "plane0", plane())
    machine.links["enp1s0f0np0"]["addresses"].append("10.10.0.99/24")
    assert {one.code for one in deviations(plane(), observe.observe(machine, OWNER))} == {"link.extra-address"}
    ask(machine, "apply", "plane0", plane())
    assert machine.links["enp1s0f0np0"]["addresses"] == ["10.10.0.10/24"]


def test_a_port_that_lost_mtu_and_address_comes_back_and_no_other_is_touched(machine: Machine) -> None:
    """F011"""
    take(machine)
    ask(machine, "apply", "plane0", plane())
    machine.links["enp1s0f0np0"] |= {"mtu": 1500, "addresses": []}
    seen = {(one.code, one.subject) for one in deviations(plane(), observe.observe(machine, OWNER))}
    assert {("link.mtu", "enp1s0f0np0"), ("link.address", "enp1s0f0np0")} <= seen
    machine.calls.clear()
    ask(machine, "apply", "plane0", plane())
    link = machine.links["enp1s0f0np0"]
    assert (link["mtu"], link["addresses"]) == (9000, ["10.10.0.10/24"])
    assert not [call for call in machine.calls if "enp1s0f1np1" in " ".join(call)]
