"""Follow one RoCE frame through routes, neighbours, markers, wires and rules. No plan is consulted.

What is asked of the nodes is what they really hold; a marked frame that misses a rule is lost, never routed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from . import rocemtu
from .access import Node
from .frame import Frame
from .model import BY_NETDEV, BY_RDMA, IPV4
from .wires import Port, Wires
from .words import Row

MOST_HOPS = 6
PAYLOAD = 4096  # of one frame: the largest MTU of RoCE
STRIDE = 64  # bytes of a hairpin queue's packet
DRAINED = 1.5  # so much of what it holds does a queue take at once, since it is emptied meanwhile (a guess)
UNMARKED = 8  # frames that really go out where a kernel would get them


@dataclass
class Result:
    """Where the frame ended, and how it got there."""

    reason: str = ""  # why it was lost
    hops: list[str] = field(default_factory=list)
    rules: list[tuple[str, str, int, int]] = field(default_factory=list)  # node, netdev, preference, handle
    sender: tuple[str, str] = ("", "")  # node, RDMA device
    receiver: Port | None = None  # None: lost
    source_ip: str = ""
    kernel: str = ""  # the node whose kernel got it instead
    forwarded: bool = False  # … and would forward it: counts as IpForwDatagrams
    length: int = 0  # of its IP packet, in bytes

    def __str__(self) -> str:
        verdict = "delivered" if self.receiver else f"lost: {self.reason}"
        return "\n".join([*(f"  {hop}" for hop in self.hops), verdict])


class _Lost(Exception):
    """The frame goes no further."""


class Walk:
    """A view of the fleet in which frames can be followed; taken of each node when it is first needed."""

    def __init__(self, nodes: Iterable[Node], wires: Wires) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.wires = wires
        self._views: dict[str, Row] = {}

    def view(self, name: str) -> Row:
        """What view.py tells of a node."""
        if name not in self._views:
            self._views[name] = self.nodes[name].call("view")
        return self._views[name]

    def follow(
        self, source: str, rdma: str, dst: str, sport: int, gid_index: int = 3, payload: int = PAYLOAD
    ) -> Result:
        """Walk one frame of a queue pair on `rdma` of node `source` to the address `dst`."""
        result = Result(sender=(source, rdma))
        try:
            self._follow(result, dst, sport, gid_index, payload)
        except _Lost as lost:
            result.reason = str(lost)
        return result

    def count(self, result: Result, frames: int, burst: int = 1) -> None:
        """Raise the counters that this many delivered frames would have raised, so many of them sent at once."""
        self._overrun(result, burst, frames // burst)
        size = frames * (result.length + 14)
        for name, dev, pref, handle in result.rules:
            self.nodes[name].call("count-rule", dev=dev, pref=pref, handle=handle, packets=frames, size=size)
        ends = [(*result.sender, "xmit")]
        if result.receiver:
            ends.append((result.receiver[0], BY_NETDEV[result.receiver[1]].rdma, "rcv"))
        for name, rdma, way in ends:
            deltas = {f"counters/port_{way}_packets": frames, f"counters/port_{way}_data": size // 4}
            self.nodes[name].call("count-port", rdma=rdma, deltas=deltas)

    def _overrun(self, result: Result, burst: int, times: int) -> None:
        """A full hairpin queue drops: its port counts that, and both ends of the queue pair see what is missing."""
        for name, dev, _, _ in result.rules:
            packets = self.view(name)["functions"][dev]["parameters"]["effective"]["hairpin_queue_size"]
            room = int(packets * STRIDE * DRAINED) // PAYLOAD
            if burst <= room or not result.receiver:
                continue
            far, netdev = result.receiver
            lost = {
                (name, BY_NETDEV[dev].rdma): "rx_out_of_buffer",
                (far, BY_NETDEV[netdev].rdma): "hw_counters/out_of_sequence",
                result.sender: "hw_counters/packet_seq_err",
            }
            for (node, rdma), counter in lost.items():
                self.nodes[node].call("count-port", rdma=rdma, deltas={counter: (burst - room) * times})

    def spill(self, result: Result, dst: str, sport: int) -> None:
        """Have kernels count frames of a queue pair that go to one, by sending some."""
        if result.kernel:
            (node, rdma), src = result.sender, result.source_ip
            self.nodes[node].call("emit", src=src, dst=dst, sport=sport, dev=BY_RDMA[rdma].netdev, count=UNMARKED)

    def _follow(self, result: Result, dst: str, sport: int, gid_index: int, payload: int) -> None:
        frame = self._origin(result, dst, sport, gid_index, payload)
        result.length = frame.length
        sender = (result.sender[0], BY_RDMA[result.sender[1]].netdev)
        for _ in range(MOST_HOPS):
            receiver = self._cross(result, sender, frame)
            onward = self._steer(result, receiver, frame)
            if onward is None:
                self._arrive(result, receiver, frame)
                return
            sender = onward
        raise _Lost(f"still on its way after {MOST_HOPS} wires")

    def _origin(self, result: Result, dst: str, sport: int, gid_index: int, payload: int) -> Frame:
        """The frame as it leaves the queue pair's device."""
        source, rdma = result.sender
        netdev = BY_RDMA[rdma].netdev
        view = self.view(source)
        mine = view["functions"][netdev]
        if not mine["up"]:
            raise _Lost(f"{source} {netdev}: no link")
        src = mine["gids"].get(str(gid_index), "")
        if not src:
            raise _Lost(f"{source} {rdma}: GID {gid_index} is no IPv4 address for RoCE v2")
        result.source_ip = src
        hop, next_mac = self._next_hop((source, netdev), src, dst)
        size = min(payload, rocemtu.active(mine["mtu"])[0], self._peer_mtu(dst))
        frame = Frame.build(next_mac, mine["mac"], src, dst, sport, size)
        result.hops.append(f"{source} {rdma}: {src} -> {dst} sport {sport}, next hop {hop} is {next_mac}")
        self._mark(result, view["markers"].get(rdma), frame, sport)
        return frame

    def _next_hop(self, sender: Port, src: str, dst: str) -> tuple[str, str]:
        """Address and MAC that the sender's kernel resolves the destination to."""
        source, netdev = sender
        route = self.nodes[source].call("route", dst=dst, src=src, dev=netdev)
        if "error" in route:
            raise _Lost(f"{source}: no route to {dst} from {src} on {netdev}: {route['error']}")
        if route["dev"] != netdev or route["type"] == "local":
            raise _Lost(f"{source}: the route to {dst} leaves by {route['dev']}, not {netdev}")
        hop = route["gateway"] or dst
        found = self.nodes[source].call("neighbour", address=hop, dev=netdev)
        if "error" in found:
            raise _Lost(f"{source}: {found['error']}")
        return hop, found["lladdr"]

    def _peer_mtu(self, address: str) -> int:
        """The two ends of a queue pair agree on the smaller MTU before any frame is sent."""
        for name in self.nodes:
            for function in self.view(name)["functions"].values():
                if address in function["addresses"]:
                    return rocemtu.active(function["mtu"])[0]
        return PAYLOAD

    @staticmethod
    def _mark(result: Result, marker: Row | None, frame: Frame, sport: int) -> None:
        who = " ".join(result.sender)
        if marker is None or marker["source_port"] != sport:
            result.hops.append(f"{who}: no marker for sport {sport}, stays 0x0800")
        elif not marker["in_effect"]:
            result.hops.append(f"{who}: its marker lost the flow in a re-init, stays 0x0800")
        elif marker["action"] != "ethertype_rewrite":
            raise _Lost(f"{who}: marker action {marker['action']} breaks the ICRC")
        else:
            frame.ethertype = marker["ethertype"]
            result.hops.append(f"{who}: marked, EtherType 0x{frame.ethertype:04x}")

    def _cross(self, result: Result, sender: Port, frame: Frame) -> Port:
        """One wire: all ports on it hear the frame, the one with its MAC takes it in."""
        name, netdev = sender
        self._require_fit(sender, frame)
        hearers = [port for port in self.wires.hearers(sender) if port[0] in self.nodes]
        heard = ", ".join(" ".join(port) for port in hearers) or "nobody"
        result.hops.append(f"wire of {name} {netdev}: to {frame.dst_mac}, heard by {heard}")
        takers = [port for port in hearers if self._takes(port, frame.dst_mac)]
        if len(takers) != 1:
            what = "several ports have" if takers else "no port has"
            raise _Lost(f"on the wire of {name} {netdev} {what} the MAC {frame.dst_mac}")
        self._require_fit(takers[0], frame)
        return takers[0]

    def _takes(self, port: Port, mac: str) -> bool:
        function = self.view(port[0])["functions"][port[1]]
        return bool(function["up"] and function["mac"] == mac)

    def _require_fit(self, port: Port, frame: Frame) -> None:
        name, netdev = port
        function = self.view(name)["functions"][netdev]
        if not function["up"]:
            raise _Lost(f"{name} {netdev}: no link to send on")
        if function["mtu"] < frame.length:
            raise _Lost(f"{name} {netdev}: {frame.length} bytes exceed its MTU {function['mtu']}")

    def _steer(self, result: Result, receiver: Port, frame: Frame) -> Port | None:
        """The receiving function's rules; the port that it sends out of, or None to take it in."""
        name, netdev = receiver
        misses = []
        for row in self.view(name)["functions"][netdev]["rules"]:
            label = f"{name} {netdev} pref {row['pref']}"
            if row["chain"]:
                continue
            if miss := frame.misses(row):
                misses.append(f"pref {row['pref']}: {miss}")
            elif row["in_hw"]:
                result.rules.append((name, netdev, row["pref"], row["handle"]))
                return self._act(result, label, receiver, row, frame)
            elif row["skip_sw"]:
                misses.append(f"pref {row['pref']}: matches, but is not in hardware")
            else:
                raise _Lost(f"{label}: matches in software only")
        if frame.ethertype != IPV4:
            why = "; ".join(misses) or "it has no rules"
            raise _Lost(f"{name} {netdev}: EtherType 0x{frame.ethertype:04x} and no rule ({why})")
        return None

    def _act(self, result: Result, label: str, receiver: Port, row: Row, frame: Frame) -> Port | None:
        before = frame.covered_by_icrc
        for action in row["actions"]:
            if action["kind"] == "pedit":
                for key in action["keys"]:
                    frame.edit(key)
            elif action["kind"] == "mirred" and action["direction"] == "ingress":
                raise _Lost(f"{label}: the card redirects to no ingress")
            elif action["kind"] == "mirred" and action["mirred_action"] == "redirect":
                if frame.covered_by_icrc != before:
                    raise _Lost(f"{label}: changes what the ICRC covers")
                egress = self._hairpin(label, receiver, action["to_dev"])
                result.hops.append(f"{label}: 0x{frame.ethertype:04x} to {frame.dst_mac} out of {egress[1]}")
                return egress
            if action.get("control") in ("drop", "trap"):
                raise _Lost(f"{label}: {action['control']}")
            if action.get("control") == "pass":
                if frame.ethertype != IPV4:
                    raise _Lost(f"{label}: passed up with EtherType 0x{frame.ethertype:04x}")
                result.hops.append(f"{label}: passed up")
                return None
        raise _Lost(f"{label}: its actions lead nowhere")

    @staticmethod
    def _hairpin(label: str, receiver: Port, egress: str) -> Port:
        """Only the other port of the same PCI domain is known to work."""
        name, ingress = receiver
        if egress not in BY_NETDEV:
            raise _Lost(f"{label}: {egress} is no fabric port")
        if BY_NETDEV[egress].domain != BY_NETDEV[ingress].domain:
            raise _Lost(f"{label}: hairpin from {ingress} to {egress} crosses PCI domains")
        return name, egress

    def _arrive(self, result: Result, receiver: Port, frame: Frame) -> None:
        """Accepted by MAC and EtherType: is the address this function's, and known as a GID?"""
        name, netdev = receiver
        view = self.view(name)
        mine = view["functions"][netdev]
        if frame.dst_ip in mine["addresses"]:
            if frame.dst_ip not in mine["gids"].values():
                raise _Lost(f"{name} {netdev}: {frame.dst_ip} is in no RoCE v2 GID")
            result.receiver = receiver
            result.hops.append(f"{name} {netdev}: {frame.dst_ip} is here")
            return
        if frame.dst_ip in view["local"]:
            raise _Lost(f"{name} {netdev}: {frame.dst_ip} is an address of another of its ports")
        result.kernel, result.forwarded = name, view["ip_forward"]
        told = "forwards it in software (IpForwDatagrams)" if view["ip_forward"] else "drops it"
        raise _Lost(f"{name} {netdev}: not for this node, its kernel {told}")
