"""One node's life: its first files, its boot, its end."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import string
import subprocess
import threading
import uuid
from typing import TYPE_CHECKING

from . import cgroups, daemons, keys, network
from .debian import DISK, USER_ID
from .model import PACKAGE, USER, Lab, Node
from .shell import LabError, wait_for

if TYPE_CHECKING:
    from pathlib import Path

REBOOT = 133  # systemd-nspawn's exit status when the node asked for a reboot


def _seed(lab: Lab, node: Node) -> None:
    """Write the files in which a new node differs from its siblings."""
    directory = lab.node_directory(node)
    if (directory / "seeded").exists():
        _set_address(directory, node)
        return
    if directory.exists():
        shutil.rmtree(directory)
    upper = directory / "upper"
    for part in ("work", "merged", "docker", "upper/etc/ssh", "upper/etc/netplan", "upper/root/.ssh"):
        (directory / part).mkdir(parents=True)
    (upper / "home" / USER / ".ssh").mkdir(parents=True)
    for part in ("", "etc", "etc/ssh", "etc/netplan", "home"):
        (upper / part).chmod(0o755)

    (upper / "etc/machine-id").write_text(uuid.uuid4().hex + "\n")
    (upper / "etc/hostname").write_text(node.name + "\n")
    (upper / "etc/hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {node.name}\n::1 localhost\n")
    _set_address(directory, node)
    for suffix, mode in (("", 0o600), (".pub", 0o644)):
        target = upper / f"etc/ssh/ssh_host_ed25519_key{suffix}"
        shutil.copyfile(keys.folder(lab) / f"{node.name}{suffix}", target)
        target.chmod(mode)
    for home, owner in ((upper / "root", 0), (upper / "home" / USER, USER_ID)):
        shutil.copyfile(keys.identity(lab).with_suffix(".pub"), home / ".ssh/authorized_keys")
        for path in (home, home / ".ssh", home / ".ssh/authorized_keys"):
            path.chmod(0o600 if path.is_file() else 0o700)
            os.chown(path, owner, owner)
    (directory / "seeded").touch()


def _set_address(directory: Path, node: Node) -> None:
    """The management address; another one than before if the lab came up on another network."""
    template = string.Template((DISK / "templates" / "01-mgmt.yaml").read_text())
    text = template.substitute(address=node.address)
    netplan = directory / "upper/etc/netplan/01-mgmt.yaml"
    if not netplan.exists() or netplan.read_text() != text:
        netplan.write_text(text)
        netplan.chmod(0o600)


def start(lab: Lab, node: Node) -> None:
    """Press the power button."""
    if not daemons.pid(lab, node.name):
        clean(lab, node)
        _seed(lab, node)
        daemons.start(lab, node.name, "_node", node.name)


def supervise(lab: Lab, node: Node, root: Path) -> None:
    """Daemon: run the node, again whenever it reboots itself, until it is switched off."""
    machine: subprocess.Popen[bytes] | None = None
    stopping = threading.Event()

    def stop(*_: object) -> None:
        stopping.set()
        if machine:
            machine.send_signal(signal.SIGTERM)  # systemd-nspawn: an orderly shutdown

    signal.signal(signal.SIGTERM, stop)
    console = (lab.directory / "log" / f"{node.name}.console").open("ab")
    with daemons.enter(lab, node.name), console:
        status = REBOOT
        while status == REBOOT and not stopping.is_set():
            try:
                network.wire(lab, node)
                machine = subprocess.Popen(
                    _boot_command(lab, node, root), stdin=subprocess.DEVNULL, stdout=console, stderr=console
                )
                if stopping.is_set():  # asked to while there was no machine to tell
                    machine.terminate()
                status = machine.wait()
            finally:
                clean(lab, node)


def _boot_command(lab: Lab, node: Node, root: Path) -> list[str]:
    here, layer = lab.node_directory(node), lab.directory / "layer"
    return [
        "nsenter", f"--net=/run/netns/{node.unique}",
        "unshare", "--mount", "--propagation", "slave",
        "sh", str(PACKAGE / "boot.sh"), node.unique, node.name, str(here), str(root), str(layer),
        *(str(group) for group in cgroups.create(node)),
    ]  # fmt: skip


def clean(lab: Lab, node: Node) -> None:
    """Remove what a node leaves on the machine."""
    if not cgroups.kill(node):
        raise LabError(f"{node.unique}: processes {sorted(cgroups.members(node))} will not end")
    network.unwire(lab, node)
    cgroups.remove(node)


def power_off(lab: Lab, node: Node) -> None:
    """Cut the power: everything in the node ends here and now."""
    if not cgroups.kill(node) or not daemons.stop(lab, node.name):
        raise LabError(f"{node.unique} does not go off")
    clean(lab, node)


def shut_down(lab: Lab, nodes: list[Node]) -> None:
    """Shut nodes down in an orderly way, all at once; cut the power of one that hangs."""
    for node in nodes:
        daemons.stop(lab, node.name, timeout=0)
    wait_for(lambda: not any(daemons.pid(lab, node.name) for node in nodes), 30)
    for node in nodes:
        power_off(lab, node)


def answers(node: Node) -> bool:
    """Whether the node's SSH server greets."""
    try:
        with socket.create_connection((node.address, 22), timeout=1) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def ssh(lab: Lab, target: str, *command: str) -> list[str]:
    """The ssh command line to a node, given as NODE or USER@NODE."""
    user, _, name = target.rpartition("@")
    node = lab.node(name)
    return ["ssh", "-F", str(lab.directory / "ssh_config"), "-l", user or USER, node.name, *command]
