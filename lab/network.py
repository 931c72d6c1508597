"""Namespaces, links, cables and their carrier.

Of the machine's own network a lab has one link, to reach the nodes by. All else lies in the lab's fabric
namespace, the bridge of the management network too: on the machine's own bridges, the machine's packet
filter would have a say.

A veth pair cannot lose carrier while both its ends are up, as ports do when a cable is pulled. So each
port's link ends in the fabric namespace, where a bridge joins the four ends of one cable: both
functions of a port share the wire, and hear each other on it. A fabric end is up, and so gives its
port carrier, exactly while a cable is in the port and the function at its other end is up.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from ipaddress import IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING

from . import daemons
from .cabling import FUNCTIONS, Port
from .model import MANAGEMENT_PORT, NETWORKS, POOL, Lab, Node, host_address, host_link
from .shell import LabError, run

if TYPE_CHECKING:
    from .registry import Claim

KEEPER = "cables"
MANAGEMENT, HOST = "mgmt", "host"  # the bridge of the management network, and the machine's end on it
WIRE_MTU = 9216  # whatever a port is set to passes
LLDP = 0x4000  # bridges keep LLDP to themselves unless told to forward it


def _batch(*lines: str, namespace: str | None = None) -> None:
    if lines:
        where = ["-n", namespace] if namespace else []
        run("ip", *where, "-batch", "-", stdin="\n".join(lines) + "\n")


def _links(namespace: str) -> dict[str, set[str]]:
    """Flags of each link in a namespace, with `master=NAME` among them; empty without the namespace."""
    listing = run("ip", "-n", namespace, "-j", "link", "show", check=False)
    return {
        link["ifname"]: {*link["flags"], f"master={link.get('master', '')}"} for link in json.loads(listing or "[]")
    }


def _namespace(name: str) -> Path:
    return Path("/run/netns") / name


def _link(name: str) -> Path:
    return Path("/sys/class/net") / name


def things(claim: Claim) -> list[str]:
    """Everything that a lab makes in the machine's own network, as `netns NAME` or `link NAME`."""
    fabric = Lab(claim.name, Path(claim.directory)).fabric
    return [
        f"link {host_link(claim.slot)}",
        f"netns {fabric}",
        *(f"netns {node.unique}" for node in claim.members),
    ]


def exists(thing: str) -> bool:
    """Whether one of `things` is there."""
    kind, name = thing.split()
    return (_namespace(name) if kind == "netns" else _link(name)).exists()


def delete(thing: str) -> None:
    """Remove one of `things`, if it is there."""
    kind, name = thing.split()
    if exists(thing):
        run("ip", *(("netns", "del") if kind == "netns" else ("link", "del")), name)


def delete_mount() -> None:
    """Undo the mount that `ip netns add` makes of its directory, if nobody uses it."""
    directory = _namespace("")
    mounted = f" {directory} " in Path("/proc/self/mounts").read_text()
    if mounted and not any(directory.iterdir()):
        run("umount", directory)


def slots_in_use() -> set[int]:
    """Slots whose /24 a route of this machine touches, or whose link is there."""
    used = {slot for slot in range(len(NETWORKS)) if _link(host_link(slot)).exists()}
    for route in json.loads(run("ip", "-j", "-4", "route", "show", "table", "all")):
        if route["dst"] == "default":
            continue
        network = IPv4Network(route["dst"], strict=False)
        if POOL.supernet_of(network) or network.supernet_of(POOL):
            low = max(int(network.network_address), int(POOL.network_address))
            high = min(int(network.broadcast_address), int(POOL.broadcast_address))
            used.update(range((low - int(POOL[0])) >> 8, ((high - int(POOL[0])) >> 8) + 1))
    return used


def ensure(lab: Lab) -> None:
    """The fabric namespace with its bridges, and the machine's link to the management network."""
    slot = lab.state.slot
    if not _namespace(lab.fabric).exists():
        run("ip", "netns", "add", lab.fabric)
        settings = [f"net.ipv6.conf.{which}.disable_ipv6=1" for which in ("all", "default")]
        run("ip", "netns", "exec", lab.fabric, "sysctl", "-qw", *settings)
    present = _links(lab.fabric)
    if MANAGEMENT not in present:
        _batch(f"link add {MANAGEMENT} type bridge mcast_snooping 0", f"link set {MANAGEMENT} up", namespace=lab.fabric)
    if not _link(host_link(slot)).exists():
        _batch(
            f"link add {host_link(slot)} type veth peer name {HOST} netns {lab.fabric}",
            f"address add {host_address(slot)}/24 dev {host_link(slot)}",
            f"link set {host_link(slot)} up",
        )
        _batch(f"link set {HOST} master {MANAGEMENT} up", namespace=lab.fabric)
    lay_cables(lab)


