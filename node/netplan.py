"""netplan: which file speaks for which port, whether a set of files is valid, and making NetworkManager read it.

`netplan apply` is never called: it touches every port, the management port too. The generator writes NetworkManager's
profiles below /run, `nmcli connection reload` reads them, and only our own ports are activated (`node.ports`).
"""

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .digest import sha256
from .files import MARK, SAVED
from .journal import APPLIED, Undo
from .request import FAILED, Failure
from .steps import Work
from .system import Meta, System

FOLDERS = ("/lib/netplan", "/etc/netplan", "/run/netplan")
PROFILES = "/run/NetworkManager/system-connections"
GENERATORS = ("/usr/libexec/netplan/generate", "/lib/netplan/generate")
# Where this exists the generator is split in two (netplan 1.2), and only `netplan generate` runs both halves.
SPLIT = "/usr/libexec/netplan/configure"

_NM_STANZA = re.compile(r"/90-NM-(?P<uuid>[0-9a-f-]{36})[^/]*\.yaml$")
_COMMENT = re.compile(r"(^|\s)#.*$", re.MULTILINE)
_PATTERN = re.compile(r"""\bname:\s*["']?([^\s"',}]*[*?\[][^\s"',}]*)""")


def mentions(text: str, netdev: str, mac: str) -> bool:
    """Whether a netplan file speaks for a port: by name, by a pattern of names, or by MAC."""
    bare = _COMMENT.sub("", text)
    if re.search(rf"(?<![\w.-]){re.escape(netdev)}(?![\w.-])", bare):
        return True
    if mac and mac.lower() in bare.lower():
        return True
    return any(fnmatch.fnmatchcase(netdev, pattern) for pattern in _PATTERN.findall(bare))


def is_nm_stanza(path: str) -> str | None:
    """The profile's UUID where NetworkManager itself wrote this file, else None."""
    found = _NM_STANZA.search(path)
    return found["uuid"] if found else None


def files(system: System) -> dict[str, dict[str, Any]]:
    """All files that netplan would merge, with mode and owner; "text" is None where we may not read one."""
    found: dict[str, dict[str, Any]] = {}
    for folder in FOLDERS:
        for name in system.names(folder):
            path = f"{folder}/{name}"
            meta = system.meta(path)
            if not name.endswith(".yaml") or meta is None:
                continue
            data = system.read(path)
            text = None if data is None else data.decode(errors="replace")
            found[path] = {"text": text, "mode": f"{meta.mode:04o}", "uid": meta.uid, "gid": meta.gid}
    return found


def generate_command(system: System) -> list[str]:
    """How the generator is called: directly where that is enough, as netplan's own front end takes 15 times as long."""
    if not system.exists(SPLIT):
        for path in GENERATORS:
            if system.exists(path):
                return [path]
    return ["netplan", "generate"]


def generated(system: System, texts: dict[str, str]) -> dict[str, str]:
    """What netplan makes of a set of files: paths below / and contents. Nothing outside a temporary folder changes.

    Raises `Failure` with netplan's own words where the set is not valid.
    """
    with system.scratch() as root:
        for path, text in texts.items():
            place = root / path.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
            place.chmod(0o600)
        result = system.run([*generate_command(system), "--root-dir", str(root)], timeout=20)
        if not result.ok:
            reason = result.reason().replace(str(root), "")
            raise Failure(FAILED, f"netplan refuses the result: {reason}")
        return {
            f"/{path.relative_to(root)}": path.read_text(errors="replace")
            for path in sorted((root / "run").rglob("*"))
            if path.is_file()
        }


def broken(system: System, found: Mapping[str, Mapping[str, Any]], since: int) -> str | None:
    """What netplan says to the files of others among `found`, None where they are valid.

    A boot with such files brings up no port that is in them. It is not asked while nothing was changed after `since`
    (ns since 1970), when all of them were valid.
    """
    texts = {path: file["text"] or "" for path, file in found.items() if MARK not in (file["text"] or "")}
    metas = [system.meta(path) for path in (*FOLDERS, *texts)]
    if not any(meta.mtime_ns > since for meta in metas if meta):
        return None
    try:
        generated(system, texts)
    except Failure as failure:
        return failure.lines[0]
    return None


def check(system: System, before: dict[str, str], after: dict[str, str], netdevs: set[str]) -> list[str]:
    """What speaks against going from one set of files to another: all reasons, each a line.

    Nothing that netplan makes of the files may change except for `netdevs`: a `renderer` at the top of a file, for
    example, would move the management port to another manager.
    """
    try:
        now = _now(system, before, after)
    except Failure as failure:
        return [f"the files that are there are not valid by themselves: {failure.lines[0]}"]
    try:
        then = generated(system, after)
    except Failure as failure:
        return [failure.lines[0]]
    problems = [
        f"{path}: its part in /etc/netplan was removed, but netplan was not applied since; loading the files now would "
        "take that port down. Run netplan apply, or put the part back"
        for path in (f"{PROFILES}/{name}" for name in system.names(PROFILES) if name.startswith("netplan-"))
        if path not in now and not _concerns(path, system.text(path) or "", netdevs)
    ]
    for path in sorted(now.keys() | then.keys()):
        if path.endswith("/10-globally-managed-devices.conf"):
            continue  # made as soon as any stanza names NetworkManager; says nothing about a port
        old, new = (_others(path, side.get(path, ""), netdevs) for side in (now, then))
        if old != new:
            problems.append(f"{path} would change although it is not about our ports: name the renderer per stanza")
    return problems


