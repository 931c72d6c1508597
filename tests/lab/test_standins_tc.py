"""tc against the shapes, strings and statuses that were recorded, and against what the real one says."""

from __future__ import annotations

import json

import pytest

from tests.lab.mesh_reference import RULE
from tests.lab.standins_bench import Bench

DELETE = "tc filter delete dev enp1s0f1np1 ingress protocol 0x88b5 pref 49152 handle 49152 flower"
SHOW = "tc -j -s filter show dev enp1s0f1np1 ingress"
ZERO = {
    "bytes": 0,
    "packets": 0,
    "drops": 0,
    "overlimits": 0,
    "requeues": 0,
    "backlog": 0,
    "qlen": 0,
    "sw_packets": 0,
    "hw_packets": 0,
}


@pytest.fixture
def ruled(spark: Bench) -> Bench:
    spark.ok("tc qdisc add dev enp1s0f1np1 clsact")
    spark.ok(f"tc filter add {RULE}")
    return spark


def test_json_has_the_recorded_shape(ruled: Bench) -> None:
    common = {"ref": 1, "bind": 1, "stats": ZERO}
    assert json.loads(ruled.ok(SHOW, STANDINS_DIALECT="iproute2=5")) == [
        {"protocol": "[34997]", "pref": 49152, "kind": "flower", "chain": 0},
        {
            "protocol": "[34997]",
            "pref": 49152,
            "kind": "flower",
            "chain": 0,
            "options": {
                "handle": 49152,
                "keys": {"dst_mac": "02:01:01:00:00:01", "src_mac": "02:00:00:00:00:01", "eth_type": "88b5"},
                "skip_sw": True,
                "in_hw": True,
                "in_hw_count": 1,
                "actions": [
                    {
                        "order": 1,
                        "kind": "pedit",
                        "control_action": {"type": "pipe"},
                        "nkeys": 1,
                        "index": 1,
                        **common,
                        "keys": [{"htype": "eth", "offset": 12, "cmd": "set", "val": "8000000", "mask": "ffff"}],
                    },
                    {
                        "order": 2,
                        "kind": "pedit",
                        "control_action": {"type": "pipe"},
                        "nkeys": 2,
                        "index": 2,
                        **common,
                        "keys": [
                            {"htype": "eth", "offset": 0, "cmd": "set", "val": "2020100", "mask": "0"},
                            {"htype": "eth", "offset": 4, "cmd": "set", "val": "10000", "mask": "ffff"},
                        ],
                    },
                    {
                        "order": 3,
                        "kind": "mirred",
                        "mirred_action": "redirect",
                        "direction": "egress",
                        "to_dev": "enp1s0f0np0",
                        "control_action": {"type": "stolen"},
                        "index": 1,
                        **common,
                    },
                ],
            },
        },
    ]


def test_dialects_spell_the_same_rule_differently(ruled: Bench) -> None:
    (_, row) = json.loads(ruled.ok(SHOW))
    assert row["options"]["handle"] == "0xc000"
    settings = "protocol=plain,mask=written,values=int,optional=no"
    (_, row) = json.loads(ruled.ok(SHOW, STANDINS_DIALECT=settings))
    assert row["protocol"] == "88b5"
    first = row["options"]["actions"][0]
    assert first["keys"][0] == {"htype": "eth", "offset": 12, "cmd": "set", "val": 0x08000000, "mask": 0xFFFF0000}
    assert "index" not in first
    assert "sw_packets" not in first["stats"]
    (ruled.state.lasting / "settings").mkdir(parents=True)
    (ruled.state.lasting / "settings/dialect").write_text("protocol=hex split=yes\n")
    (_, row) = json.loads(ruled.ok(SHOW))
    assert row["protocol"] == "0x88b5"
    assert row["options"]["actions"][2]["stats"]["hw_bytes"] == 0


def test_text_names_everything_that_scripts_look_for(ruled: Bench) -> None:
    text = ruled.ok("tc -s filter show dev enp1s0f1np1 ingress")
    assert text.splitlines()[:7] == [
        "filter protocol [34997] pref 49152 flower chain 0 ",
        "filter protocol [34997] pref 49152 flower chain 0 handle 0xc000 ",
        "  dst_mac 02:01:01:00:00:01",
        "  src_mac 02:00:00:00:00:01",
        "  eth_type 88b5",
        "  skip_sw",
        "  in_hw in_hw_count 1",
    ]
    assert "at eth+12: val 08000000 mask 0000ffff" in text
    assert "mirred (Egress Redirect to device enp1s0f0np0) stolen" in text
    assert "Sent 0 bytes 0 pkt (dropped 0, overlimits 0 requeues 0)" in text


