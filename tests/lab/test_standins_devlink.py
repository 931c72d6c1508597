"""devlink, ethtool and the RDMA views against what was recorded."""

from __future__ import annotations

import json
import os

import pytest

from lab.standins import counters, users
from tests.lab.mesh_reference import RULE
from tests.lab.standins_bench import Bench

PCI = "pci/0000:01:00.1"  # enp1s0f1np1
SET = f"devlink dev param set {PCI} name hairpin_queue_size value 8192 cmode driverinit"
RELOAD = f"devlink dev reload {PCI} action driver_reinit"
STATS = f"devlink -s -j dev show {PCI}"


def reloads(spark: Bench) -> int:
    return int(json.loads(spark.ok(STATS))["dev"][PCI]["stats"]["reload"]["driver_reinit"]["unspecified"])


def in_effect(spark: Bench) -> int:
    return int(spark.view()["functions"]["enp1s0f1np1"]["parameters"]["effective"]["hairpin_queue_size"])


def test_reload_statistics_have_the_recorded_shape(spark: Bench) -> None:
    spark.ok(RELOAD)
    actions = {"fw_activate": {"unspecified": 0, "no_reset": 0}}
    assert json.loads(spark.ok(STATS)) == {
        "dev": {
            PCI: {
                "stats": {
                    "reload": {"driver_reinit": {"unspecified": 1}, **actions},
                    "remote_reload": {"driver_reinit": {"unspecified": 0}, **actions},
                }
            }
        }
    }
    assert spark.ok(f"devlink dev show {PCI}") == f"{PCI}\n"


def test_a_set_value_is_shown_at_once_but_pending_until_the_reload(spark: Bench) -> None:
    show = f"devlink -j dev param show {PCI} name hairpin_queue_size"
    want = f'{{"param":{{"{PCI}":[{{"name":"hairpin_queue_size","type":"driver-specific",'
    tail = '"values":[{"cmode":"driverinit","value":%d}]}]}}\n'
    assert spark.ok(show) == want + tail % 1024
    spark.ok(SET)
    assert spark.ok(show) == want + tail % 8192
    assert "cmode driverinit value 8192" in spark.ok(show.replace("-j ", ""))
    assert '"value":"8192"' in spark.ok(show, STANDINS_DIALECT="devlink=str")
    assert (in_effect(spark), reloads(spark)) == (1024, 0)
    spark.ok(RELOAD)
    assert (in_effect(spark), reloads(spark)) == (8192, 1)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (SET.replace("driverinit", "runtime"), "kernel answers: Operation not supported"),
        (SET.replace("8192", "3000"), "Error: mlx5_core: Value is not power of two."),
        (SET.replace("8192", "16384"), "Error: mlx5_core: Maximum hairpin queue size is 8192."),
        (SET.replace(" cmode driverinit", ""), "Configuration mode expected."),
        (SET.replace("hairpin_queue_size", "nope"), "Parameter not found"),
        (f"devlink dev param show {PCI}", "Parameter name expected."),
        (f"devlink dev param show {PCI} name nope", "kernel answers: Invalid argument"),
        ("devlink dev reload pci/0000:09:00.0", "kernel answers: No such device"),
        (
            f"devlink dev param set {PCI} name flow_steering_mode value hmfs cmode driverinit",
            "kernel answers: Operation not supported",
        ),
    ],
)
def test_refusals(spark: Bench, command: str, said: str) -> None:
    done = spark.run(command)
    assert (done.returncode, done.stderr.splitlines()[0]) == (1, said)


def test_reload_loses_what_hung_on_that_function_only(spark: Bench) -> None:
    for dev in ("enp1s0f0np0", "enp1s0f1np1"):
        spark.ok(f"tc qdisc add dev {dev} clsact")
    spark.ok(f"tc filter add {RULE}")
    spark.ok(RELOAD)
    assert "clsact" not in spark.ok("tc qdisc show dev enp1s0f1np1")
    assert "clsact" in spark.ok("tc qdisc show dev enp1s0f0np0")
    log = (spark.root / "ip.log").read_text()
    for line in (
        "link set enp1s0f1np1 down",
        "address flush dev enp1s0f1np1",
        "-4 route flush dev enp1s0f1np1",
        "link set enp1s0f1np1 up",
    ):
        assert line in log
    assert "enp1s0f0np0" not in log


