"""Forwarding of plain IP between a node's own fabric ports, so that opposite nodes of a ring reach each other.

Neither RoCE nor the mesh uses this path. Docker sets the policy of FORWARD to DROP and leaves the chain DOCKER-USER
for rules like ours; where Docker made no such chain (`iptables: false`), the rules go into FORWARD itself. They carry
our mark as a comment, so that an equal rule of somebody else is neither adopted nor removed. A unit that starts
after Docker puts them back at boot.

The unit switches forwarding on too, and not a file in /etc/sysctl.d: where forwarding is on before Docker starts,
Docker leaves the policy of FORWARD at ACCEPT, and the node would pass on whatever comes in on any port.
"""

from dataclasses import dataclass
from typing import Any

from .deviation import Deviation, of_file, of_journal
from .digest import digest
from .files import MARK, File
from .journal import Undo
from .steps import Step, Work
from .units import FOLDER, RELAY, Reload, Unit
from .values import ROOT, Value

STAGE = "relay"
UNIT = RELAY
UNIT_PATH = f"{FOLDER}/{UNIT}"
FORWARD = "net/ipv4/ip_forward"
COMMENT = "spark-fabric"
IPTABLES = ["iptables", "-w", "5"]

Json = dict[str, Any]


def rules(desired: Json) -> list[list[str]]:
    """The matches of the wanted rules, both ways for each pair, without chain."""
    both = [way for a, b in desired["pairs"] for way in ((a, b), (b, a))]
    return [["-i", a, "-o", b, "-m", "comment", "--comment", COMMENT, "-j", "ACCEPT"] for a, b in both]


def chain(observed: Json) -> str:
    """The chain that the rules belong into on this node."""
    return "DOCKER-USER" if observed.get("docker_user") else "FORWARD"


def unit_text(desired: Json) -> str:
    """The unit that does all of it after Docker made its chains, and takes the rules away when it stops."""
    pick = "if iptables -w 5 -n -L DOCKER-USER >/dev/null 2>&1; then c=DOCKER-USER; else c=FORWARD; fi"
    matches = [" ".join(rule) for rule in rules(desired)]
    lines = [
        f"# {MARK}.",
        "[Unit]",
        "Description=Forwarding between the fabric ports of this node",
        "After=docker.service",
        "Requires=docker.service",
        "",
        "[Service]",
        "Type=oneshot",
        "RemainAfterExit=yes",
        f"ExecStartPre=/bin/sh -c 'echo 1 >{ROOT}{FORWARD}'",
    ]
    missing = [f"iptables -w 5 -C $$c {rule} 2>/dev/null || iptables -w 5 -I $$c 1 {rule}" for rule in matches]
    # A reload adds what is missing and leaves the rules of the other plane in place.
    lines += [f"{when}=/bin/sh -c '{pick}; {add}'" for when in ("ExecStart", "ExecReload") for add in missing]
    for rule in matches:
        drop = f"while iptables -w 5 -D $$c {rule} 2>/dev/null; do :; done"
        lines.append(f"ExecStop=/bin/sh -c 'for c in DOCKER-USER FORWARD; do {drop}; done'")
    return "\n".join([*lines, "", "[Install]", "WantedBy=multi-user.target", ""])


def deviations(desired: Json, observed: Json) -> list[Deviation]:
    """Everything in which a node's forwarding differs from the plan; empty where there is nothing to do."""
    if desired["state"] == "off":
        entry = ((observed.get("journal") or {}).get("stages") or {}).get(STAGE)
        return [Deviation("relay.on", STAGE, "is on", "it off", disruptive=True)] if entry else _leftover(observed)
    mark = digest(desired)
    found = of_journal(STAGE, mark, observed, disruptive=False)
    found += of_file(observed, STAGE, mark, UNIT_PATH, unit_text(desired), "0644")
    forward = (observed.get("sysctl") or {}).get("net.ipv4.ip_forward")
    if forward != "1":
        found.append(Deviation("relay.forward", "net.ipv4.ip_forward", f"is {forward}", "1", disruptive=False))
    present = observed.get("forward_rules") or []
    for rule in rules(desired):
        wanted = f"-A {chain(observed)} {' '.join(rule)}"
        if wanted not in present:
            found.append(Deviation("relay.rule", rule[1], f"rule {wanted!r} is missing", "the rule", disruptive=False))
    unit = observed.get("relay_unit") or {}
    for key in ("enabled", "active"):
        if not unit.get(key):
            found.append(Deviation(f"relay.{key}", UNIT, f"is not {key}", key, disruptive=False))
    return found


def _leftover(observed: Json) -> list[Deviation]:
    if MARK not in (observed.get("relay_unit") or {}).get("text", ""):
        return []
    return [Deviation("file.leftover", UNIT_PATH, "is there", "no such file", disruptive=True)]


def leftovers(observed: Json) -> list[Undo]:
    """What undoes a relay of ours of which the journal was lost. Whether the kernel forwarded before is not known."""
    marked = f"--comment {COMMENT} "
    matches = [line.split(maxsplit=2)[2] for line in observed.get("forward_rules") or [] if marked in line]
    keys = ["units:units", *(f"rule:{match}" for match in matches), f"unit:{UNIT}"]
    return [{"kind": key.split(":")[0], "key": key.removeprefix("units:"), "before": None, "ours": []} for key in keys]


def plan(desired: Json, observed: Json) -> list[Step]:
    """The steps that lead to the desired state "on", in order; those with nothing to do are marked so."""
    found = deviations(desired, observed)
    subjects = {deviation.subject for deviation in found}
    everything = STAGE in subjects
    start = everything or any(d.code.startswith("relay.") and d.code != "relay.forward" for d in found)
    return [
        Value(FORWARD, "1", needed="net.ipv4.ip_forward" in subjects),
        File(UNIT_PATH, unit_text(desired).encode(), 0o644, own=True, needed=UNIT_PATH in subjects),
        Reload(needed=everything or UNIT_PATH in subjects),
        *(Rule(tuple(rule)) for rule in rules(desired)),
        Unit(UNIT, needed=start or UNIT_PATH in subjects),
    ]


@dataclass(frozen=True)
class Rule:
    """A rule that the unit puts in place; here only so that it is gone for certain afterwards."""

    match: tuple[str, ...]
    needed: bool = False

    @property
    def key(self) -> str:
        return f"rule:{' '.join(self.match)}"

    def before(self, work: Work) -> Any:  # noqa: ARG002
        return None

    def ours(self, work: Work) -> list[str]:  # noqa: ARG002
        return []

    def do(self, work: Work) -> None:
        pass

    def describe(self) -> dict[str, Any]:
        return {"rule": " ".join(self.match)}


def undo_rule(work: Work, operation: Undo) -> None:
    """Remove our rule wherever it is."""
    match = operation["key"].removeprefix("rule:").split()
    for name in ("DOCKER-USER", "FORWARD"):
        for _ in range(8):
            if not work.system.run([*IPTABLES, "-C", name, *match]).ok:
                break
            work.system.change([*IPTABLES, "-D", name, *match])
