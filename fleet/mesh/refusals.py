"""What makes a mesh impossible on the nodes as they are."""

import re
from collections.abc import Iterator, Sequence

from fleet.mesh.desired import Port, Ports
from fleet.mesh.paths import SIZE
from fleet.problems import Problem, config_path
from fleet.topology import PLANES

MAC = re.compile(r"([0-9a-f]{2}:){5}[0-9a-f]{2}")


def size(ranks: int) -> Iterator[Problem]:
    """Another number of ranks than the mesh is for.

    Not a rule of the settings: a ring that has lost a node must still be shown, and put back as it was.
    """
    if ranks != SIZE:
        yield Problem(
            "mesh-ranks",
            config_path(("nodes",)),
            f"has {ranks} active with the mesh on",
            f"{SIZE} active nodes",
            "Set mesh.enabled: off.",
        )


def cards(names: Sequence[str], ports: Ports) -> Iterator[Problem]:
    """Ports whose MAC or place no rule can name, and planes of a node that are not one card. `names` are by rank."""
    seen: dict[str, str] = {}
    for (_, end), port in ports.items():
        path = f"{names[end.rank]} {port.netdev}"
        problem = _mac(path, port)
        if problem is None and port.mac in seen:
            problem = Problem(
                "mesh-mac-twice",
                path,
                f"has the MAC {port.mac}, as {seen[port.mac]} has",
                "a MAC of its own for each port",
                "Rules tell packets by MAC. Was a configuration copied from another node?",
            )
        if problem:
            yield problem
        seen.setdefault(str(port.mac), path)
        if port.pci is None:
            yield Problem(
                "mesh-pci",
                f"{names[end.rank]} {port.hca}",
                "has no PCI address that could be read",
                "it, to set the driver's queues",
                "Is the driver loaded? Look with `devlink dev`.",
            )
    for rank, name in enumerate(names):
        for plane in PLANES:
            yield from _one_card(
                name, plane, [port for (of, end), port in ports.items() if (of, end.rank) == (plane, rank)]
            )


def _mac(path: str, port: Port) -> Problem | None:
    wanted, hint = "a unicast MAC", "Rules tell packets by MAC."
    if port.mac is None:
        return Problem("mesh-mac", path, "has no MAC that could be read", wanted, hint)
    if not MAC.fullmatch(port.mac) or not int(port.mac.replace(":", ""), 16) or int(port.mac[:2], 16) & 1:
        return Problem("mesh-mac", path, f"has the MAC {port.mac}", wanted, hint)
    return None


def _one_card(name: str, plane: int, ports: Sequence[Port]) -> Iterator[Problem]:
    """A card passes on between its own ports only; nobody has recorded anything else."""
    places = sorted({port.pci.rpartition(".")[0] for port in ports if port.pci})
    if len(places) > 1:
        yield Problem(
            "mesh-card",
            f"{name} plane {plane}",
            f"has {', '.join(f'{port.netdev} at {port.pci}' for port in ports)}",
            "both ports on one card",
            "Correct nodes[].ports.",
        )
