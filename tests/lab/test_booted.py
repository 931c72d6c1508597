"""Booted nodes: as new, with cables and power as of real machines, and nothing left of them afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import lab as lab_package
from lab import api, cgroups, network, registry, snapshot, trace
from lab.cabling import FUNCTIONS
from lab.shell import LabError, wait_for

BY_PYTHON = "python3 -IS -c 'import os; os.execlp(*\"ip ip link set lo up\".split())'"
PORTS = [function.netdev for function in FUNCTIONS]


def ports_up(lab: api.Handle, node: str, *wanted: str) -> bool:
    """Whether exactly these ports have carrier, or have it soon."""

    def now() -> set[str]:
        return {port for port, state in network.port_states(lab.lab.node(node)).items() if state == "up"}

    return wait_for(lambda: now() == set(wanted))


def left_on_machine(name: str) -> list[str]:
    """Whatever there is of a lab on this machine."""
    left = [str(path) for path in Path("/run/netns").glob(f"{name}-*")]
    left += [str(path) for path in Path("/run/spark-lab").glob(f"{name}*")]
    left += [str(path) for path in Path("/sys/fs/cgroup").glob(f"*/{cgroups.PARENT}/{name}")]
    left += [line for line in Path("/proc/self/mounts").read_text().splitlines() if f"{name}-" in line]
    search = ["pgrep", "-af", f"--name {name} "]
    return left + subprocess.run(search, check=False, capture_output=True, text=True).stdout.splitlines()


def test_a_new_node_looks_as_a_new_spark_does(lab: api.Handle) -> None:
    look = (
        "hostname; sudo -n id -u; docker version -f ok; "
        "ip -j address | tr -d '\\n'; echo; nmcli -t -f NAME,DEVICE connection show"
    )
    for name, output in lab.everywhere(look, user="spark").items():
        hostname, root, docker, addresses, *profiles = output.splitlines()
        assert (hostname, root, docker) == (name, "0", "ok")
        links = {link["ifname"]: link for link in json.loads(addresses)}
        for port in PORTS:
            assert links[port]["mtu"] == 1500
            assert "UP" in links[port]["flags"]
            assert not [row for row in links[port]["addr_info"] if row["family"] == "inet"]
        assert sorted(row.split(":")[1] for row in profiles if row.startswith("Wired connection")) == sorted(PORTS)


def test_devices_are_found_by_pci_address_from_both_sides(lab: api.Handle) -> None:
    program = (
        "cd /sys/class && for n in net/en*f*; do readlink -f $n/device; ls $n/device/infiniband; cat $n/speed; done"
    )
    found = lab.run("spark1", program).stdout.split()
    rows = sorted(zip(*[iter(found)] * 3, strict=True))
    assert [(path.rpartition("/")[2], hca, speed) for path, hca, speed in rows] == [
        ("0000:01:00.0", "rocep1s0f0", "200000"),
        ("0000:01:00.1", "rocep1s0f1", "200000"),
        ("0002:01:00.0", "roceP2p1s0f0", "200000"),
        ("0002:01:00.1", "roceP2p1s0f1", "200000"),
    ]


def test_gids_follow_addresses(lab: api.Handle) -> None:
    gids = "cat /sys/class/infiniband/rocep1s0f0/ports/1/gids/*"
    lab.run("spark1", "ip address add 10.99.0.1/24 dev enp1s0f0np0")
    assert wait_for(lambda: ":ffff:0a63:0001" in lab.run("spark1", gids).stdout)
    lab.run("spark1", "ip address del 10.99.0.1/24 dev enp1s0f0np0")
    assert wait_for(lambda: ":ffff:0a63:0001" not in lab.run("spark1", gids).stdout)


def test_carrier_follows_cables_and_the_far_port(lab: api.Handle) -> None:
    f0, f1 = ["enp1s0f0np0", "enP2p1s0f0np0"], ["enp1s0f1np1", "enP2p1s0f1np1"]
    assert ports_up(lab, "spark1", *PORTS)
    lab.pull("1-2")
    assert ports_up(lab, "spark1", *f1)
    assert ports_up(lab, "spark2", *f0)
    lab.plug("spark1:f0", "spark3:f1")
    assert ports_up(lab, "spark1", *PORTS)
    assert ports_up(lab, "spark2")
    lab.pull("spark1:f0")
    lab.plug("1-2")
    lab.plug("2-3")
    lab.run("spark2", f"ip link set {f1[0]} down")
    assert ports_up(lab, "spark1", f0[1], *f1)
    lab.run("spark2", f"ip link set {f1[0]} up")
    for name in lab.names:
        assert ports_up(lab, name, *PORTS)


def test_both_twins_hear_the_wire_and_frames_cross_the_cable_only(lab: api.Handle) -> None:
    lab.run("spark1", "ip address add 10.99.1.1/24 dev enp1s0f0np0")
    for node in ("spark2", "spark3"):
        lab.run(node, "ip address add 10.99.1.2/24 dev enP2p1s0f1np1")
    mac = lab.run("spark2", "cat /sys/class/net/enP2p1s0f1np1/address").stdout.strip()
    seen = lab.run("spark1", "ping -c1 -W2 -I enp1s0f0np0 10.99.1.2 >/dev/null; ip neigh show 10.99.1.2").stdout
    assert mac in seen
    for node in ("spark2", "spark3"):
        lab.run(node, "ip address del 10.99.1.2/24 dev enP2p1s0f1np1")
    lab.run("spark1", "ip address del 10.99.1.1/24 dev enp1s0f0np0")


def test_a_snapshot_sees_a_change_and_its_undoing(lab: api.Handle) -> None:
    before = lab.snapshot("spark3")
    lab.run("spark3", "touch /etc/new; ip link set enp1s0f0np0 mtu 9000; sysctl -qw net.ipv4.conf.lo.rp_filter=1")
    seen = "\n".join(snapshot.diff(before, lab.snapshot("spark3")))
    assert "/etc/new" in seen
    assert "links: enp1s0f0np0" in seen
    assert "net.ipv4.conf.lo.rp_filter" in seen
    lab.run("spark3", "rm /etc/new; ip link set enp1s0f0np0 mtu 1500; sysctl -qw net.ipv4.conf.lo.rp_filter=0")
    assert snapshot.diff(before, lab.snapshot("spark3")) == []


@pytest.mark.parametrize(
    ("command", "recorded"),
    [
        ("ip -br address; ip -4 route; nmcli device; sysctl net.ipv4.ip_forward; iptables -S; systemctl status", []),
        ("ip -n nowhere addr add 10.0.0.1/32 dev lo", ["ip addr-add"]),
        ("ip -4 route del 10.1.2.0/24", ["ip route-del"]),
        ("echo link set lo up | ip -batch -", ["ip batch"]),
        ("nmcli -t -f NAME con modify nothing ipv4.method auto", ["nmcli connection-modify"]),
        ("nmcli -w 5 device reapply nothing", ["nmcli device-reapply"]),
        ("iptables -w -t nat -D POSTROUTING -j ACCEPT", ["iptables D"]),
        ("sysctl -q net.ipv4.conf.lo.rp_filter=0", ["sysctl w"]),
        ("systemctl --no-block restart nothing.service", ["systemctl restart"]),
        ("netplan get; netplan generate --root-dir /tmp", []),
        ("tc -s qdisc; tc filter show dev lo ingress; devlink dev; devlink dev param show; ethtool -k lo", []),
        ("tc qdisc add dev nowhere clsact", ["tc qdisc-add"]),
        ("tc -force filter del dev enp1s0f0np0 ingress pref 7", ["tc filter-del"]),
        ("echo qdisc show | tc -batch -", ["tc batch"]),
        ("devlink -j dev param set pci/0 name x value 1 cmode runtime", ["devlink dev-param-set"]),
        ("devlink dev reload pci/0000:09:00.0 action driver_reinit", ["devlink dev-reload"]),
        ("ethtool -K nowhere hw-tc-offload on", ["ethtool K"]),
        (f"sudo -u spark sudo -n {BY_PYTHON}", ["ip link-set"]),
    ],
)  # fmt: skip
def test_the_trace_records_what_changes_and_nothing_else(lab: api.Handle, command: str, recorded: list[str]) -> None:
    record = f": > {trace.FILE}; ({command}) >/dev/null 2>&1; echo $?; cat {trace.FILE}"
    code, *lines = lab.run("spark2", record).stdout.splitlines()
    calls, _ = trace.parse("spark2", lines)
    assert [f"{call.tool} {call.verb}" for call in calls] == recorded
    if len(calls) == 1:
        assert calls[0].code == int(code)
        assert calls[0].ended
        assert calls[0].began < calls[0].ended


def test_a_call_that_is_stopped_before_does_not_happen_when_its_caller_was_killed(lab: api.Handle) -> None:
    lab.run("spark2", ": > /var/log/lab-trace.jsonl")
    with lab.stopped_at("spark2", "ip-link-set") as point:
        lab.run("spark2", "(sh -c 'echo $$ > /tmp/caller; ip link set lo mtu 3000; :' >/dev/null 2>&1 &)")
        point.wait()
        lab.run("spark2", "kill -9 $(cat /tmp/caller)")
    assert wait_for(lambda: not point.reached())
    assert lab.run("spark2", "cat /sys/class/net/lo/mtu").stdout == "65536\n"
    assert lab.trace("spark2")[0] == []


def test_engines_form_a_group_over_the_fabric_and_stop_at_once(lab: api.Handle) -> None:
    image = lab.load_image().images["spark-engine:sim"]
    head = lab.address("spark1")
    addresses = """
        rank=$((${HOSTNAME#spark} - 1))
        for plane in 0 1; do
            [ $plane = 0 ] && card=enp1s0 || card=enP2p1s0
            ip address add 10.$plane.$rank.10/24 dev ${card}f0np0
            ip address add 10.$plane.$(((rank + 2) % 3)).11/24 dev ${card}f1np1
        done
    """
    env = f"""
        NNODES=3 TP_SIZE=3 EP_SIZE=3 DIST_INIT_ADDR={head}:20000 HOST=0.0.0.0 SERVER_PORT=8888
        NCCL_SWITCHLESS_RING_ONLY=1 NCCL_ALGO=Ring NCCL_NET=IB NCCL_IB_HCA=rocep1s0f0,rocep1s0f1
        NCCL_IB_SUBNET_AWARE_ROUTING=1 NCCL_IB_SUBNET_PREFIX_LEN=24 NCCL_IB_GID_INDEX=5
    """
    words = " ".join(f"-e {word}" for word in [*env.split(), "NODE_RANK=$((${HOSTNAME#spark} - 1))"])
    run = "docker run -d --name engine --label spark-fabric.stack=x --network host --device /dev/infiniband"
    ask = f"curl -fsm2 http://{head}:8888/v1/models"
    try:
        lab.everywhere(f"{addresses}\n{run} {words} {image}")
        up = wait_for(lambda: lab.run("spark1", ask, check=False).returncode == 0, every=0.5)
        assert up, lab.everywhere("docker logs engine 2>&1 | tail")
        lab.run("spark1", "ip link set lo up")
        calls, events = lab.trace("spark1")
        assert calls[-1].engines == {events[-1].container}
        stop = "begin=$(date +%s%N); docker stop engine >/dev/null; echo $((($(date +%s%N) - begin) / 1000000))"
        assert max(map(int, lab.everywhere(stop).values())) < 5000
    finally:
        flush = "; ".join(f"ip -4 address flush dev {port}" for port in PORTS)
        lab.everywhere(f"docker rm -f engine; {flush}")


def test_a_node_keeps_its_disk_over_a_power_cut_with_another_card_too_and_loses_it_in_a_reset(lab: api.Handle) -> None:
    identity = lab.run("spark2", "touch /root/mine; cat /etc/machine-id").stdout
    macs = f"cd /sys/class/net && cat {' '.join(f'{port}/address' for port in ('enP7s7', *PORTS))}"
    management, *before = lab.run("spark2", macs).stdout.split()
    with pytest.raises(LabError, match="spark2 is on"):
        lab.replace_card("spark2")
    key = (lab.lab.directory / "keys/spark2.pub").read_text()
    lab.kill("spark2")
    assert ports_up(lab, "spark1", "enp1s0f1np1", "enP2p1s0f1np1")
    lab.replace_card("spark2")
    lab.boot("spark2")
    assert lab.run("spark2", "ls /root; cat /etc/machine-id").stdout == f"mine\n{identity}"
    after = lab.run("spark2", macs).stdout.split()
    assert after[0] == management
    assert not set(after) & set(before)
    assert ports_up(lab, "spark1", *PORTS)
    lab.reset("spark2", new_host_key=True)
    assert (lab.lab.directory / "keys/spark2.pub").read_text() != key
    assert lab.run("spark2", "ls /root; cat /etc/machine-id").stdout not in (identity, f"mine\n{identity}")


OWNER = """
import sys, time
from pathlib import Path
from lab import api
api.start(sys.argv[1], Path(sys.argv[2]), nodes=1, owned=True)
print("up", flush=True)
time.sleep(600)
"""


def test_an_owned_lab_ends_with_its_owner(folder: Path) -> None:
    name, place = f"owned-{os.getpid()}", folder / "owned"
    command = [sys.executable, "-c", OWNER, name, str(place)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=Path(lab_package.__file__).parent.parent
    ) as owner:
        assert owner.stdout
        assert any(line == "up\n" for line in owner.stdout)
        assert left_on_machine(name)
        owner.kill()
    assert wait_for(lambda: not left_on_machine(name) and not place.exists(), every=0.2)


def test_a_second_lab_runs_beside_and_a_killed_one_leaves_nothing(lab: api.Handle, folder: Path) -> None:
    name = f"beside-{os.getpid()}"
    other = api.start(name, folder / "switched", topology="switched", nodes=3)
    assert other.address("spark1") != lab.address("spark1")
    assert ports_up(other, "spark3", "enp1s0f0np0", "enP2p1s0f0np0")
    with pytest.raises(LabError, match=f"'{name}' is alive"):
        api.start(name, folder / "elsewhere", nodes=3)
    assert not (folder / "elsewhere").exists()

    claim = registry.read(name)
    assert claim
    daemons = [int(path.read_text()) for path in registry.folder(name).glob("*.pid")]
    with registry.locked():  # or the next lab to come up, of another test, would clean up already
        for process in {*daemons, *(number for node in claim.members for number in cgroups.members(node))}:
            with contextlib.suppress(ProcessLookupError):  # one that ended with another
                os.kill(process, signal.SIGKILL)
        assert wait_for(lambda: not any(cgroups.members(node) for node in claim.members))
        assert left_on_machine(name)
    again = api.start(name, folder / "elsewhere", nodes=1)
    assert again.run("spark1", "hostname").stdout == "spark1\n"
    again.stop()
    assert left_on_machine(name) == []
    assert lab.run("spark1", "hostname").stdout == "spark1\n"
