"""What is wrong, by the place in the picture where it is: a node, a port of it, or a cable."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fleet.mesh.broken import broken
from fleet.mesh.paths import Diagonal
from fleet.plan import Plan
from fleet.problems import Problem
from fleet.survey import Survey
from fleet.verdicts import node_of

Place = tuple[str, str]
"""Node and network device; ("spark1", "") is the whole node, ("", "cable 2") a cable, ("", "") the fleet."""

FLEET: Place = ("", "")
SHOWN = 3  # signs at one place


@dataclass(frozen=True)
class Mark:
    """Something wrong. `bad`: in the way, or drift; else a warning. `kind`: a problem's code, or the stage of drift."""

    place: Place
    text: str
    bad: bool = True
    kind: str = ""


@dataclass(frozen=True)
class Marks:
    """All marks, numbered from 1 in this order."""

    marks: tuple[Mark, ...] = ()

    def at(self, node: str, netdev: str = "") -> str:
        """The numbers at a place, such as "✗1 !3", "" where nothing is wrong."""
        return self._signs(lambda mark: mark.place == (node, netdev))

    def over(self, plan: Plan, path: Diagonal) -> str:
        """The numbers of what is in the way of a path of the mesh, "" where nothing is."""
        return self._signs(lambda mark: _broken(plan, path, mark))

    def _signs(self, wanted: Callable[[Mark], bool]) -> str:
        signs = [self.sign(number) for number, mark in enumerate(self.marks, 1) if wanted(mark)]
        return " ".join([*signs[:SHOWN], *(["…"] if len(signs) > SHOWN else [])])

    def texts_over(self, plan: Plan, path: Diagonal) -> list[str]:
        """What is in the way of a path of the mesh."""
        return [mark.text for mark in self.marks if _broken(plan, path, mark)]

    def texts(self, node: str, netdev: str = "") -> list[str]:
        """What is wrong at a place."""
        return [mark.text for mark in self.marks if mark.place == (node, netdev)]

    def bad(self, node: str, netdev: str = "") -> bool:
        """Whether something at a place is more than a warning."""
        return any(mark.bad for mark in self.marks if mark.place == (node, netdev))

    def sign(self, number: int) -> str:
        """The sign of a mark, by its number."""
        return f"{'✗' if self.marks[number - 1].bad else '!'}{number}"

    def lines(self) -> list[str]:
        """All of it, a line each."""
        return [f"{self.sign(number)} {' '.join(mark.text.split())}" for number, mark in enumerate(self.marks, 1)]


def _broken(plan: Plan, path: Diagonal, mark: Mark) -> bool:
    """Warnings are in no path's way."""
    assert plan.mesh
    names = [node.name for node in plan.ranks]
    return mark.bad and broken(plan.mesh, plan.topology, names, path, mark.place, mark.kind, mark.text)


def of(found: Survey, problems: Sequence[Problem]) -> Marks:
    """The marks of a look at a fleet. What is not there yet on a fleet that was never up is none."""
    told = [Mark(_place(found.plan, one), one.text(), kind=one.code) for one in problems]
    told += [Mark(_place(found.plan, one), one.text(), bad=False, kind=one.code) for one in found.warnings]
    return Marks(tuple([*told, *_drift(found)] if found.ours else told))


def _place(plan: Plan, one: Problem) -> Place:
    node, subject = node_of(one, [each.name for each in plan.settings.nodes])
    cable = re.match(r"cable \d+", one.path)
    if node is None:
        return ("", cable.group()) if cable else FLEET
    return node, _netdev(plan, node, subject)


def _netdev(plan: Plan, node: str, subject: str) -> str:
    """The first network device that a text names, itself or by its RDMA device; "" where it names none."""
    devices = next((each.devices for each in plan.nodes if each.name == node), {})
    named = {name: device.netdev for device in devices.values() for name in (device.netdev, device.hca)}
    words = (word.removesuffix(".service") for word in re.split(r"[^\w.-]+", subject))  # a unit's instance
    return next((named[word] for word in words if word in named), "")


def _drift(found: Survey) -> Iterator[Mark]:
    for one in found.drift.stages.values():
        if one.node in found.others:
            continue
        for reason in one.reasons:
            place = (one.node, _netdev(found.plan, one.node, reason.partition(":")[0]))
            yield Mark(place, f"{one.node} {one.stage}: {reason}", kind=one.stage)
    yield from (Mark(FLEET, f"engine: {reason}") for reason in found.group.reasons)
