"""Each check by its code: what makes it speak, what it says, and what leaves it silent."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from fleet import containers, fits, levels, machine, membership, preflight, rates
from fleet.loading import load
from fleet.look import Look, Planned
from fleet.plan import Plan
from fleet.probe import Probe
from fleet.problems import Problem
from node.digest import digest
from tests.unit import observed
from tests.unit.looks import STACK, planned
from tests.unit.stacks import changed, ring, switched

GIB = 1 << 30
SPACE = {"free": 100 * GIB, "total": 900 * GIB, "files_free": 1 << 20, "files_total": 1 << 24}

Raw = dict[str, dict[str, Any]]


@pytest.fixture
def raw() -> Raw:
    """Sparks with everything in order."""
    nodes = observed.fleet(4)
    for node in nodes.values():
        node["docker"]["images"] = {"engine:1": "sha256:" + "1" * 64}
        node |= {
            "kernel": "6.17.0-1031-nvidia",
            "levels": {"system": "DGX OS 7.5.0", "driver": "580.173.02"},
            "memory": {"total": 121 * GIB, "available": 115 * GIB, "cma_total": 0, "cma_free": 0},
            "disks": {"/etc": dict(SPACE), "/var/lib/docker": {**SPACE, "free": 400 * GIB}},
            "boot_options": "quiet",
            "tools": dict.fromkeys(("ip", "nmcli", "netplan", "docker", "iptables", "ping", "systemctl"), True),
            "nm": {"running": True, "profiles": [], "devices": {}},
            "gpu_users": [],
            "rdma_users": [],
            "listeners": [listener(22, 600)],
            "folders": {},
        }
        for hca in node["hcas"].values():
            hca["firmware"] = "28.45.4028"
    return nodes


def user(pid: int, command: str, *parents: int) -> dict[str, Any]:
    return {"pid": pid, "command": command, "parents": list(parents)}


def listener(port: int, pid: int | None, address: str = "::", *parents: int) -> dict[str, Any]:
    return {"port": port, "address": address, "pid": pid, "command": "someone", "parents": list(parents)}


def look(raw: Raw, config: dict[str, Any] | None = None, **more: Any) -> Planned:
    return planned(load(config or ring()), raw, **more)


def engine(raw: Raw, name: str, pid: int = 4000) -> None:
    """Let an engine of the stack run on a node, its first process being `pid`."""
    container = {"name": "spark-fabric-test", "state": "running", "pid": pid}
    labels = {"spark-fabric.stack": STACK.label("default")}
    raw[name]["docker"]["containers"] = [{**container, "labels": labels}]


def told(found: Iterable[Problem]) -> list[tuple[str, str]]:
    return [(one.code, one.path) for one in found]


def test_nothing_is_found_where_everything_is_in_order(raw: Raw) -> None:
    asked = look(raw)
    assert preflight.before_plan(asked) == []
    assert preflight.check(asked) == []


# The way to the nodes


@pytest.mark.parametrize(
    ("why", "code"),
    [
        ("spark1 (n@192.168.1.11:22): No route to host. Is it on?", "unreachable"),
        ("spark1 (n@192.168.1.11:22): the host key is not the expected one: another machine. Check it.", "host-key"),
        ("spark1 (n@192.168.1.11:22): n@192.168.1.11: Permission denied (publickey). Check ssh.user.", "login"),
        ("spark1: cannot be read: sudo: a password is required", "sudo"),
        ("spark1: cannot be read: sh: 1: exec: sudo: not found", "sudo"),
        ("spark1: cannot be read: timeout: failed to run command 'python3': No such file or directory", "python"),
        ("spark1: cannot be read: sh: python3: not found", "python"),
        ('spark1: cannot be read:   File "node/run.py"\nSyntaxError: invalid syntax', "python"),
        ("spark1: cannot be read: Killed", "unread"),
    ],
)
def test_a_node_without_an_answer_has_a_code_for_the_reason(why: str, code: str) -> None:
    (found,) = membership.reach(Look(load(ring()), STACK, Probe({}, {"spark1": why})))
    assert found.code == code
    assert found.path.startswith("spark1")
    assert found.hint or code == "unread"


def test_what_could_not_be_read_of_a_node_is_a_problem_where_a_plan_needs_it(raw: Raw) -> None:
    raw["spark2"]["errors"] = [
        "docker: connection refused",  # a check of its own
        "/var/lib/spark-fabric/test/journal.json has schema 9, this program knows 1: use the newer checkout",
        "links: ip address: Cannot open netlink socket",
        "platform: [Errno 5] Input/output error",
    ]
    found = list(membership.unread(look(raw)))
    assert told(found) == [("unread", "spark2"), ("unread", "spark2"), ("unread-part", "spark2")]
    assert "schema 9" in found[0].text()


def test_the_parts_that_a_plan_needs_are_parts_of_a_look() -> None:
    source = (Path(__file__).parents[2] / "node" / "observe.py").read_text()
    parts = set(re.findall(r'^        "([\w-]+)": lambda', source, flags=re.MULTILINE))
    assert set(membership.PARTS) < parts
    assert "docker" in parts


# The machines


def test_a_program_that_is_missing_is_named_with_its_package(raw: Raw) -> None:
    raw["spark2"]["tools"]["ip"] = False
    raw["spark3"]["tools"]["iptables"] = False
    found = list(machine.tools(look(raw)))
    assert told(found) == [("tool-missing", "spark2"), ("tool-missing", "spark3")]
    assert "apt install iproute2" in found[0].hint
    assert told(machine.tools(look(raw, switched()))) == [("tool-missing", "spark2")]  # nothing is relayed there


def test_a_network_manager_that_does_not_run_is_told(raw: Raw) -> None:
    raw["spark4"]["nm"]["running"] = False
    assert told(machine.network_manager(look(raw))) == [("nm-stopped", "spark4")]


def test_a_netplan_file_that_cannot_be_read_is_told_with_netplans_words(raw: Raw) -> None:
    raw["spark4"]["netplan_broken"] = "netplan refuses the result: /etc/netplan/70-x.yaml:1:2: Invalid YAML"
    (found,) = machine.netplan(look(raw))
    assert (found.code, found.path) == ("netplan-broken", "spark4 /etc/netplan")
    assert "70-x.yaml:1:2" in found.seen


@pytest.mark.parametrize(
    ("clocks", "wanted"),
    [
        ({"spark1": (-0.4, 0.1), "spark2": (-0.1, 0.3), "spark3": (0.0, 1.0), "spark4": (-1.0, 0.1)}, []),
        ({"spark1": (0, 1), "spark2": (3600, 3601), "spark3": (0, 1)}, ["spark2: its clock is 3600 s ahead"]),
        ({"spark1": (-5.2, -5.0), "spark2": (0, 0.1)}, ["spark1: its clock is 5 s behind"]),
        ({"spark1": (-9.0, 9.0), "spark2": (0, 0.1)}, []),  # a slow answer tells nothing
        ({"spark1": (60, 61), "spark2": (60, 61), "spark3": (60, 61), "spark4": (60, 61)}, []),  # it is ours
    ],
)  # fmt: skip
def test_a_clock_that_is_certainly_off_is_told(clocks: Any, wanted: list[str], raw: Raw) -> None:
    found = list(machine.clock(look(raw, clocks=clocks)))
    assert [one.text().split(", wanted")[0] for one in found] == wanted
    assert {one.code for one in found} <= {"clock"}


def test_a_full_disk_is_told_once_by_bytes_and_by_files(raw: Raw) -> None:
    full = {**SPACE, "free": 3 << 20}
    raw["spark1"]["disks"] = {"/etc": full, "/var/lib/spark-fabric": full, "/var/lib/docker": SPACE}
    raw["spark2"]["disks"] = {"/etc": {**SPACE, "files_free": 7}}
    raw["spark3"]["disks"] = {"/etc": {**SPACE, "files_free": 0, "files_total": 0}, "/var/lib/docker": None}
    found = list(machine.disks(look(raw)))
    assert told(found) == [("disk-full", "spark1 /etc"), ("disk-full", "spark2 /etc")]
    assert "has 3 MiB left, wanted 256 MiB" in found[0].text()
    assert "has room for 7 files" in found[1].text()


def test_an_image_that_is_to_be_loaded_needs_room(raw: Raw) -> None:
    config = changed(ring(), {"engine.image": {"ref": "engine:1", "archive": "engine.tar"}})
    for name in ("spark2", "spark3"):
        raw[name]["docker"]["images"] = {}
    raw["spark1"]["disks"]["/var/lib/docker"]["free"] = 0  # has it already
    raw["spark2"]["disks"]["/var/lib/docker"]["free"] = 30 * GIB
    (found,) = machine.image_space(look(raw, config, archive=16 * GIB))
    assert (found.code, found.path) == ("image-space", "spark2 /var/lib/docker")
    assert "has 30.0 GiB left, and lacks the image, wanted 32.0 GiB" in found.text()
    assert list(machine.image_space(look(raw, config, archive=0))) == []


def test_memory_has_to_be_free_as_the_engine_or_the_operator_wants_it(raw: Raw) -> None:
    raw["spark2"]["memory"]["available"] = 70 * GIB
    (found,) = machine.memory(look(raw))
    assert (found.code, found.path) == ("memory", "spark2")
    assert "has 70.0 GiB of memory free, wanted 96.8 GiB before the engine starts" in found.text()

    def short(changes: dict[str, Any]) -> list[str]:
        return [one.path for one in machine.memory(look(raw, changed(ring(), changes)))]

    assert short({"engine.env": {"MEM_FRACTION_STATIC": "0.5"}}) == []
    assert short({"engine.serving.memFractionStatic": "0.5"}) == []
    assert short({"engine.profile": "none", "engine.env": {"MEM_FRACTION_STATIC": "much"}}) == ["spark2"]
    assert short({"engine.gpus": "off"}) == []
    assert short({"engine.gpus": "off", "preflight.memory": "116g"}) == ["spark1", "spark2", "spark3", "spark4"]
    raw["spark2"]["memory"] = None
    assert short({}) == []


def test_the_model_has_to_fit_into_the_memory_of_each_node(raw: Raw) -> None:
    base = changed(switched(), {"engine.profile": "base"})
    assert [*fits.weights(look(raw, base)), *fits.pool(look(raw, base)), *fits.rest(look(raw, base))] == []
    raw["spark3"]["memory"]["total"] = 96 * GIB
    (found,) = fits.weights(look(raw, base))
    assert (found.code, found.path) == ("memory-weights", "spark3")
    assert "has 96.0 GiB of memory, of which MEM_FRACTION_STATIC 0.80 is 76.8 GiB" in found.text()
    assert "wanted more than 79.5 GiB" in found.text()
    head = changed(base, {"engine.serving.headMemFractionStatic": 0.5, "engine.serving.memFractionStatic": 0.9})
    assert [one.path for one in fits.weights(look(raw, head))] == ["spark1"]
    for change in ({"engine.profile": "auto"}, {"engine.gpus": "off"}):
        assert list(fits.weights(look(raw, changed(base, change)))) == []


def test_two_nodes_are_too_few_for_the_weights(raw: Raw) -> None:
    two = {name: raw[name] for name in ("spark1", "spark2")}
    found = list(fits.weights(look(two, changed(switched(2), {"engine.profile": "base"}))))
    assert [one.path for one in found] == ["spark1", "spark2"]
    assert "more than 156.5 GiB" in found[0].text()


def test_pool_and_rest_have_to_fit_into_the_smallest_node(raw: Raw) -> None:
    base = changed(switched(), {"engine.profile": "base"})
    raw["spark2"]["memory"]["total"] = 110 * GIB
    (found,) = fits.pool(look(raw, base))
    assert (found.code, found.path) == ("memory-pool", "spark-fabric:engine.profile")
    assert (
        "MAX_TOTAL_TOKENS is 8000000, and MEM_FRACTION_STATIC 0.80 of 110.0 GiB leaves room for 5462699" in found.text()
    )
    assert list(fits.pool(look(raw, changed(base, {"engine.serving.maxTotalTokens": 5000000})))) == []
    (found,) = fits.rest(look(raw, changed(base, {"engine.serving.memFractionStatic": 0.95})))
    assert (found.code, found.path) == ("memory-rest", "spark-fabric:engine.serving.memFractionStatic")
    assert "leaves 5.5 GiB of 110.0 GiB, wanted 6.1 GiB" in found.text()


def test_a_node_that_does_not_tell_its_memory_is_taken_for_a_spark(raw: Raw) -> None:
    raw["spark1"]["memory"] = None
    tight = changed(switched(), {"engine.profile": "base", "engine.serving.headMemFractionStatic": 0.6})
    (found,) = fits.weights(look(raw, tight))
    assert "spark1: has 121.7 GiB" in found.text()


def test_a_gpu_that_others_compute_on_is_told_and_our_engine_is_not(raw: Raw) -> None:
    engine(raw, "spark1")
    raw["spark1"]["gpu_users"] = [user(4002, "sglang", 4001, 4000, 900), user(4000, "boot")]
    raw["spark2"]["gpu_users"] = [user(77, "python3 train.py", 1), user(5, "/usr/bin/nvidia-persistenced --user x")]
    (found,) = machine.gpu(look(raw))
    assert (found.code, found.path) == ("gpu-busy", "spark2")
    assert "process 77 (python3 train.py)" in found.text()
    assert list(machine.gpu(look(raw, changed(ring(), {"engine.gpus": "off"})))) == []


def test_a_stopped_engine_of_ours_owns_nothing(raw: Raw) -> None:
    engine(raw, "spark1", pid=0)
    raw["spark1"]["docker"]["containers"][0]["state"] = "exited"
    raw["spark1"]["gpu_users"] = [user(4002, "left over", 0)]
    assert told(machine.gpu(look(raw))) == [("gpu-busy", "spark1")]


def test_somebody_who_uses_rdma_is_named(raw: Raw) -> None:
    engine(raw, "spark3")
    raw["spark3"]["rdma_users"] = [user(4001, "sglang", 4000)]
    raw["spark2"]["rdma_users"] = [user(88, "ib_write_bw -d rocep1s0f0", 1)]
    (found,) = machine.rdma(look(raw))
    assert (found.code, found.path) == ("rdma-busy", "spark2")
    assert "ib_write_bw" in found.text()


def test_the_heads_tcp_ports_have_to_be_free_for_the_engine(raw: Raw) -> None:
    raw["spark1"]["listeners"] += [listener(8888, 31), listener(20000, None, "127.0.0.1"), listener(9000, 32)]
    raw["spark2"]["listeners"] += [listener(8888, 33)]
    found = list(machine.ports(look(raw)))
    assert told(found) == [("port-busy", "spark1 TCP port 8888"), ("port-busy", "spark1 TCP port 20000")]
    assert "is taken by process 31 (someone) at ::" in found[0].text()
    assert "is taken by the kernel at 127.0.0.1" in found[1].text()
    assert "choose another engine.distPort" in found[1].hint
    elsewhere = changed(ring(), {"engine.port": 8000, "engine.distPort": 8001})
    assert list(machine.ports(look(raw, elsewhere))) == []


def test_a_port_is_taken_only_where_addresses_meet_and_never_by_our_own_engine(raw: Raw) -> None:
    config = changed(ring(), {"engine.listen": "127.0.0.1"})
    raw["spark1"]["listeners"] = [listener(8888, 31, "192.168.1.11")]
    assert list(machine.ports(look(raw, config))) == []
    raw["spark1"]["listeners"] = [listener(8888, 31, "127.0.0.1")]
    assert told(machine.ports(look(raw, config))) == [("port-busy", "spark1 TCP port 8888")]
    engine(raw, "spark1", pid=30)
    raw["spark1"]["listeners"] = [listener(8888, 31, "::", 30, 2)]
    assert list(machine.ports(look(raw, config))) == []


# Versions


def test_versions_that_differ_are_told_by_node(raw: Raw) -> None:
    raw["spark3"]["kernel"] = "6.17.0-1029-nvidia"
    raw["spark2"]["hcas"]["rocep1s0f0"]["firmware"] = "28.45.9999"
    found = list(levels.differ(look(raw)))
    assert told(found) == [("level-differs", "Kernel"), ("level-differs", "ConnectX-7 firmware")]
    assert "6.17.0-1031-nvidia on spark1, spark2, spark4; 6.17.0-1029-nvidia on spark3" in found[0].text()
    assert "28.45.4028, 28.45.9999 on spark2" in found[1].text()


def test_versions_that_nobody_has_reported_are_one_note(raw: Raw) -> None:
    for node in raw.values():
        node |= {"kernel": "6.99.0", "levels": {"system": "Debian 12", "driver": None}}
    (found,) = levels.unknown(look(raw))
    assert (found.code, found.path) == ("level-unknown", "versions")
    assert "is System Debian 12" not in found.text()
    assert found.seen.startswith("System Debian 12, Kernel 6.99.0: nobody has reported")
    raw = {name: {**node, "kernel": "6.17.0-1031-nvidia", "levels": {}} for name, node in raw.items()}
    assert list(levels.unknown(look(raw))) == []


def test_a_kernel_that_is_known_to_fail_is_refused_unless_it_was_cured(raw: Raw) -> None:
    raw["spark2"]["kernel"] = "7.0.0-1019-nvidia"
    raw["spark3"] |= {"kernel": "7.0.0-1019-nvidia", "boot_options": "quiet kho=off"}
    raw["spark4"]["kernel"] = "7.0.0-31-generic"
    found = list(levels.bad(look(raw)))
    assert told(found) == [("level-bad", "spark2 Kernel"), ("level-bad", "spark4 Kernel")]
    assert "kho=off" in found[0].hint
    assert "ENOMEM" in found[0].text()


def test_a_kernel_that_counts_memory_which_is_not_there_is_refused_whatever_its_name(raw: Raw) -> None:
    raw["spark2"]["memory"] |= {"cma_total": 0, "cma_free": 940604 << 10}
    (found,) = levels.bad(look(raw))
    assert (found.code, found.path) == ("level-bad", "spark2 Kernel")
    assert "940604 kB of CMA memory as free, of 0 kB" in found.text()
    raw["spark2"]["kernel"] = "7.0.0-1019-nvidia"
    assert len(list(levels.bad(look(raw)))) == 1


# Cables


def rate(raw: Raw, node: str, hca: str, value: str, state: str = "4: ACTIVE") -> None:
    raw[node]["hcas"][hca] |= {"rate": value, "state": state}


def test_a_slow_port_is_told_with_cable_and_plane_and_so_are_unequal_ends(raw: Raw) -> None:
    rate(raw, "spark2", "roceP2p1s0f1", "100 Gb/sec (4X EDR)")
    found = list(rates.rates(look(raw)))
    assert told(found) == [("rate-low", "spark2 enP2p1s0f1np1"), ("rate-differs", "cable 0 plane 1")]
    assert "runs at 100 Gb/s (cable 0, plane 1), wanted 200 Gb/s" in found[0].text()
    assert "200 Gb/s at spark1 enP2p1s0f0np0 and 100 Gb/s at spark2 enP2p1s0f1np1" in found[1].text()


def test_both_ends_of_a_slow_cable_are_told_and_faster_ones_are_not(raw: Raw) -> None:
    for node, hca in (("spark1", "rocep1s0f0"), ("spark2", "rocep1s0f1")):
        rate(raw, node, hca, "100 Gb/sec (4X EDR)")
    for node, hca in (("spark3", "rocep1s0f0"), ("spark4", "rocep1s0f1")):
        rate(raw, node, hca, "400 Gb/sec (4X NDR)")
    assert told(rates.rates(look(raw))) == [("rate-low", "spark1 enp1s0f0np0"), ("rate-low", "spark2 enp1s0f1np1")]


def test_a_port_that_is_down_or_says_nothing_has_no_rate(raw: Raw) -> None:
    rate(raw, "spark1", "rocep1s0f0", "40 Gb/sec (4X QDR)", "1: DOWN")
    rate(raw, "spark3", "rocep1s0f0", "")
    assert list(rates.rates(look(raw))) == []
    del raw["spark4"]
    assert list(rates.rates(look(raw))) == []


def test_a_slow_port_on_a_switch_is_told_and_others_may_be_faster(raw: Raw) -> None:
    rate(raw, "spark2", "rocep1s0f0", "100 Gb/sec (4X EDR)")
    found = list(rates.rates(look(raw, switched())))
    assert told(found) == [("rate-low", "spark2 enp1s0f0np0")]
    assert "(plane 0)" in found[0].text()


# Folders


ENGRAM = {"engine.volumes": ["/data/engram:/engram", "/data/state:/state", "cache:/root/.cache"]}


def folder(*files: str, there: bool = True, free: int = 100 * GIB, **values: Any) -> dict[str, Any]:
    own = {"owner": "0:0", "mode": "0755", "writable": True, **values} if there else None
    return {"there": there, "space": {**SPACE, "free": free}, "files": dict.fromkeys(files, 1), "folder": own}


def test_a_folder_without_which_docker_makes_no_container_is_told(raw: Raw) -> None:
    for node in raw.values():
        node["folders"] = {"/data/engram": folder(), "/data/state": folder()}
    raw["spark3"]["folders"] = {"/data/engram": folder(there=False), "/data/state": None}
    (found,) = containers.folders(look(raw, changed(ring(), ENGRAM)))
    assert (found.code, found.path) == ("volume-missing", "spark3 /data/engram")


def test_a_folder_that_cannot_be_written_to_is_told_unless_it_is_only_read(raw: Raw) -> None:
    for node in raw.values():
        node["folders"] = {"/data/engram": folder(), "/data/state": folder(writable=False)}
    raw["spark1"]["folders"]["/data/state"] = {**folder(), "folder": None}  # a file
    assert told(containers.folders(look(raw, changed(ring(), ENGRAM)))) == [
        ("volume-read-only", f"spark{number} /data/state") for number in (2, 3, 4)
    ]
    reading = {"engine.volumes": ["/data/state:/state:ro"]}
    assert list(containers.folders(look(raw, changed(ring(), reading)))) == []


def test_a_folder_has_the_owner_and_mode_that_are_asked_for(raw: Raw) -> None:
    state = {"source": "/data/state", "target": "/state", "owner": "1000:1000", "mode": "0750"}
    for node in raw.values():
        node["folders"] = {"/data/state": folder(owner="1000:1000", mode="0750")}
    raw["spark2"]["folders"]["/data/state"] = folder()
    raw["spark3"]["folders"]["/data/state"] = {**folder(), "folder": None}
    found = list(containers.folders(look(raw, changed(ring(), {"engine.volumes": [state]}))))
    assert told(found) == [("volume-owner", f"spark{number} /data/state") for number in (2, 2, 3)]
    assert "belongs to 0:0, wanted 1000:1000. On spark2: sudo chown 1000:1000 /data/state" in found[0].text()
    assert "has the mode 0755, wanted 0750. On spark2: sudo chmod 0750 /data/state" in found[1].text()
    assert "is no folder" in found[2].text()


def test_all_ranks_have_the_heads_speculation_tables_or_none(raw: Raw) -> None:
    for node in raw.values():
        node["folders"] = {"/data/state": {**folder(), "tables": {"dspark_sps.json": "1", "dspark_sts.json": "2"}}}
    config = changed(ring(), {"engine.volumes": ["/data/state:/state"]})
    assert list(containers.tables(look(raw, config))) == []
    assert list(containers.tables(look(raw))) == []  # no such volume
    raw["spark1"]["folders"]["/data/state"]["tables"] = {"dspark_sps.json": "1"}
    raw["spark2"]["folders"]["/data/state"]["tables"] = {}
    raw["spark3"]["folders"]["/data/state"]["tables"] = {"dspark_sps.json": "9"}
    raw["spark4"]["folders"]["/data/state"] = None  # on a network
    found = list(containers.tables(look(raw, config)))
    assert told(found) == [("spec-tables", f"spark{number} /data/state/dspark_sps.json") for number in (2, 3)]
    assert "is missing, wanted that of the head. On spark2: copy it from spark1" in found[0].text()
    raw["spark1"]["folders"]["/data/state"]["tables"] = {}
    (stale,) = containers.tables(look(raw, config))
    assert "wanted none, as on the head. On spark3: sudo rm /data/state/dspark_sps.json" in stale.text()


def test_a_fleet_that_is_the_stacks_gets_its_speculation_tables_by_a_command(raw: Raw) -> None:
    config = changed(ring(), {"engine.volumes": ["/data/state:/state"]})
    for name, node in raw.items():
        tables = {"dspark_sps.json": "1"} if name == "spark1" else {}
        node["folders"] = {"/data/state": {**folder(), "tables": tables}}
        node["owner"] = {"project": "spark-fabric", "stack": "test", "fleet_id": "default", "state_id": "7"}
    assert {one.hint for one in containers.tables(look(raw, config))} == {
        "While no engine runs: python -m fleet tables -s test"
    }
    raw["spark4"]["owner"] = None  # joins only now
    assert [one.hint for one in containers.tables(look(raw, config))] == [
        f"On spark{number}: copy it from spark1" for number in (2, 3, 4)
    ]


def test_a_rank_that_fails_its_healthcheck_is_told_and_no_one_elses(raw: Raw) -> None:
    plan = look(raw).plan
    assert plan
    for name, health in (("spark1", "healthy"), ("spark2", "unhealthy"), ("spark3", "starting")):
        labels = {"spark-fabric.stack": plan.label}
        raw[name]["docker"]["containers"] = [{"name": "e", "labels": labels, "state": "running", "health": health}]
    raw["spark4"]["docker"]["containers"] = [{"name": "x", "labels": {}, "state": "running", "health": "unhealthy"}]
    assert told(containers.unhealthy(look(raw))) == [("engine-unhealthy", "spark2 e")]


def test_the_packed_engram_of_the_nodes_own_rank_is_looked_for(raw: Raw) -> None:
    for rank, node in enumerate(raw.values()):
        files = [f"engram-l{layer}-r{rank}of4.bin" for layer in (1, 14)]
        node["folders"] = {"/data/engram": folder(*files), "/data/state": folder()}
    config = changed(ring(), ENGRAM)
    assert list(containers.engram(look(raw, config))) == []
    raw["spark2"]["folders"]["/data/engram"]["files"]["engram-l14-r1of4.bin"] = 0
    raw["spark3"]["folders"]["/data/engram"] = folder("engram-l1-r0of4.bin", free=20 * GIB)
    found = list(containers.engram(look(raw, config)))
    assert told(found) == [
        ("engram-missing", "spark2 /data/engram"),
        ("engram-missing", "spark3 /data/engram"),
        ("engram-space", "spark3 /data/engram"),
    ]
    assert "holds no engram-l14-r1of4.bin" in found[0].text()
    assert "has 20.0 GiB left, wanted 50.0 GiB to pack the engram" in found[2].text()
    assert found[0].hint == "The engine packs it at its first start, which takes long."
    for node in raw.values():
        node["owner"] = {"project": "spark-fabric", "stack": "test", "fleet_id": "default", "state_id": "7"}
    assert next(iter(containers.engram(look(raw, config)))).hint.endswith("runs: python -m fleet pack -s test")
    raw["spark3"]["folders"]["/data/engram"]["files"]["engram-l1-r2of4.bin.partial"] = 20 * GIB
    assert "wanted 30.0 GiB to pack" in list(containers.engram(look(raw, config)))[2].text()
    raw["spark4"]["owner"]["adoptable"] = True
    assert "fleet pack" not in str(next(iter(containers.engram(look(raw, config)))).hint)
    assert list(containers.engram(look(raw))) == []  # no such volume


# Deviations that no run repairs


def journaled(raw: Raw, plan: Plan, name: str, stage: str, **entry: Any) -> None:
    """Let a node's journal hold the plan for a stage."""
    desired = next(node for node in plan.nodes if node.name == name).stages[stage]
    record = {"status": "applied", "digest": digest(desired), "desired": desired, "failures": 0, **entry}
    raw[name]["journal"] = {"schema": 1, "generation": 1, "stages": {stage: record}}


