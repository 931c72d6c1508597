"""The root that all nodes share: a Debian, built once, and a layer of the lab's own files."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from pathlib import Path

from . import host, tools
from .model import PACKAGE, USER, Lab
from .shell import LabError, run, say, stream

DISK = PACKAGE / "disk"
USER_ID = 1000
MASKED = """console-getty.service apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer e2scrub_reap.service
    fstrim.timer""".split()
STARTED = {
    "lab-machine.service": "basic.target",
    "lab-roce.service": "multi-user.target",
    "lab-agent.socket": "sockets.target",
}
TRACE_STARTED = {"lab-trace.service": "multi-user.target"}
TRACED_TOOLS = ("devlink", "ethtool", "ip", "iptables", "netplan", "nmcli", "sysctl", "systemctl", "tc")


def cache() -> Path:
    """Where roots and images lie, shared by all checkouts of this user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spark-fabric" / "lab"


def _source(release: str) -> tuple[str, str]:
    """Mirror and components of a release, as this machine's own apt has them."""
    form = "$(REPO_URI) $(RELEASE) $(COMPONENT)"
    rows = [
        line.split() for line in run("apt-get", "indextargets", "--format", form, "Created-By: Packages").split("\n")
    ]
    for mirror in (row[0] for row in rows if row[1:] == [release, "main"]):
        offered = {row[2] for row in rows if row[:2] == [mirror, release]}
        return mirror, ",".join(part for part in ("main", "universe") if part in offered)
    raise LabError(f"apt has no source for {release or 'this release'} main; the nodes are built from it")


def _packages() -> list[str]:
    lines = (DISK / "packages.txt").read_text().splitlines()
    return [name for line in lines if (name := line.partition("#")[0].strip())]


def ensure_root(log: Path) -> Path:
    """The shared Debian root; built (1 to 2 minutes, 730 MB) when this list of packages has none yet."""
    release, packages = host.release().get("VERSION_CODENAME", ""), _packages()
    digest = hashlib.sha256(" ".join([release, *packages]).encode()).hexdigest()[:10]
    root = cache() / f"{release}-{digest}"
    if root.exists():
        return root
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / "root.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.exists():  # another lab may have built it meanwhile
            _build_root(root, release, packages, log)
    return root


def _build_root(root: Path, release: str, packages: list[str], log: Path) -> None:
    mirror, components = _source(release)
    say(f"building the nodes' Debian ({release}, {len(packages)} packages; about a minute, once)")
    partial = root.with_suffix(".partial")
    if partial.exists():
        shutil.rmtree(partial)
    options = ["--variant=minbase", f"--components={components}", f"--include={','.join(packages)}"]
    stream(["debootstrap", *options, release, str(partial), mirror], log / "debootstrap.log", "debootstrap")
    user = ["--create-home", f"--uid={USER_ID}", "--shell=/bin/bash", "--groups=sudo,docker", USER]
    run("chroot", partial, "useradd", *user)
    for made_once in (partial / "etc/ssh").glob("ssh_host_*"):
        made_once.unlink()
    for download in (partial / "var/cache/apt/archives").glob("*.deb"):
        download.unlink()
    partial.rename(root)


def build_layer(lab: Lab, root: Path, trace: bool) -> Path:
    """Lay out the files of lab/disk and the stand-ins as the nodes see them, owned by root."""
    layer = lab.directory / "layer"
    if layer.exists():
        shutil.rmtree(layer)
    sources = [("root", ""), ("bin", "usr/local/sbin"), *([("trace", "")] if trace else [])]
    for source, target in sources:
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(DISK / source, layer / target, symlinks=True, ignore=ignore, dirs_exist_ok=True)
    tools.install(layer, root, lab.nodes)
    layer.chmod(0o755)
    for path in layer.rglob("*"):
        if not path.is_symlink():
            executable = path.is_dir() or path.stat().st_mode & 0o100
            path.chmod(0o755 if executable else 0o644)
    units = layer / "etc/systemd/system"
    for unit in MASKED:
        (units / unit).symlink_to("/dev/null")
    for unit, target in (STARTED | TRACE_STARTED if trace else STARTED).items():
        (units / f"{target}.wants").mkdir(exist_ok=True)
        (units / f"{target}.wants" / unit).symlink_to(f"../{unit}")
    for tool in TRACED_TOOLS if trace else ():
        command = layer / "usr/local/sbin" / tool
        command.unlink(missing_ok=True)
        command.symlink_to("../lib/lab/trace")
    return layer