def _now(system: System, before: dict[str, str], after: dict[str, str]) -> dict[str, str]:
    """What netplan makes of the files as they are. One that is to be changed may be what is not valid: then without."""
    try:
        return generated(system, before)
    except Failure:
        return generated(system, {path: text for path, text in before.items() if after.get(path) == text})


@dataclass(frozen=True)
class Load:
    """Make NetworkManager read the netplan files and profiles as they are now."""

    netdevs: tuple[str, ...]
    needed: bool = True

    @property
    def key(self) -> str:
        return "netplan"

    def before(self, work: Work) -> Any:
        stanzas = [path for path in files(work.system) if is_nm_stanza(path)]
        return {"stanzas": stanzas, "netdevs": list(self.netdevs)}

    def ours(self, work: Work) -> list[str]:  # noqa: ARG002
        return []

    def do(self, work: Work) -> None:
        _complete(work)
        load(work.system)
        work.report.did("netplan: profiles generated and loaded")

    def describe(self) -> dict[str, Any]:
        return {"load": list(self.netdevs)}


def _complete(work: Work) -> None:
    """Put back our files of other stages: NetworkManager would take down the ports of one that is gone or broken."""
    for entry in work.journal.stages.values():
        for path, digest in entry.written.items() if entry.status == APPLIED else ():
            if not path.startswith("/etc/netplan/") or sha256(work.system.read(path) or b"") == digest:
                continue
            if (content := work.journal.blob(digest)) is not None:  # else its own stage writes it anew, from the plan
                work.system.write(path, content, Meta(0o600, 0, 0, 0))
                work.report.did(f"{path}: written, since all files are loaded at once")


def load(system: System) -> None:
    """Generate and load profiles. Raises `Failure`."""
    for command in (generate_command(system), ["nmcli", "connection", "reload"]):
        result = system.change(command)
        if not result.ok:
            raise Failure(FAILED, f"{' '.join(command)}: {result.reason()}")


def undo_load(work: Work, operation: Undo) -> None:
    """Remove what NetworkManager wrote for our ports while ours was active, and load what is there then."""
    planned = [address for other in _ports(work) for address in other]
    known = set(operation["before"]["stanzas"])
    macs = {
        netdev: work.system.text(f"/sys/class/net/{netdev}/address") or "" for netdev in operation["before"]["netdevs"]
    }
    for path, file in files(work.system).items():
        text = file["text"] or ""
        if path in known or not is_nm_stanza(path) or not any(mentions(text, *port) for port in macs.items()):
            continue
        if any(address in text for address in planned):
            work.report.note(f"{path}: NetworkManager wrote it while our plane was on: removed")
        else:
            work.system.write(path + SAVED, text.encode(), Meta(0o600, 0, 0, 0))
            work.report.note(f"{path}: appeared while our plane was on and names our ports: kept as {path}{SAVED}")
        work.system.remove(path)
    _load_anyhow(work, list(macs))


def _load_anyhow(work: Work, netdevs: list[str]) -> None:
    """Load what is there; where that fails for a reason that is not ours, at least our own profiles go."""
    try:
        load(work.system)
    except Failure as failure:
        work.report.note(f"{failure.lines[0]}: our profiles were removed one by one")
        for netdev in netdevs:
            work.system.remove(f"{PROFILES}/netplan-{netdev}.nmconnection")
        work.system.change(["nmcli", "connection", "reload"])


def _ports(work: Work) -> list[list[str]]:
    return [
        [address.split("/")[0] for address in operation["ours"]]
        for entry in work.journal.stages.values()
        for operation in entry.undo
        if operation["kind"] == "port"
    ]


def _concerns(path: str, text: str, netdevs: set[str]) -> bool:
    return any(re.search(rf"(?<!\w){re.escape(netdev)}(?![\w-])", path + "\n" + text) for netdev in netdevs)


def _others(path: str, text: str, netdevs: set[str]) -> str:
    """The part of a generated file that is not about `netdevs`."""
    if not text or _concerns(path, "", netdevs):
        return ""
    if not path.endswith((".rules", ".conf")):
        return "" if _concerns("", text, netdevs) else sha256(text.encode())
    # A comment names the stanza, which NetworkManager calls by its profile's UUID and not by the port.
    lines = (line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return "\n".join(line for line in lines if not _concerns("", line, netdevs))
