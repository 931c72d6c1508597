"""What is to be known of a mesh on the nodes: markers that do not stay up, who else is on their devices, and rules that
are left of one.
"""

from collections.abc import Iterator

from fleet.look import Planned
from fleet.problems import Problem
from node import flow, markers, tc
from node.flowsteps import STAGE as FORWARDING


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


def left(look: Planned) -> Iterator[Problem]:
    """Rules of a mesh whose journal was lost: files of ours are beside them, but nothing tells whose a rule is.

    So `up` takes the files and the markers away, and no rule. None of it outlives a boot without them.
    """
    for node, observed in look.planned:
        held = ((observed.get("journal") or {}).get("stages") or {}).get(FORWARDING)
        planned = node.stages.get(FORWARDING) or {"state": "off"}
        if held or planned["state"] != "off" or not markers.ours(dict(observed)):
            continue
        for row in observed["mesh"].get("filters") or []:
            if row["protocol"] == tc.MARKED:
                hint = f"After `up`: sudo {' '.join(flow.delete_command(row))}, or boot the node."
                seen = f"there is {flow.words(row)}, of a mesh that no journal knows"
                yield Problem("mesh-left", f"{node.name} {flow.slot(row)}", seen, "no rule of a mesh", hint)
