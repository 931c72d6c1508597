"""The library's resources: one for each node, with the file's digest and not its place, and its image looked into."""

from __future__ import annotations

import json

from components.remote import LONGEST_S
from fleet.library import Choice
from fleet.library import parse as library_of
from fleet.nccl_settings import PIP_LIBRARY
from fleet.sending import SLOWEST
from tests.graph.conftest import Register, planned
from tests.graph.recorder import CONTAINER, Graph, plain
from tests.unit import observed
from tests.unit.stacks import changed, ring, switched

LOCAL = changed(ring(), {"nccl": {"library": "mine/libnccl.so.2.30.7"}})
SIZE = 64 << 20


def local(edition: int = 1) -> Choice:
    return Choice(library_of("/secret-place/libnccl.so.2.30.7", {**observed.library(edition=edition), "size": SIZE}))


def test_each_node_has_one_with_its_desired_state_between_fabric_and_gate(register: Register) -> None:
    found, plan = register(LOCAL, library=local()), planned(LOCAL, library=local())
    for node in plan.nodes:
        resource = found[f"{node.name}-nccl"]
        assert json.loads(resource.inputs["stdin"]) == {node.name: node.stages["nccl"]}
        assert resource.after - {"state-id"} == {"fabric-verified"}
        assert resource.name in found["gate"].after


def test_where_the_file_lies_here_is_in_no_resource(register: Register) -> None:
    found = register(LOCAL, library=local())
    assert "secret-place" not in json.dumps([plain(one.inputs) for one in found.all])
    assert "mine/" not in json.dumps([plain(one.inputs) for one in found.all])


def test_pulumi_waits_for_the_slowest_way_to_a_node(register: Register) -> None:
    limits = register(LOCAL, library=local())["spark2-nccl"].request.customTimeouts
    assert limits.create == limits.update == f"{LONGEST_S + SIZE // SLOWEST}s"


def test_a_new_library_replaces_the_group_and_changes_the_library_in_place(register: Register) -> None:
    before, after = (register(LOCAL, library=local(edition)) for edition in (1, 2))
    assert {name for name in ("stop", "standstill", "gate") if before[name].trigger == after[name].trigger} == set()
    different = {one.name for one in after.managed if plain(one.inputs) != plain(before[one.name].inputs)}
    stages = {f"spark{n}-nccl" for n in range(1, 5)}
    assert different == {"health", "proof", *stages, *(one.name for one in after.of(CONTAINER))}


def test_the_image_is_looked_into_where_something_lies_over_it(register: Register, graph: Graph) -> None:
    assert json.loads(graph["spark3-image"].inputs["stdin"])["spark3"]["target"] == PIP_LIBRARY
    assert "target" not in json.loads(register(switched())["spark3-image"].inputs["stdin"])["spark3"]


def test_the_library_of_the_image_is_a_desired_state(register: Register, graph: Graph) -> None:
    found = register(switched())
    assert json.loads(found["spark1-nccl"].inputs["stdin"]) == {"spark1": {"state": "off"}}
    assert not any("mounts" in one.inputs and one.inputs["mounts"] for one in found.of(CONTAINER))