def test_what_was_repaired_and_did_not_stay_is_told_with_its_history(raw: Raw) -> None:
    plan = look(raw).plan
    assert plan
    journaled(raw, plan, "spark2", "plane0", status="applying", failures=3)
    (found,) = preflight.lasting(look(raw))
    assert (found.code, found.path) == ("repair-failed", "spark2 plane0")
    assert "was repaired 3 times, and still: " in found.text()
    assert "MTU is 1500, plan wants 9000" in found.text()
    assert "journal" not in found.seen
    assert found.hint.endswith("python -m fleet retry spark2 -s test")


@pytest.mark.parametrize(
    "entry",
    [{"status": "applying", "failures": 0}, {"status": "applying", "failures": 2, "digest": "0" * 64}],
    ids=["not-tried", "another-plan"],
)
def test_what_was_never_done_with_this_plan_may_be_tried(entry: dict[str, Any], raw: Raw) -> None:
    plan = look(raw).plan
    assert plan
    journaled(raw, plan, "spark2", "plane0", **entry)
    assert list(preflight.lasting(look(raw))) == []


def test_a_failed_repair_whose_cause_has_gone_is_finished(raw: Raw) -> None:
    plan = look(raw, switched(ipRelay=False)).plan
    assert plan
    journaled(raw, plan, "spark2", "node", status="applying", failures=2)
    assert list(preflight.lasting(look(raw, switched(ipRelay=False)))) == []


def test_drift_can_be_refused_by_its_code(raw: Raw) -> None:
    assert list(preflight.refused(look(raw))) == []
    config = changed(ring(), {"preflight.refuse": ["link.mtu"]})
    found = list(preflight.refused(look(raw, config)))
    assert len(found) == 16
    assert {one.code for one in found} == {"link.mtu"}
    assert "preflight.refuse has link.mtu" in found[0].hint
