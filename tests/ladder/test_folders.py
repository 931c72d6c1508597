"""The engine's folders of state and packed engram, as `python -m fleet tables` and `pack` fill them.

The tests share one stack, in the order of this file.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab import api

from . import damages
from .conftest import NewRig
from .rig import Rig

STATE, ENGRAM = "/srv/folders/state", "/srv/folders/engram"
SPS, STS = f"{STATE}/dspark_sps.json", f"{STATE}/dspark_sts.json"
# The room that packing asks for, whatever the machine's disk has left.
MAKE = f"mkdir -p {STATE} {ENGRAM} && mount -t tmpfs -o size=60g,mode=755 packed {ENGRAM}"
AWAY = f"umount {ENGRAM} && rm -r /srv/folders {damages.WEIGHTS}"
NAME = "spark-fabric-folders"


@pytest.fixture(scope="module")
def rig(ring_lab: api.Handle, new_rig: NewRig) -> Iterator[Rig]:
    """Four engines that have both folders."""
    rig = new_rig(ring_lab, "folders")
    rig.set("engine.weights", {"path": damages.WEIGHTS})
    rig.set("engine.volumes", [f"{STATE}:/state", f"{ENGRAM}:/engram"])
    before = ring_lab.snapshots()
    ring_lab.everywhere(f"{damages.BEFOREHAND} && {MAKE}")
    try:
        rig.up()
        yield rig
    finally:
        rig.destroy()
        ring_lab.everywhere(AWAY)
    rig.assert_empty()
    rig.assert_as(before)


def files(rig: Rig, folder: str) -> dict[str, list[str]]:
    """Node -> tables or packed engram in a folder, each with its digest; engines write other files too."""
    names = r"\( -name 'dspark_*' -o -name 'engram-*' \)"
    shown = rig.lab.everywhere(f"cd {folder} && find . {names} -print0 | sort -z | xargs -0r sha256sum")
    return {node: text.splitlines() for node, text in shown.items()}


def test_neither_is_done_while_engines_run(rig: Rig) -> None:
    rig.lab.run("spark1", f"echo 1 >{SPS}")
    before = rig.engines()
    for verb in ("tables", "pack"):
        rig.fleet(verb, ok=False).says(*(f"{node}: rank {rank} runs" for rank, node in enumerate(rig.lab.names)))
    assert rig.engines() == before
    assert [len(names) for names in files(rig, STATE).values()] == [1, 0, 0, 0]
    assert not any(files(rig, ENGRAM).values())
    rig.lab.everywhere(f"docker stop -t 5 {NAME}")


def test_the_tables_of_the_head_come_to_all_workers_and_others_go(rig: Rig) -> None:
    rig.lab.run("spark1", f"echo '{{\"steps\": [1, 2]}}' >{SPS}")
    rig.lab.run("spark2", f"echo old >{SPS} && echo stale >{STS}")
    rig.fleet("doctor", ok=None).says(f"spark2 {SPS}: is another one than on the head", "python -m fleet tables")
    rig.fleet("tables").says(
        *(f"{node} {SPS}: copied from spark1" for node in ("spark2", "spark3", "spark4")),
        f"spark2 {STS}: removed, as spark1 has none",
    )
    found = files(rig, STATE)
    assert [len(names) for names in found.values()] == [1, 1, 1, 1]
    assert len({*map(str, found.values())}) == 1
    rig.fleet("tables").says(f"spark4 {SPS}: as on spark1", f"spark4 {STS}: none, as on spark1")
    assert files(rig, STATE) == found


def test_every_rank_has_its_engram_packed_once_and_no_container_stays(rig: Rig) -> None:
    containers = rig.lab.everywhere("docker ps -aq --no-trunc")
    rig.fleet("pack").says(*(f"{node} {ENGRAM}: packed in " for node in rig.lab.names))
    found = files(rig, ENGRAM)
    for rank, names in enumerate(found.values()):
        assert [name.split("./")[1] for name in names] == [f"engram-l1-r{rank}of4.bin", f"engram-l14-r{rank}of4.bin"]
    assert rig.lab.everywhere("docker ps -aq --no-trunc") == containers
    rig.fleet("pack").says(*(f"{node} {ENGRAM}: holds the packed engram of rank" for node in rig.lab.names))
    assert files(rig, ENGRAM) == found


def test_the_engines_start_with_what_is_there_and_nothing_is_undone(rig: Rig) -> None:
    state, engram = files(rig, STATE), files(rig, ENGRAM)
    rig.up()
    rig.unchanged()
    rig.assert_one_group()
    rig.destroy()
    assert (files(rig, ENGRAM), files(rig, STATE)) == (engram, state)
