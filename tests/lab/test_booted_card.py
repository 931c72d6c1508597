"""The simulated card on booted nodes: real routes, neighbours and wires, NetworkManager, the trace, snapshots."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator

import pytest

from lab import api, snapshot
from lab.shell import LabError, wait_for
from lab.standins.main import MARKER
from tests.lab.standins_bench import HERE

MARKER_FILE = HERE / "bin" / MARKER
# spark1 f0 - f1 spark2 f0 - f1 spark3, in domain 0; spark2 forwards between the other two
PORTS = {
    ("spark1", "enp1s0f0np0"): "10.98.0.1",
    ("spark2", "enp1s0f1np1"): "10.98.0.2",
    ("spark2", "enp1s0f0np0"): "10.98.1.1",
    ("spark3", "enp1s0f1np1"): "10.98.1.2",
}
MARK = "--source-port 65535 --replacement-ethertype 0x88b5 --attach --managed"


def mac(lab: api.Handle, node: str, netdev: str) -> str:
    return lab.run(node, f"cat /sys/class/net/{netdev}/address").stdout.strip()


def rule(lab: api.Handle, source: str, ingress: str, egress: str, destination: str) -> str:
    ends = {"spark1": mac(lab, "spark1", "enp1s0f0np0"), "spark3": mac(lab, "spark3", "enp1s0f1np1")}
    return (
        f"tc qdisc add dev {ingress} clsact && tc filter add dev {ingress} ingress protocol 0x88b5 pref 49152 "
        f"handle 49152 flower skip_sw src_mac {ends[source]} dst_mac {mac(lab, 'spark2', ingress)} "
        "action pedit ex munge eth type set 0x0800 pipe "
        f"action pedit ex munge eth dst set {ends[destination]} pipe action mirred egress redirect dev {egress}"
    )


@pytest.fixture
def addressed(lab: api.Handle) -> Iterator[None]:
    lab.everywhere("sysctl -qw net.ipv4.conf.all.arp_ignore=1")  # or the twins answer, and their MACs match no rule
    for (node, port), address in PORTS.items():
        lab.run(node, f"ip link set {port} mtu 9000 && ip address add {address}/24 dev {port}")
    yield
    for (node, port), address in PORTS.items():
        clean = f"ip neigh flush dev {port} nud all; ip link set {port} mtu 1500"
        lab.run(node, f"ip address del {address}/24 dev {port}; {clean}")
    lab.everywhere("sysctl -qw net.ipv4.conf.all.arp_ignore=0")


@contextlib.contextmanager
def forwarded(lab: api.Handle) -> Iterator[None]:
    """Two rules, two routes, two markers, as an operator would type them; all removed again."""
    add = {
        "spark1": "ip route add 10.98.1.2/32 via 10.98.0.2 dev enp1s0f0np0 src 10.98.0.1",
        "spark2": rule(lab, "spark1", "enp1s0f1np1", "enp1s0f0np0", "spark3")
        + "\n"
        + rule(lab, "spark3", "enp1s0f0np0", "enp1s0f1np1", "spark1"),
        "spark3": "ip route add 10.98.0.1/32 via 10.98.1.1 dev enp1s0f1np1 src 10.98.1.2",
    }
    for node, command in add.items():
        lab.run(node, f"set -e\n{command}")
    for node, device in (("spark1", "rocep1s0f0"), ("spark3", "rocep1s0f1")):
        lab.run(node, f"install /dev/stdin /opt/{MARKER}", stdin=MARKER_FILE.read_text())
        start_marker(lab, node, device)
    yield
    for node, port, far in (("spark1", "enp1s0f0np0", "10.98.1.2"), ("spark3", "enp1s0f1np1", "10.98.0.1")):
        lab.run(node, f"systemctl stop card-marker; rm /opt/{MARKER}; ip route del {far}/32 dev {port}")
    lab.run("spark2", "tc qdisc del dev enp1s0f1np1 clsact; tc qdisc del dev enp1s0f0np0 clsact")


def start_marker(lab: api.Handle, node: str, device: str) -> None:
    lab.run(node, f"systemd-run -q --unit=card-marker /opt/{MARKER} --device {device} {MARK}")
    assert wait_for(lambda: device in lab.walk().view(node)["markers"])


def write_latency(lab: api.Handle, index: str) -> subprocess.CompletedProcess[str]:
    """From spark1 to spark3, met over the management network."""
    words = f"-x {index} --flow_label=16383 -s 61440 -n 100"
    lab.run("spark3", f"systemd-run -q --collect --unit=card-latency ib_write_lat -d rocep1s0f1 {words}")
    assert wait_for(lambda: "ib_write_lat" in lab.run("spark3", "rdma resource show qp").stdout)
    return lab.run("spark1", f"ib_write_lat -d rocep1s0f0 {words} {lab.address('spark3')}", check=False)


def forwarded_by_kernel(lab: api.Handle, node: str) -> int:
    names, values = (line.split() for line in lab.run(node, "grep ^Ip: /proc/net/snmp").stdout.splitlines())
    return int(values[names.index("ForwDatagrams")])


def hardware_packets(lab: api.Handle) -> int:
    rows = json.loads(lab.run("spark2", "tc -j -s filter show dev enp1s0f1np1 ingress").stdout)
    return int(rows[1]["options"]["actions"][2]["stats"]["hw_packets"])


def assert_again(lab: api.Handle, before: dict[str, snapshot.Snapshot]) -> None:
    """Nodes are as they were, or come to it: NetworkManager goes on for a while after a change."""
    after = lab.snapshots(like=before)
    assert [line for node, old in before.items() for line in snapshot.diff(old, after[node])] == []


@pytest.mark.usefixtures("addressed")
def test_a_path_through_the_card_of_a_node_in_the_middle(lab: api.Handle) -> None:
    before = lab.snapshots()
    with forwarded(lab):
        (index,) = lab.walk().view("spark1")["functions"]["enp1s0f0np0"]["gids"]
        path = {"device": "rocep1s0f0", "address": "10.98.1.2", "sport": 65535, "gid_index": int(index), "bursts": [5]}
        ask = lab.walk().nodes["spark1"]
        (answer,) = ask.call("reach", paths=[path])
        assert (answer["works"], answer["receiver"]) == (True, ["spark3", "rocep1s0f1"]), answer
        assert hardware_packets(lab) == 5

        software = forwarded_by_kernel(lab, "spark2")
        done = write_latency(lab, index)
        assert done.returncode == 0, done.stderr
        assert " 61440   100 " in done.stdout
        sent = "cat /sys/class/infiniband/rocep1s0f0/ports/1/counters/port_xmit_packets"
        assert wait_for(lambda: int(lab.run("spark1", sent).stdout) >= 1505)
        assert hardware_packets(lab) == 1505
        assert forwarded_by_kernel(lab, "spark2") == software

        seen = "\n".join(snapshot.diff(before["spark2"], lab.snapshot("spark2")))
        assert "card: enp1s0f0np0" in seen
        assert "qdiscs: qdisc clsact" in seen
        seen = "\n".join(snapshot.diff(before["spark1"], lab.snapshot("spark1")))
        for part in ("card: rocep1s0f0", "routes: 10.98.1.2", f"files: /opt/{MARKER}", "units: card-marker.service"):
            assert part in seen

        lab.set_fault("spark2", "evicted.enp1s0f0np0")  # of the way back
        (answer,) = ask.call("reach", paths=[path])
        assert not answer["works"]
        assert "answers of spark3" in answer["reason"]
        assert "not in hardware" in answer["reason"]
        lab.clear_fault("spark2")

        lab.run("spark1", "systemctl kill -s KILL card-marker; systemctl reset-failed card-marker")
        lab.run("spark2", "sysctl -qw net.ipv4.ip_forward=1")
        done = write_latency(lab, index)
        assert (done.returncode, "Failed status 12" in done.stderr) == (1, True), done.stderr
        assert hardware_packets(lab) == 1505
        assert forwarded_by_kernel(lab, "spark2") > software
    assert_again(lab, before)


def test_a_reinit_goes_on_when_its_caller_is_killed_and_gives_back_a_port_as_new(lab: api.Handle) -> None:
    port, handle = "enP2p1s0f0np0", "pci/0002:01:00.0"
    set_size = f"devlink dev param set {handle} name hairpin_queue_size cmode driverinit value"
    lab.adjust("spark3", "reload_seconds", "0.2")
    lab.set_fault("spark3", f"reload.{port}", "hang")
    before, count = lab.snapshots(), reinits(lab, handle)
    lab.run("spark3", f"ip address add 10.98.2.1/24 dev {port}; ip link set {port} mtu 9000; {set_size} 8192")
    with lab.stopped_at("spark3", "devlink-dev-reload") as point:
        lab.run("spark3", f"(sh -c 'devlink dev reload {handle}; :' >/dev/null 2>&1 &)")
        point.wait()
        assert "10.98.2.1" in lab.run("spark3", f"ip address show dev {port}").stdout
    assert wait_for(lambda: "10.98.2.1" not in lab.run("spark3", f"ip address show dev {port}").stdout)
    assert parameters(lab, port)["effective"] == 1024
    lab.run("spark3", "pkill -9 -f 'tools/devlink dev reload' -o")
    lab.clear_fault("spark3")
    assert wait_for(lambda: parameters(lab, port)["effective"] == 8192)
    assert reinits(lab, handle) == count + 1
    lab.run("spark3", f"{set_size} 1024 && devlink dev reload {handle}")
    lab.adjust("spark3", "reload_seconds")
    assert_again(lab, before)


def reinits(lab: api.Handle, handle: str) -> int:
    shown = json.loads(lab.run("spark3", f"devlink -s -j dev show {handle}").stdout)
    return int(shown["dev"][handle]["stats"]["reload"]["driver_reinit"]["unspecified"])


def parameters(lab: api.Handle, port: str) -> dict[str, int]:
    """The queue size that is shown, and the one in effect."""
    values = lab.walk().view("spark3")["functions"][port]["parameters"]
    return {when: values[when]["hairpin_queue_size"] for when in ("shown", "effective")}


def test_markers_tell_the_trace_and_stop_at_a_break_point(lab: api.Handle) -> None:
    lab.run("spark1", f": > /var/log/lab-trace.jsonl; install /dev/stdin /opt/{MARKER}", stdin=MARKER_FILE.read_text())
    with lab.stopped_at("spark1", "marker-attach") as point:
        lab.run("spark1", f"(/opt/{MARKER} --device rocep1s0f0 {MARK} >/dev/null 2>&1 &)")
        point.wait()
        assert lab.walk().view("spark1")["markers"] == {}
    assert wait_for(lambda: "rocep1s0f0" in lab.walk().view("spark1")["markers"])
    pid = lab.walk().view("spark1")["markers"]["rocep1s0f0"]["pid"]
    lab.run("spark1", f"kill {pid}; rm /opt/{MARKER}")
    assert wait_for(lambda: len(lab.trace("spark1")[0]) == 2)
    calls = [(call.tool, call.verb, call.argv[1:]) for call in lab.trace("spark1")[0]]
    assert calls == [("marker", "attach", ["rocep1s0f0"]), ("marker", "detach", ["rocep1s0f0"])]


def test_a_user_without_rights_may_look_but_not_touch(lab: api.Handle) -> None:
    looks = (
        "tc -j qdisc show dev enp1s0f0np0; ethtool -k enp1s0f0np0 | grep hw-tc; rdma -j resource show qp; ibdev2netdev"
    )
    lab.run("spark1", f"set -e; {looks}", user="spark")
    for command in ("tc qdisc add dev enp1s0f0np0 clsact", "ethtool -K enp1s0f0np0 hw-tc-offload off"):
        done = lab.run("spark1", command, user="spark", check=False)
        assert done.returncode
        assert "not permitted" in done.stderr


def test_a_fault_that_there_is_not_is_refused(lab: api.Handle) -> None:
    with pytest.raises(LabError, match="no fault 'not-in-hardware'; there are not-in-hw"):
        lab.set_fault("spark1", "not-in-hardware.49152")
    with pytest.raises(LabError, match="reload takes one of refused"):
        lab.set_fault("spark1", "reload", "nonsense")