def lay_cables(lab: Lab, only: Node | None = None) -> None:
    """Make the bridges of the fabric, and the ports (of one node) on them, what the state says is plugged."""
    cables = lab.state.cables
    present = _links(lab.fabric)
    bridges = {cable.segment for cable in cables}
    # An open port keeps its last bridge; its end is down, so nothing passes.
    makes = [
        command
        for segment in sorted(bridges - set(present))
        for command in (
            f"link add {segment} mtu {WIRE_MTU} type bridge mcast_snooping 0 group_fwd_mask {LLDP}",
            f"link set {segment} up",
        )
    ]
    moves = [
        f"link set {link} down master {cable.segment}"
        for cable in cables
        for port in cable.ports
        if only is None or port.node == only.index
        for link in _fabric_links(lab, port)
        if link in present and f"master={cable.segment}" not in present[link]
    ]
    _batch(*makes, *moves, namespace=lab.fabric)


def _fabric_links(lab: Lab, port: Port) -> list[str]:
    node = Node(lab.name, lab.state.slot, port.node)
    return [node.fabric_link(function) for function in port.functions]


def wire(lab: Lab, node: Node) -> None:
    """Give a node a fresh network namespace with its ports, as at power-on."""
    unwire(lab, node)
    card = lab.state.cards.get(node.name, 0)
    run("ip", "netns", "add", node.unique)
    run("ip", "netns", "exec", node.unique, "sysctl", "-qw", "net.ipv4.ip_forward=0")
    _batch(
        f"link add {node.management_link} type veth"
        f" peer name {MANAGEMENT_PORT} address {node.mac()} netns {node.unique}",
        f"link set {node.management_link} master {MANAGEMENT} up",
        *(
            f"link add {node.fabric_link(function)} mtu {WIRE_MTU} type veth"
            f" peer name {function.netdev} address {node.mac(function.mac_offset, card)} netns {node.unique}"
            for function in FUNCTIONS
        ),
        namespace=lab.fabric,
    )
    lay_cables(lab, node)


def unwire(lab: Lab, node: Node) -> None:
    """Remove a node's links and its namespace; at once, since a namespace alone dies later."""
    present = _links(lab.fabric)
    links = [node.management_link, *(node.fabric_link(function) for function in FUNCTIONS)]
    _batch(*(f"link del {link}" for link in links if link in present), namespace=lab.fabric)
    delete(f"netns {node.unique}")


def sync_carrier(lab: Lab) -> None:
    """Set every fabric end up or down, as its cable and the function at the other end say."""
    far: dict[Port, Port | None] = {}
    for cable in lab.state.cables:
        far[cable.near] = cable.far
        if cable.far:
            far[cable.far] = cable.near
    nodes = lab.nodes
    links = {node.index: _links(node.unique) for node in nodes}
    fabric = _links(lab.fabric)
    changes = []
    for node in nodes:
        for function in FUNCTIONS:
            link, port = node.fabric_link(function), Port(node.index, function.socket)
            up = port in far
            if opposite := far.get(port):
                twin = next(f for f in opposite.functions if f.domain == function.domain)
                up = "UP" in links[opposite.node].get(twin.netdev, set())
            if link in fabric and up != ("UP" in fabric[link]):
                changes.append(f"link set {link} {'up' if up else 'down'}")
    _batch(*changes, namespace=lab.fabric)


def keep_carrier(lab: Lab) -> None:
    """Daemon: follow the ports, and carry the state of each to the other end of its cable."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    # "all-nsid" brings the events of the namespaces that the links' other ends are in
    watch = ["setpriv", "--pdeathsig", "TERM", "ip", "-n", lab.fabric, "monitor", "link", "all-nsid"]
    with daemons.enter(lab, KEEPER), subprocess.Popen(watch, stdout=subprocess.PIPE) as monitor:
        assert monitor.stdout
        try:
            while monitor.poll() is None:
                try:
                    sync_carrier(lab)
                except LabError as error:  # a node came or went between look and change
                    print(error, flush=True)
                ready, _, _ = select.select([monitor.stdout], [], [], 5)
                if ready:
                    time.sleep(0.05)  # let a burst end
                    os.read(monitor.stdout.fileno(), 1 << 16)
        finally:
            monitor.terminate()


def port_states(node: Node) -> dict[str, str]:
    """`up`, `no carrier` or `down` for each fabric function of a running node."""
    links = _links(node.unique)

    def word(flags: set[str]) -> str:
        if "UP" not in flags:
            return "down"
        return "up" if "LOWER_UP" in flags else "no carrier"

    return {f.netdev: word(links[f.netdev]) for f in FUNCTIONS if f.netdev in links}
