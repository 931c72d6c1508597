"""Answers of the node program's `cabling`, as nodes give them whose ports are wired in some way."""

from collections.abc import Iterable, Mapping
from typing import Any

from fleet.loading import load
from fleet.ports import USUAL
from fleet.settings import Settings
from fleet.topology import Socket
from fleet.wires import Wires, read
from tests.unit import stacks
from tests.unit.observed import DOMAIN

Report = dict[str, Any]


def ring(*names: str) -> list[str]:
    """Cables from each node's f0 to the next one's f1: `spark1:f0 spark2:f1` …"""
    return [f"{one}:f0 {other}:f1" for one, other in zip(names, (*names[1:], names[0]), strict=True)]


def reports(size: int, wires: Iterable[str], *, down: Iterable[str] = ()) -> dict[str, Report]:
    """The answers of spark1 … spark<size>. A wire is a text of ports, `spark1:f0 spark2:f1`; a switch has more.

    A port that is on no wire has no carrier; `down` ports are not up.
    """
    joined = {port: wire.split() for wire in wires for port in wire.split()}
    found: dict[str, Report] = {f"spark{number}": {"ports": []} for number in range(1, size + 1)}
    for name, report in found.items():
        for (plane, socket), (netdev, hca) in USUAL.items():
            port = f"{name}:{socket}"
            up = port not in down
            heard = [
                _who(other.split(":")[0], far, Socket(other.split(":")[1]))
                for other in joined.get(port, ())
                for far in DOMAIN
                if other not in down and (other, far) != (port, plane)
            ]
            who = _who(name, plane, socket)
            del who["node"]
            carrier = up and any(other not in down for other in joined.get(port, ()) if other != port)
            report["ports"].append(
                {**who, "netdev": netdev, "hca": hca, "up": up, "carrier": carrier, "heard": heard if up else []}
                | {"error": ""}
            )
    return found


def _who(node: str, plane: int, socket: Socket) -> dict[str, Any]:
    netdev, hca = USUAL[plane, socket]
    place = {"domain": DOMAIN[plane], "function": socket.function}
    return {"node": node, "netdev": netdev, "hca": hca, "mac": "", **place}


def wires(
    settings: Settings, texts: Iterable[str], *, down: Iterable[str] = (), silent: Mapping[str, str] | None = None
) -> Wires:
    """The same, read. `silent` nodes gave no answer, but may have been heard."""
    answers = reports(len(settings.nodes), texts, down=down)
    return read(settings, {name: one for name, one in answers.items() if name not in (silent or {})}, silent or {})


CABLED = wires(load(stacks.ring()), ring("spark1", "spark2", "spark3", "spark4"))
"""What four nodes tell that are wired as the usual ring."""
