"""Wiring: settings, a look at the nodes, the cluster, the outputs."""

from __future__ import annotations

import gc

gc.disable()  # it takes a twentieth of the run, and this process ends before its garbage matters

import sys
from typing import NoReturn

import pulumi

from components.config import holds_secret, raw_config, unencrypted_key
from fleet.asking import OFFLINE, begin, offline
from fleet.loading import load
from fleet.on_node import lost_nodes
from fleet.problems import ProblemsError
from fleet.settings import Settings
from fleet.stack import StackName

# Pulumi's language host adds no "unhandled error" of its own to a program that ends with this code: all has been said.
SAID = 32


def refuse(reason: str) -> NoReturn:
    """End the program with one readable error."""
    pulumi.log.error(reason)
    sys.exit(SAID)


def configured(stack: StackName) -> Settings:
    """The settings as Pulumi hands them over; raises ProblemsError."""
    settings = load(raw_config(without=lost_nodes(stack.stack)))
    if problems := unencrypted_key(settings):
        raise ProblemsError(problems)
    return settings


def main() -> None:
    """Problems become one error, and then nothing is registered."""
    sys.setswitchinterval(0.0005)  # seconds: threads that start ssh must not wait for what is being loaded
    stack = StackName(pulumi.get_project(), pulumi.get_stack())
    try:
        settings = configured(stack)
        if offline() and not pulumi.runtime.is_dry_run():
            refuse(f"{OFFLINE} is for previews without nodes: unset it before `up`")
        asked = begin(settings, stack, changing=not pulumi.runtime.is_dry_run())
        # All that comes after takes as long to load as the nodes take to answer: both at once.
        from components.cluster import Cluster, ClusterArgs  # noqa: PLC0415
        from fleet.survey import survey  # noqa: PLC0415

        found = survey(settings, stack, asked)
    except ProblemsError as error:
        refuse(error.report())
    for warning in found.warnings:
        pulumi.warn(warning.text())
    for note in found.notes:
        pulumi.info(note.text())

    cluster = Cluster("cluster", ClusterArgs(found.plan, found.links, found.drift, found.group, found.readings))
    for name, value in found.outputs(hidden=holds_secret("engine")).items():
        pulumi.export(name, value)
    pulumi.export("imageIds", dict(cluster.image_ids))
    pulumi.export("proof", cluster.proof)


main()
