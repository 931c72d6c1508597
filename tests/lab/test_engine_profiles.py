"""Every profile of the launcher starts: four ranks as plain processes, each told what the plan tells its container.

What is about cards is replaced, since loopback has none: the ring and the mesh of it are shown on whole nodes.
"""

from __future__ import annotations

import pytest

from fleet.profiles import WHOLE, Profile
from fleet.topology import Kind
from node.smoke import CHECKS, smoke
from tests.lab.test_engine_group import Group, Start
from tests.lab.test_engine_group import group as group  # noqa: PLC0414  # the fixture
from tests.node.helpers import OWNER
from tests.node.machine import Machine
from tests.unit.test_profiles import settled, values, with_profile

RING, SWITCHED = (Kind.RING, 2, False), (Kind.SWITCHED, 2, False)
RANKS = range(4)
STARTS = [*((profile, RING) for profile in WHOLE), (Profile.BASE, SWITCHED), (Profile.PRODUCTION_V2_3, SWITCHED)]
SAID = {
    "DSV41_SHARED_PAD_K": "DSV41 shared-expert padding K: (5120, 576) -> (5120, 640)",
    "DSV41_INDEXER_CHUNKED": "DSV41 indexer chunked (sglang#39187 backport) ARMED",
    "DSV41_MOE_B12X_NEXT": "[moe_b12x_next] INFO: routed MoE at EP_SIZE=1",
    "DSV41_HC_FUSED": "DSV41 hc_fused: first call (4096 rows) bit-identical to stock",
}
"""By variable: what the engine says where it is on."""


def on_loopback(one: Group, told: dict[str, str]) -> dict[str, str]:
    """What a rank is told, with addresses, devices and paths of this machine."""
    here = {
        "DIST_INIT_ADDR": f"127.0.0.1:{one.rendezvous}", "HOST": "127.0.0.1", "SERVER_PORT": str(one.port),
        "NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo", "SGLANG_ROCE_ALLREDUCE": "0",
        "MODEL_PATH": str(one.model), "STATE_PATH": str(one.folder / f"state{told['NODE_RANK']}"),
        "ENGINE_LOAD_S": "0.1", "ENGINE_PEER_S": "30", "ENGINE_WATCHDOG_S": "30",
    }  # fmt: skip
    return {**told, **here}


@pytest.mark.parametrize(("profile", "fabric"), STARTS, ids=str)
def test_a_profile_starts_as_the_plan_tells_it(profile: Profile, fabric: tuple[Kind, int, bool], group: Start) -> None:
    plan = settled(with_profile(fabric, profile))
    one = group()
    told = {rank: values(plan, rank) for rank in RANKS}
    one.own = {rank: on_loopback(one, told[rank]) for rank in RANKS}
    one.start(RANKS)
    log = one.ready()
    assert "chunked_prefill_size=4096, max_running_requests=16, context_len=1048576" in log
    for name, line in SAID.items():
        assert (line in log) == (told[0].get(name, "0") == "1"), name
    assert f"--ep-size {told[0]['EP_SIZE']}" in log
    asked = {"address": "127.0.0.1", "port": one.port, "model": told[0]["SERVED_MODEL_NAME"], "timeout": 30}
    found = smoke(Machine(), OWNER, {**asked, "checks": {**dict.fromkeys(CHECKS, True), "streams": 4}})
    assert (found["passed"], found["failed"]) == (list(CHECKS), [])
