"""The fleet as a drawing: nodes around a circle, ports at their edges, a line for each cable and plane, marks."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape

from fleet.marks import Marks
from fleet.picture import mesh
from fleet.plan import NodePlan, Plan
from fleet.topology import End, Kind

WIDTH, HEIGHT = 256, 92  # of a node, in px
LINE = 17
MARGIN = 40
APART = 16  # between the lines of two planes
COLOURS = ("#1f6feb", "#b35900")  # of plane 0 and plane 1
BAD, ODD = "#d1242f", "#bf8700"
STYLE = """\
text { font: 13px ui-monospace, monospace; fill: #1f2328; white-space: pre; }
.name { font-weight: bold; } .small { font-size: 11px; fill: #59636e; } .bad { fill: #d1242f; } .odd { fill: #9a6700; }
"""


@dataclass(frozen=True)
class Point:
    """A place of the drawing in px, right and down from its corner."""

    x: float
    y: float

    def towards(self, other: Point) -> tuple[float, float]:
        """The direction to another point, of length 1."""
        length = math.hypot(other.x - self.x, other.y - self.y)
        return (other.x - self.x) / length, (other.y - self.y) / length

    def edge(self, other: Point, aside: float) -> Point:
        """Where a line to another point, shifted by `aside` px to its left, leaves the box around this one."""
        dx, dy = self.towards(other)
        x, y = self.x - dy * aside, self.y + dx * aside
        sides = ((self.x + math.copysign(WIDTH / 2, dx) - x, dx), (self.y + math.copysign(HEIGHT / 2, dy) - y, dy))
        reach = min(way / d for way, d in sides if abs(d) > 1e-9)
        return Point(x + dx * reach, y + dy * reach)


def svg(plan: Plan, marks: Marks) -> str:
    """The whole drawing as an SVG file. What is wrong is red where it is, and told below."""
    size = plan.topology.size
    inner = WIDTH if plan.topology.kind is Kind.RING else WIDTH * 1.4  # room for the switch
    radius = max(inner, WIDTH * 0.75 / math.sin(math.pi / size))
    centre = Point(radius + WIDTH / 2 + MARGIN, radius + HEIGHT / 2 + MARGIN + LINE)
    places = [_around(centre, radius, rank, size) for rank in range(size)]
    notes = [(text, f"small {_class(text)}") for text in (*_legend(plan), *mesh(plan, partial(marks.over, plan)))]
    notes += [(text, _class(text)) for text in marks.lines()]
    bottom = centre.y + radius + HEIGHT / 2 + MARGIN
    width, height = 2 * centre.x, bottom + LINE * (len(notes) + 1)
    box = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" xml:space="preserve" {box}>',
        f"<style>{STYLE}</style>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        _text(Point(MARGIN, MARGIN), _title(plan), "name"),
        *(part for node, at in zip(plan.ranks, places, strict=True) for part in _node(plan, node, at, marks)),
        *(_paths(plan, marks, places, centre) if plan.mesh else ()),
        *(_ring(plan, marks, places) if plan.topology.kind is Kind.RING else _switched(plan, marks, places, centre)),
        *(_text(Point(MARGIN, bottom + LINE * row), *note) for row, note in enumerate(notes)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _around(centre: Point, radius: float, rank: int, size: int) -> Point:
    """Rank 0 at the top left of the upper side, then clockwise."""
    angle = 2 * math.pi * rank / size - math.pi / 2 - math.pi / size
    return Point(centre.x + radius * math.cos(angle), centre.y + radius * math.sin(angle))


def _title(plan: Plan) -> str:
    kind = "ring" if plan.topology.kind is Kind.RING else "switched fabric"
    return f"{plan.stack.label(plan.settings.fleet.id)}: {kind} of {plan.topology.size}, MTU {plan.settings.fabric.mtu}"


def _legend(plan: Plan) -> list[str]:
    planes = [f"plane {one}: {_colour_name(one)}, {plan.settings.fabric.planes[one].pool}" for one in plan.planes]
    return [*planes, *(["dotted: paths of the mesh"] if plan.mesh else [])]


def _colour_name(plane: int) -> str:
    return ("blue", "brown")[plane]


def _class(text: str, usual: str = "small") -> str:
    """How a text with signs looks: as the worst of them."""
    return "bad" if "✗" in text else "odd" if re.search(r"!\d", text) else usual


def _ring(plan: Plan, marks: Marks, places: Sequence[Point]) -> Iterator[str]:
    ports = _ports(plan, places)
    for segment in plan.topology.segments:
        one, other = (member.end for member in segment.members)
        start, end = places[one.rank], places[other.rank]
        cable = f"cable {segment.index}"
        for plane in plan.planes:
            ends = ((one, ports[plane, one]), (other, ports[plane, other]))
            subnet = f"{cable}, plane {plane}: {plan.planes[plane].subnets[segment.index]}"
            yield from _wire(plan, marks, plane, ends, subnet, cable=cable)
        middle = Point((start.x + end.x) / 2, (start.y + end.y) / 2)
        yield _label(middle, f"{cable} {marks.at('', cable)}".rstrip())


def _ports(plan: Plan, places: Sequence[Point]) -> dict[tuple[int, End], Point]:
    """Where the ports of a ring are, by plane."""
    found = {}
    for segment in plan.topology.segments:
        one, other = (member.end for member in segment.members)
        for row, plane in enumerate(plan.planes):
            aside = APART * (row - (len(plan.planes) - 1) / 2)
            found[plane, one] = places[one.rank].edge(places[other.rank], aside)
            found[plane, other] = places[other.rank].edge(places[one.rank], -aside)
    return found


def _paths(plan: Plan, marks: Marks, places: Sequence[Point], centre: Point) -> Iterator[str]:
    """The paths of a mesh: from port to port, past the node between; the two ways of a pair beside each other."""
    assert plan.mesh
    ports, names = _ports(plan, places), [node.name for node in plan.ranks]
    for path in plan.mesh.ring.taken():
        start, end, via = ports[path.plane, path.origin], ports[path.plane, path.arrival], places[path.via]
        near = 0.75 if path.source < path.destination else 0.6  # of the way from the middle to the node between
        bend = Point(centre.x + (via.x - centre.x) * near, centre.y + (via.y - centre.y) * near)
        wrong = marks.texts_over(plan, path)
        what = f"{names[path.source]} to {names[path.destination]} over {names[path.via]}, plane {path.plane}"
        yield (
            f'<path d="M {start.x:.1f} {start.y:.1f} Q {bend.x:.1f} {bend.y:.1f} {end.x:.1f} {end.y:.1f}" fill="none" '
            f'stroke="{BAD if wrong else COLOURS[path.plane]}" stroke-width="1.5" stroke-dasharray="2 4">'
            f"{_hover(f'mesh: {what}, rule {path.number}', *wrong)}</path>"
        )


def _switched(plan: Plan, marks: Marks, places: Sequence[Point], centre: Point) -> Iterator[str]:
    for member in plan.topology.segments[0].members:
        start = places[member.end.rank]
        for row, plane in enumerate(plan.planes):
            aside = APART * (row - (len(plan.planes) - 1) / 2)
            ends = ((member.end, start.edge(centre, aside)), (None, centre.edge(start, -aside)))
            yield from _wire(plan, marks, plane, ends, f"plane {plane}: {plan.planes[plane].subnets[0]}")
    yield _box(centre, "#59636e", "the switch")
    yield _text(Point(centre.x, centre.y + 5), "switch", "name", anchor="middle")


def _wire(
    plan: Plan,
    marks: Marks,
    plane: int,
    ends: tuple[tuple[End | None, Point], tuple[End | None, Point]],
    subnet: str,
    cable: str = "",
) -> Iterator[str]:
    """A plane of a cable: broken where one of its ports is, or all of the cable."""
    ports = [(_port(plan, plane, end), at) for end, at in ends if end is not None]
    wrong = [text for (node, netdev, _), _ in ports for text in marks.texts(node, netdev)]
    wrong += marks.texts("", cable) if cable else []
    bad = any(marks.bad(node, netdev) for (node, netdev, _), _ in ports) or marks.bad("", cable or "-")
    (_, start), (_, end) = ends
    colour, dash = (BAD if bad else ODD, ' stroke-dasharray="6 4"') if wrong else (COLOURS[plane], "")
    yield (
        f'<line x1="{start.x:.1f}" y1="{start.y:.1f}" x2="{end.x:.1f}" y2="{end.y:.1f}" stroke="{colour}" '
        f'stroke-width="3"{dash}>{_hover(subnet, *wrong)}</line>'
    )
    for (node, netdev, address), at in ports:
        texts = marks.texts(node, netdev)
        fill = (BAD if marks.bad(node, netdev) else ODD) if texts else COLOURS[plane]
        hover = _hover(f"{node} {netdev} {address}", *texts)
        yield f'<circle cx="{at.x:.1f}" cy="{at.y:.1f}" r="6" fill="{fill}" stroke="#ffffff">{hover}</circle>'
        if texts:
            signs = marks.at(node, netdev)
            yield _text(Point(at.x + 8, at.y - 6), signs, _class(signs))


def _port(plan: Plan, plane: int, end: End) -> tuple[str, str, str]:
    """Node, network device and address of a port."""
    node = plan.ranks[end.rank]
    return node.name, node.devices[plane, end.socket].netdev, str(plan.planes[plane].at(end))


def _node(plan: Plan, node: NodePlan, at: Point, marks: Marks) -> Iterator[str]:
    texts = marks.texts(node.name)
    colour = (BAD if marks.bad(node.name) else ODD) if texts else "#59636e"
    yield _box(at, colour, *(texts or [node.name]))
    left, top = at.x - WIDTH / 2 + 10, at.y - HEIGHT / 2 + LINE + 3
    assert node.rank is not None
    signs = marks.at(node.name)
    rows = [(f"[{node.rank}] {node.name} {signs}".rstrip(), _class(signs, "name"))]
    rows.append((f"{node.management} {node.address}", "small"))
    for end in plan.topology.ends(node.rank):
        addresses = "  ".join(str(addresses.at(end)) for addresses in plan.planes.values())
        rows.append((f"{end.socket} {addresses}", "small"))
    yield from (_text(Point(left, top + LINE * row), text, kind) for row, (text, kind) in enumerate(rows))


def _box(at: Point, colour: str, *hover: str) -> str:
    return (
        f'<rect x="{at.x - WIDTH / 2:.1f}" y="{at.y - HEIGHT / 2:.1f}" width="{WIDTH}" height="{HEIGHT}" rx="8" '
        f'fill="#f6f8fa" stroke="{colour}" stroke-width="2">{_hover(*hover)}</rect>'
    )


def _label(at: Point, text: str) -> str:
    half = 4 * len(text) + 6
    back = f'<rect x="{at.x - half:.1f}" y="{at.y - 10:.1f}" width="{2 * half}" height="20" fill="#ffffff"/>'
    return back + _text(Point(at.x, at.y + 5), text, _class(text), anchor="middle")


def _text(at: Point, text: str, kind: str, anchor: str = "start") -> str:
    return f'<text x="{at.x:.1f}" y="{at.y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'


def _hover(*texts: str) -> str:
    return "".join(f"<title>{escape(chr(10).join(texts))}</title>" for _ in texts[:1])
