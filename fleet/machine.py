"""Checks of the machines themselves: programs, clock, disks, memory, and who else uses GPU, RDMA and TCP ports."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from statistics import median

from fleet.look import Look, Observed, Planned, shown
from fleet.plan import NodePlan
from fleet.problems import Problem
from fleet.scalars import Gpus
from fleet.topology import Kind

MIB, GIB = 1 << 20, 1 << 30

CLOCK_S = 2.0  # by which clocks may differ
ROOM = 256 * MIB  # that journal, netplan files and the copy of the program need at most, with much to spare
FILES = 1000  # that can still be made
SHARE = 0.8  # of all memory that an engine takes, where its variables say nothing
SERVICES = ("nvidia-persistenced", "nv-hostengine", "Xorg", "gnome-shell", "Xwayland")
"""Programs that may hold the GPU for ever and take next to nothing of it."""

NEEDED = ("ip", "nmcli", "netplan", "ping", "systemctl")
RELAYED = "iptables"
PACKAGES = {"ip": "iproute2", "nmcli": "network-manager", "netplan": "netplan.io", "ping": "iputils-ping"}


def tools(look: Look) -> Iterator[Problem]:
    """Programs that are not installed."""
    fabric = look.settings.fabric
    needed = (*NEEDED, RELAYED) if fabric.ip_relay and fabric.topology is Kind.RING else NEEDED
    for name, observed in look.nodes:
        there = observed.get("tools") or {}
        for tool in needed:
            if not there.get(tool, True):
                hint = f"On {name}: sudo apt install {PACKAGES.get(tool, tool)}"
                yield Problem("tool-missing", name, f"has no {tool}", "that program", hint)


def network_manager(look: Look) -> Iterator[Problem]:
    """Nodes on which nobody would bring the ports up."""
    for name, observed in look.nodes:
        if not (observed.get("nm") or {"running": True}).get("running"):
            hint = f"On {name}: sudo systemctl enable --now NetworkManager"
            yield Problem("nm-stopped", name, "NetworkManager does not run", "it, with the fabric's ports", hint)


def netplan(look: Look) -> Iterator[Problem]:
    """Files of others that netplan cannot read: no port that it configures would come up at the next boot."""
    for name, observed in look.nodes:
        said = observed.get("netplan_broken")
        if said:
            hint = f"On {name}: sudo netplan generate names the file and the line."
            yield Problem("netplan-broken", f"{name} /etc/netplan", said, "files that netplan can read", hint)


def clock(look: Look) -> Iterator[Problem]:
    """Clocks that certainly differ from the middle one, whatever the time that an answer took; ours has a vote."""
    spans = {name: span for name, span in look.seen.clocks.items() if name in look.seen.observed}
    middle = median([0.0, *((low + high) / 2 for low, high in spans.values())])
    for name, (low, high) in spans.items():
        off = max(low - middle, middle - high)
        if off > CLOCK_S:
            way = "ahead" if low > middle else "behind"
            hint = f"On {name}: timedatectl; is a time service on?"
            wanted = f"that of the others, within {CLOCK_S:g} s"
            yield Problem("clock", name, f"its clock is {off:.0f} s {way}", wanted, hint)


def disks(look: Look) -> Iterator[Problem]:
    """File systems on which we could not finish what we begin."""
    for name, observed in look.nodes:
        told: set[tuple[object, ...]] = set()
        for path, space in (observed.get("disks") or {}).items():
            same = tuple((space or {}).values())  # two paths on one disk are told once
            if space is None or same in told:
                continue
            told.add(same)
            if space["free"] < ROOM:
                seen, wanted = f"has {space['free'] // MIB} MiB left", f"{ROOM // MIB} MiB"
            elif space["files_total"] and space["files_free"] < FILES:
                seen, wanted = f"has room for {space['files_free']} files", f"{FILES}"
            else:
                continue
            yield Problem("disk-full", f"{name} {path}", seen, wanted, f"On {name}: df -h {path}; df -i {path}")


def image_space(look: Planned) -> Iterator[Problem]:
    """Disks that have no room for the image that is to be loaded."""
    image = look.settings.engine.image
    for node, observed in look.ranks:
        docker, (path, space) = observed.get("docker"), _images_disk(observed)
        if docker is None or space is None or image.ref in docker["images"] or not look.archive:
            continue
        needed = 2 * look.archive  # layers are kept unpacked, and for a while as they came
        if space["free"] < needed:
            seen = f"has {_gib(space['free'])} left, and lacks the image"
            yield Problem(
                "image-space", f"{node.name} {path}", seen, _gib(needed), "docker system df; docker image prune"
            )


def _images_disk(observed: Observed) -> tuple[str, dict[str, int] | None]:
    """Docker's folder comes last."""
    disks = observed.get("disks") or {}
    return next(reversed(disks.items()), ("", None))


