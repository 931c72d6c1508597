"""What `tc`, `devlink`, `ethtool` and `rdma` print, in every form that was recorded or is known, read alike."""

import itertools
import json
from typing import Any

import pytest

from node import devlink, flow, tc
from node.request import Failure
from node.run import Result
from tests.node.machine import Machine

Json = dict[str, Any]

# One rule of a ring whose MACs are 02:<rank>:<port>:<function>:00:01: rank 0 to rank 2 by way of rank 1.
RULE = {
    "name": "restore-rank0-to-rank2-diagonal-clockwise-via-rank1-function0",
    "netdev": "enp1s0f1np1",
    "pref": 49152,
    "handle": 49152,
    "src_mac": "02:00:00:00:00:01",
    "dst_mac": "02:01:01:00:00:01",
    "new_dst_mac": "02:02:01:00:00:01",
    "egress": "enp1s0f0np0",
}
ZEROES = {"new_dst_mac": "02:02:01:00:00:00"}  # whose last key of `pedit` says nothing about the masks


def _key(offset: int, value: int, mask: int, *, as_int: bool, written: bool) -> Json:
    mask ^= 0xFFFFFFFF if written else 0
    shown = {"val": value, "mask": mask} if as_int else {"val": f"{value:x}", "mask": f"{mask:x}"}
    return {"htype": "eth", "offset": offset, "cmd": "set", **shown}


def _rows(rule: Json, *, handle: str, protocol: str, as_int: bool, written: bool, optional: bool) -> list[Json]:
    """A listing with its summary row, in one dialect."""
    head = {"protocol": protocol, "pref": 49152, "kind": "flower", "chain": 0}
    mac = bytes.fromhex(rule["new_dst_mac"].replace(":", ""))
    keys = [(12, 0x08000000, 0xFFFF)]
    macs = [(0, int.from_bytes(mac[:4], "big"), 0), (4, int.from_bytes(mac[4:], "big") << 16, 0xFFFF)]
    stats = {"packets": 9, "bytes": 900, "drops": 0, "sw_packets": 0, "hw_packets": 9}
    actions: list[Json] = []
    for order, group in enumerate((keys, macs), 1):
        shown = [_key(*key, as_int=as_int, written=written) for key in group]
        actions.append({"order": order, "kind": "pedit", "nkeys": len(group), "keys": shown})
    redirect = {"mirred_action": "redirect", "direction": "egress", "to_dev": "enp1s0f0np0"}
    actions.append({"order": 3, "kind": "mirred", **redirect, "control_action": {"type": "stolen"}})
    options: Json = {
        "handle": int(handle, 0) if handle.isdigit() else handle,
        "keys": {"dst_mac": rule["dst_mac"], "src_mac": rule["src_mac"], "eth_type": "88b5"},
        "skip_sw": True,
        "in_hw": True,
    }
    if optional:
        options["in_hw_count"] = 1
        for action in actions:
            action |= {"index": 1, "ref": 1, "bind": 1, "stats": stats}
        for action in actions[:2]:
            action["control_action"] = {"type": "pipe"}
    return [head, head | {"options": options | {"actions": actions}}]


def _read(out: str, netdev: str = "enp1s0f1np1") -> list[Json]:
    machine = Machine()
    machine.hooks["tc"] = lambda _: Result(0, out)
    return tc.filters(machine, netdev)


@pytest.mark.parametrize("rule", [RULE, RULE | ZEROES], ids=["plain", "zeroes"])
@pytest.mark.parametrize(
    ("handle", "protocol", "as_int", "written", "optional"),
    list(itertools.product(("49152", "0xc000"), ("[34997]", "88b5", "0x88b5"), *[(True, False)] * 3)),
)
def test_every_dialect_shows_the_same_rule(
    rule: Json, handle: str, protocol: str, as_int: bool, written: bool, optional: bool
) -> None:
    rows = _rows(rule, handle=handle, protocol=protocol, as_int=as_int, written=written, optional=optional)
    (found,) = _read(json.dumps(rows))
    assert flow.of_filter(found) == flow.meaning(rule)
    assert found["in_hw"]
    assert (found["packets"], found["sw_packets"], found["drops"]) == ((9, 0, 0) if optional else (None, None, None))


@pytest.mark.parametrize("name", ["src_mac", "dst_mac", "new_dst_mac", "egress", "pref", "handle"])
def test_a_rule_that_differs_in_one_field_is_another_rule(name: str) -> None:
    other = RULE | {name: 7 if name in ("pref", "handle") else "02:0a:0b:0c:0d:0e" if "mac" in name else "enp9"}
    rows = _rows(RULE, handle="0xc000", protocol="[34997]", as_int=False, written=False, optional=True)
    assert flow.of_filter(_read(json.dumps(rows))[0]) != flow.meaning(other)


