"""What to know of a plan that is none the less made: warnings and notes that follow from settings and variables."""

from collections.abc import Iterator, Mapping

from fleet import combinations, variables
from fleet.addressing import BENCHMARK_NETWORK
from fleet.engine_rules import where
from fleet.mesh.plan import MeshPlan
from fleet.mesh.plan import remarks as mesh_remarks
from fleet.problems import Problem, config_path
from fleet.settings import Settings


def warnings(settings: Settings, management: Mapping[str, str]) -> Iterator[Problem]:
    """Settings that work, and that somebody may not have meant; `management` ports are by the ranks' names."""
    for plane in settings.fabric.on:
        pool = settings.fabric.planes[plane].pool
        if pool.overlaps(BENCHMARK_NETWORK):
            yield Problem(
                "benchmark-pool",
                config_path(("fabric", f"plane{plane}", "pool")),
                f"is {pool}, inside {BENCHMARK_NETWORK}",
                "another network",
                "Local proxies hand out fake DNS answers from that range.",
            )
    for name, netdev in management.items():
        if netdev.startswith("wl"):
            yield Problem(
                "wireless",
                f"{name} {netdev}",
                "is wireless and holds the management address",
                "a cable",
                "The ranks meet over this port, and the API answers there.",
            )
    first, head = settings.nodes[0], settings.ranks[0]
    if not first.active:
        yield Problem(
            "head-leaves",
            config_path(("nodes", 0, "state")),
            f"is leaving, so {head.name} becomes the head",
            "clients to follow",
            f"The API moves to {head.address}.",
        )


def remarks(
    settings: Settings, env: Mapping[str, str], hcas: int, mesh: MeshPlan | None
) -> Iterator[tuple[Problem, bool]]:
    """What to know about the variables of rank 0 and the mesh, once for all ranks; with it, whether it is a warning.

    `hcas` is the number of RDMA devices of a rank.
    """
    for one in variables.remarks(settings.ground, env, hcas):
        path = config_path(("engine", "env", one.name))
        yield Problem(one.code, path, one.seen, one.wanted, one.hint), one.warning
    for one in combinations.remarks(settings.ground, env):
        path = config_path(where(settings, one.name))
        seen = one.seen if path.endswith(one.name) else f"{one.name} {one.seen}"
        yield Problem(one.code, path, seen, one.wanted, one.hint), one.warning
    if mesh:
        yield from ((note, False) for note in mesh_remarks(mesh))
