"""Texts that people read, byte for byte. To renew one, write down what the failing test shows."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet.loading import load
from fleet.picture import picture, table
from fleet.plan import Plan
from fleet.planner import make
from fleet.stack import StackName
from tests.unit.stacks import changed, ring, switched

GOLDEN = Path(__file__).parent / "golden"

FLEETS: dict[str, dict[str, Any]] = {
    "ring4": ring(),
    "ring3-reversed": changed(ring(3), {"fabric.cabling": "reversed"}),
    "ring5-plane0": changed(ring(5), {"fabric.plane1.enabled": "off", "fabric.ipRelay": "off"}),
    "ring12": ring(12),
    "switched2": switched(2),
    "switched4-f1": switched(4, port="f1", mtu=4200),
    "ring-leaving": changed(ring(5), {"nodes[2].state": "leaving"}),
}


def planned(fleet: str) -> Plan:
    return make(load(FLEETS[fleet]), None, StackName("spark-fabric", "golden"))


@pytest.mark.parametrize("fleet", FLEETS)
def test_picture_and_table(fleet: str) -> None:
    plan = planned(fleet)
    assert f"{picture(plan)}\n\n{table(plan)}\n" == (GOLDEN / f"{fleet}.txt").read_text()


@pytest.mark.parametrize(
    ("fleet", "node", "plane"), [("ring4", 0, 0), ("ring4", 2, 1), ("ring5-plane0", 1, 0), ("switched4-f1", 3, 1)]
)
def test_netplan_text(fleet: str, node: int, plane: int) -> None:
    text = planned(fleet).nodes[node].stages[f"plane{plane}"]["text"]
    assert text == (GOLDEN / f"{fleet}-node{node}-plane{plane}.yaml").read_text()


@pytest.mark.parametrize("fleet", FLEETS)
def test_netplan_text_says_what_the_desired_state_says(fleet: str) -> None:
    for node in planned(fleet).ranks:
        for desired in (node.stages["plane0"], node.stages["plane1"]):
            if desired["state"] == "off":
                continue
            ethernets = yaml.safe_load(desired["text"])["network"]["ethernets"]
            assert list(ethernets) == sorted(port["netdev"] for port in desired["ports"])
            for port in desired["ports"]:
                stanza = ethernets[port["netdev"]]
                assert stanza.pop("networkmanager") == {
                    "passthrough": {"ipv6.method": "link-local", "ipv6.addr-gen-mode": "eui64"}
                }
                assert stanza.pop("routes", []) == port["routes"]
                assert stanza == {
                    "renderer": "NetworkManager",
                    "dhcp4": False,
                    "dhcp6": False,
                    "optional": True,
                    "mtu": port["mtu"],
                    "addresses": [port["address"]],
                }