def test_a_question_about_one_preference_is_not_repeated_in_the_answer(ruled: Bench) -> None:
    text = ruled.ok("tc -s filter show dev enp1s0f1np1 ingress pref 49152")
    assert text.startswith("filter protocol [34997] flower chain 0")
    assert "in_hw" in text
    assert ruled.ok("tc filter show dev enp1s0f1np1 ingress pref 5") == ""


@pytest.mark.parametrize(
    ("errors", "command", "said"),
    [
        (
            "recorded",
            "tc filter show dev enp1s0f0np0 ingress",
            "Error: Cannot find specified qdisc on specified device.",
        ),
        ("recorded", "tc qdisc add dev enp1s0f1np1 clsact", "RTNETLINK answers: File exists"),
        ("recorded", f"tc filter add {RULE}", "RTNETLINK answers: File exists"),
        ("recorded", f"tc filter add {RULE}".replace("0x88b5", "0x88b6"), "RTNETLINK answers: Invalid argument"),
        ("recorded", DELETE.replace("handle 49152", "handle 7"), "Error: Filter with specified handle not found."),
        ("recorded", DELETE.replace("pref 49152", "pref 7"), "Error: Filter with specified handle not found."),
        ("kernel", "tc qdisc add dev enp1s0f1np1 clsact", "Error: Exclusivity flag on, cannot modify."),
        ("kernel", f"tc filter add {RULE}", "Error: Filter already exists."),
        ("kernel", DELETE.replace("pref 49152", "pref 7"), "Error: Filter with specified priority/protocol not found."),
        ("kernel", DELETE.replace("enp1s0f1np1", "enp1s0f0np0"), "Error: Parent Qdisc doesn't exists."),
        (
            "recorded",
            f"tc filter add {RULE}".replace("pref 49152 handle 49152", "pref 49152"),
            "RTNETLINK answers: File exists",
        ),
    ],
)
def test_kernel_s_refusals_exit_with_2(ruled: Bench, errors: str, command: str, said: str) -> None:
    before = ruled.ok(SHOW)
    done = ruled.run(command, STANDINS_DIALECT=f"errors={errors}")
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, said)
    assert ruled.ok(SHOW) == before


def test_without_a_qdisc_the_lab_s_kernel_shows_nothing(spark: Bench) -> None:
    assert spark.ok("tc -j filter show dev enp1s0f0np0 ingress", STANDINS_DIALECT="errors=kernel") == "[]\n"


@pytest.mark.parametrize(
    ("old", "new", "status", "said"),
    [
        ("skip_sw", "skip_software", 1, 'What is "skip_software"?'),
        ("src_mac", "srcmac", 1, 'What is "srcmac"?'),
        ("02:00:00:00:00:01", "zz", 1, '"zz" is invalid lladdr.'),
        ("type set 0x0800", "typ set 0x0800", 1, "bad pedit parsing"),
        ("type set 0x0800", "type put 0x0800", 1, "bad pedit parsing"),
        ("type set 0x0800", "type set 0x80000", 1, "pack_key16 bad value"),
        ("pedit ex munge eth type", "pedit munge eth type", 1, "bad pedit parsing"),
        ("02:02:01:00:00:01", "zz", 1, '"zz" is invalid lladdr.'),
        ("action mirred", "action mired", 255, "Bad action type mired"),
        ("redirect dev enp1s0f0np0", "redirect", 255, "Command line is not complete."),
        ("redirect dev enp1s0f0np0", "redirect dev nope", 1, 'Cannot find device "nope"'),
        (
            "dev enp1s0f1np1 ingress",
            "dev enp1s0f1np1 dev enp1s0f1np1 ingress",
            255,
            'Error: duplicate "dev": "enp1s0f1np1" is the second value.',
        ),
        ("pref 49152", "pref zz", 255, 'Error: argument "zz" is wrong: invalid priority value'),
        ("protocol 0x88b5", "protocol zzz", 255, 'Error: argument "zzz" is wrong: invalid protocol'),
        ("handle 49152", "handle zz", 1, 'Illegal "handle"'),
        ("skip_sw", "skip_sw vlan_id 3", 70, "standins: flower word vlan_id is not simulated"),
    ],
)
def test_wrong_words_fail_as_in_the_real_tool(spark: Bench, old: str, new: str, status: int, said: str) -> None:
    spark.ok("tc qdisc add dev enp1s0f1np1 clsact")
    command = f"tc filter add {RULE}"
    assert old in command
    done = spark.run(command.replace(old, new, 1))
    assert (done.returncode, done.stderr.splitlines()[0][: len(said)]) == (status, said)
    assert spark.ok(SHOW) == "[]\n"


