"""Names and addresses: unique on the machine, as on a Spark inside, and short enough for the kernel."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lab import model, network
from lab.cabling import FUNCTIONS, Port, factory
from lab.model import MAX_NODES, NETWORKS, Lab, Node, host_link
from lab.registry import Claim
from lab.shell import LabError

KERNEL_LIMIT = 15


def test_every_link_name_fits_in_the_last_slot_too() -> None:
    node = Node("x" * 30, len(NETWORKS) - 1, MAX_NODES)
    names = [host_link(node.slot), node.management_link, model.MANAGEMENT_PORT]
    names += [node.fabric_link(function) for function in FUNCTIONS]
    names += [function.netdev for function in FUNCTIONS]
    names += [cable.segment for cable in factory("ring", MAX_NODES)]
    assert max(map(len, names)) <= KERNEL_LIMIT


def test_two_labs_have_no_name_on_the_machine_in_common() -> None:
    one, other = (set(network.things(Claim(name, "/nowhere", slot, MAX_NODES))) for name, slot in (("a", 1), ("b", 2)))
    assert not one & other
    assert len(one) == 2 + MAX_NODES


def test_addresses_and_hostnames_follow_the_index() -> None:
    node = Node("demo", 0, 3)
    assert (node.name, node.address, node.unique) == ("spark3", "198.18.0.13", "demo-spark3")
    assert Node("other", 300, 1).address == "198.19.44.11"


def test_macs_are_unicast_unique_and_spaced_as_on_a_spark() -> None:
    seen = set()
    for slot in (0, 1, 255, 256, 511):
        for index in (1, 8):
            node = Node("x", slot, index)
            macs = [node.mac(), *(node.mac(function.mac_offset) for function in FUNCTIONS)]
            base = int(macs[0].replace(":", ""), 16)
            assert [int(mac.replace(":", ""), 16) - base for mac in macs] == [0, 1, 2, 5, 6]
            assert int(macs[0][:2], 16) & 3 == 2
            seen.update(macs)
    assert len(seen) == 5 * 2 * 5


def test_each_card_that_a_node_may_get_has_macs_of_its_own() -> None:
    node = Node("x", 0, 1)
    cards = range(model.MAX_CARDS + 1)
    macs = {node.mac(), *(node.mac(function.mac_offset, card) for card in cards for function in FUNCTIONS)}
    assert len(macs) == 1 + len(cards) * len(FUNCTIONS)
    assert all(re.fullmatch(r"([0-9a-f]{2}:){5}[0-9a-f]{2}", mac) for mac in macs)


@pytest.mark.parametrize("name", ["", "Demo", "a b", "a/b", "1a", "x" * 40])
def test_a_name_that_could_not_be_a_namespace_is_refused(name: str) -> None:
    with pytest.raises(LabError, match="name"):
        Lab(name, Path("/tmp/x"))


def test_a_folder_that_overlayfs_would_misread_is_refused() -> None:
    with pytest.raises(LabError, match="overlay"):
        Lab("x", Path("/tmp/a,b"))


def test_the_state_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    lab = Lab("x", tmp_path)
    state = model.State.new("ring", 3, 7, trace=True)
    state.cables = [*state.cables[1:]]
    lab.save(state)
    assert lab.state == state
    assert Port(1, 0) not in {port for cable in lab.state.cables for port in cable.ports}
