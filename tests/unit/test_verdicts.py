"""The one table: it knows every code that is used, agrees with the node program, and the page is made of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet import drift, preflight
from fleet.checklist import page
from fleet.facts import parse
from fleet.loading import SettingsError, load
from fleet.look import Planned
from fleet.planner import make
from fleet.probe import Probe
from fleet.problems import Problem
from fleet.stack import StackName
from fleet.verdicts import CHECKS, CODES, DEVIATIONS, DRIFT, IGNORABLE, Row, Verdict, judge, node_of, row_of
from node.deviation import Deviation
from node.mesh import STAGES as MESH
from tests.unit import observed
from tests.unit.stacks import NO_PROFILE, changed, ring

STACK = StackName("spark-fabric", "test")
ROOT = Path(__file__).parents[2]
SETTINGS = (
    "loading",
    "stackfile",
    "settings",
    "scalars",
    "variables",
)  # mistakes in the stack file have codes of their own
COMMANDS = ("engram", "oneshot")  # what stands in the way of one command is no check, and no setting weighs it
CODE = re.compile(r"[a-z]+[a-z-]*")
DEVIATION = re.compile(r"[a-z]+\.[a-z-]+")

Call = tuple[str, str, ast.Call]  # where, the code, the whole call


def calls(folder: str, pattern: re.Pattern[str], *names: str) -> Iterator[Call]:
    """Calls of these names whose first argument is a code."""
    for source in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Call) and node.args and getattr(node.func, "id", None) in names:
                for code in codes_in(node.args[0]):
                    if pattern.fullmatch(code):
                        yield source.stem, code, node


def codes_in(argument: ast.expr) -> list[str]:
    """The code, each of both where there is a choice, and all that a text with a key in it can be."""
    if isinstance(argument, ast.Constant):
        return [str(argument.value)]
    if isinstance(argument, ast.IfExp):
        return [*codes_in(argument.body), *codes_in(argument.orelse)]
    if isinstance(argument, ast.JoinedStr) and ast.unparse(argument) == "f'relay.{key}'":
        return ["relay.enabled", "relay.active"]
    return []


def emitted() -> set[str]:
    """Every code of a finding in the sources of the planner, but mistakes of the stack file."""
    found = {code for where, code, _ in calls("fleet", CODE, "Problem") if where not in SETTINGS + COMMANDS}
    text = (ROOT / "fleet" / "membership.py").read_text()
    found |= set(re.findall(r'^    \("([a-z-]+)", r"', text, flags=re.MULTILINE))  # by what a node's silence says
    found |= {"busy", "at-work", "unreachable", "unread", "unread-part"}  # chosen first
    found |= {code for _, code, _ in calls("fleet", CODE, "Remark")}
    return found - {"not-probed"}  # nobody is told: the node is unreachable, or gone from the plan


def test_every_finding_is_in_the_table_and_every_row_of_it_is_found_somewhere() -> None:
    assert emitted() == {row.code for row in CHECKS}


def deviations() -> list[Call]:
    return list(calls("node", DEVIATION, "Deviation", "differs"))


def test_every_deviation_of_the_node_program_is_in_the_table_and_no_other() -> None:
    assert {code for _, code, _ in deviations()} == {row.code for row in DEVIATIONS}


STAGE_OF = {"plane": "plane0", "neighbours": "plane0", "deviation": "plane0", "mesh": "nic"} | {
    name: name for name in ("relay", "nccl", "nic", "forwarding", "markers")
}


@pytest.mark.parametrize(
    ("where", "code", "call"), deviations(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_the_table_decides_as_the_node_program_does(where: str, code: str, call: ast.Call) -> None:
    """The node stops for a disruptive change that an engine would feel: both sides have to mean the same."""
    given = {key.arg: key.value.value for key in call.keywords if isinstance(key.value, ast.Constant)}
    rows = [row for row in DEVIATIONS if row.code == code]
    if given.get("foreign") is True:
        assert {row.foreign for row in rows} == {True}
        assert all(row.idle is Verdict.PROBLEM for row in rows)
    elif "disruptive" in given:  # else it is the caller's word
        one = Deviation(code, "x", "is", "was", disruptive=bool(given["disruptive"]))
        row = row_of(one, STAGE_OF[where])
        assert row
        assert (row.idle is Verdict.DISRUPTIVE) == (one.disruptive or row.losses)
        assert not (one.disruptive and row.losses), "then it need not say so"


@pytest.mark.parametrize("stage", ["node", "plane0", "plane1", "relay", "nccl", *MESH])
@pytest.mark.parametrize("code", ["journal.absent", "journal.unfinished", "journal.digest"])
def test_every_stage_has_a_row_for_what_its_journal_says(stage: str, code: str) -> None:
    row = row_of(Deviation(code, stage, "is", "was", disruptive=True), stage)
    assert row
    assert row.is_drift
    assert (row.idle is Verdict.DISRUPTIVE) == (code == "journal.unfinished" or stage not in ("node", "relay"))


def test_a_file_is_judged_by_its_stage_and_by_whose_it_is() -> None:
    def verdict(stage: str, *, foreign: bool = False) -> Verdict:
        row = row_of(Deviation("file.missing", "/x", "is missing", "it", disruptive=True, foreign=foreign), stage)
        assert row
        return row.idle

    assert verdict("plane1") is Verdict.IN_PLACE
    assert verdict("nccl") is Verdict.DISRUPTIVE
    assert verdict("nccl", foreign=True) is Verdict.PROBLEM


@pytest.mark.parametrize("active", [True, False])
def test_a_deviation_that_nobody_knows_is_told_and_taken_for_no_drift(
    active: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a node that leaves."""
    one = Deviation("x.y", "enp1s0f0np0", "is odd", "it even", disruptive=False)
    monkeypatch.setitem(drift.DEVIATIONS, "plane0", lambda *_: [one])
    leaving = {} if active else {"nodes[3].state": "leaving", **NO_PROFILE}
    settings, raw = load(changed(ring(), leaving)), observed.fleet(4)
    plan = make(settings, {name: parse(node) for name, node in raw.items()}, STACK)
    told = list(preflight.unknown(Planned(settings, STACK, Probe({"spark4": raw["spark4"]}, {}), plan=plan)))
    assert [(problem.code, problem.path) for problem in told] == [("deviation-unknown", "spark4 enp1s0f0np0")]
    assert "is odd, which is x.y in plane0: nothing is known to follow from that, wanted it even." in told[0].text()
    found = drift.of_stage(plan.nodes[3], "plane0", raw["spark4"])
    assert (found.reasons if found else ()) == (("not applied on this node",) if active else ())


