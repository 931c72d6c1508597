"""The simulated GID table, which must give places as the kernel does."""

from __future__ import annotations

import importlib.machinery
import importlib.util
from ipaddress import IPv6Address
from types import ModuleType
from typing import Any

import pytest

from lab.debian import DISK

MAC = "02:5a:aa:00:01:11"


@pytest.fixture(scope="module")
def roce() -> ModuleType:
    path = str(DISK / "root/usr/local/lib/lab/roce")
    spec = importlib.util.spec_from_loader("roce", importlib.machinery.SourceFileLoader("roce", path))
    assert spec
    module = importlib.util.module_from_spec(spec)
    assert spec.loader
    spec.loader.exec_module(module)
    return module


def link(*addresses: str) -> dict[str, Any]:
    rows = [{"family": "inet6" if ":" in address else "inet", "local": address} for address in addresses]
    return {"address": MAC, "addr_info": rows}


def place(table: list[Any], address: str) -> list[int]:
    mapped = f"::ffff:{address}" if "." in address else address
    return [index for index, entry in enumerate(table) if entry and entry[0] == IPv6Address(mapped)]


def follow(roce: ModuleType, *states: list[str]) -> list[Any]:
    table: list[Any] = [None] * roce.PLACES
    for addresses in states:
        table = roce.next_table(table, roce.port_addresses(link(*addresses), speaks_ipv6=True))
    return table


def test_eui64_link_local_is_the_default_gid_so_ipv4_lands_on_3(roce: ModuleType) -> None:
    eui64 = str(roce.default_gid(MAC))
    table = follow(roce, [eui64, "10.10.0.10"])
    assert place(table, eui64) == [0, 1]
    assert place(table, "10.10.0.10") == [2, 3]
    assert [kind for _, kind in table[:4]] == ["IB/RoCE v1", "RoCE v2"] * 2


def test_a_stable_privacy_link_local_pushes_ipv4_to_5(roce: ModuleType) -> None:
    assert place(follow(roce, ["fe80::1234"], ["fe80::1234", "10.10.0.10"]), "10.10.0.10") == [4, 5]


def test_what_stays_keeps_its_place_when_another_goes(roce: ModuleType) -> None:
    table = follow(roce, ["fe80::1234"], ["fe80::1234", "10.10.0.10"], ["10.10.0.10"])
    assert place(table, "10.10.0.10") == [4, 5]
    assert table[2] is None
    assert place(
        follow(roce, ["fe80::1"], ["fe80::1", "10.1.1.1"], ["10.1.1.1"], ["10.1.1.1", "10.2.2.2"]), "10.2.2.2"
    ) == [2, 3]


def test_without_ipv6_the_first_address_lands_on_1(roce: ModuleType) -> None:
    table = roce.next_table([None] * roce.PLACES, roce.port_addresses(link("10.10.0.10"), speaks_ipv6=False))
    assert place(table, "10.10.0.10") == [0, 1]


def drift(roce: ModuleType, *states: list[str]) -> list[Any]:
    """The table of a port with the fault gid4."""
    table: list[Any] = [None] * roce.PLACES
    occupied: frozenset[int] = frozenset()
    for addresses in states:
        wanted = roce.port_addresses(link(*addresses), speaks_ipv6=True)
        occupied = roce.next_occupied(table, wanted, occupied, drifts=True)
        table = roce.next_table(table, wanted, occupied)
    return table


def test_with_the_fault_an_address_comes_back_at_4_and_once_removed_again_at_3(roce: ModuleType) -> None:
    eui64 = str(roce.default_gid(MAC))
    there, gone = [eui64, "10.10.0.10"], [eui64]
    assert place(drift(roce, there), "10.10.0.10") == [2, 3]
    assert drift(roce, there, gone, there)[4] == (IPv6Address("::ffff:10.10.0.10"), "RoCE v2")
    assert drift(roce, there, gone, there)[3] is None
    assert place(drift(roce, there, gone, there, gone, there), "10.10.0.10") == [2, 3]
    assert place(follow(roce, there, gone, there), "10.10.0.10") == [2, 3]


def test_a_full_table_takes_no_more(roce: ModuleType) -> None:
    table = follow(roce, [f"10.0.0.{k}" for k in range(1, 40)])
    assert len(table) == roce.PLACES
    assert all(table)
