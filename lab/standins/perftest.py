"""ib_write_lat and ib_write_bw: both ends meet over TCP, and a frame walk decides whether it works."""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import socket
import sys
import time
from dataclasses import asdict, dataclass
from typing import NoReturn

from . import devices, labnodes, perfprint, rocemtu, users
from .framewalk import PAYLOAD, Result, Walk
from .model import BY_RDMA, Function
from .perfprint import LINE, Test
from .state import State
from .system import ToolError

RETRIES = 0.5  # seconds; real ones take longer
NO_EXCHANGE = " Couldn't read remote address\n Failed to exchange data between server and clients"
FAILED = " Failed to complete run_iter function successfully"


class Parser(argparse.ArgumentParser):
    """Refuses like perftest: a word on stderr and status 1."""

    def error(self, message: str) -> NoReturn:
        """End the program."""
        raise ToolError(f" Parser function exited with Error\n{self.prog}: {message}")


def _options(name: str, argv: list[str]) -> argparse.Namespace:
    latency = name == "ib_write_lat"
    parser = Parser(prog=name, allow_abbrev=False)
    parser.add_argument("-d", "--ib-dev", dest="device", default="")
    parser.add_argument("-x", "--gid-index", type=int, default=3)
    parser.add_argument("--flow_label", type=lambda text: int(text, 0), default=0)
    parser.add_argument("-s", "--size", type=int, default=2 if latency else 65536)
    parser.add_argument("-n", "--iters", type=int, default=1000 if latency else 5000)
    parser.add_argument("-D", "--duration", type=int, help="counts as that long; takes no time, or perftest_seconds")
    parser.add_argument("-p", "--port", type=int, default=18515)
    parser.add_argument("-b", "--bidirectional", action="store_true")
    parser.add_argument("-F", "--CPU-freq", action="store_true")
    parser.add_argument("--report_gbits", action="store_true")
    parser.add_argument("host", nargs="?")
    options = parser.parse_args(argv)
    if not 0 <= options.flow_label <= 0xFFFFF:
        parser.error("flow_label takes 20 bits")
    return options


@dataclass(frozen=True)
class End:
    """A queue pair, as it tells the other end of itself."""

    node: str
    device: str
    address: str
    label: int
    qpn: int
    gbits: float  # what its port can send

    def sport(self, other: End) -> int:
        """UDP source port of its frames; without a flow label a hash of the ends decides (a guess)."""
        if self.label:
            return 49152 | (self.label & 0x3FFF)
        hashed = random.Random(self.address + other.address)  # noqa: S311 - no secret
        return 49152 + hashed.randrange(0x3FFF)  # never 65535


def _mine(state: State, options: argparse.Namespace) -> End:
    device = options.device or next(iter(BY_RDMA))
    if device not in BY_RDMA or not state.device_exists(device):
        raise ToolError(f"IB device {device} not found\n Unable to find the Infiniband/RoCE device")
    if not devices.is_active(state, BY_RDMA[device]):
        raise ToolError(" Port number 1 state is Down\n Couldn't set the link layer")
    address = devices.roce_v2_address(state, BY_RDMA[device], options.gid_index)
    if not address:
        raise ToolError(" Failed to modify QP 300 to RTR\n Unable to Connect the HCA's through the link")
    qpn, gbits = 0x100 + os.getpid() % 0xF000, _gbits(state, BY_RDMA[device])
    return End(socket.gethostname(), device, address, options.flow_label, qpn, gbits)


def _gbits(state: State, function: Function) -> float:
    """What a port can send: what PCIe gives, less on a slow link or cable."""
    link = re.match(r"[\d.]+", state.port(function.rdma, "rate"))
    fault = state.fault("slow", function.netdev, function.rdma)
    return min(perfprint.GBITS, float(link[0]) if link else perfprint.GBITS, float(fault or perfprint.GBITS))


def _test(name: str, state: State, options: argparse.Namespace, mine: End) -> Test:
    latency = name == "ib_write_lat"
    iterations = options.iters
    if options.duration:
        rate = 1e6 / (2 * perfprint.latency(options.size, 1)) if latency else perfprint.GBITS * 1e9 / 8 / options.size
        iterations = max(1, int(rate * options.duration))
    mtu = rocemtu.active(int(state.net(BY_RDMA[mine.device].netdev, "mtu") or 0))[0]
    shape = (options.bidirectional, options.report_gbits)
    return Test(name, mine.device, mtu, options.gid_index, options.size, iterations, *shape)


