"""The proof with a mesh: what rules, kernels, queues and far ends count while completions are answered."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from fleet.expected import asked
from fleet.loading import load
from fleet.mesh.crossing import crossing
from fleet.planner import make
from fleet.proof import Part, Verdict
from fleet.stack import StackName
from fleet.traffic import Load
from tests.unit.stacks import mesh, ring

STACK = StackName("spark-fabric", "test")
SLOT = "spark2 enp1s0f1np1 pref 49152 (restore-rank0-to-rank2-diagonal-clockwise-via-rank1-function0)"
RULE = SLOT.partition("(")[2].rstrip(")")
ANSWERED = Load(4)
CARRIED = 1000  # packets of each rule

Json = dict[str, Any]


def wanted(**section: Any) -> dict[str, Json]:
    return asked(make(load(mesh(**section)), None, STACK), "100")


def counts(desired: dict[str, Json]) -> dict[str, Json]:
    """What the nodes count where everything is as it should be, and has been busy before."""
    found = {}
    for node, one in desired.items():
        rules = one["mesh"]["forward"]
        row = {"packets": 7, "sw_packets": 2, "drops": 1, "in_hw": True}
        netdevs = sorted({rule["netdev"] for rule in rules})
        found[node] = {
            "rules": {rule["name"]: dict(row) for rule in rules},
            "kernel": 5,
            "received": dict.fromkeys(netdevs, 70),
            "overruns": dict.fromkeys(netdevs, 3),
            "lost": {end["hca"]: {"out_of_sequence": 2, "packet_seq_err": 2} for end in one["mesh"]["ends"]},
            "error": "",
        }
    return found


class Fleet:
    """Four nodes whose counters move as they should, until a test says otherwise."""

    def __init__(self, **section: Any) -> None:
        self.desired = wanted(**section)
        self.before = counts(self.desired)
        self.after = copy.deepcopy(self.before)
        for one in self.after.values():
            for rule in one["rules"].values():
                rule["packets"] += CARRIED
            one["received"] = {netdev: count + 50_000 for netdev, count in one["received"].items()}

    def judged(self, answered: Load = ANSWERED) -> Part:
        return crossing(self.desired, self.before, self.after, answered)


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


def test_rules_that_count_and_nothing_else_that_grows_pass(fleet: Fleet) -> None:
    part = fleet.judged()
    assert (part.name, part.verdict, part.faults) == ("mesh", Verdict.PASSED, ())
    assert part.why == "completions answered: 4, rules looked at: 8"
    assert part.figures[1] == (
        "spark2: packets by rule pref 49152 1000, pref 49162 1000; IpForwDatagrams 0; "
        "rx_out_of_buffer enp1s0f0np0 0, enp1s0f1np1 0"
    )


def test_a_rule_that_counts_nothing_is_named(fleet: Fleet) -> None:
    fleet.after["spark2"]["rules"][RULE]["packets"] -= CARRIED
    part = fleet.judged()
    assert part.verdict is Verdict.FAILED
    assert part.faults == (f"{SLOT}: has counted 7 packets as before the completions, plan wants more",)


def test_a_rule_that_is_gone_is_named_though_the_completion_failed(fleet: Fleet) -> None:
    fleet.after["spark2"]["rules"][RULE] = None
    part = fleet.judged(Load(0, error="status 500", ended=True))
    assert part.verdict is Verdict.FAILED
    assert part.faults == (f"{SLOT}: the rule is missing",)


@pytest.mark.parametrize("count", ["sw_packets", "drops"])
def test_packets_that_a_rule_drops_or_has_in_software_are_named(fleet: Fleet, count: str) -> None:
    old = fleet.before["spark2"]["rules"][RULE][count]
    fleet.after["spark2"]["rules"][RULE][count] = old + 9
    assert fleet.judged().faults == (f"{SLOT}: {count} is {old + 9}, plan wants {old}",)


def test_what_the_kernel_forwards_of_the_mesh_is_told_by_its_node(fleet: Fleet) -> None:
    fleet.after["spark3"]["kernel"] += 20  # of 2000 that its rules have passed on
    (fault,) = fleet.judged().faults
    assert fault.startswith("spark3: IpForwDatagrams grew by 20 while the mesh's ports gave the kernel 100000 packets")
    assert "packets of the mesh go through the kernel" in fault


@pytest.mark.parametrize(("forwarded", "received"), [(19, 50_000), (90_000, 9)])
def test_what_it_forwards_for_others_is_no_fault(fleet: Fleet, forwarded: int, received: int) -> None:
    """Fewer than a hundredth, or by other ports than the mesh's, such as those of containers."""
    fleet.after["spark3"]["kernel"] += forwarded
    fleet.after["spark3"]["received"] = {
        netdev: count + (received if netdev == "enp1s0f0np0" else 0)
        for netdev, count in fleet.before["spark3"]["received"].items()
    }
    assert fleet.judged().verdict is Verdict.PASSED


