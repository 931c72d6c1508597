"""Damage behind the program's back: named exactly, repaired with the least that is needed or refused, and then gone.

The tables are in `damages.py`. A round does all damages of one at once, since every look at a fleet and every start of
an engine takes time: one doctor, one preview, one `up`, one empty preview. The tests read what the round has seen, each
kind of damage in its own. The rounds share one stack, in the order of this file, and leave it whole.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from fleet.verdicts import DEVIATIONS, Verdict
from lab import api, checkpoint
from lab.shell import wait_for
from lab.snapshot import Snapshot, diff

from . import damages
from .conftest import NewRig
from .damages import CABLES, CLAIM, DISRUPTIVE, ENGINES, IN_PLACE, REFUSED, STACK, WARNED, Damage, Engine, Told
from .operations import Key, logged_up
from .rig import Rig, Run, Unexpected
from .witness import Record, Witness, watching

DRIFT = sorted({row.code for row in DEVIATIONS if row.is_drift})
FABRIC = {("update", "fabric-staged"), ("update", "fabric-verified")}
GROUP = {("replace", name) for name in ("stop", "gate", "halt", "health")}
CUT_OFF = ("gid-port", "drift plane0", "drift plane1")
NAMED_WITHIN_S = 15
# Of the engine: its drift is told apart, and docker's own healthcheck notices in its own time what harms an engine.
BESIDE = ("engine", "engine-unhealthy")
OWN = "/var/lib/spark-fabric/"  # the journal, and what lies beside it

Line = tuple[str, str, str, str]  # code, node, object, what was seen


@dataclass(frozen=True)
class Look:
    """What was said of a damaged fleet."""

    lines: list[Line]  # everything that fails or warns, by the doctor
    engine: list[str]
    exit: int

    def found(self, damage: Damage) -> None:
        """All lines of a damage are there, each once."""
        for node, told in damage.lines:
            hits = [line for line in self.lines if _is(line, node, told)]
            assert len(hits) == 1, f"{node} {told} is {hits} among {self.lines}"

    def nothing_but(self, table: Iterable[Damage]) -> None:
        """Every line is of a damage."""
        wanted = [one for damage in table for one in damage.lines]
        strange = [line for line in self.lines if not any(_is(line, *one) for one in wanted)]
        assert strange == []


def _is(line: Line, node: str, told: Told) -> bool:
    return line[:3] == (told.code, node, told.subject) and line[3].startswith(told.seen)


@dataclass(frozen=True)
class Round:
    """What one round has seen: of the damages, of what would be done, of what was done, and of what is left."""

    look: Look
    reasons: dict[str, str]  # resource -> the text that its update ends with
    planned: set[Key]
    done: set[Key]
    record: Record
    since: int
    left: list[str]  # that is not as before the damage
    empty: str  # "" where the next preview finds nothing to do, else what it said


@dataclass(frozen=True)
class Refusal:
    """What was said of damage that is in the way, by the doctor and by an `up`."""

    look: Look
    run: Run


@dataclass
class Fleet:
    """A stack that is up, and the nodes' own record."""

    rig: Rig
    witness: Witness
    before: dict[str, Snapshot]  # how the nodes are while all is well

    def harm(self, table: Iterable[Damage | Engine]) -> None:
        """Do all damages, side by side on the nodes."""
        self._everywhere([(one.node, one.harm) for one in table])

    def undo(self, table: Iterable[Damage]) -> None:
        """Take away what no `up` does, the last first."""
        self._everywhere([(one.node, one.undo) for one in reversed([*table])])

    def _everywhere(self, commands: Iterable[tuple[str, str]]) -> None:
        scripts: dict[str, list[str]] = {}
        for node, command in commands:
            scripts.setdefault(node, ["set -e"]).append(command)
        with ThreadPoolExecutor(len(scripts)) as pool:
            lab = self.rig.lab
            list(pool.map(lambda node: lab.run(node, "\n".join(scripts[node]), timeout=120), scripts))

    def look(self, *, refuse: bool = True) -> Look:
        """What the doctor says. With `refuse`, deviations come one by one with their codes."""
        with self.rig.changed("preflight.refuse", DRIFT if refuse else []):
            run = self.rig.fleet("doctor", "--json", ok=None)
        said: dict[str, Any] = json.loads(run.out)
        assert said["exit"] == run.code
        bad = [line for line in said["lines"] if line["word"] in ("fail", "warn")]
        lines = [
            (line["code"], line["node"] or "", line["subject"], line["seen"])
            for line in bad
            if line["code"] not in BESIDE and not line["code"].startswith("drift ")
        ]
        return Look(lines, [line["seen"] for line in bad if line["code"] == "engine"], run.code)

    def reasons(self) -> tuple[set[Key], dict[str, str]]:
        """What an `up` would do, and the reason that each update shows."""
        out = self.rig.pulumi("preview", "--json").out
        steps = [step for step in json.loads(out[out.index("{") :])["steps"] if step["op"] != "same"]
        names = {step["urn"].rsplit("::", 1)[-1]: step for step in steps}
        texts = {
            name: str(step["newState"].get("inputs", {}).get("update") or "").partition(" # ")[2]
            for name, step in names.items()
            if step["op"] == "update"
        }
        kinds = {("replace" if "replace" in step["op"] else step["op"], name) for name, step in names.items()}
        return kinds, texts

    def refusal(self) -> Refusal:
        """Look at a fleet that is damaged already, and try an `up`, which has to change nothing."""
        since, engines = time.time_ns(), self.rig.engines()
        look = self.look(refuse=False)
        run = self.rig.up(ok=False)
        record = self.witness.record(since)
        assert self.rig.engines() == engines
        assert record.calls == []
        return Refusal(look, run)

    def settled(self) -> bool:
        """Whether every port of the fabric is up or given up."""
        shown = self.rig.lab.everywhere("nmcli -t -f DEVICE,STATE device")
        rows = [line.split(":") for text in shown.values() for line in text.splitlines()]
        states = {state for port, state in rows if port.startswith(("enp", "enP2"))}
        return states <= {"connected", "unavailable"}

    def round(self, table: Iterable[Damage | Engine], settled: Callable[[], bool] | None = None) -> Round:
        """Damage, look, preview, repair, and look whether all is as before."""
        lab, rig = self.rig.lab, self.rig
        before = self.before
        self.harm(table)
        if settled:
            assert wait_for(settled, every=0.5)
        look = self.look()
        planned, reasons = self.reasons()
        since = time.time_ns()
        _, done = logged_up(rig)
        record = self.witness.record(since)
        try:
            rig.unchanged()
            empty = ""
        except Unexpected as error:
            empty = str(error)
        after = lab.snapshots(like=before)
        changed = {name: diff(before[name], after[name]) for name in before}
        left = [f"{name} {line}" for name, lines in changed.items() for line in lines if OWN not in line]
        return Round(look, reasons, planned, done.kinds, record, since, left, empty)