def test_reload_takes_the_marker_s_flow_but_not_its_process(spark: Bench) -> None:
    process, _ = spark.mark("rocep1s0f1")
    assert spark.view()["markers"]["rocep1s0f1"]["in_effect"]
    spark.ok(RELOAD)
    assert process.poll() is None
    assert not spark.view()["markers"]["rocep1s0f1"]["in_effect"]


@pytest.mark.parametrize(
    ("outcome", "status", "count", "failed", "back"),
    [
        ("refused", 1, 0, False, False),
        ("broken", 1, 0, True, False),
        ("flagged", 0, 1, True, True),
        ("uncounted", 0, 0, False, True),
        ("double", 0, 2, False, True),
        ("vanish", 0, 1, False, False),
    ],
)
def test_faults_of_the_reload(spark: Bench, outcome: str, status: int, count: int, failed: bool, back: bool) -> None:
    spark.set_fault("reload.enp1s0f1np1", outcome)
    (spark.root / "ip.log").touch()
    assert spark.run(RELOAD).returncode == status
    assert reloads(spark) == count
    assert json.loads(spark.ok(STATS))["dev"][PCI].get("reload_failed", False) is failed
    assert ("link set enp1s0f1np1 up" in (spark.root / "ip.log").read_text()) is back


def test_eswitch_has_the_recorded_shape(spark: Bench) -> None:
    modes = {"mode": "legacy", "inline-mode": "none", "encap-mode": "basic"}
    assert json.loads(spark.ok(f"devlink -j dev eswitch show {PCI}")) == {"dev": {PCI: modes}}
    spark.set_fault("switchdev.0000:01:00.1")
    assert spark.ok(f"devlink dev eswitch show {PCI}").startswith(f"{PCI}: mode switchdev ")


def test_offload_that_is_fixed_cannot_be_turned_on(spark: Bench) -> None:
    spark.set_fault("offload-fixed.enp1s0f1np1")
    assert "hw-tc-offload: off [fixed]\n" in spark.ok("ethtool -k enp1s0f1np1")
    done = spark.run("ethtool -K enp1s0f1np1 hw-tc-offload on")
    assert (done.returncode, "hw-tc-offload: off [requested on]" in done.stdout) == (1, True)
    assert "hw-tc-offload: on\n" in spark.ok("ethtool -k enp1s0f0np0")


def test_views_of_the_devices(spark: Bench) -> None:
    assert "rocep1s0f0 port 1 ==> enp1s0f0np0 (Up)" in spark.ok("ibdev2netdev")
    shown = spark.ok("ibv_devinfo -d rocep1s0f0 -i 1")
    for text in ("PORT_ACTIVE (4)", "active_mtu:\t\t4096 (5)", "link_layer:\t\tEthernet"):
        assert text in shown
    assert spark.run("ibv_devinfo -d nope").returncode == 255
    assert "link rocep1s0f1/1 state ACTIVE physical_state LINK_UP netdev enp1s0f1np1" in spark.ok("rdma link")
    assert "bus-info: 0002:01:00.1" in spark.ok("ethtool -i enP2p1s0f1np1")


def test_what_a_hairpin_queue_dropped_is_in_the_statistics_of_its_port(spark: Bench) -> None:
    assert "     rx_out_of_buffer: 0\n" in spark.ok("ethtool -S enp1s0f1np1")
    counters.add(spark.state, "rocep1s0f1", {"rx_out_of_buffer": 163})
    assert "     rx_out_of_buffer: 163\n" in spark.ok("ethtool -S enp1s0f1np1")
    assert "     rx_out_of_buffer: 0\n" in spark.ok("ethtool --statistics enp1s0f0np0")


def test_users_of_a_device_are_shown_while_they_live(spark: Bench) -> None:
    # One that was killed: its number is another process's by now, a living one's.
    killed = {"dev": "rocep1s0f0", "pid": os.getppid(), "comm": "killed", "lqpn": 299}
    spark.state.save(f"users/{os.getppid()}", killed)
    with users.registered(spark.state, "rocep1s0f0", "python3", 300):
        for kind in ("qp", "pd"):
            shown = json.loads(spark.ok(f"rdma -j resource show {kind}"))
            assert [row["comm"] for row in shown if "pid" in row] == ["python3"]
            assert f"pid {os.getpid()} comm python3" in spark.ok(f"rdma resource show {kind}")
    assert "python3" not in spark.ok("rdma resource show qp")