def test_a_single_packet_counts_where_no_rule_has_passed_on_any(fleet: Fleet) -> None:
    for rule in fleet.after["spark3"]["rules"].values():
        rule["packets"] -= CARRIED
    fleet.after["spark3"]["kernel"] += 1
    assert [fault for fault in fleet.judged().faults if fault.startswith("spark3: IpForwDatagrams grew by 1 ")]


def test_queues_that_run_over_are_told_with_function_cap_and_queue_size() -> None:
    fleet = Fleet(hairpinQueueSize=1024, maxSize=262144, allowLargeCap=True)
    fleet.after["spark2"]["overruns"]["enp1s0f1np1"] += 163
    (fault,) = fleet.judged().faults
    assert fleet.judged().verdict is Verdict.FAILED
    assert fault == (
        "spark2 enp1s0f1np1: rx_out_of_buffer grew by 163: its hairpin queues ran over; hairpin queues of 1024 packets "
        "(mesh.hairpinQueueSize) take messages of up to 81920 bytes, the cap is 262144 (mesh.maxSize, mesh.gatherSize)"
    )


@pytest.mark.parametrize("counter", ["out_of_sequence", "packet_seq_err"])
def test_packets_that_a_far_end_misses_are_told_with_the_way_cap_and_queue_size(fleet: Fleet, counter: str) -> None:
    fleet.after["spark3"]["lost"]["rocep1s0f1"][counter] += 4
    (fault,) = fleet.judged().faults
    assert fault.startswith(f"spark3 rocep1s0f1: {counter} grew by 4: packets between it and spark1 over spark2 were ")
    assert "of 8192 packets (mesh.hairpinQueueSize)" in fault
    assert "262144 (mesh.maxSize, mesh.gatherSize)" in fault


def test_counters_that_cannot_be_read_or_began_anew_are_unknown_by_name(fleet: Fleet) -> None:
    for reading in (fleet.before, fleet.after):
        reading["spark2"]["rules"][RULE]["packets"] = None
        reading["spark2"]["overruns"]["enp1s0f0np0"] = None
        reading["spark3"]["lost"]["rocep1s0f1"]["packet_seq_err"] = None
        reading["spark3"]["kernel"] = None
    (anew,) = (rule for rule in fleet.desired["spark1"]["mesh"]["forward"] if rule["pref"] == 49159)
    fleet.after["spark1"]["rules"][anew["name"]]["packets"] = 1
    fleet.after["spark4"] = {"error": "tc filter show dev enP2p1s0f0np0 ingress: timed out"}
    part = fleet.judged()
    assert part.verdict is Verdict.UNKNOWN
    assert part.faults == (
        "spark4: tc filter show dev enP2p1s0f0np0 ingress: timed out",
        f"spark1 enP2p1s0f0np0 pref 49159 ({anew['name']}): has begun to count anew: it was installed anew meanwhile",
        f"{SLOT}: counts no packets",
        "spark2 enp1s0f0np0: rx_out_of_buffer cannot be read (ethtool -S enp1s0f0np0)",
        "spark3: IpForwDatagrams cannot be read: whether packets of the mesh go through the kernel is open",
        "spark3 rocep1s0f1: packet_seq_err cannot be read",
    )


def test_what_is_wrong_fails_though_something_else_cannot_be_told(fleet: Fleet) -> None:
    fleet.after["spark2"]["overruns"] = dict.fromkeys(fleet.after["spark2"]["overruns"])
    fleet.after["spark3"]["lost"]["rocep1s0f1"]["out_of_sequence"] += 1
    assert fleet.judged().verdict is Verdict.FAILED


@pytest.mark.parametrize("nothing", [Load(0), Load(0, error="status 401", refused=True, ended=True)])
def test_without_a_completion_it_is_unknown(fleet: Fleet, nothing: Load) -> None:
    assert fleet.judged(nothing) == Part("mesh", Verdict.UNKNOWN, "no completion was begun")


# what is asked


def test_each_node_is_asked_for_its_rules_and_the_devices_at_which_paths_end() -> None:
    one = wanted()["spark3"]["mesh"]
    rules = {rule["pref"]: rule["netdev"] for rule in one["forward"]}
    assert rules == {49156: "enp1s0f1np1", 49166: "enp1s0f0np0"}
    assert one["ends"] == [
        {"hca": "roceP2p1s0f0", "peer": "spark1", "via": "spark4"},
        {"hca": "rocep1s0f1", "peer": "spark1", "via": "spark2"},
    ]
    assert (one["queue"], one["cap"], one["largest"]) == (8192, 262144, 262144)
    assert asked(make(load(ring()), None, STACK), "100")["spark3"]["mesh"] is None


@pytest.mark.parametrize(
    ("section", "short"),
    [
        ({}, 15),
        ({"hairpinQueueSize": 1024}, 1),
        ({"maxSize": 1 << 20, "gatherSize": 1 << 10, "allowLargeCap": True}, 92),
    ],
)
def test_every_other_prompt_has_sums_near_the_largest_of_rocenante(section: Json, short: int) -> None:
    assert wanted(**section)["spark1"]["load"]["words"] == [1000, short]


def test_without_a_mesh_all_prompts_are_long() -> None:
    assert asked(make(load(ring()), None, STACK), "100")["spark1"]["load"]["words"] == [1000]