def test_deleting_the_qdisc_deletes_its_filters(ruled: Bench) -> None:
    ruled.ok("tc qdisc del dev enp1s0f1np1 clsact")
    assert ruled.run("tc qdisc del dev enp1s0f1np1 clsact").returncode == 2
    ruled.ok("tc qdisc add dev enp1s0f1np1 clsact")
    assert ruled.ok(SHOW) == "[]\n"


def test_qdiscs_have_the_recorded_shape(ruled: Bench) -> None:
    assert json.loads(ruled.ok("tc -j qdisc show dev enp1s0f1np1")) == [
        {"kind": "mq", "handle": "0:", "root": True, "options": {}},
        {"kind": "clsact", "handle": "ffff:", "parent": "ffff:fff1", "options": {}},
    ]
    assert "clsact" not in ruled.ok("tc qdisc show dev enp1s0f0np0")
    ruled.ok("tc qdisc add dev enp1s0f0np0 ingress")
    assert "qdisc ingress ffff: parent ffff:fff1" in ruled.ok("tc qdisc show dev enp1s0f0np0")
    assert ruled.run("tc qdisc add dev enp1s0f0np0 clsact").returncode == 2


def test_replace_changes_in_place_and_delete_removes(ruled: Bench) -> None:
    ruled.ok(f"tc filter replace {RULE}".replace("0x0800", "0x86dd"))
    (_, row) = json.loads(ruled.ok(SHOW))
    assert row["options"]["actions"][0]["keys"][0]["val"] == "86dd0000"
    ruled.ok(DELETE)
    assert ruled.ok(SHOW) == "[]\n"


def test_a_foreign_rule_without_preference_takes_49152(spark: Bench) -> None:
    spark.ok("tc qdisc add dev enp1s0f1np1 clsact")
    spark.ok("tc filter add dev enp1s0f1np1 ingress protocol ip flower dst_ip 10.0.0.0/8 action drop")
    spark.ok("tc filter add dev enp1s0f1np1 ingress protocol ip flower dst_ip 11.0.0.0/8 action drop")
    heads = [(row["pref"], row["protocol"]) for row in json.loads(spark.ok(SHOW))[1::2]]
    assert heads == [(49151, "ip"), (49152, "ip")]
    assert spark.run(f"tc filter add {RULE}").returncode == 2


def test_no_offload_no_rule(spark: Bench) -> None:
    spark.ok("tc qdisc add dev enp1s0f1np1 clsact")
    spark.ok("ethtool -K enp1s0f1np1 hw-tc-offload off")
    assert "hw-tc-offload: off" in spark.ok("ethtool -k enp1s0f1np1")
    assert spark.run(f"tc filter add {RULE}").returncode == 2
    spark.ok("ethtool -K enp1s0f1np1 hw-tc-offload on")
    spark.ok(f"tc filter add {RULE}")
    assert spark.run("ethtool -K enp1s0f1np1 hw-tc-offload off").returncode == 1


def test_fault_not_in_hardware(spark: Bench) -> None:
    spark.set_fault("not-in-hw.49152")
    spark.ok("tc qdisc add dev enp1s0f1np1 clsact")
    spark.ok(f"tc filter add {RULE}")
    (_, row) = json.loads(spark.ok(SHOW))
    assert "in_hw" not in row["options"]
    assert row["options"]["not_in_hw"] is True
    assert "  not_in_hw" in spark.ok("tc filter show dev enp1s0f1np1 ingress")


def test_batch_stops_at_the_first_failure(spark: Bench) -> None:
    lines = spark.root / "batch"
    lines.write_text(
        f"qdisc add dev enp1s0f1np1 clsact\nfilter add {RULE}\nfilter add {RULE}\nqdisc add dev enp1s0f0np0 clsact\n"
    )
    done = spark.run(f"tc -batch {lines}")
    assert done.returncode == 1
    assert f"Command failed {lines}:3" in done.stderr
    assert "clsact" not in spark.ok("tc qdisc show dev enp1s0f0np0")


def test_all_else_goes_to_the_real_tool(spark: Bench) -> None:
    real = spark.real / "tc"
    real.write_text('#!/bin/sh\necho real "$@"\n')
    real.chmod(0o755)
    for command in (
        "tc -V",
        "tc qdisc add dev enP7s7 clsact",
        "tc filter show dev enP7s7 ingress",
        "tc qdisc add dev enp1s0f1np1 root pfifo",
        "tc class show dev enp1s0f1np1",
    ):
        assert spark.ok(command) == f"real {command.removeprefix('tc ')}\n"


def test_fault_evicted_after_it_was_in_hardware(ruled: Bench) -> None:
    assert json.loads(ruled.ok(SHOW))[1]["options"]["in_hw"] is True
    ruled.set_fault("evicted.enp1s0f1np1")
    assert "in_hw" not in json.loads(ruled.ok(SHOW))[1]["options"]
