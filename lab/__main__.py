"""Command line of the lab."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from . import api, debian, faults, host, image, library, lifecycle, loading, network, owner
from . import node as nodes
from .model import DEFAULT_NAME, MAX_NODES, Lab
from .shell import LabError, say
from .standins import opposite
from .standins.access import AccessError

if TYPE_CHECKING:
    from collections.abc import Callable

    AddCommand = Callable[..., argparse.ArgumentParser]


def parser() -> argparse.ArgumentParser:
    """All commands and their arguments."""
    top = argparse.ArgumentParser(prog="lab", description="A fleet of simulated DGX Sparks.")
    top.add_argument("--name", default=DEFAULT_NAME, help="which lab (default: %(default)s)")
    top.add_argument("--dir", type=Path, help="state folder (default: .lab/NAME in the checkout)")
    commands = top.add_subparsers(dest="command", required=True)

    command = commands.add_parser("up", help="start the lab, or what of it does not run")
    command.add_argument("--nodes", type=int, choices=range(1, MAX_NODES + 1), metavar="N", help="default: 4")
    command.add_argument("--topology", choices=("ring", "switched"), help="default: ring")
    command.add_argument("--trace", action="store_true", default=None, help="record and stop at commands (README.md)")
    command = commands.add_parser("down", help="end all that up started; the nodes' disks stay")
    command.add_argument("--delete", action="store_true", help="delete the state folder too")
    commands.add_parser("status", help="show nodes and cables")
    command = commands.add_parser("reset", help="give one node, or all, a fresh disk")
    command.add_argument("node", nargs="?")
    command.add_argument("--new-host-key", action="store_true", help="and a new SSH host key")

    command = commands.add_parser("ssh", help="log in to a node, or run a command there")
    command.add_argument("node", help="NODE or USER@NODE")
    command.add_argument("words", nargs=argparse.REMAINDER, metavar="command")
    commands.add_parser("ssh-config", help="print the path of the configuration for ssh -F")

    command = commands.add_parser("snapshot", help="print a node's configuration and network state (snapshot.py)")
    command.add_argument("node")

    command = commands.add_parser("cable", help="pull a cable, or plug one in")
    command.add_argument("action", choices=("pull", "plug"))
    command.add_argument("ends", nargs="+", metavar="cable", help="2-3, 2-switch, or ports: spark1:f0 [spark3:f1]")
    command = commands.add_parser("node", help="cut a node's power, boot it, or replace its card while it is off")
    command.add_argument("action", choices=("kill", "boot", "replace-card"))
    command.add_argument("node")

    _add_card_commands(commands.add_parser)
    _add_image_commands(commands.add_parser)

    command = commands.add_parser("_node")  # daemons, started by the commands above
    command.add_argument("node")
    commands.add_parser("_cables")
    commands.add_parser("_owned").add_argument("owner", type=int)
    return top


def _add_card_commands(add: AddCommand) -> None:
    command = add("fault", help="have a node's simulated card go wrong (README.md)")
    command.add_argument("action", choices=("set", "clear", "show"))
    command.add_argument("node")
    command.add_argument("fault", nargs="?", default="", metavar="NAME[.SCOPE]", help="clear: default all")
    command.add_argument("value", nargs="?", default="")
    command = add("walk", help="follow RoCE frames through what the nodes hold")
    command.add_argument("node", nargs="?", help="where one frame starts; default: all opposite pairs, there and back")
    command.add_argument("device", nargs="?", help="RDMA device that it leaves by")
    command.add_argument("address", nargs="?", help="where it goes")
    command.add_argument("--sport", type=int, default=opposite.SPORT, help="UDP source port (default: %(default)s)")


def _add_image_commands(add: AddCommand) -> None:
    images = add("image", help="build the engine's image, or bring images into nodes")
    actions = images.add_subparsers(dest="action", required=True)
    command = actions.add_parser("build", help="print the archive's path, and each image's tag and id")
    command.add_argument("--variant", type=int, default=1, help="1: tags sim and stock; N: tag simN, another id")
    command.add_argument("--out", type=Path, help="copy the archive there")
    command = actions.add_parser("load", help="docker load, where the ids are not there yet")
    command.add_argument("node", help="NODE or all")
    command.add_argument("archive", type=Path, nargs="?", help="default: the engine's, built if need be")
    command.add_argument("--variant", type=int, default=1)
    command = actions.add_parser("library", help="write a simulated libnccl (library.py), and print its sha256")
    command.add_argument("--out", type=Path, required=True, help="the file")
    command.add_argument("--kind", choices=tuple(library.KINDS), default="patched", help="default: %(default)s")
    command.add_argument("--machine", choices=tuple(library.MACHINES), help="default: this machine's")
    command.add_argument("--edition", type=int, default=1, help="another number, another sha256")


def dispatch(lab: Lab, options: argparse.Namespace) -> None:
    """Run one command."""
    match options.command:
        case "status":
            print(lifecycle.status(lab))
        case "ssh":
            argv = nodes.ssh(lab, options.node, *options.words)
            os.execvp(argv[0], argv)  # noqa: S606 - ssh takes over this terminal
        case "ssh-config":
            print(lab.directory / "ssh_config")
        case "snapshot":
            print(json.dumps(api.Handle(lab).snapshot(options.node)))
        case "fault":
            fault(lab, options)
        case "walk":
            walk(api.Handle(lab), options)
        case "image" if options.action == "build":
            build_image(lab, options.variant, options.out)
        case "image" if options.action == "library":
            markers = library.KINDS[options.kind]
            print(library.build(options.out, markers=markers, machine=options.machine, edition=options.edition))
        case "image":
            load_image(lab, options)
        case "_node" | "_cables" | "_owned":
            run_daemon(lab, options)
        case _:
            with lifecycle.working(lab):
                change(lab, options)


def run_daemon(lab: Lab, options: argparse.Namespace) -> None:
    """Be one of the lab's own long-running processes."""
    match options.command:
        case "_node":
            nodes.supervise(lab, lab.node(options.node), debian.ensure_root(lab.directory / "log"))
        case "_cables":
            network.keep_carrier(lab)
        case "_owned":
            owner.outlive(lab, options.owner)