def reason_of(damage: Damage, reasons: dict[str, str]) -> str:
    """The text of the resource that repairs a damage."""
    name = "fabric-verified" if damage.stage == "neighbours" else f"{damage.node}-{damage.stage}"
    return reasons[name]


def updates(table: Iterable[Damage]) -> set[Key]:
    """What has to be updated for damages, no more."""
    stages = {(node, one.stage) for one in table for node, _ in one.lines}
    return FABRIC | {("update", f"{node}-{stage}") for node, stage in stages if stage != "neighbours"}


@pytest.fixture(scope="module")
def fleet(ring_lab: api.Handle, new_rig: NewRig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Four nodes in a ring, up."""
    rig = new_rig(ring_lab, STACK)
    manifest = tmp_path_factory.mktemp("manifest") / "weights.sha256"
    manifest.write_text("".join(f"{sha256(data).hexdigest()}  {name}\n" for name, data in checkpoint.files().items()))
    rig.set("engine.weights", {"path": damages.WEIGHTS, "manifest": str(manifest)})
    fresh = ring_lab.snapshots()
    ring_lab.everywhere(damages.BEFOREHAND)
    with watching(ring_lab) as witness:
        try:
            rig.up().says(*(f"{name}: 4 files are those of the manifest" for name in ring_lab.names))
            yield Fleet(rig, witness, ring_lab.snapshots())
        finally:
            rig.destroy()
    rig.assert_empty()
    for node, command in damages.AFTERWARDS:
        ring_lab.run(node, command)
    ring_lab.everywhere(f"rm -r {damages.WEIGHTS}")
    rig.assert_as(fresh)


def test_the_doctor_finds_nothing_wrong_with_a_whole_fleet_and_writes_nothing(fleet: Fleet) -> None:
    since = time.time_ns()
    run = fleet.rig.fleet("doctor")
    words = {line.split()[0] for line in run.out.splitlines()[:-2]}
    assert words == {"PASS", "NOTE"}, run
    run.says("4 ranks run as one group", *(f"drift {stage}" for stage in ("plane0", "plane1", "relay", "nccl")))
    assert fleet.look(refuse=False) == fleet.look() == Look([], [], 0)
    record, after = fleet.witness.record(since), fleet.rig.lab.snapshots(like=fleet.before)
    assert (record.calls, record.changes) == ([], [])
    assert [line for name in after for line in diff(fleet.before[name], after[name], times=True)] == []


def test_every_rank_has_loaded_its_nodes_own_weights_and_cannot_write_them(fleet: Fleet) -> None:
    shown = "{{range .Mounts}}{{.Source}} {{.Destination}} {{.RW}}\n{{end}}"
    found = fleet.rig.lab.everywhere(f"docker inspect -f '{shown}' {damages.CONTAINER}")
    for text in found.values():
        assert f"{damages.WEIGHTS} {damages.MODEL} false" in text.splitlines()


def test_shared_weights_are_refused_where_kernels_volumes_or_the_server_do_not_fit(fleet: Fleet) -> None:
    """As far as the lab goes: its kernel may have no NFS. Nothing is changed, and nothing mounted."""
    lab, rig = fleet.rig.lab, fleet.rig
    head, alone = lab.address("spark1"), lab.address("spark4")
    nfs = {"server": head, "volume": damages.SHARED, "options": damages.NFS_OPTIONS}
    lab.run("spark1", damages.SERVES)
    lab.run("spark2", damages.volume(head, damages.NFS_OPTIONS))
    lab.run("spark3", damages.volume(head, "ro,hard"))
    try:
        with (
            rig.changed("engine.weights.nfs", nfs),
            rig.changed("nodes.3.weights", {"server": alone}),
        ):
            lines = fleet.look(refuse=False).lines
    finally:
        lab.run("spark1", "systemctl stop serves-2049")
        for node in ("spark2", "spark3"):
            lab.run(node, f"docker volume rm {damages.SHARED}")
    kernel = Path("/proc/filesystems").read_text().split()
    clients = [("nfs-client", name, "") for name in ("spark2", "spark3", "spark4") if "nfs4" not in kernel]
    silent, other = ("nfs-reach", "spark4", alone), ("nfs-volume", "spark3", damages.SHARED)
    assert sorted(line[:3] for line in lines) == sorted([*clients, silent, other])
    seen = {line[0]: line[3] for line in lines}
    assert seen["nfs-reach"] == "does not answer on TCP 2049: Connection refused"
    assert seen["nfs-volume"] == f"is local with device=:/, o=addr={head},ro,hard, type=nfs"


@pytest.fixture(scope="module")
def in_place(fleet: Fleet) -> Round:
    """What is repaired under the engine."""
    return fleet.round(IN_PLACE)


@pytest.mark.parametrize("damage", IN_PLACE, ids=str)
def test_what_no_engine_feels_is_named_at_the_resource_that_repairs_it(in_place: Round, damage: Damage) -> None:
    in_place.look.found(damage)
    rows = [row for told in damage.told for row in DEVIATIONS if row.code == told.code and row.idle in Verdict]
    assert Verdict.IN_PLACE in {row.idle for row in rows}
    assert f"{damage.told[0].subject}: {damage.told[0].seen}" in reason_of(damage, in_place.reasons)


def test_what_no_engine_feels_is_repaired_under_it_and_nothing_else_is_touched(in_place: Round) -> None:
    in_place.look.nothing_but(IN_PLACE)
    assert in_place.planned == in_place.done == updates(IN_PLACE)
    assert in_place.record.ended(in_place.since) == set()
    assert in_place.record.naming("kernel link") == []
    assert in_place.empty == ""
    assert [line for line in in_place.left if damages.PROFILE not in line] == []


@pytest.fixture(scope="module")
def warned(fleet: Fleet) -> tuple[Look, Run]:
    """What is told, and the preview beside it."""
    fleet.harm(WARNED)
    try:
        return fleet.look(refuse=False), fleet.rig.unchanged()
    finally:
        fleet.undo(WARNED)


@pytest.mark.parametrize("damage", WARNED, ids=str)
def test_what_is_only_strange_is_told_and_changes_nothing(warned: tuple[Look, Run], damage: Damage) -> None:
    look, preview = warned
    look.found(damage)
    assert look.exit == 0
    preview.says(*(f"{damage.node}: {told.seen}" for told in damage.told))


def test_what_is_only_strange_is_all_that_is_told(warned: tuple[Look, Run]) -> None:
    warned[0].nothing_but(WARNED)


def test_a_claim_of_another_stack_is_refused(fleet: Fleet) -> None:
    fleet.harm([CLAIM])
    try:
        found = fleet.refusal()
    finally:
        fleet.undo([CLAIM])
    found.look.found(CLAIM)
    found.look.nothing_but([CLAIM])
    found.run.says("1 problem(s); nothing was changed", f"spark2: {CLAIM.told[0].seen}")
    fleet.rig.unchanged()


@pytest.fixture(scope="module")
def refused(fleet: Fleet) -> Refusal:
    """What is in the way, cables included; afterwards all of it is taken away but what a stop of docker has ended."""
    lab = fleet.rig.lab
    fleet.harm(REFUSED)
    try:
        lab.pull("2-3")
        lab.plug("spark1:f0", "spark3:f0")
        lab.plug("spark2:f1", "spark4:f1")
        assert wait_for(lambda: given_up(lab, PULLED), every=0.5)
        found = fleet.refusal()
    finally:
        for cable in ("1-2", "2-3", "3-4"):
            lab.plug(cable)
        fleet.undo(REFUSED)
    assert wait_for(fleet.settled, every=0.5)
    return found


@pytest.mark.parametrize("damage", [*REFUSED, *CABLES], ids=str)
def test_what_is_in_the_way_is_named_and_refused(refused: Refusal, damage: Damage) -> None:
    refused.look.found(damage)
    refused.run.says(*(told.seen for _, told in damage.lines))


def test_what_is_in_the_way_is_all_that_is_told(refused: Refusal) -> None:
    refused.look.nothing_but([*REFUSED, *CABLES])
    lines = sum(len(damage.lines) for damage in (*REFUSED, *CABLES))
    refused.run.says(f"{lines} problem(s); nothing was changed")


@pytest.fixture(scope="module")
def disruptive(fleet: Fleet, refused: Refusal) -> Round:
    """What is repaired while no engine runs, after what was refused."""
    return fleet.round([*DISRUPTIVE, *ENGINES], lambda: given_up(fleet.rig.lab, DOWN))


DOWN = (("spark4", damages.F0), ("spark1", damages.F1))
PULLED = (("spark2", damages.F0), ("spark2", damages.F0B), ("spark3", damages.F1), ("spark3", damages.F1B))


def given_up(lab: api.Handle, ports: Iterable[tuple[str, str]]) -> bool:
    """Whether NetworkManager has given up these ports without a carrier, which it does after some seconds."""
    return all(
        "unavailable" in lab.run(node, f"nmcli -g GENERAL.STATE device show {port}").stdout for node, port in ports
    )


@pytest.mark.parametrize("damage", DISRUPTIVE, ids=str)
def test_what_an_engine_would_feel_is_named_at_the_resource_that_repairs_it(disruptive: Round, damage: Damage) -> None:
    disruptive.look.found(damage)
    assert f"{damage.told[0].subject}: {damage.told[0].seen}" in reason_of(damage, disruptive.reasons)


@pytest.mark.parametrize("damage", ENGINES, ids=str)
def test_a_rank_that_is_not_the_one_that_was_started_is_named(disruptive: Round, damage: Engine) -> None:
    for reason in damage.reasons:
        assert [line for line in disruptive.look.engine if line.startswith(reason)], disruptive.look.engine


def test_what_an_engine_would_feel_is_repaired_without_one_and_nothing_else_is_touched(
    fleet: Fleet, disruptive: Round
) -> None:
    disruptive.look.nothing_but(DISRUPTIVE)
    assert len(disruptive.look.engine) == sum(len(damage.reasons) for damage in ENGINES)
    engines = {("replace", f"{node}-engine") for node in fleet.rig.lab.names}
    assert disruptive.planned == disruptive.done
    read_again = {("update", "spark3-weights-read")}  # the shard that was emptied, and put back since
    assert disruptive.done == updates(DISRUPTIVE) | GROUP | engines | read_again | {("replace", "standstill")}
    disruptive.record.assert_disruption_without_engine()
    assert disruptive.empty == ""
    assert [line for line in disruptive.left if damages.PROFILE not in line] == []
    fleet.rig.assert_one_group()
    fleet.rig.assert_served()


# Before anybody can look, whatever the load is: a shell that starts `ip` leaves a moment for that.
SETS_BACK = f"""
import fcntl, socket, struct, time
request, wanted = 0x8922, struct.pack("16si", b"{damages.F0}", 1500)  # SIOCSIFMTU
with socket.socket() as any_socket:
    while True:
        fcntl.ioctl(any_socket, request, wanted)
        time.sleep(0.002)
"""


def test_drift_that_comes_back_is_repaired_once_and_no_further_up_stops_or_starts_anything(fleet: Fleet) -> None:
    lab, rig = fleet.rig.lab, fleet.rig
    rig.assert_one_group()
    lab.run("spark3", f"systemd-run -q --collect --unit=stubborn -p Nice=-20 python3 -c {shlex.quote(SETS_BACK)}")
    lab.run("spark3", f"timeout 5 sh -c 'until grep -qx 1500 /sys/class/net/{damages.F0}/mtu; do sleep 0.01; done'")
    mtu = f"{damages.F0}: MTU is 1500, plan wants 9000"
    try:
        rig.up(ok=False).says("spark3", mtu)
        engines, since = rig.engines(), time.time_ns()
        for _ in range(3):
            rig.up(ok=False).says(
                "1 problem(s); nothing was changed", f"spark3 plane0: was repaired once, and still: {mtu}"
            )
        assert rig.engines() == engines == {}
        assert fleet.witness.record(since).calls == []
    finally:
        lab.run("spark3", "systemctl stop stubborn")
    rig.fleet("retry", "spark3")
    rig.up()
    rig.unchanged()
    rig.assert_one_group()


def test_a_shard_with_other_bytes_is_read_and_named_before_anything_is_stopped(fleet: Fleet) -> None:
    """What was read of the others is not read again."""
    rig, rotten = fleet.rig, damages.ROTTEN
    engines = rig.engines()
    fleet.harm([rotten])
    try:
        planned, reasons = fleet.reasons()
        assert planned == {("update", "spark2-weights-read")}
        assert "not read yet: 1 files" in reasons["spark2-weights-read"]
        rig.up(ok=False).says(f"spark2 {damages.WEIGHTS}/{damages.SHARD}: has the sha256 ")
        assert rig.engines() == engines
        look = fleet.look(refuse=False)
    finally:
        fleet.undo([rotten])
    look.found(rotten)
    look.nothing_but([rotten])
    _, done = logged_up(rig)
    assert done.kinds == {("update", "spark2-weights-read")}
    assert rig.engines() == engines
    rig.unchanged()


def test_a_node_without_power_is_named_and_the_drift_of_the_others_is_told(fleet: Fleet) -> None:
    lab, rig = fleet.rig.lab, fleet.rig
    lab.run("spark2", "ip route del 10.10.2.0/24")
    lab.kill("spark4")
    try:
        run = rig.fleet("doctor", "--json", ok=None)
        preview = rig.pulumi("preview", ok=False)
    finally:
        lab.boot("spark4")
    said = json.loads(run.out)
    assert max(run.seconds, preview.seconds) < NAMED_WITHIN_S
    assert (run.code, said["exit"], said["result"]) == (3, 3, "fail")
    assert said["nodes"] == {"spark1": True, "spark2": True, "spark3": True, "spark4": False}
    failed = {(line["node"], line["code"], line["seen"]) for line in said["lines"] if line["word"] == "fail"}
    assert [code for node, code, _ in failed if node == "spark4"] == ["unreachable"]
    drift = f"{damages.F0}: route to 10.10.2.0/24 is missing, plan wants via 10.10.1.11"
    assert ("spark2", "drift plane0", drift) in failed
    strange = {(node, code) for node, code, _ in failed} - {("spark4", "unreachable"), ("spark2", "drift plane0")}
    # The other two have lost the carrier of a port, whose address NetworkManager takes away after some seconds.
    assert strange <= {(node, code) for node in ("spark1", "spark3") for code in CUT_OFF}
    preview.says("problem(s); nothing was changed", "spark4 (spark@", f"spark2 plane0: {drift}")
