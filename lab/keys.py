"""The user's key, the nodes' host keys, and the files by which others reach the nodes."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from .model import NETWORKS, USER, Lab, Node, replace
from .shell import run

if TYPE_CHECKING:
    from collections.abc import Sequence


def folder(lab: Lab) -> Path:
    """Where the private keys lie."""
    return lab.directory / "keys"


def identity(lab: Lab) -> Path:
    """The private key that all nodes let in."""
    return folder(lab) / "id_ed25519"


def host_key(lab: Lab, node: Node) -> str:
    """A node's host key as it stands in known_hosts: type and key."""
    return " ".join((folder(lab) / f"{node.name}.pub").read_text().split()[:2])


def ensure(lab: Lab, renew: Sequence[Node] = ()) -> None:
    """Make the keys that are missing, new host keys for some nodes, and all files made of them."""
    for node in renew:
        for suffix in ("", ".pub"):
            (folder(lab) / f"{node.name}{suffix}").unlink(missing_ok=True)
    for name in (identity(lab).name, *(node.name for node in lab.nodes)):
        if not (folder(lab) / name).exists():
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", folder(lab) / name)
    known = (f"{node.name},{node.address} {host_key(lab, node)}\n" for node in lab.nodes)
    replace(lab.directory / "known_hosts", "".join(known))
    _write_ssh_config(lab)
    _write_wrapper(lab)
    _write_description(lab)


def _write_ssh_config(lab: Lab) -> None:
    nodes = lab.nodes
    hosts = " ".join(f"{node.name} {node.address}" for node in nodes)
    names = "".join(f"Host {node.name}\n  HostName {node.address}\n" for node in nodes)
    replace(
        lab.directory / "ssh_config",
        f"{names}Host {hosts}\n"
        f"  User {USER}\n"
        f"  IdentityFile {identity(lab)}\n"
        "  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {lab.directory / 'known_hosts'}\n"
        "  StrictHostKeyChecking yes\n"
        "  ConnectTimeout 5\n",
    )


def _write_wrapper(lab: Lab) -> None:
    """An `ssh` for docker, which takes no options for it but the first one in PATH."""
    wrapper = lab.directory / "bin" / "ssh"
    wrapper.parent.mkdir(exist_ok=True)
    others = [part for part in os.get_exec_path() if Path(part).resolve() != wrapper.parent]
    real = shutil.which("ssh", path=os.pathsep.join(others))
    wrapper.write_text(f'#!/bin/sh\nexec {real} -F {lab.directory}/ssh_config "$@"\n')
    wrapper.chmod(0o755)


def _write_description(lab: Lab) -> None:
    """lab.json: all that another program needs to reach the nodes."""
    state = lab.state
    described = {
        "name": lab.name,
        "topology": state.topology,
        "directory": str(lab.directory),
        "network": str(NETWORKS[state.slot]),
        "trace": state.trace,
        "ssh_config": str(lab.directory / "ssh_config"),
        "known_hosts": str(lab.directory / "known_hosts"),
        "nodes": [
            {
                "name": node.name,
                "address": node.address,
                "port": 22,
                "user": USER,
                "identity": str(identity(lab)),
                "host_key": host_key(lab, node),
            }
            for node in lab.nodes
        ],
    }
    replace(lab.directory / "lab.json", json.dumps(described, indent=1) + "\n")