@pytest.mark.parametrize("member", ["skip_sw", "actions", "keys"])
def test_a_rule_that_does_more_or_less_is_another_rule(member: str) -> None:
    rows = _rows(RULE, handle="0xc000", protocol="[34997]", as_int=False, written=False, optional=True)
    options = rows[1]["options"]
    if member == "skip_sw":
        del options["skip_sw"]
    elif member == "actions":
        options["actions"].pop(0)
    else:
        options["keys"]["src_ip"] = "10.0.0.1"
    assert flow.of_filter(_read(json.dumps(rows))[0]) != flow.meaning(RULE)


TEXT = """filter protocol [34997] pref 49152 flower chain 0 
filter protocol [34997] pref 49152 flower chain 0 handle 0xc000 
  dst_mac 02:01:01:00:00:01
  src_mac 02:00:00:00:00:01
  eth_type 88b5
  skip_sw
  in_hw in_hw_count 1
\taction order 1:  pedit action pipe keys 1
 \tindex 1 ref 1 bind 1
\t key #0  at eth+12: val 08000000 mask 0000ffff
\tAction statistics:
\tSent 900 bytes 9 pkt (dropped 0, overlimits 0 requeues 0) 
\tSent software 0 bytes 0 pkt
\tSent hardware 900 bytes 9 pkt
\tbacklog 0b 0p requeues 0

\taction order 2:  pedit action pipe keys 2
 \tindex 2 ref 1 bind 1
\t key #0  at eth+0: val 02020100 mask 00000000
\t key #1  at eth+4: val 00010000 mask 0000ffff
\tAction statistics:
\tSent 900 bytes 9 pkt (dropped 0, overlimits 0 requeues 0) 
\tbacklog 0b 0p requeues 0

\taction order 3: mirred (Egress Redirect to device enp1s0f0np0) stolen
 \tindex 1 ref 1 bind 1
\tAction statistics:
\tSent 900 bytes 9 pkt (dropped 0, overlimits 0 requeues 0) 
\tbacklog 0b 0p requeues 0

"""  # noqa: W291


def test_the_text_form_shows_the_same_rule() -> None:
    machine = Machine()
    machine.hooks["tc"] = lambda argv: Result(0, "no JSON {" if "-j" in argv else TEXT)
    (found,) = tc.filters(machine, "enp1s0f1np1")
    assert flow.of_filter(found) == flow.meaning(RULE)
    assert (found["in_hw"], found["packets"], found["sw_packets"]) == (True, 9, 0)
    machine.hooks["tc"] = lambda argv: Result(0, "{" if "-j" in argv else TEXT.replace("  in_hw in", "  not_in_hw in"))
    assert not tc.filters(machine, "enp1s0f1np1")[0]["in_hw"]


def test_filters_of_other_kinds_are_seen_too() -> None:
    head = {"protocol": "ip", "pref": 10, "kind": "u32", "chain": 0}
    rows = [head, head | {"options": {"fh": "800::800", "order": 2048, "key_ht": "800"}}]
    (found,) = _read(json.dumps(rows))
    assert (found["kind"], found["protocol"], found["pref"], found["handle"]) == ("u32", 0x0800, 10, None)


@pytest.mark.parametrize(
    ("said", "rc"),
    [
        ("Error: Cannot find specified qdisc on specified device.", 2),
        ("Error: Parent Qdisc doesn't exists.", 2),
        ("", 0),
    ],
)
def test_a_port_without_a_qdisc_has_no_filters(said: str, rc: int) -> None:
    machine = Machine()
    machine.hooks["tc"] = lambda _: Result(rc, "", said)
    assert tc.filters(machine, "enp1s0f1np1") == []


def test_a_tc_that_fails_is_no_empty_listing() -> None:
    machine = Machine()
    machine.hooks["tc"] = lambda _: Result(1, "", "Operation not permitted")
    with pytest.raises(Failure, match="Operation not permitted"):
        tc.qdiscs(machine)