def test_a_row_is_drift_in_both_columns_or_in_none() -> None:
    for row in (*CHECKS, *DEVIATIONS):
        assert (row.idle in DRIFT) == (row.running in DRIFT), row
        assert (row in CHECKS) != row.is_drift or row.foreign, row
    assert len({row.code for row in CHECKS}) == len(CHECKS)


def test_what_keeps_a_plan_from_the_wrong_nodes_cannot_be_ignored() -> None:
    named = "unreachable host-key other-owner other-node machine-twice busy management-port address-overlap unread"
    assert set(named.split()) & IGNORABLE == set()
    assert {"clock", "memory", "gpu-busy", "port-busy", "hostname", "level-bad", "repair-failed"} <= IGNORABLE


# Judging


def finding(code: str, path: str = "spark1") -> Problem:
    return Problem(code, path, "is", "it not", "")


IDLE = {"spark1": False, "spark2": False}


@pytest.mark.parametrize(
    ("code", "path", "running", "pile"),
    [
        ("gpu-busy", "spark1", IDLE, "problems"),
        ("gpu-busy", "spark1", {**IDLE, "spark1": True}, "warnings"),
        ("gpu-busy", "spark1", {**IDLE, "spark2": True}, "problems"),
        ("port-busy", "spark1 TCP port 8888", {**IDLE, "spark1": True}, "warnings"),
        ("level-differs", "Kernel", IDLE, "warnings"),
        ("level-unknown", "versions", IDLE, "notes"),
        ("memory", "spark1", IDLE, "warnings"),
        ("memory", "spark1", {**IDLE, "spark1": True}, None),
        ("never-heard-of", "spark1", IDLE, "problems"),
        ("netplan.foreign", "spark1 /etc/netplan/50-x.yaml", IDLE, "problems"),
        ("file.edited", "spark1 /etc/x", IDLE, "problems"),  # only where preflight.refuse has it
    ],
)
def test_a_finding_goes_where_the_table_says(code: str, path: str, running: dict[str, bool], pile: str | None) -> None:
    judged = judge([finding(code, path)], running)
    assert {name for name in ("problems", "warnings", "notes", "ignored") if getattr(judged, name)} == {pile} - {None}


