"""What the mesh needs of the rest of the settings; each condition that is not met is a mistake of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fleet.mesh.desired import GID_INDEX
from fleet.model import Broken
from fleet.profiles import WHOLE, Profile
from fleet.topology import Kind

if TYPE_CHECKING:
    from fleet.settings import Settings

LEAST_MTU = 4200
"""Bytes. With less the ports come down from RoCE MTU 4096, the only one that the paths were qualified with."""

OFF = "Or set mesh.enabled: off."


def has_paths(settings: Settings) -> bool:
    """Whether the image has the path-aware RoCEnante, as the operator says or the profile's image has it."""
    whole = WHOLE.get(settings.engine.profile)
    return settings.engine.image.roce_ring or (whole is not None and "roce-ring" in whole.build.has)


def unmet(settings: Settings) -> Iterator[Broken]:
    """The conditions that the settings do not meet, none where the mesh is off.

    That there are four nodes is asked by the plan: a ring that has lost one must still be shown, and put back.
    """
    mesh, fabric, engine = settings.mesh, settings.fabric, settings.engine
    if not mesh.enabled:
        return
    enabled = (("mesh", "enabled"),)
    if fabric.topology is not Kind.RING:
        yield Broken(
            "mesh-topology",
            ("mesh", "enabled"),
            f"is on with a {fabric.topology} fabric",
            "it on a ring only",
            "On a switch every node reaches every other.",
            (("fabric", "topology"),),
        )
    for plane in fabric.planes.keys() - set(fabric.on):
        yield Broken(
            "mesh-plane",
            ("fabric", f"plane{plane}", "enabled"),
            "is off with the mesh on",
            "both planes",
            f"Opposite nodes reach each other by one path in each plane. {OFF}",
            enabled,
        )
    if mesh.marker is None:
        yield Broken(
            "mesh-marker",
            ("mesh", "marker"),
            "is missing with the mesh on",
            "the marker program: file or onNode, and sha256",
            "docs/config.md says which it is.",
            enabled,
        )
    if not has_paths(settings):
        yield Broken(
            "mesh-image",
            ("engine", "image", "roceRing"),
            "is off with the mesh on",
            "an image with the path-aware RoCEnante",
            f"Set it on where the image has b12x.comm.roce_ring, as one of Dockerfile.canary-roce. {OFF}",
            (*enabled, ("engine", "profile")),
        )
    if engine.profile is Profile.NONE:
        yield Broken(
            "mesh-profile",
            ("engine", "profile"),
            f"is {engine.profile} with the mesh on",
            f"{Profile.AUTO}, or one for an image with RoCEnante",
            f"The engine has to be told of the paths. {OFF}",
            enabled,
        )
    if engine.gid_index not in (None, GID_INDEX):
        yield Broken(
            "mesh-gid",
            ("engine", "gidIndex"),
            f"is {engine.gid_index} with the mesh on",
            f"{GID_INDEX}, or nothing",
            "RoCEnante takes no other. Leave it out: a GID that has moved is put back.",
            enabled,
        )
    if fabric.mtu < LEAST_MTU:
        yield Broken(
            "mesh-mtu",
            ("fabric", "mtu"),
            f"is {fabric.mtu} with the mesh on",
            f"at least {LEAST_MTU}",
            f"The paths need RoCE MTU 4096. {OFF}",
            enabled,
        )
