"""What a lab's user does to it as a whole: up, down, reset, power and cables."""

from __future__ import annotations

import contextlib
import shutil
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from . import cabling, cgroups, daemons, debian, host, keys, network, registry
from . import node as nodes
from .cabling import FUNCTIONS
from .model import DEFAULT_NAME, MAX_CARDS, NETWORKS, Lab, Node, State
from .registry import Claim
from .shell import LabError, say, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .cabling import Topology


INOTIFY_RECORD = "max_user_instances"


@contextlib.contextmanager
def working(lab: Lab) -> Iterator[None]:
    """Keep two commands from changing a lab at once."""
    with registry.exclusive(lab.name) as free:
        if not free:
            claim = registry.read(lab.name)
            where = f" of {claim.directory}" if claim else ""
            raise LabError(f"another command is at work on the lab {lab.name!r}{where}")
        yield


def alive(claim: Claim) -> bool:
    """Whether any process of a lab is left."""
    return registry.daemons_alive(claim.name) or any(cgroups.members(node) for node in claim.members)


def remove(claim: Claim) -> None:
    """End and remove all that a lab has on this machine; only with the registry and the lab locked."""
    lab = Lab(claim.name, Path(claim.directory))
    for node in claim.members:
        nodes.power_off(lab, node)
    for daemon in (daemons.OWNED, network.KEEPER):
        if not daemons.stop(lab, daemon):
            raise LabError(f"process {daemons.pid(lab, daemon)} does not end")
    for thing in network.things(claim):
        network.delete(thing)
    registry.release(claim.name)
    last = not registry.claims()
    cgroups.remove_parents(claim.name, last)
    if last:
        network.delete_mount()
        host.give_back(registry.ROOT / INOTIFY_RECORD)


def sweep(own: str) -> None:
    """Clean up after all other labs of this machine that are dead; only with the registry locked."""
    for claim in registry.claims():
        if claim.name != own:
            with registry.exclusive(claim.name) as free:
                if free and not alive(claim):
                    say(f"cleaning up after the lab {claim.name!r} of {claim.directory}, of which nothing runs")
                    remove(claim)


def take(lab: Lab, count: int, previous: int | None) -> int:
    """Claim the lab's name and a slot for it, and return the slot."""
    with registry.locked():
        sweep(lab.name)
        claim = registry.read(lab.name)
        if claim and claim.directory != str(lab.directory) and alive(claim):
            raise LabError(
                f"a lab {lab.name!r} is alive: that of {claim.directory}. "
                "End it there with `lab down`, or give this one another --name"
            )
        if claim and (claim.directory != str(lab.directory) or previous is None):
            say(f"cleaning up after the lab {claim.name!r} of {claim.directory}")
            remove(claim)
            claim = None
        if claim:
            return claim.slot
        slot = registry.choose_slot(lab.name, previous, network.slots_in_use())
        claim = Claim(lab.name, str(lab.directory), slot, count)
        foreign = [thing for thing in network.things(claim) if network.exists(thing)]
        if foreign:
            raise LabError(f"there already, and no lab's: {', '.join(foreign)}. Give another --name")
        registry.write(claim)
    if lab.name == DEFAULT_NAME and slot:
        say(f"{NETWORKS[0]} is in use on this machine; this lab is on {NETWORKS[slot]}")
    return slot


def up(lab: Lab, count: int | None, topology: Topology | None, trace: bool | None, owner: int | None = None) -> None:
    """Bring everything to its running state, from whatever state it is in. It ends with the process `owner`."""
    host.require()
    if lab.state_file.exists():
        state = lab.state
        wanted = (count or state.nodes, topology or state.topology, state.trace if trace is None else trace)
        if wanted != (state.nodes, state.topology, state.trace):
            traced = " with --trace" if state.trace else ""
            raise LabError(f"a {state.topology} of {state.nodes}{traced} is up; first: lab down")
        state.slot = take(lab, state.nodes, state.slot)
    else:
        count = count or 4
        state = State.new(topology or "ring", count, take(lab, count, None), bool(trace))
    lab.prepare()
    lab.save(state)
    if owner:
        daemons.start(lab, daemons.OWNED, "_owned", str(owner))

    root = debian.ensure_root(lab.directory / "log")
    keys.ensure(lab)
    if not any(daemons.pid(lab, node.name) for node in lab.nodes):
        debian.build_layer(lab, root, state.trace)
    network.ensure(lab)
    daemons.start(lab, network.KEEPER, "_cables")
    boot(lab, lab.nodes)
    say(f"{lab.name}: {state.topology} of {state.nodes} is up (state {lab.directory}, Debian root {root})")


