"""Cables of a factory-fresh ring that are not where the settings have them, through the real Pulumi."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab import api

from .conftest import NewRig
from .rig import Rig

NAMED_WITHIN_S = 15
FACTORY = ("1-2", "2-3", "3-4", "4-1")


@pytest.fixture
def rig(ring_lab: api.Handle, new_rig: NewRig) -> Iterator[Rig]:
    """A stack that was never up; the cables are put back."""
    yield new_rig(ring_lab, "cabling")
    for cable in FACTORY:
        ring_lab.plug(cable)


def changing(lab: api.Handle, since: int) -> list[str]:
    """What was called on the nodes that changes something."""
    return [f"{call.node}: {call.tool} {call.argv}" for call in lab.traces()[0] if call.began >= since]


def listened(rig: Rig) -> int:
    """Nanoseconds at which the wires were kept last."""
    return (rig.checkout / ".spark-fabric" / rig.stack / "cabling.json").stat().st_mtime_ns


def test_two_swapped_cables_are_named_with_the_order_that_fits_before_any_address_is_written(rig: Rig) -> None:
    lab = rig.lab
    lab.plug("spark1:f0", "spark3:f0")
    lab.plug("spark2:f1", "spark4:f1")
    before = lab.snapshots()
    lab.clear_traces()
    for run in (rig.pulumi("preview", ok=False), rig.up(ok=False)):
        run.says(
            "3 problem(s); nothing was changed",
            "cable 0: is not there: spark1 f0 leads to spark3 f0, spark2 f1 leads to spark4 f1",
            "cable 2: is not there: spark3 f0 leads to spark1 f0, spark4 f1 leads to spark2 f1",
            "Put them in the order spark1 spark3 spark2 spark4",
        )
        assert run.seconds < NAMED_WITHIN_S
    assert changing(lab, since=0) == []
    rig.assert_as(before)
    told = rig.fleet("cabling", ok=False)
    told.says("ring: spark1 spark3 spark2 spark4")
    assert told.code == 3

    nodes = rig.config["nodes"]
    rig.config["nodes"] = [nodes[0], nodes[2], nodes[1], nodes[3]]
    rig.fleet("cabling")
    rig.up()
    rig.assert_one_group()
    rig.assert_served()
    rig.unchanged()
    heard = listened(rig)
    rig.unchanged()
    assert listened(rig) == heard
    rig.destroy()
    rig.assert_empty()


def test_a_ring_the_other_way_round_comes_up_without_a_word_and_a_recabled_one_is_told(rig: Rig) -> None:
    lab = rig.lab
    for one, other in ((1, 4), (4, 3), (3, 2), (2, 1)):
        lab.plug(f"spark{one}:f0", f"spark{other}:f1")
    rig.up()
    rig.assert_one_group()
    rig.unchanged()
    for cable in FACTORY:
        lab.plug(cable)
    rig.pulumi("preview").says("finds 4 cables that were not there when the ports got their addresses")
    rig.up()
    rig.assert_one_group()
    rig.unchanged()
    rig.destroy()
    rig.assert_empty()
