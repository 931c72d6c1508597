"""Forwarding between a node's own ports."""

import pytest

from node import relay as stage
from tests.node.helpers import ask, relay, take
from tests.node.machine import FORWARDING, Machine

pytestmark = pytest.mark.usefixtures("no_guard")


@pytest.mark.parametrize("docker", [True, False])
def test_the_rules_go_where_docker_looks_and_come_out_again(machine: Machine, docker: bool) -> None:
    if docker:
        machine.chains["DOCKER-USER"] = ["-j RETURN"]
    before = machine.snapshot()
    take(machine)
    ask(machine, "apply", "relay", relay())
    rules = machine.chains["DOCKER-USER" if docker else "FORWARD"]
    assert [rule for rule in rules if "-i enp1s0f1np1 -o enp1s0f0np0" in rule]
    assert machine.text("/proc/sys/net/ipv4/ip_forward") == "1"
    assert ask(machine, "apply", "relay", relay())["changed"] == []
    ask(machine, "revert", "undo")
    assert machine.snapshot() == before


@pytest.mark.parametrize("docker", [True, False])
def test_a_boot_keeps_the_way_open_and_all_others_closed(machine: Machine, docker: bool) -> None:
    machine.docker = docker
    machine.boot()
    before = machine.snapshot()
    take(machine)
    ask(machine, "apply", "relay", relay())
    on = machine.snapshot()
    machine.boot()
    assert machine.snapshot() == on
    assert machine.text(FORWARDING) == "1"
    assert machine.policy == ("DROP" if docker else "ACCEPT")
    ask(machine, "revert", "undo")
    assert machine.snapshot() == before


def test_an_equal_rule_of_somebody_else_stays(machine: Machine) -> None:
    theirs = "-i enp1s0f0np0 -o enp1s0f1np1 -j ACCEPT"
    machine.chains["FORWARD"] = [theirs]
    take(machine)
    ask(machine, "apply", "relay", relay())
    ask(machine, "revert", "undo")
    assert machine.chains["FORWARD"] == [theirs]


def test_forwarding_that_was_on_stays_on(machine: Machine) -> None:
    machine.put("/proc/sys/net/ipv4/ip_forward", "1")
    take(machine)
    ask(machine, "apply", "relay", relay())
    ask(machine, "revert", "undo")
    assert machine.text("/proc/sys/net/ipv4/ip_forward") == "1"


def test_a_relay_whose_journal_was_lost_goes_when_it_is_off(machine: Machine) -> None:
    take(machine)
    before = machine.snapshot()
    ask(machine, "apply", "relay", relay())
    machine.drop("/var/lib/spark-fabric/lab/journal.json")
    ask(machine, "apply", "relay", {"state": "off"})
    own = ("/var/lib/spark-fabric", FORWARDING)  # whether the kernel forwarded before us is lost too
    after = {path: value for path, value in machine.snapshot().items() if not path.startswith(own)}
    assert after == {path: value for path, value in before.items() if not path.startswith(own)}


def test_rules_lost_after_a_reboot_are_drift_and_come_back(machine: Machine) -> None:
    """F033"""
    take(machine)
    ask(machine, "apply", "relay", relay())
    machine.chains["FORWARD"].clear()
    machine.units.clear()
    answer = ask(machine, "check", "relay", relay())
    assert {deviation["code"] for deviation in answer["deviations"]["relay"]} == {"relay.rule", "relay.active"}
    ask(machine, "apply", "relay", relay())
    assert len(machine.chains["FORWARD"]) == 4


def test_fewer_pairs_remove_the_others_rules(machine: Machine) -> None:
    take(machine)
    ask(machine, "apply", "relay", relay())
    ask(machine, "apply", "relay", {"state": "on", "pairs": relay()["pairs"][:1]})
    assert len(machine.chains["FORWARD"]) == 2


def test_off_is_a_state_that_writes_nothing_the_second_time(machine: Machine) -> None:
    take(machine)
    assert ask(machine, "apply", "relay", {"state": "off"})["changed"] == []
    ask(machine, "apply", "relay", relay())
    ask(machine, "apply", "relay", {"state": "off"})
    assert machine.chains["FORWARD"] == []
    assert not machine.exists(stage.UNIT_PATH)
    assert ask(machine, "apply", "relay", {"state": "off"})["changed"] == []


def test_the_unit_starts_after_docker_and_with_it() -> None:
    lines = stage.unit_text(relay()).splitlines()
    assert "After=docker.service" in lines
    assert "Requires=docker.service" in lines
    assert "RemainAfterExit=yes" in lines
    assert sum(line.startswith("ExecStart=") for line in lines) == 4


def test_a_reload_of_the_unit_adds_rules_and_removes_none() -> None:
    reload = [line for line in stage.unit_text(relay()).splitlines() if line.startswith("ExecReload=")]
    assert len(reload) == 4
    assert not [line for line in reload if " -D " in line]
