"""From settings to links: which address, user and host key each node is reached with.

Host keys are never asked for over the network: they come from the settings (`nodes[].hostKey`) or from a known_hosts
file that the operator already trusts, and then count for the node's name, whatever its address.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from fleet.node_settings import Node
from fleet.on_node import ROOT, Link
from fleet.problems import Problem, config_path
from fleet.settings import Settings

# Best first. An RSA key is last: OpenSSH servers no longer sign with SHA-1.
KEY_TYPES = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa")


def known_keys(known_hosts: Path, name: str, port: int) -> dict[str, str]:
    """Key type -> key line for a host name or address; hashed entries are found too. None of a file that is none."""
    host = name if port == 22 else f"[{name}]:{port}"
    try:
        lines = _entries(known_hosts.read_text(errors="surrogateescape"))
    except OSError:
        return {}
    if any(set("|*?!@").intersection(words[0]) for words in lines):
        found = subprocess.run(
            ["ssh-keygen", "-F", host, "-f", str(known_hosts)],
            capture_output=True,
            errors="surrogateescape",
            timeout=10,
            check=False,
        )
        lines = [words for words in _entries(found.stdout) if not words[0].startswith("@")]
    else:  # plain names: no process for each node
        lines = [words for words in lines if host.lower() in words[0].lower().split(",")]
    return {words[1]: f"{words[1]} {words[2]}" for words in lines if len(words) >= 3}


def _entries(text: str) -> list[list[str]]:
    """The words of each line that is no comment."""
    lines = (line.split() for line in text.split("\n"))
    return [words for words in lines if words and not words[0].startswith("#")]


def host_key(node: Node, port: int, known_hosts: Path) -> str | None:
    """The key line that the node must show; None when nothing is known about it."""
    if node.host_key:
        return " ".join(node.host_key.split()[:2])
    for name in (node.name, str(node.address)):
        keys = known_keys(known_hosts, name, port)
        for kind in KEY_TYPES:
            if kind in keys:
                return keys[kind]
    return None


def links(settings: Settings, *, keys_needed: bool = True) -> tuple[list[Link], list[Problem]]:
    """A link for each node, and a problem for each whose host key is unknown, unless no node will be asked."""
    known_hosts = ROOT / Path(settings.ssh.known_hosts).expanduser()
    made: list[Link] = []
    problems: list[Problem] = []
    for index, node in enumerate(settings.nodes):
        common, own = settings.ssh, node.ssh
        port = own.port or common.port
        key = host_key(node, port, known_hosts)
        if key is None and keys_needed:
            problems.append(
                Problem(
                    "host-key-unknown",
                    config_path(("nodes", index, "hostKey")),
                    f"is not set, and {known_hosts} has no key for {node.name} or {node.address}",
                    "a host key that you trust",
                    f"Compare the key at {node.name}'s console, then set hostKey, or connect once with ssh.",
                )
            )
            continue
        identity = own.identity or common.identity or ""
        user, patience = own.user or common.user, common.connect_timeout
        made.append(Link(node.name, str(node.address), user, port, key or "", identity, patience))
    return made, problems