def test_ignored_findings_are_kept_apart_and_safety_is_heeded_all_the_same() -> None:
    found = [finding("clock"), finding("other-owner"), finding("hostname")]
    judged = judge(found, IDLE, ignore=["clock", "other-owner"])
    assert [one.code for one in judged.ignored] == ["clock"]
    assert [one.code for one in judged.problems] == ["other-owner"]
    assert [one.code for one in judged.warnings] == ["hostname"]


def test_a_warning_can_be_made_a_problem() -> None:
    judged = judge([finding("hostname"), finding("clock")], IDLE, refuse=["hostname"])
    assert [one.code for one in judged.problems] == ["hostname"]
    assert [one.code for one in judged.warnings] == ["clock"]
    assert judge([finding("memory")], {"spark1": True}, refuse=["memory"]).problems == ()  # our own engine has it


def test_a_finding_is_about_a_node_or_about_none() -> None:
    names = ("spark1", "spark12")
    assert node_of(finding("x", "spark12 enp1s0f0np0"), names) == ("spark12", "enp1s0f0np0")
    assert node_of(finding("x", "spark1"), names) == ("spark1", "")
    assert node_of(finding("x", "cable 3 plane 0"), names) == (None, "cable 3 plane 0")


# Settings


def wrong(**values: list[str]) -> list[tuple[str, str]]:
    with pytest.raises(SettingsError) as raised:
        load(changed(ring(), {f"preflight.{key}": value for key, value in values.items()}))
    return [(one.code, one.path) for one in raised.value.problems]


def test_what_cannot_be_ignored_or_is_not_known_is_refused_by_name() -> None:
    fine = load(changed(ring(), {"preflight.ignore": ["clock"], "preflight.refuse": ["file.edited"]}))
    assert (fine.preflight.ignore, fine.preflight.refuse) == (["clock"], ["file.edited"])
    assert wrong(ignore=["clock", "other-owner", "file.edited"]) == [
        ("check-needed", "spark-fabric:preflight.ignore[1]"),
        ("check-needed", "spark-fabric:preflight.ignore[2]"),
    ]
    assert wrong(ignore=["clok"], refuse=["clock", "other-owner"]) == [
        ("check-unknown", "spark-fabric:preflight.ignore[0]"),
        ("check-unknown", "spark-fabric:preflight.refuse[1]"),
    ]
    assert wrong(ignore=[7]) == [("not-text", "spark-fabric:preflight.ignore[0]")]  # type: ignore[list-item]


# The page


def test_the_page_is_current() -> None:
    text = (ROOT / "docs" / "checks.md").read_text()
    assert text == page(), "renew it: python -m fleet.checklist > docs/checks.md"


def cells(row: Row) -> list[str]:
    """What a person reads of a row."""
    return [f"| `{row.code}` | {row.what} | ", row.idle.value]


def test_the_page_has_every_row_with_its_verdict() -> None:
    lines = page().splitlines()
    for row in (*CHECKS, *DEVIATIONS):
        line = [line for line in lines if all(cell in line for cell in cells(row))]
        assert len(line) >= 1, row
    named = {code for line in lines for code in re.findall(r"^\| `([\w.-]+)` \|", line)}
    assert named == CODES