def memory(look: Planned) -> Iterator[Problem]:
    """Nodes with too little free memory for an engine to start: a Spark hangs when it runs out."""
    for node, observed in look.ranks:
        seen = observed.get("memory") or {}
        total, available = seen.get("total"), seen.get("available")
        needed = _needed(look, node, total)
        if available is not None and needed is not None and available < needed:
            wanted = f"{_gib(needed)} before the engine starts"
            hint = f"On {node.name}: ps aux --sort=-rss | head. preflight.memory says how much it shall be."
            yield Problem("memory", node.name, f"has {_gib(available)} of memory free", wanted, hint)


def _needed(look: Look, node: NodePlan, total: int | None) -> int | None:
    engine = look.settings.engine
    if look.settings.preflight.memory is not None:
        return look.settings.preflight.memory
    if engine.gpus is Gpus.OFF or total is None:
        return None
    return int(total * _share(node))


def _share(node: NodePlan) -> float:
    """Of all memory, what the engine takes there: GPU and CPU share it."""
    told = node.container.env.get("MEM_FRACTION_STATIC") if node.container else None
    try:
        return min(float(told.value), 1.0) if told else SHARE
    except ValueError:
        return SHARE


def gpu(look: Planned) -> Iterator[Problem]:
    """GPUs that somebody else computes on."""
    if look.settings.engine.gpus is Gpus.OFF:
        return
    for node, observed in look.ranks:
        users = look.others(observed, observed.get("gpu_users") or [])
        for user in users:
            if not any(service in user["command"].split(" ")[0] for service in SERVICES):
                hint = "End it, or leave this node out."
                yield Problem("gpu-busy", node.name, f"its GPU is used by {shown(user)}", "it free", hint)


def rdma(look: Planned) -> Iterator[Problem]:
    """RDMA that somebody else uses: the node refuses changes of its fabric meanwhile."""
    for node, observed in look.ranks:
        for user in look.others(observed, observed.get("rdma_users") or []):
            hint = "The node refuses to change its fabric meanwhile."
            yield Problem("rdma-busy", node.name, f"RDMA is used by {shown(user)}", "it free", hint)


def ports(look: Planned) -> Iterator[Problem]:
    """TCP ports of the head that somebody else listens on."""
    assert look.plan
    engine, head = look.settings.engine, look.plan.head.name
    observed = look.seen.observed.get(head)
    if observed is None:
        return
    listeners = look.others(observed, observed.get("listeners") or [])
    wanted = (("engine.port", engine.port, str(engine.listen)), ("engine.distPort", engine.dist_port, "0.0.0.0"))  # noqa: S104
    for key, port, address in wanted:
        for one in listeners:
            if one["port"] == port and _meet(one["address"], address):
                seen = f"is taken by {shown(one)} at {one['address']}"
                yield Problem(
                    "port-busy", f"{head} TCP port {port}", seen, "it free", f"End it, or choose another {key}."
                )


def _meet(one: str, other: str) -> bool:
    """Whether listeners at two addresses are in each other's way."""
    first, second = ip_address(one), ip_address(other)
    return first.is_unspecified or second.is_unspecified or first == second


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