def boot(lab: Lab, wanted: Sequence[Node]) -> None:
    """Start nodes and wait until each greets on SSH."""
    began = time.monotonic()
    with registry.locked():
        host.make_room(sum(claim.nodes for claim in registry.claims()), registry.ROOT / INOTIFY_RECORD)
    for node in wanted:
        nodes.start(lab, node)
    for node in wanted:
        if not wait_for(partial(nodes.answers, node), 180):
            raise LabError(f"{node.name} does not answer; see {lab.directory}/log/{node.name}.*")
        say(f"{node.name} answers at {node.address} after {time.monotonic() - began:.1f} s")


def down(lab: Lab, delete: bool = False) -> None:
    """End everything that `up` started. Disks and keys stay in the state folder unless it is deleted too."""
    claim = registry.read(lab.name)
    if claim and claim.directory != str(lab.directory) and Path(claim.directory).exists():
        raise LabError(f"the lab {lab.name!r} is that of {claim.directory}; end it there, or with --dir")
    if claim:
        say("shutting the nodes down")
        nodes.shut_down(lab, claim.members)
        with registry.locked():
            remove(claim)
    lab.state_file.unlink(missing_ok=True)
    if delete and lab.directory.exists():
        shutil.rmtree(lab.directory)
    say(f"{lab.name} is down" if claim else f"nothing of {lab.name} is up")


def reset(lab: Lab, only: str | None, new_host_key: bool) -> None:
    """Put nodes back into the state they left the factory in: fresh disks, new machine ids."""
    chosen = [lab.node(only)] if only else lab.nodes
    running = [node for node in chosen if daemons.pid(lab, node.name)]
    for node in chosen:
        nodes.power_off(lab, node)
        if lab.node_directory(node).exists():
            shutil.rmtree(lab.node_directory(node))
    keys.ensure(lab, renew=chosen if new_host_key else ())
    if not any(daemons.pid(lab, node.name) for node in lab.nodes):
        debian.build_layer(lab, debian.ensure_root(lab.directory / "log"), lab.state.trace)
    boot(lab, running)
    say(f"as new: {', '.join(node.name for node in chosen)}")


def set_power(lab: Lab, name: str, on: bool) -> None:
    """Boot a node, or cut its power."""
    node = lab.node(name)
    if on:
        boot(lab, [node])
    else:
        nodes.power_off(lab, node)


def replace_card(lab: Lab, name: str, card: int | None = None) -> None:
    """Give a node that is off another network card: the same functions at the same places, with other MACs.

    `card`: the one with that number, 0 for the first; by default the next one.
    """
    node, state = lab.node(name), lab.state
    if daemons.pid(lab, node.name):
        raise LabError(f"{node.name} is on; first: lab node kill {node.name}")
    chosen = state.cards.get(node.name, 0) + 1 if card is None else card
    if not 0 <= chosen <= MAX_CARDS:
        raise LabError(f"there is no card {chosen} for {node.name}; the last one is {MAX_CARDS}")
    state.cards[node.name] = chosen
    lab.save(state)
    say(f"{node.name} has card {chosen}: {node.mac(FUNCTIONS[0].mac_offset, chosen)} and on")


def set_cable(lab: Lab, words: Sequence[str], plugged: bool) -> None:
    """Plug a cable in, or pull it out."""
    state = lab.state
    change = cabling.plug if plugged else cabling.pull
    before = state.cables
    state.cables = change(before, words, state.topology, state.nodes)
    lab.save(state)
    network.lay_cables(lab)
    network.sync_carrier(lab)
    for cable in before:
        if cable not in state.cables:
            say(f"out: {cable}")
    for cable in state.cables:
        if cable not in before:
            say(f"in: {cable}")


def status(lab: Lab) -> str:
    """Nodes, ports and cables, as a table."""
    row = "{:<8} {:<14} {:<6} {:>8}  {:<24} {:<24}"
    lines = [row.format("NODE", "ADDRESS", "SSH", "MEMORY", "f0 (domain 0, 2)", "f1 (domain 0, 2)")]
    for node in lab.nodes:
        ports = network.port_states(node)
        by_port = [", ".join(s for name, s in ports.items() if f"f{p}np" in name) for p in (0, 1)]
        on = bool(cgroups.members(node))
        greets = "ok" if on and nodes.answers(node) else "no" if on else "off"
        lines.append(row.format(node.name, node.address, greets, f"{cgroups.memory(node) >> 20} MiB", *by_port))
    state = lab.state
    lines.append("cables: " + (", ".join(str(cable) for cable in state.cables) or "none"))
    pulled = [c.name for c in cabling.factory(state.topology, state.nodes) if c not in state.cables]
    if pulled:
        lines.append(f"pulled: {', '.join(pulled)}")
    return "\n".join(lines)
