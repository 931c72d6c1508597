"""What is to be known of a mesh that runs: markers that do not stay up, and who else is on their devices."""

from collections.abc import Iterator

from fleet.look import Planned
from fleet.problems import Problem
from node import markers


def marked(look: Planned) -> Iterator[Problem]:
    """Markers that die again and again, and processes of others that a marker may catch."""
    for node, observed in look.ranks:
        desired = node.stages.get("markers")
        if desired is None or desired["state"] == "off":
            continue
        for text in markers.flapping(dict(observed)):
            yield Problem("marker-flaps", node.name, text, "markers that stay up", "")
        if look.engines(observed):
            continue  # whose own queue pairs are what the markers are for
        for text in markers.sharing(dict(desired), dict(observed)):
            yield Problem("marker-shared", node.name, text, "nobody else on these devices", "")
