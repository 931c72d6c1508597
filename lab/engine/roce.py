"""RoCEnante on a ring: every rank writes its part of a small all-reduce to every other, by the paths it is given.

No RoCE frame can be sent here. The simulated cards of the nodes are asked whether the paths work, before the first step
and at each one: a rule, route or marker that is missing fails the step, as with real cards.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import fabric
from .log import EngineLog
from .rendezvous import Group
from .settings import Settings

WORLD = 4
HOPS = 2  # to the opposite rank of a ring of four, whichever way the ranks are counted
MARKED, UNMARKED = 65535, 49152  # UDP source ports: of flow label 16383, and of any that no marker matches
FRAME = 4096  # bytes of a message in one frame
CARD = "127.0.0.1:18500"
PATIENCE = 30  # seconds for an answer
Map = dict[int, list[str]]  # peer: device of each path


class RoceError(Exception):
    """The paths between the ranks do not work, or are not described."""


@dataclass(frozen=True)
class End:
    """What a rank tells the others of itself."""

    node: str
    addresses: dict[str, str]  # by device
    paths: Map


def parse_map(text: str, devices: Sequence[str]) -> Map:
    """One rank's `1=0/2,2=0/3,3=1/3`: the numbers behind `=` are places in the list of devices."""
    try:
        entries = [entry.split("=") for entry in text.split(",")]
        return {int(peer): [devices[int(place)] for place in places.split("/")] for peer, places in entries}
    except (ValueError, IndexError):
        raise RoceError(f"B12X_ROCE_PEER_HCA_MAPS: {text!r} is no map of peers to devices") from None


def own_map(env: Mapping[str, str], rank: int, devices: Sequence[str]) -> Map:
    """B12X_ROCE_PEER_HCA_MAP is this rank's alone and wins; else the one of four in B12X_ROCE_PEER_HCA_MAPS."""
    if own := env.get("B12X_ROCE_PEER_HCA_MAP"):
        return parse_map(own, devices)
    maps = env.get("B12X_ROCE_PEER_HCA_MAPS", "").split(";")
    if len(maps) != WORLD:
        raise RoceError(f"B12X_ROCE_PEER_HCA_MAPS holds {len(maps)} maps, not {WORLD}")
    return parse_map(maps[rank], devices)


def questions(ends: Sequence[End], gid_index: int, only_opposite: bool) -> list[dict[str, Any]]:
    """The paths between the ranks as the card is asked for them, each with the `receiver` that it must have."""
    found = []
    for rank, end in enumerate(ends):
        for peer, devices in sorted(end.paths.items()):
            opposite = (peer - rank) % WORLD == HOPS
            if only_opposite and not opposite:
                continue
            for device, far_device in zip(devices, ends[peer].paths[rank], strict=True):
                found.append(
                    {
                        "node": end.node,
                        "device": device,
                        "address": ends[peer].addresses[far_device],
                        "sport": MARKED if opposite else UNMARKED,
                        "gid_index": gid_index,
                        "receiver": [ends[peer].node, far_device],
                    }
                )
    return found


class Roce:
    """The paths of all ranks; rank 0 has them checked for all."""

    def __init__(self, settings: Settings, group: Group) -> None:
        env = settings.env
        self.group = group
        self.card = env.get("ENGINE_CARD", CARD)
        self.gid_index = int(settings.number("B12X_ROCE_GID_INDEX", 3))
        self.max_size = int(settings.number("SGLANG_ROCE_MAX_SIZE", 0))
        self.names = env.get("B12X_ROCE_HCA", "").split(",")
        if group.size != WORLD:
            raise RoceError(f"DSV41_ROCE_RING=1 is for {WORLD} ranks, not {group.size}")
        root = Path(env.get("ENGINE_SYSFS", "/sys/class/infiniband"))
        devices = fabric.devices(root, f"={','.join(self.names)}", str(self.gid_index))
        self.addresses = {device.name: device.ipv4 for device in devices if device.ipv4}
        if missing := [name for name in self.names if name not in self.addresses]:
            raise RoceError(f"no IPv4 GID of RoCE v2 at index {self.gid_index} on {', '.join(missing)}")
        self.paths = own_map(env, settings.rank, self.names)

    def start(self, seconds: float, say: EngineLog) -> None:
        """Tell each other of the paths, and check them all."""
        mine = [socket.gethostname(), self.addresses, [[peer, devices] for peer, devices in self.paths.items()]]
        told = self.group.exchange("roce", mine, seconds)
        self.ends = [End(node, addresses, dict(paths)) for node, addresses, paths in told]
        problem = "" if self.group.rank else self._problem(only_opposite=False)
        if verdict := self.group.exchange("roce paths", problem, seconds)[0]:
            raise RoceError(verdict)
        ready = f"world={WORLD} hcas={','.join(self.names)} gid_index={self.gid_index} max_size={self.max_size}"
        say(f"RoCEnante ready: {ready} (simulated)")

    def step(self, number: int, seconds: float, messages: Sequence[int]) -> str:
        """All-reduces of so many bytes each over the opposite paths; why one failed, if it did."""
        problem = "" if self.group.rank else self._problem(only_opposite=True, messages=messages)
        return str(self.group.exchange(f"roce {number}", problem, seconds, patient=True)[0])

    def _problem(self, only_opposite: bool, messages: Sequence[int] = ()) -> str:
        """The first path that does not work, and why. A message goes out at once, all of its frames."""
        bursts = [-(-size // FRAME) for size in messages]
        try:
            asked = questions(self.ends, self.gid_index, only_opposite)
        except (KeyError, IndexError, ValueError):
            return "RoCEnante: the ranks' maps of devices do not fit together"
        receivers = [path.pop("receiver") for path in asked]
        try:
            answers = self._ask([path | {"bursts": bursts} for path in asked])
        except (OSError, ValueError, KeyError) as error:
            return f"RoCEnante: the card at {self.card} does not answer: {error}"
        for path, receiver, answer in zip(asked, receivers, answers, strict=True):
            if not answer["works"] or answer["receiver"] != receiver:
                why = answer["reason"] or f"frames arrive at {answer['receiver']}, not at {receiver}"
                return f"RoCEnante: {path['node']} {path['device']} to {path['address']}: retries exceeded ({why})"
        return ""

    def _ask(self, paths: list[dict[str, Any]]) -> list[dict[str, Any]]:
        host, _, port = self.card.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
            connection.sendall(json.dumps({"op": "reach", "paths": paths}).encode() + b"\n")
            with connection.makefile() as answer:
                answers: list[dict[str, Any]] = json.loads(answer.readline())["answer"]
                return answers
