"""The lab for tests and other programs: everything that the command line does, as calls.

lab = api.start("ladder", Path("/tmp/ladder"), topology="ring", nodes=4, trace=True)
lab.run("spark2", "ip -br address")
lab.stop()
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from . import debian, faults, image, lifecycle, loading, snapshot, trace
from . import node as nodes
from .model import DEFAULT_NAME, PACKAGE, Lab, State
from .shell import LabError, wait_for
from .standins import wires
from .standins.access import AgentNode
from .standins.framewalk import Walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .cabling import Topology
    from .image import Built
    from .snapshot import Snapshot
    from .trace import Call, Event

When = Literal["before", "after"]  # a call happens: where it is stopped
SCOPE = PACKAGE / "snapshot-scope.txt"
SETTLING = 15  # looks, a second apart, until a node counts as at rest whatever it does


def default_directory(name: str) -> Path:
    """Where a lab keeps its state unless told otherwise: in the checkout, hidden from git."""
    return PACKAGE.parent / ".lab" / name


def start(
    name: str = DEFAULT_NAME,
    directory: Path | None = None,
    topology: Topology = "ring",
    nodes: int = 4,
    trace: bool = False,
    owned: bool = False,
) -> Handle:
    """Bring a lab up, whatever state it is in. A LabError if a lab of this name is alive elsewhere.

    `owned`: when this process ends, and be it killed, the lab is taken down and its state folder deleted.
    """
    handle = attach(name, directory)
    with lifecycle.working(handle.lab):
        lifecycle.up(handle.lab, nodes, topology, trace, os.getpid() if owned else None)
    return handle


def attach(name: str = DEFAULT_NAME, directory: Path | None = None) -> Handle:
    """A lab that may be up already."""
    return Handle(Lab(name, (directory or default_directory(name)).resolve()))


@dataclass(frozen=True)
class Handle:
    """One lab. Nodes are named `spark1`…; every LabError says what to do."""

    lab: Lab

    @property
    def state(self) -> State:
        """Topology, size, slot, cables; a LabError if it is not up."""
        return self.lab.state

    @property
    def names(self) -> list[str]:
        """Hostnames in ring order."""
        return [node.name for node in self.lab.nodes]

    @property
    def ssh_config(self) -> Path:
        """For `ssh -F`."""
        return self.lab.directory / "ssh_config"

    def address(self, node: str) -> str:
        """Management address of a node."""
        return self.lab.node(node).address

    def stop(self, delete: bool = True) -> None:
        """End the lab and, unless disks and keys are to stay, delete its state folder."""
        with lifecycle.working(self.lab):
            lifecycle.down(self.lab, delete)

    def run(
        self, node: str, command: str, *, user: str = "root", stdin: str = "", check: bool = True, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell command on a node over SSH; with `check`, a LabError if it fails."""
        argv = nodes.ssh(self.lab, f"{user}@{node}", "-oBatchMode=yes", command)
        done = subprocess.run(argv, check=False, input=stdin, capture_output=True, text=True, timeout=timeout)
        if check and done.returncode:
            raise LabError(f"{node}: {command}: exit code {done.returncode}: {done.stderr.strip()}")
        return done

    def everywhere(self, command: str, *, user: str = "root", check: bool = True) -> dict[str, str]:
        """Standard output of a shell command on all nodes, run at once."""
        with ThreadPoolExecutor(len(self.names)) as pool:
            done = pool.map(lambda node: self.run(node, command, user=user, check=check).stdout, self.names)
            return dict(zip(self.names, done, strict=True))

    def kill(self, node: str) -> None:
        """Cut a node's power; its disk stays."""
        with lifecycle.working(self.lab):
            lifecycle.set_power(self.lab, node, on=False)

    def boot(self, node: str) -> None:
        """Boot a node and wait until it greets on SSH."""
        with lifecycle.working(self.lab):
            lifecycle.set_power(self.lab, node, on=True)

    def replace_card(self, node: str, card: int | None = None) -> None:
        """Give a node that is off its next network card, or an earlier one (0: the first); a LabError if it is on."""
        with lifecycle.working(self.lab):
            lifecycle.replace_card(self.lab, node, card)

    def reset(self, node: str | None = None, new_host_key: bool = False) -> None:
        """A fresh disk and machine id for one node, or all; it runs afterwards if it ran before."""
        with lifecycle.working(self.lab):
            lifecycle.reset(self.lab, node, new_host_key)

    def pull(self, *ends: str) -> None:
        """Pull a cable: `2-3`, `2-switch`, a port `spark1:f0`, or two ports."""
        with lifecycle.working(self.lab):
            lifecycle.set_cable(self.lab, ends, plugged=False)

    def plug(self, *ends: str) -> None:
        """Plug a cable in: `2-3`, `2-switch`, or two ports; what was in them comes out."""
        with lifecycle.working(self.lab):
            lifecycle.set_cable(self.lab, ends, plugged=True)

    def build_image(self, variant: int = 1) -> Built:
        """The engine's archive and image ids; cached."""
        return image.build(debian.ensure_root(self.lab.directory / "log"), debian.cache() / "images", variant)

    def load_image(self, variant: int = 1, node: str | None = None) -> Built:
        """Have the engine's images in the docker of one node, or all."""
        built = self.build_image(variant)
        wanted = [self.lab.node(node)] if node else self.lab.nodes
        list(loading.load(self.lab, wanted, built.archive, built.images))
        return built

    def snapshot(self, node: str) -> Snapshot:
        """The node's configuration and network state; compare with `snapshot.diff`."""
        program = shlex.quote(Path(snapshot.__file__).read_text())
        taken = self.run(node, f"python3 -IS -c {program} take", stdin=SCOPE.read_text()).stdout
        return cast("Snapshot", json.loads(taken))

    def snapshots(self, like: Mapping[str, Snapshot] | None = None) -> dict[str, Snapshot]:
        """Of all nodes, taken at once, when they are at rest, or as soon as nothing differs from `like`.

        NetworkManager and the kernel go on for a moment after a command has returned (profiles start, addresses are
        tried): a node is at rest when two looks in a row see the same.
        """
        last: dict[str, Snapshot] = {}
        for _ in range(SETTLING):
            with ThreadPoolExecutor(len(self.names)) as pool:
                taken = dict(zip(self.names, pool.map(self.snapshot, self.names), strict=True))
            if taken == last or (like and not any(snapshot.diff(like[name], taken[name]) for name in like)):
                break
            last = taken
            time.sleep(1)
        return taken

    def set_fault(self, node: str, name: str, value: str = "") -> None:
        """Have the node's card go wrong: `NAME`, or `NAME.SCOPE` for one port, device or rule (standins/faults.py)."""
        faults.put(self.lab, node, name, value)

    def clear_fault(self, node: str, name: str = "") -> None:
        """End one fault of a node, or all."""
        faults.clear(self.lab, node, name)

    def adjust(self, node: str, name: str, value: str = "") -> None:
        """Set how a node's tools spell (`dialect`), or how long a re-init or a write of perftest takes
        (`reload_seconds`, `perftest_seconds`); empty: as usual.
        """
        faults.adjust(self.lab, node, name, value)

    def walk(self) -> Walk:
        """Follow frames through what the nodes that answer hold now (standins/framewalk.py, opposite.py)."""
        return Walk(*wires.discover(AgentNode(node.name, node.address) for node in self.lab.nodes))

    def trace(self, node: str) -> tuple[list[Call], list[Event]]:
        """What a node of a lab with `trace` has recorded since its disk was new."""
        return trace.parse(node, self.run(node, f"cat {trace.FILE} 2>/dev/null || :").stdout.splitlines())

    def traces(self) -> tuple[list[Call], list[Event]]:
        """Of all nodes that answer, in order of time."""
        with ThreadPoolExecutor(len(self.names)) as pool:
            parts = list(pool.map(self.trace, self.names))
        calls = sorted((call for part in parts for call in part[0]), key=lambda call: call.began)
        return calls, sorted((event for part in parts for event in part[1]), key=lambda event: event.time)

    def clear_traces(self) -> None:
        """Forget what was recorded."""
        self.everywhere(f": > {trace.FILE}")

    @contextlib.contextmanager
    def stopped_at(self, node: str, point: str, when: When = "before") -> Iterator[BreakPoint]:
        """Stop the next call of `TOOL-VERB` (netplan-apply, ip-addr-add, docker-start, …); it goes on at the end.

        A call that is stopped `before` never happens if its caller is gone by then. The points docker-start and
        docker-stop know `before` only, and need no trace.
        """
        self.run(node, f"mkdir -p {trace.BREAK} && echo {when} > {trace.BREAK}/{point}")
        breakpoint_ = BreakPoint(self, node, point)
        try:
            yield breakpoint_
        finally:
            breakpoint_.release()


@dataclass(frozen=True)
class BreakPoint:
    """A place where a node's next call of a command stops."""

    handle: Handle
    node: str
    point: str

    def reached(self) -> bool:
        """Whether a call is stopped there."""
        there = f"test -e {trace.BROKEN}/{self.point}"
        return self.handle.run(self.node, there, check=False).returncode == 0

    def wait(self, timeout: float = 60) -> None:
        """Wait until a call is stopped there; a LabError when the time (seconds) is up."""
        if not wait_for(self.reached, timeout, every=0.2):
            raise LabError(f"{self.node}: no call has come to {self.point} within {timeout:g} s")

    def release(self) -> None:
        """Let it go on, now and from now on."""
        self.handle.run(self.node, f"rm -f {trace.BREAK}/{self.point}", check=False)
