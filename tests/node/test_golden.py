"""Facts in, actions out: `tests/golden/<stage>/<case>.json` says what is done on a node in that state.

The facts were recorded from a booted lab node, as delivered and with everything applied. A case changes some of them
("changed": place -> value, "~" stands for "/" inside a name, null removes) or of what is wanted ("wanted"). These
files are changed by hand, with the behaviour they describe.
"""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from node import plane, relay

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
STAGES = {"plane0": plane, "relay": relay}
CASES = sorted(path.relative_to(GOLDEN) for stage in STAGES for path in (GOLDEN / stage).glob("*.json"))

Json = dict[str, Any]


def altered(facts: Json, changes: Json) -> Json:
    """Facts with some of them changed."""
    facts = copy.deepcopy(facts)
    for place, value in changes.items():
        *parents, last = [name.replace("~", "/") for name in place.split("/")]
        inside = facts
        for name in parents:
            inside = inside[name]
        if value is None:
            del inside[last]
        else:
            inside[last] = value
    return facts


def wanted(desired: Json, changes: Json) -> Json:
    """A desired state with another text, or another MTU in both text and ports."""
    desired = {**copy.deepcopy(desired), "text": changes.get("text", desired.get("text"))}
    if "mtu" in changes:
        for port in desired["ports"]:
            port["mtu"] = changes["mtu"]
        desired["text"] = desired["text"].replace("mtu: 9000", f"mtu: {changes['mtu']}")
    return desired


def _read(path: Path) -> Json:
    loaded: Json = json.loads(path.read_text())
    return loaded


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_done_on_a_node_in_this_state(case: Path) -> None:
    golden = _read(GOLDEN / case)
    stage = STAGES[case.parent.name]
    facts = altered(_read(GOLDEN / "facts" / f"{golden['facts']}.json"), golden["changed"])
    desired = wanted(_read(GOLDEN / "facts" / "desired.json")[case.parent.name], golden["wanted"])
    assert [deviation.text() for deviation in stage.deviations(desired, facts)] == golden["deviations"]
    actions = [step.describe() for step in stage.plan(desired, facts) if step.needed]
    assert json.loads(json.dumps(actions)) == golden["actions"]


def test_there_are_cases() -> None:
    assert len(CASES) > 20
