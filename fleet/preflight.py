"""Before anything is registered: every check on every node, and everything that is found at once.

A check finds; what follows from a finding is in `verdicts.py`. `BEFORE` looks at what planning relies on, `AFTER` at
what the plan meets on the nodes.
"""

from __future__ import annotations

from collections.abc import Iterator

from fleet import checkpoint, containers, fits, levels, machine, manifest, membership, nfs, rates
from fleet.drift import NEIGHBOURS, deviations_of
from fleet.look import Check, Look, Planned, PlannedCheck
from fleet.mesh.live import left, marked
from fleet.problems import Problem
from fleet.verdicts import DRIFT, Verdict, row_of
from node.digest import digest

BEFORE: tuple[Check, ...] = (
    membership.reach,
    membership.unread,
    membership.forgotten,
    membership.ownership,
    membership.identity,
    membership.at_work,
    membership.members,
    machine.tools,
    machine.network_manager,
    machine.netplan,
    machine.clock,
    machine.disks,
    levels.bad,
    levels.differ,
    levels.unknown,
)


def before_plan(look: Look) -> list[Problem]:
    """What is to be known before planning."""
    return [one for check in BEFORE for one in check(look)]


def check(look: Planned) -> list[Problem]:
    """What the plan meets on the nodes that can be read."""
    return [one for each in AFTER for one in each(look)]


def refused(look: Planned) -> Iterator[Problem]:
    """Deviations that no `up` repairs: what is somebody else's, and what the operator wants to be asked about."""
    refuse = look.settings.preflight.refuse
    for node, observed in look.ranks:
        for stage in (*node.stages, NEIGHBOURS):
            for one in deviations_of(node, stage, observed):
                row = row_of(one, stage)
                if row is None:
                    continue  # a check of its own
                if row.idle is Verdict.PROBLEM:
                    yield Problem(one.code, f"{node.name} {one.subject}", one.seen, one.wanted, "")
                elif row.idle in DRIFT and one.code in refuse:
                    hint = f"preflight.refuse has {one.code}: take it out to have this repaired."
                    yield Problem(one.code, f"{node.name} {one.subject}", one.seen, one.wanted, hint)


def unknown(look: Planned) -> Iterator[Problem]:
    """Deviations that the table does not have: `fleet` and `node` are of different versions."""
    for node, observed in look.planned:
        for stage in node.stages:
            for one in deviations_of(node, stage, observed):
                if row_of(one, stage) is None:
                    seen = f"{one.seen}, which is {one.code} in {stage}: nothing is known to follow from that"
                    hint = "The folders fleet and node have to be of one version: check both out anew."
                    yield Problem("deviation-unknown", f"{node.name} {one.subject}", seen, one.wanted, hint)


def lasting(look: Planned) -> Iterator[Problem]:
    """Deviations that were there again right after their repair: another try would only stop the engines again."""
    for node, observed in look.ranks:
        for stage in node.stages:
            record = ((observed.get("journal") or {}).get("stages") or {}).get(stage) or {}
            tries = record.get("failures") or 0
            if not tries or record.get("digest") != digest(dict(node.stages[stage])):
                continue
            left = [one for one in deviations_of(node, stage, observed) if not one.code.startswith("journal.")]
            if left:
                times = "once" if tries == 1 else f"{tries} times"
                seen = f"was repaired {times}, and still: {'; '.join(one.text() for one in left)}"
                hint = f"Find out who sets it back, then: python -m fleet retry {node.name} -s {look.stack.stack}"
                yield Problem("repair-failed", f"{node.name} {stage}", seen, "a repair that stays", hint)


AFTER: tuple[PlannedCheck, ...] = (
    refused,
    unknown,
    lasting,
    containers.docker,
    containers.image,
    containers.architecture,
    containers.names,
    containers.folders,
    containers.unhealthy,
    containers.tables,
    containers.engram,
    checkpoint.folder,
    checkpoint.files,
    checkpoint.same,
    checkpoint.revision,
    manifest.digests,
    nfs.kernels,
    nfs.server,
    nfs.reach,
    nfs.volumes,
    machine.image_space,
    machine.memory,
    fits.weights,
    fits.pool,
    fits.rest,
    machine.gpu,
    machine.rdma,
    machine.ports,
    rates.rates,
    marked,
    left,
)
