"""What is wanted of the engine's containers on each rank, from the plan: what `health.py` and `generation.py` take."""

from __future__ import annotations

from typing import Any

from fleet.plan import Plan
from fleet.scalars import OnFailure

LOG_LINES = 20  # of each rank, of those that are shown


def engines(plan: Plan) -> dict[str, Any]:
    """How the node program finds a rank's container, and how many seconds it gives it to end."""
    return {"name": plan.container_name, "grace": plan.settings.engine.stop_grace}


def asked(plan: Plan) -> dict[str, Any] | None:
    """What `smoke.py` asks of the head; None where the settings leave it out."""
    smoke, engine = plan.settings.engine.smoke, plan.settings.engine
    return (
        {"checks": smoke.checks, "model": engine.served_model_name, "timeout": smoke.timeout} if smoke.checks else None
    )


def awaited(plan: Plan, start: str) -> dict[str, dict[str, Any]]:
    """By node, in rank order. `start` names the start of the engines that is waited for, and kept once it serves."""
    engine = plan.settings.engine
    return {
        node.name: {
            "rank": node.rank,
            "port": engine.port,
            "address": engine.own_address,
            "api": node.rank == 0,
            "lines": LOG_LINES,
            "ready_s": engine.ready_timeout,
            "smoke": asked(plan) if node.rank == 0 else None,
            **engines(plan),
            "start": start,
            "ground": plan.standstill,
            "rollback": engine.on_failure is OnFailure.ROLLBACK,
        }
        for node in plan.ranks
    }