def fault(lab: Lab, options: argparse.Namespace) -> None:
    """Set, clear or show faults of a node."""
    match options.action:
        case "set":
            faults.put(lab, options.node, options.fault, options.value)
        case "clear":
            faults.clear(lab, options.node, options.fault)
        case _:
            for name, value in faults.show(lab, options.node).items():
                print(name, value)


def walk(handle: api.Handle, options: argparse.Namespace) -> None:
    """Print the way of one frame, or a line for each queue pair between opposite nodes that works."""
    view = handle.walk()
    try:
        if options.address:
            print(view.follow(options.node, options.device, options.address, options.sport))
            return
        found = opposite.judge(view, options.sport)
    except (AccessError, KeyError) as error:
        raise LabError(f"no such node or device: {error}") from None
    for path in found.paths:
        relays = ", ".join(f"{node} {netdev} pref {pref}" for node, netdev, pref, _ in path.rules)
        print(
            f"{path.source} {path.source_device} - {path.destination} {path.destination_device} by {relays or 'wire'}"
        )
    if found.problems:
        raise LabError("\n".join(["not every opposite pair is connected:", *found.problems]))


def build_image(lab: Lab, variant: int, out: Path | None) -> None:
    """Build the engine's image, and say what came of it."""
    lab.prepare()
    built = image.build(debian.ensure_root(lab.directory / "log"), debian.cache() / "images", variant)
    if out:
        shutil.copyfile(built.archive, out)
    print(out or built.archive)
    for tag, identity in built.images.items():
        print(tag, identity)


def load_image(lab: Lab, options: argparse.Namespace) -> None:
    """Bring an archive into one node, or all."""
    wanted = lab.nodes if options.node == "all" else [lab.node(options.node)]
    if options.archive:
        archive, images = options.archive, loading.images_in(options.archive)
    else:
        built = image.build(debian.ensure_root(lab.directory / "log"), debian.cache() / "images", options.variant)
        archive, images = built.archive, built.images
    for line in loading.load(lab, wanted, archive, images):
        say(line)
    for tag, identity in images.items():
        print(tag, identity)


def change(lab: Lab, options: argparse.Namespace) -> None:
    """Run one of the commands that change the lab."""
    match options.command:
        case "up":
            lifecycle.up(lab, options.nodes, options.topology, options.trace)
        case "down":
            lifecycle.down(lab, options.delete)
        case "reset":
            lifecycle.reset(lab, options.node, options.new_host_key)
        case "cable":
            lifecycle.set_cable(lab, options.ends, options.action == "plug")
        case "node" if options.action == "replace-card":
            lifecycle.replace_card(lab, options.node)
        case "node":
            lifecycle.set_power(lab, options.node, options.action == "boot")


def main() -> int:
    """Entry point."""
    options = parser().parse_args()
    directory = options.dir or api.default_directory(options.name)
    try:
        if options.command != "image" or options.action != "library":  # which writes one file, on any machine
            host.require()
        dispatch(Lab(options.name, directory.resolve()), options)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