@pytest.mark.parametrize("as_text", [False, True])
def test_qdiscs_of_all_ports_are_read(as_text: bool) -> None:
    rows: list[Json] = [
        {"kind": "mq", "handle": "0:", "dev": "a", "root": True, "options": {}},
        {"kind": "clsact", "handle": "ffff:", "dev": "a", "parent": "ffff:fff1", "options": {}},
        {"kind": "ingress", "handle": "ffff:", "dev": "b", "parent": "ffff:fff1", "options": {}},
    ]
    text = "qdisc mq 0: dev a root \n Sent 0 bytes 0 pkt\nqdisc clsact ffff: dev a parent ffff:fff1 \n"
    text += "qdisc ingress ffff: dev b parent ffff:fff1 ---------------- \n"
    machine = Machine()
    machine.hooks["tc"] = lambda argv: Result(0, text if "-j" not in argv else "[{" if as_text else json.dumps(rows))
    found = tc.qdiscs(machine)
    assert [(row["netdev"], row["kind"], row["parent"]) for row in found] == [
        ("a", "mq", "root"),
        ("a", "clsact", "ffff:fff1"),
        ("b", "ingress", "ffff:fff1"),
    ]
    assert [row["kind"] for row in tc.at_ingress(found, "b")] == ["ingress"]


# devlink and ethtool, as recorded on a Spark

STATS = (
    '{"dev":{"pci/0000:01:00.0":{"stats":{"reload":{"driver_reinit":{"unspecified":1},'
    '"fw_activate":{"unspecified":0,"no_reset":0}},"remote_reload":{"driver_reinit":{"unspecified":0},'
    '"fw_activate":{"unspecified":0,"no_reset":0}}}}}}'
)
PARAM = (
    '{"param":{"pci/0000:01:00.0":[{"name":"hairpin_queue_size","type":"driver-specific",'
    '"values":[{"cmode":"driverinit","value":8192}]}]}}'
)
PCI = "pci/0000:01:00.0"


def test_the_counter_of_reinitialisations_is_read_and_that_of_others_is_not() -> None:
    assert devlink.reinits(Result(0, STATS)) == {PCI: {"reinits": 1, "reload_failed": False}}
    remote = STATS.replace('"unspecified":1', '"unspecified":0', 1).replace("remote_reload", "remote", 1)
    assert devlink.reinits(Result(0, remote))[PCI]["reinits"] == 0
    failed = STATS.replace('{"stats"', '{"reload_failed":true,"stats"')
    assert devlink.reinits(Result(0, failed))[PCI]["reload_failed"] is True
    for broken in (Result(1, STATS), Result(0, "{"), Result(0, "[]"), Result(0, '{"dev": 1}')):
        assert devlink.reinits(broken) == {}
    assert devlink.reinits(Result(0, '{"dev":{"pci/x":{"stats":{"reload":{}}}}}'))["pci/x"]["reinits"] is None


def test_parameters_are_read_of_the_mode_that_counts() -> None:
    assert devlink.parameters(Result(0, PARAM)) == {PCI: {"hairpin_queue_size": 8192}}
    both = [{"cmode": "permanent", "value": 1}, {"cmode": "runtime", "value": "hmfs"}]
    row = {"name": "flow_steering_mode", "values": both}
    assert devlink.parameters(Result(0, json.dumps({"param": {PCI: [row]}}))) == {PCI: {"flow_steering_mode": "hmfs"}}


@pytest.mark.parametrize("value", ["on", "off", "off [fixed]", "off [requested on]"])
def test_offload_is_read_word_for_word(value: str) -> None:
    assert devlink.offload(Result(0, f"Features for x:\ntx-checksumming: on\nhw-tc-offload: {value}\n")) == value


def test_offload_that_is_not_listed_is_unknown() -> None:
    assert devlink.offload(Result(0, "Features for x:\nesp-hw-offload: off [fixed]\n")) is None


GOOD = {"hairpin_num_queues": 4, "hairpin_queue_size": 8192, "reinits": 1, "reload_failed": False, "offload": "on"}


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "in-effect"),
        ({"offload": "off"}, "offload-off"),
        ({"reinits": 0}, "pending"),
        ({"hairpin_queue_size": 1024}, "default"),
        ({"hairpin_num_queues": 2}, "default"),
        ({"reload_failed": True}, "failed"),
        ({"reinits": None}, "unknown"),
        ({"reinits": True}, "unknown"),
        ({"reload_failed": None}, "unknown"),
        ({"hairpin_queue_size": None}, "unknown"),
        ({"offload": None}, "unknown"),
        # which goes first
        ({"reinits": None, "hairpin_queue_size": 1024}, "unknown"),
        ({"hairpin_queue_size": 1024, "reload_failed": True}, "default"),
        ({"reload_failed": True, "reinits": 0}, "failed"),
        ({"reinits": 0, "offload": "off"}, "pending"),
    ],
)
def test_a_shown_value_is_in_effect_only_with_everything_else(changes: Json, state: str) -> None:
    assert devlink.state({"hairpin_num_queues": 4, "hairpin_queue_size": 8192}, GOOD | changes) == state


def test_a_function_that_is_not_there_is_unknown() -> None:
    assert devlink.state({"hairpin_num_queues": 4, "hairpin_queue_size": 8192}, None) == "unknown"
