"""The engine's environment, rank by rank."""

from collections.abc import Mapping
from typing import Any

from fleet.flags import Flag, Source
from fleet.loading import load
from fleet.plan import StackName, make
from fleet.settings import EVERYWHERE
from tests.unit.stacks import changed, ring, switched


def environments(config: dict[str, Any]) -> list[Mapping[str, Flag]]:
    return [one.env for one in make(load(config), None, StackName("spark-fabric", "test")).containers]


def values(config: dict[str, Any], rank: int) -> dict[str, str]:
    return {name: flag.value for name, flag in environments(config)[rank].items()}


def test_a_worker_of_the_ring() -> None:
    assert values(ring(), 2) == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "DIST_INIT_ADDR": "192.168.1.11:20000",
        "DSPARK_SPS_TABLE": "/state/dspark_sps.json",
        "DSPARK_STS_TABLE": "/state/dspark_sts.json",
        "DSV41_PACKED_DIR": "/engram",
        "DSV41_SOURCE": "/models/DeepSeek-V4.1-Flash",
        "EP_SIZE": "2",
        "GLOO_SOCKET_IFNAME": "enP7s7",
        "HOST": str(EVERYWHERE),
        "HOST_IP": "192.168.1.13",
        "MODEL_PATH": "/models/DeepSeek-V4.1-Flash",
        "NCCL_IB_HCA": "rocep1s0f0,rocep1s0f1,roceP2p1s0f0,roceP2p1s0f1",
        "NCCL_SOCKET_IFNAME": "enP7s7",
        "NNODES": "4",
        "NODE_RANK": "2",
        "SERVED_MODEL_NAME": "deepseek-v4.1-flash",
        "SERVER_PORT": "8888",
        "SKIP_PREPARE": "1",
        "SKIP_SMOKE": "1",
        "SKIP_VERIFY": "1",
        "STATE_PATH": "/state",
        "TP_SIZE": "4",
        "VLLM_HOST_IP": "192.168.1.13",
    }


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
    env = environments(changed(ring(), {"engine.port": 1234, "engine.env": {"A": 1}}))[0]
    sources = {name: env[name].source for name in ("A", "SERVER_PORT", "HOST", "NNODES", "MODEL_PATH", "NCCL_IB_HCA")}
    assert sources == {
        "A": Source.OVERRIDE,
        "SERVER_PORT": Source.SETTING,
        "HOST": Source.DEFAULT,
        "NNODES": Source.TOPOLOGY,
        "MODEL_PATH": Source.DEFAULT,
        "NCCL_IB_HCA": Source.TOPOLOGY,
    }


def test_expert_parallelism_divides_the_ranks() -> None:
    assert values(ring(3), 0)["EP_SIZE"] == "3"
    assert values(ring(6), 0)["EP_SIZE"] == "2"
    assert values(changed(ring(), {"engine.epSize": 4}), 0)["EP_SIZE"] == "4"
