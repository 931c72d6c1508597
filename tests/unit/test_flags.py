"""The engine's environment, rank by rank."""

from collections.abc import Mapping
from typing import Any

import pytest

from fleet.facts import parse
from fleet.flags import Flag, exact
from fleet.loading import load
from fleet.planner import make
from fleet.stack import StackName
from tests.unit import observed
from tests.unit.stacks import changed, ring, switched


def environments(config: dict[str, Any]) -> list[Mapping[str, Flag]]:
    return [one.env for one in make(load(config), None, StackName("spark-fabric", "test")).containers]


def values(config: dict[str, Any], rank: int) -> dict[str, str]:
    return {name: flag.value for name, flag in environments(config)[rank].items()}


def test_the_head_warms_up_and_is_smoke_tested() -> None:
    head = values(ring(), 0)
    assert (head["WARMUP"], head["SKIP_SMOKE"], head["SMOKE_QUICK"]) == ("1", "0", "1")


def test_a_switched_fabric_lists_one_device_for_each_plane() -> None:
    assert values(switched(port="f1"), 0)["NCCL_IB_HCA"] == "rocep1s0f1,roceP2p1s0f1"


def test_overrides_reach_the_ranks_that_they_are_for() -> None:
    config = changed(ring(), {"engine.env": {"A": 1, "STATE_PATH": "/s"}, "engine.headEnv": {"A": 2, "B": 3}})
    head, worker = values(config, 0), values(config, 1)
    assert (head["A"], head["B"], head["STATE_PATH"]) == ("2", "3", "/s")
    assert (worker["A"], worker["STATE_PATH"]) == ("1", "/s")
    assert "B" not in worker


def test_each_value_says_where_it_comes_from() -> None:
    config = {"engine.port": 1234, "engine.env": {"A": 1, "B": 1}, "engine.headEnv": {"B": 2}}
    head, env = environments(changed(ring(), config))[:2]
    assert head["B"].origin == "override engine.headEnv"
    origins = {
        "A": "override engine.env",
        "SERVER_PORT": "setting engine.port",
        "HOST": "default",
        "NNODES": "topology",
        "MODEL_PATH": "default",
        "NCCL_IB_HCA": "topology",
        "NCCL_NET": "profile network",
        "NCCL_ALGO": "profile ring",
        "NCCL_IB_PRESERVE_PCI_DOMAIN": "profile ring, both planes",
        "NCCL_IB_GID_INDEX": "expected",
        "NCCL_SOCKET_IFNAME": "expected",
    }
    assert {name: env[name].origin for name in origins} == origins


def test_expert_parallelism_divides_the_ranks() -> None:
    assert [values(switched(size), 0)["EP_SIZE"] for size in range(2, 10)] == list("23252743")
    next_kernels = changed(switched(8), {"engine.env.DSV41_MOE_B12X_NEXT": 1})
    assert values(next_kernels, 0)["EP_SIZE"] == "2"
    assert values(changed(ring(), {"engine.epSize": 4}), 0)["EP_SIZE"] == "4"


@pytest.mark.parametrize(
    ("names", "there", "listing"),
    [
        (["mlx5_1"], ["mlx5_0", "mlx5_1", "mlx5_10"], "=mlx5_1"),
        (["mlx5_1", "mlx5_10"], ["mlx5_1", "mlx5_10"], "mlx5_1,mlx5_10"),
        (["rocep1s0f0", "roceP2p1s0f0"], ["rocep1s0f0", "rocep1s0f1", "roceP2p1s0f0"], "rocep1s0f0,roceP2p1s0f0"),
        (["enP7s7"], [], "enP7s7"),
    ],
)
def test_a_list_of_devices_selects_nothing_else(names: list[str], there: list[str], listing: str) -> None:
    assert exact(names, there) == listing


def test_each_rank_is_told_the_interface_that_holds_its_own_address() -> None:
    raw = observed.fleet(4)
    raw["spark4"]["links"]["wlP9s9"] = raw["spark4"]["links"].pop("enP7s7")
    raw["spark2"]["links"]["enP7s7.5"] = {"addresses": []}
    raw["spark3"]["links"]["enP7s7"]["addresses"] = ["172.16.0.3/24"]  # behind a translation: by ssh's own port
    raw["spark3"]["ssh"]["netdev"] = "enP7s7"
    plan = make(load(ring()), {name: parse(answer) for name, answer in raw.items()}, StackName("spark-fabric", "test"))
    told = [
        (env["NCCL_SOCKET_IFNAME"].value, env["GLOO_SOCKET_IFNAME"].value) for env in (c.env for c in plan.containers)
    ]
    assert told == [("enP7s7", "enP7s7"), ("=enP7s7", "enP7s7"), ("enP7s7", "enP7s7"), ("wlP9s9", "wlP9s9")]
    assert [(one.code, one.path) for one in plan.warnings] == [("wireless", "spark4 wlP9s9")]
    assert plan.containers[0].env["GLOO_SOCKET_IFNAME"].origin == "found"