def main(name: str, argv: list[str]) -> int:
    """Entry point of both tools."""
    options = _options(name, argv)
    state = State()
    mine = _mine(state, options)
    test = _test(name, state, options, mine)
    with users.registered(state, mine.device, name, mine.qpn):
        if options.host:
            return _client(test, mine, options.host, options.port)
        return _server(test, mine, options.port)


def _server(test: Test, mine: End, port: int) -> int:
    stars = "*" * 36
    print(f"\n{stars}\n* Waiting for client to connect... *\n{stars}", flush=True)
    with socket.create_server(("", port)) as listener:
        connection, _ = listener.accept()
    with connection, connection.makefile("rw") as line:
        theirs = json.loads(line.readline() or "null")
        line.write(json.dumps(asdict(mine)) + "\n")
        line.flush()
        verdict = json.loads(line.readline() or "null")
    if not theirs or not verdict:
        raise ToolError(NO_EXCHANGE)
    _print_head(test, mine, End(**theirs))
    if not verdict["works"]:
        raise ToolError(f"{LINE}\n{FAILED}")
    print(verdict["table"])
    return 0


def _client(test: Test, mine: End, host: str, port: int) -> int:
    try:
        connection = socket.create_connection((host, port), timeout=10)
    except OSError:
        failed = "Unable to open file descriptor for socket connection Unable to init the socket connection"
        raise ToolError(f"Couldn't connect to {host}:{port}\n{failed}") from None
    with connection, connection.makefile("rw") as line:
        line.write(json.dumps(asdict(mine)) + "\n")
        line.flush()
        answer = json.loads(line.readline() or "null")
        if not answer:
            raise ToolError(NO_EXCHANGE)
        theirs = End(**answer)
        _print_head(test, mine, theirs)
        walk = labnodes.walk()
        there, back = _way(walk, test, mine, theirs), _way(walk, test, theirs, mine)
        works = bool(there.receiver and back.receiver)
        time.sleep(float(State().setting("perftest_seconds", "0")))
        table = perfprint.table(test, len(there.rules), _carried(test, mine, theirs)) if works else ""
        line.write(json.dumps({"works": works, "table": table}) + "\n")
        line.flush()
    if works:
        burst = max(1, -(-test.size // PAYLOAD))
        frames = test.iterations * burst
        walk.count(there, frames, burst=burst)
        walk.count(back, frames if test.both_ways else test.iterations)
        print(table)
        return 0
    sys.stdout.flush()
    lost, ends = (back, (theirs, mine)) if there.receiver else (there, (mine, theirs))
    raise _failure(walk, "acknowledgements" if there.receiver else "frames", lost, *ends)


def _carried(test: Test, mine: End, theirs: End) -> float:
    """Gb/s: of the port that sends, or of both together."""
    return min(mine.gbits + theirs.gbits, perfprint.GBITS_BOTH) if test.bidirectional else mine.gbits


def _way(walk: Walk, test: Test, end: End, other: End) -> Result:
    result = walk.follow(end.node, end.device, other.address, end.sport(other), test.gid_index)
    if result.receiver not in (None, (other.node, BY_RDMA[other.device].netdev)):
        result.reason, result.receiver = f"they arrived at {result.receiver}, not at {other.device}", None
    return result


def _failure(walk: Walk, what: str, lost: Result, end: End, other: End) -> ToolError:
    """Have kernels count what they would have got, and say what perftest says."""
    walk.spill(lost, other.address, end.sport(other))
    time.sleep(RETRIES)
    return ToolError(
        f"standins: {what} lost: {lost.reason}\n Completion with error at client\n"
        f" Failed status 12: wr_id 0 syndrom 0x81\n scnt=1, ccnt=0\n{FAILED}"
    )


def _print_head(test: Test, mine: End, theirs: End) -> None:
    ends = {"local": (mine.address, mine.qpn), "remote": (theirs.address, theirs.qpn)}
    print(perfprint.head(test, ends), flush=True)
