"""The fleet as text: who is cabled to whom with which addresses, and a table of the nodes."""

from collections.abc import Callable, Iterator, Sequence

from fleet.mesh.paths import Diagonal
from fleet.mesh.plan import STATUS
from fleet.plan import NodePlan, Plan
from fleet.topology import End, Kind

At = Callable[..., str]
"""What is to be said at a node, or at a node and a network device, or at "" and a cable; "" for nothing."""

Over = Callable[[Diagonal], str]
"""What is to be said of a path of a mesh; "" for nothing."""


def _nothing(*_: object) -> str:
    return ""


def picture(plan: Plan, at: At = _nothing, over: Over = _nothing) -> str:
    """Nodes, cables, planes, subnets, addresses and the paths of a mesh; as long as the fleet is.

    `at` and `over` mark what is wrong, and where.
    """
    fabric = _ring(plan, at) if plan.topology.kind is Kind.RING else _switched(plan, at)
    return "\n".join((*fabric, *mesh(plan, over)))


def table(plan: Plan) -> str:
    """One line for each node: rank, management address and port, fabric addresses, RDMA devices, container."""
    rows = [("rank", "node", "address", "management", *(f"plane {plane}" for plane in plan.planes), "container")]
    for node in plan.nodes:
        rank = "-" if node.rank is None else str(node.rank)
        container = node.container.name if node.container else "leaving"
        rows.append((rank, node.name, node.address, node.management, *_addresses(plan, node), container))
    return "\n".join(columns(rows))


def _addresses(plan: Plan, node: NodePlan) -> Iterator[str]:
    for plane in plan.planes:
        ports = node.stages[f"plane{plane}"]["ports"]
        yield ", ".join(
            f"{port['socket']} {port.get('address', 'off')}" for port in sorted(ports, key=lambda p: p["socket"])
        )


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines, with each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _ring(plan: Plan, at: At) -> Iterator[str]:
    """The ring opened at the first rank: its other cable comes back from the bottom along the left edge."""
    fabric = plan.settings.fabric
    yield f"ring of {plan.topology.size}, MTU {fabric.mtu}, IP relay {'on' if fabric.ip_relay else 'off'}"
    rows: list[tuple[str, ...]] = [("", *(f"plane {plane}" for plane in plan.planes))]
    rank, entered = 0, plan.topology.ends(0)[1]
    for _ in range(plan.topology.size):
        rows.append((_box(plan, rank, at), *("" for _ in plan.planes)))
        (leave,) = (end for end in plan.topology.ends(rank) if end != entered)
        segment = plan.topology.segment(leave)
        (other,) = segment.others(leave)
        subnets = (str(addresses.subnets[segment.index]) for addresses in plan.planes.values())
        cable = f"cable {segment.index}"
        rows += [_end(plan, leave, at), (f"  ║  {cable} {at('', cable)}".rstrip(), *subnets), _end(plan, other.end, at)]
        rank, entered = other.end.rank, other.end
    lines = columns(rows)
    yield f"    {lines[0]}".rstrip()
    yield f"╭─▶ {lines[1]}"
    yield from (f"│   {line}" for line in lines[2:-1])
    yield f"╰───{lines[-1].replace(' ', '─', 1)}   [0] {plan.head.name}"


def mesh(plan: Plan, over: Over) -> Iterator[str]:
    """The eight paths between opposite nodes, as a table; nothing without a mesh."""
    if plan.mesh:
        wanted = plan.mesh.settings
        yield ""
        yield f"mesh ({STATUS}), queue {wanted.hairpin_queue_size}, cap {wanted.cap}"
        yield from columns(plan.mesh.rows([node.name for node in plan.ranks], over))


def _end(plan: Plan, end: End, at: At) -> tuple[str, ...]:
    return (f"  {end.socket}", *_at(plan, end, at))


def _at(plan: Plan, end: End, at: At) -> Iterator[str]:
    node = plan.ranks[end.rank]
    for plane, addresses in plan.planes.items():
        netdev = node.devices[plane, end.socket].netdev
        yield f"{addresses.at(end)} {netdev} {at(node.name, netdev)}".rstrip()


def _box(plan: Plan, rank: int, at: At) -> str:
    node = plan.ranks[rank]
    return f"[{rank}] {node.name}  {node.address}  {at(node.name)}".rstrip()


def _switched(plan: Plan, at: At) -> Iterator[str]:
    """The switch as a bar, a branch for each node."""
    members = plan.topology.segments[0].members
    yield f"switched, {plan.topology.size} nodes, MTU {plan.settings.fabric.mtu}"
    rows = [("switch", *(f"plane {plane}  {each.subnets[0]}" for plane, each in plan.planes.items()))]
    for member in members:
        branch = "╰" if member is members[-1] else "├"
        rows.append((f"{branch}─ {member.end.socket} ─ {_box(plan, member.end.rank, at)}", *_at(plan, member.end, at)))
    yield from columns(rows)
