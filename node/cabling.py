"""Which port is wired to which: every fabric port says who it is in raw Ethernet frames, and listens to the others.

Needs no address, no package and nothing that was set up before. Changes nothing: the frames are broadcast, so no port
has to be made promiscuous or to join a group, and a port that is down is told and stays down. Both functions of a QSFP
port (twins) hear what comes in by its wire, and each other; who is whose twin is for the reader to say.
"""

import errno
import json
import select
import socket
from typing import Any

from . import observe
from .request import BAD_REQUEST, Failure
from .system import System

ETHERTYPE = 0x88B6  # for local experiments (IEEE 802, the second of two); the mesh marks its packets with the first
MAGIC = b"spark-fabric cabling 1\n"
BROADCAST = b"\xff" * 6
HEADER = 14  # bytes: destination, source, EtherType
SHORTEST, LONGEST = 60, 1514  # bytes of a frame, without its checksum
EVERY = 0.1  # seconds between two announcements: nodes that begin to listen late still hear the others
LIMIT_S = 10.0
MOST = 1000  # others that are told of one port, whatever comes in by it

WORDS = ("run", "node", "netdev", "hca", "mac")
NUMBERS = ("domain", "function")

Json = dict[str, Any]


def cabling(system: System, node: str, desired: Json) -> Json:
    """{"ports": […]} for desired {"run": id, "seconds": s}: each RDMA port, and who was heard on it in that time.

    A port is {"netdev", "hca", "domain", "function", "mac", "up", "carrier", "heard": […], "error": ""}, and who was
    heard {"node", "netdev", "hca", "domain", "function", "mac"}, the port's own twin among them. Only announcements of
    the same run count. "up" and "carrier" are as they were at the end: a port that came up meanwhile has carrier, and
    has heard nobody. The port that our caller came in by is left out. Raises `Failure`.
    """
    run, seconds = desired.get("run"), desired.get("seconds")
    if not isinstance(run, str) or not run or not isinstance(seconds, (int, float)) or not 0 < seconds <= LIMIT_S:
        raise Failure(BAD_REQUEST, f"a run and seconds up to {LIMIT_S:g} are wanted, not {run!r} and {seconds!r}")
    ports = _ports(system)
    _listen(system, {port["netdev"]: port for port in ports if port["up"]}, run, node, seconds)
    links = observe.observe(system, None, ("links",)).get("links") or {}
    for port in ports:
        link = links.get(port["netdev"], {})
        port |= {"up": bool(link.get("up")), "carrier": bool(link.get("carrier"))}
    return {"ports": ports}


def _ports(system: System) -> list[Json]:
    observed = observe.observe(system, None, ("links", "hcas"))
    links: Json = observed.get("links") or {}
    caller = (observe.ssh(system, links) or {}).get("netdev")
    found: list[Json] = []
    for name, hca in (observed.get("hcas") or {}).items():
        link = links.get(hca["netdev"])
        if link is None or hca["netdev"] == caller:
            continue
        place = {"domain": hca["domain"], "function": hca["function"]}
        seen = {key: link[key] for key in ("mac", "up", "carrier")}
        found.append({"netdev": hca["netdev"], "hca": name, **place, **seen, "heard": [], "error": ""})
    return sorted(found, key=lambda port: str(port["netdev"]))


def _listen(system: System, ports: dict[str, Json], run: str, node: str, seconds: float) -> None:
    """Announce on all ports and fill in their "heard", and "error" where a port could not take part."""
    channels: dict[int, tuple[socket.socket, Json, bytes]] = {}
    spoke: set[str] = set()
    poll = select.poll()
    try:
        for port in ports.values():
            try:
                channel = system.frames(port["netdev"], ETHERTYPE)
            except OSError as error:
                port["error"] = str(error)
                continue
            channels[channel.fileno()] = (channel, port, announcement(port, run, node))
            poll.register(channel, select.POLLIN)
        now = due = system.clock()
        end = now + seconds
        while now < end:
            if now >= due:
                due += EVERY
                spoke |= {port["netdev"] for channel, port, frame in channels.values() if _send(channel, port, frame)}
            for handle, _ in poll.poll(max(0.0, min(due, end) - now) * 1000):
                channel, port, _ = channels[handle]
                if not _receive(channel, port, run):
                    poll.unregister(handle)
            now = system.clock()
    finally:
        for channel, _, _ in channels.values():
            channel.close()
    for port in ports.values():
        if port["netdev"] not in spoke:
            port["error"] = port["error"] or "its queue was full all the time: no announcement went out"
        port["heard"].sort(key=lambda who: (who["node"], who["netdev"]))


def _send(channel: socket.socket, port: Json, frame: bytes) -> bool:
    """Announce a port; whether that went out. A full queue is no error of the port: the next one comes soon."""
    try:
        channel.send(frame)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.ENOBUFS):
            port["error"] = str(error)
        return False
    return True


def _receive(channel: socket.socket, port: Json, run: str) -> bool:
    """Take in one frame; whether more may come."""
    try:
        data, sender = channel.recvfrom(LONGEST)
    except BlockingIOError:
        return True
    except OSError as error:  # the port went down
        port["error"] = str(error)
        return False
    who = heard(data, run) if sender[2] != socket.PACKET_OUTGOING else None
    if who and who not in port["heard"] and len(port["heard"]) < MOST:
        port["heard"].append(who)
    return True


def announcement(port: Json, run: str, node: str) -> bytes:
    """The frame in which a port says who it is."""
    who = {"run": run, "node": node, **{key: port[key] for key in (*WORDS[2:], *NUMBERS)}}
    head = BROADCAST + bytes.fromhex(port["mac"].replace(":", "")) + ETHERTYPE.to_bytes(2, "big")
    return (head + MAGIC + json.dumps(who).encode() + b"\n").ljust(SHORTEST, b"\0")


def heard(frame: bytes, run: str) -> Json | None:
    """Who speaks in a frame, or None where it is none of ours or of another run. Anybody may have sent it."""
    data = frame[HEADER:]
    if not data.startswith(MAGIC):
        return None
    try:
        who = json.loads(data[len(MAGIC) :].partition(b"\n")[0])
    except (ValueError, RecursionError):
        return None
    if not isinstance(who, dict) or who.get("run") != run:
        return None
    kinds: dict[str, Any] = {**dict.fromkeys(WORDS, str), **dict.fromkeys(NUMBERS, (int, type(None)))}
    right = all(isinstance(who.get(key), kind) for key, kind in kinds.items())
    return {key: who.get(key) for key in (*WORDS[1:], *NUMBERS)} if right else None
