"""What the machine must be and have for a lab to run on it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from .shell import LabError, say

NEEDED = {  # command: Debian package
    "debootstrap": "debootstrap",
    "systemd-nspawn": "systemd-container",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "ip": "iproute2",
    "sysctl": "procps",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "setpriv": "util-linux",
}
ELSEWHERE = "Without one, the offline preview of the stacks still works (README.md)."
INOTIFY = Path("/proc/sys/fs/inotify/max_user_instances")
INOTIFY_OF_A_NODE = 20  # systemd, logind, dbus, NetworkManager, containerd: 10 after a boot, 17 seen with an engine


def release() -> dict[str, str]:
    """/etc/os-release."""
    try:
        lines = Path("/etc/os-release").read_text().splitlines()
    except FileNotFoundError:
        return {}
    return {key: value.strip('"') for key, _, value in (line.partition("=") for line in lines)}


def require() -> None:
    """A LabError unless this is Debian or Ubuntu, we are root, and all tools are there."""
    system = release()
    if not {"debian", "ubuntu"} & {system.get("ID"), *system.get("ID_LIKE", "").split()}:
        name = system.get("PRETTY_NAME") or os.uname().sysname
        raise LabError(f"the lab needs a Debian or Ubuntu machine, and this is {name}. {ELSEWHERE}")
    if os.geteuid():
        raise LabError(f"the lab needs root, for namespaces and mounts: sudo python3 -m lab … {ELSEWHERE}")
    missing = [tool for tool in NEEDED if not shutil.which(tool)]
    if missing:
        packages = " ".join(sorted({NEEDED[tool] for tool in missing}))
        raise LabError(f"missing on this machine: {', '.join(missing)}. Install: apt-get install {packages}")


def make_room(nodes: int, record: Path) -> None:
    """Raise root's limit of inotify instances if it could be too low for so many nodes, those of all labs together.

    All nodes share the limit, and a node that meets it is broken in ways that nobody would trace back to
    it. The limit that was found is kept in `record`, for `give_back` to set it again. What is in use counts on top,
    though nodes that run are in it: others may be in the midst of their boot, with most of theirs still to come.
    """
    limit, used = int(INOTIFY.read_text()), _inotify_instances()
    needed = used + nodes * INOTIFY_OF_A_NODE
    if needed <= limit:
        return
    raised = max(512, 2 * needed)
    if not record.exists():
        record.write_text(f"{limit}\n")
    try:
        INOTIFY.write_text(f"{raised}\n")
    except OSError as error:
        raise LabError(
            f"{nodes} nodes need up to {needed} inotify instances, and this machine allows root {limit}. "
            f"Run: sysctl fs.inotify.max_user_instances={raised} (tried: {error.strerror})"
        ) from None
    say(f"fs.inotify.max_user_instances is {raised}, as long as a lab is up; it was {limit}")


def give_back(record: Path) -> None:
    """Undo `make_room`, after the machine's last lab."""
    if record.exists():
        INOTIFY.write_text(record.read_text())
        record.unlink()


def _inotify_instances() -> int:
    """How many are in use by processes of root."""
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if process.stat().st_uid == 0:
                count += sum(os.readlink(entry.path) == "anon_inode:inotify" for entry in os.scandir(process / "fd"))
        except OSError:  # it ended meanwhile
            continue
    return count
