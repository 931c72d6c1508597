"""What writes nothing: an `up` without a change, a change that is none for the nodes, and every preview.

"Nothing" is: no call of a program that changes something, no word of the kernel about a fabric port, no file with
another content or time of change in the listed trees (the journal is in them), no new activation of a NetworkManager
profile, and the same containers since the same moment.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab import api
from lab.snapshot import Snapshot, diff

from .conftest import NewRig
from .killing import Running, program_points
from .operations import logged_up, planned
from .rig import Rig, copy_checkout
from .witness import Witness, watching

PLANES = ("plane0", "plane1")
STARTED = "docker ps -aq --no-trunc | xargs -r docker inspect --format '{{.Id}} {{.State.Status}} {{.State.StartedAt}}'"
# ACTIVE-PATH is another for each activation.
ACTIVATIONS = "nmcli -t -f UUID,DEVICE,ACTIVE-PATH connection show --active | sort"


@dataclass
class Fleet:
    """A stack that is up, and the nodes' own record of what happens to it."""

    rig: Rig
    witness: Witness

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Whatever happens in here writes nothing on any node."""
        since = time.time_ns()
        files, profiles, engines = self._seen()
        yield
        after, profiles_after, engines_after = self._seen()
        record = self.witness.record(since)
        assert record.calls == []
        assert record.changes == []
        assert differences(files, after) == []
        assert profiles_after == profiles
        assert engines_after == engines

    def _seen(self) -> tuple[dict[str, Snapshot], dict[str, str], dict[str, str]]:
        lab = self.rig.lab
        return lab.snapshots(), lab.everywhere(ACTIVATIONS), lab.everywhere(STARTED)


@pytest.fixture(scope="module")
def fleet(ring_lab: api.Handle, new_rig: NewRig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Four nodes in a ring, from a checkout of its own that may be changed."""
    checkout = copy_checkout(tmp_path_factory.mktemp("own") / "spark-fabric")
    rig = new_rig(ring_lab, "writes", "ring", checkout)
    with rig.leaving_no_trace(), watching(ring_lab) as witness:
        rig.up()
        yield Fleet(rig, witness)


def test_a_file_that_is_only_touched_is_a_write(fleet: Fleet) -> None:
    with pytest.raises(AssertionError, match="spark2: files: /etc/hostname"), fleet.untouched():
        fleet.rig.lab.run("spark2", "touch /etc/hostname")


def test_an_unchanged_up_writes_nothing(fleet: Fleet) -> None:
    with fleet.untouched():
        _, done = logged_up(fleet.rig)
    assert not done.spans


def test_a_preview_of_a_change_writes_nothing(fleet: Fleet) -> None:
    changes = {"fabric.mtu": 4200, "fabric.plane1.enabled": False, "engine.port": 8889}
    with fleet.untouched():
        for path, value in changes.items():
            with fleet.rig.changed(path, value):
                assert planned(fleet.rig.preview())


def test_another_path_of_the_same_key_is_an_update_that_writes_nothing(fleet: Fleet, tmp_path: Path) -> None:
    rig = fleet.rig
    rig.set("ssh.identity", shutil.copy(rig.config["ssh"]["identity"], tmp_path))
    preview = planned(rig.preview())
    with fleet.untouched():
        _, done = logged_up(rig)
    assert {op for op, _ in done.spans} == {"update"}
    assert done.kinds == preview
    rig.unchanged()


def test_another_comment_in_the_netplan_text_is_an_update_that_writes_nothing(fleet: Fleet) -> None:
    planner = fleet.rig.checkout / "fleet" / "desired.py"
    text = planner.read_text()
    assert "A hand edit shows as drift" in text
    planner.write_text(text.replace("A hand edit shows as drift", "An edit by hand shows as drift"))
    with fleet.untouched():
        _, done = logged_up(fleet.rig)
    assert {op for op, _ in done.spans} == {"update"}
    assert {name for _, name in done.spans} >= {f"{node}-{stage}" for node in fleet.rig.lab.names for stage in PLANES}
    fleet.rig.unchanged()


def test_an_upgrade_of_the_node_program_is_no_change(fleet: Fleet) -> None:
    program = fleet.rig.checkout / "node" / "plane.py"
    program.write_text(program.read_text() + "\n# A later version.\n")
    with fleet.untouched():
        _, done = logged_up(fleet.rig)
    assert not done.spans


def test_a_repair_that_no_engine_feels_leaves_the_engines_alone(fleet: Fleet) -> None:
    lab = fleet.rig.lab
    engines = lab.everywhere(STARTED)
    lab.run("spark1", "ip route del 10.10.1.0/24")
    _, done = logged_up(fleet.rig)
    assert ("update", "spark1-plane0") in done.spans
    assert {op for op, _ in done.spans} == {"update"}
    assert "via 10.10.0.11" in lab.run("spark1", "ip route show 10.10.1.0/24").stdout
    assert lab.everywhere(STARTED) == engines
    fleet.rig.unchanged()


def test_a_preview_beside_a_running_up_writes_nothing_and_says_where_it_is_at_work(fleet: Fleet) -> None:
    lab, rig = fleet.rig.lab, fleet.rig
    with (
        rig.changed("fabric.mtu", 4200),
        program_points(lab),
        lab.stopped_at("spark2", "journal-apply") as point,
    ):
        running = Running(rig, "up", "--yes", "--skip-preview")
        running.until(point)
        settle(fleet)
        since, before = time.time_ns(), lab.snapshots()
        told = rig.pulumi("preview")
        record, after = fleet.witness.record(since), lab.snapshots()
    assert running.end() == 0, running.out
    assert "spark2: is being changed by" in told.out
    assert record.calls == []
    assert record.changes == []
    assert differences(before, after) == []


def differences(before: dict[str, Snapshot], after: dict[str, Snapshot]) -> list[str]:
    """What differs on any node, times of change included."""
    return [f"{node}: {line}" for node in before for line in diff(before[node], after[node], times=True)]


def settle(fleet: Fleet, quiet_s: float = 3.0, limit_s: float = 90.0) -> None:
    """Wait until nothing was changed on any node for a while."""
    end = time.monotonic() + limit_s
    while True:
        record = fleet.witness.record(time.time_ns() - int(quiet_s * 1e9))
        if not record.changes and not record.calls:
            return
        assert time.monotonic() < end, "the nodes do not come to rest"
        time.sleep(0.5)
