"""Reading what `observe` answers, gaps included."""

from ipaddress import IPv4Address

import pytest

from fleet.facts import parse
from fleet.topology import Socket
from tests.unit import observed


def test_an_answer_full_of_nulls_is_read() -> None:
    names = ("hostname", "machine_id", "ssh", "journal", "links", "hcas", "routes", "docker", "nm", "sysctl", "netplan")
    facts = parse({"schema": 1, **dict.fromkeys(names)})
    assert not facts.links
    assert not facts.hcas
    assert facts.ssh_netdev is None
    assert facts.at(0, Socket.F0) == ()
    assert facts.mapping() == "no RDMA device"


def test_an_unknown_schema_is_refused() -> None:
    with pytest.raises(ValueError, match="schema 2"):
        parse({"schema": 2})


def test_places_and_duties_are_found() -> None:
    facts = parse(observed.fresh(1))
    assert [hca.name for hca in facts.at(1, Socket.F1)] == ["roceP2p1s0f1"]
    assert facts.holding(IPv4Address("192.168.1.11")) == "enP7s7"
    assert facts.default_netdevs == {"enP7s7"}
    assert "enP2p1s0f1np1/roceP2p1s0f1 at 0002:01:00.1" in facts.mapping()


def test_a_half_written_device_is_no_port() -> None:
    raw = observed.fresh(1)
    raw["hcas"]["rocep1s0f0"] = {"netdev": None, "domain": None, "function": None}
    facts = parse(raw)
    assert facts.at(0, Socket.F0) == ()
    assert "-/rocep1s0f0 at domain ? function ?" in facts.mapping()
