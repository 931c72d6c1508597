"""Re-initialising a function of the card, and waiting for it to be as it was; the steps of the stage `nic`."""

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from . import devlink, mesh, meshunits, observe
from .journal import Undo
from .limits import ALONE, CALL, RELOAD, RETURN, SETTLE
from .plane import ARP, eui64, gid_indexes
from .ports import Activate
from .request import FAILED, READ_BACK, Failure
from .steps import Work
from .system import System

STAGE = "nic"
OFFLOAD = "hw-tc-offload"
Json = dict[str, Any]
_STEP = 0.2
UNREAD, AS_BEFORE, AGAIN, THEIRS = "unread", "as before", "again", "theirs"
STOPPED = "stopped here: functions after this one were not touched. Look at dmesg and the cable, then run up again"


@dataclass(frozen=True)
class Function:
    """One function with its queues in effect, its offload on and its GID in place."""

    wanted: Json
    needed: bool = True

    @property
    def key(self) -> str:
        return f"nic:{self.wanted['pci']}"

    def before(self, work: Work) -> Any:
        seen = _seen(work.system, self.wanted)
        return {**{key: seen[key] for key in (*devlink.QUEUES, "offload")}, "function": self.wanted}

    def ours(self, work: Work) -> list[str]:  # noqa: ARG002
        return [_values(self.wanted)]

    def do(self, work: Work) -> None:
        operation = work.journal.stages[STAGE].find(self.key)
        assert operation is not None  # written before any step
        seen = _seen(work.system, self.wanted)
        if _due(self.wanted, seen, operation, work.system):
            if incomplete := _complete(work.system, self.wanted):
                raise Failure(
                    FAILED,
                    f"{name(self.wanted)}: {', '.join(incomplete)}: not re-initialised, for it could not be told "
                    "whether it comes back. Is the cable in, the far end on?",
                )
            # A GID that moved is put right below.
            lacking = partial(_lacking, work.system, self.wanted)
            seen = reinitialise(work, operation, self.wanted, seen, lacking)
        elif devlink.since(operation, _boot(work.system)) is None:
            _found(work, operation, seen)
        if seen["offload"] != "on":
            _offload(work, self.wanted, "on")
        _settle_gid(work, self.wanted)

    def describe(self) -> dict[str, Any]:
        return {"re-initialise": self.wanted["pci"], **{key: self.wanted[key] for key in devlink.QUEUES}}


def _lacking(system: System, function: Json) -> list[str]:
    return absent(function, _ports(system), anywhere=True)


def _complete(system: System, function: Json) -> list[str]:
    """Wait for a port to be complete; what it lacks in the end. A neighbour may be re-initialising the far end."""
    end = system.clock() + RETURN
    while (left := _lacking(system, function)) and system.clock() < end:
        system.sleep(_STEP)
    return left


def _values(function: Json) -> str:
    return json.dumps({key: function[key] for key in devlink.QUEUES}, sort_keys=True)


def _seen(system: System, function: Json) -> Json:
    return devlink.look(system, {function["pci"]: function["netdev"]}, [function["netdev"]])[function["pci"]]


def _ports(system: System) -> Json:
    return observe.observe(system, None, ("links", "hcas"))


def _due(wanted: Json, seen: Json, operation: Undo, system: System) -> bool:
    """Whether a function is to be re-initialised.

    Values that are shown and a counter above zero are no proof where a run of ours ended between setting the values and
    the re-initialisation: then the counter has to be above what the journal holds. Nor are they where it is above what
    it was when they were in effect: whoever re-initialised since may have put others in effect, and set these again.
    """
    state = devlink.state(wanted, seen)
    since = devlink.since(operation, _boot(system))
    if since is not None and devlink.by_others(state, seen, since):
        return True
    if state in (devlink.UNKNOWN, devlink.BROKEN):
        raise Failure(READ_BACK, f"{name(wanted)}: is {state}, so it is not re-initialised: see devlink dev show")
    return state in (devlink.DEFAULT, devlink.PENDING) or _unproven(seen, operation, system)


def _begun(operation: Undo, system: System) -> Json | None:
    """What the journal holds of a re-initialisation that a run of ours began and did not finish since the boot."""
    begun: Json | None = operation.get("begun")
    return begun if begun is not None and begun["boot"] == _boot(system) else None


def _unproven(seen: Json, operation: Undo, system: System) -> bool:
    begun = _begun(operation, system)
    return begun is not None and bool(seen["reinits"] <= begun["reinits"])


def _found(work: Work, operation: Undo, seen: Json) -> None:
    """Keep that the values are in effect now."""
    operation[devlink.SINCE] = {"boot": _boot(work.system), "reinits": seen["reinits"]}
    work.journal.save()


def _still_ours(seen: Json, operation: Undo, system: System) -> bool:
    """Whether our values are in effect, although somebody has the driver show those from before us."""
    since = devlink.since(operation, _boot(system))
    return seen["reinits"] == since and _values(seen) not in operation["ours"]


def _boot(system: System) -> str:
    return system.text(observe.BOOT_ID) or ""


def reinitialise(work: Work, operation: Undo, function: Json, seen: Json, missing: Callable[[], list[str]]) -> Json:
    """Put values in effect, wait for the function, and return how its driver is then.

    Raises `Failure` where it does not come back with nothing `missing`, or its values are not in effect.
    """
    system, label = work.system, name(function)
    _stop_marker(work, function["hca"])
    operation["begun"] = {"boot": _boot(system), "reinits": seen["reinits"]}
    work.journal.save()
    for key in devlink.differing(function, seen):
        value = [f"pci/{function['pci']}", "name", key, "value", str(function[key]), "cmode", "driverinit"]
        _must(system, label, ["devlink", "dev", "param", "set", *value])
    start = system.clock()
    _must(system, label, ["devlink", "dev", "reload", f"pci/{function['pci']}", "action", "driver_reinit"], RELOAD)
    _come_back(work, function, missing)
    now = _seen(system, function)
    shown = all(now[key] == function[key] for key in devlink.QUEUES)
    if not shown or now["reload_failed"] or (now["reinits"] or 0) <= seen["reinits"]:
        state = f"reload_failed {now['reload_failed']}, re-initialisations {seen['reinits']} -> {now['reinits']}"
        values = ", ".join(f"{key} {now[key]}" for key in devlink.QUEUES)
        raise Failure(READ_BACK, f"{label}: is back, but its values are not in effect ({values}, {state})", STOPPED)
    del operation["begun"]
    _found(work, operation, now)
    took = system.clock() - start
    values = ", ".join(f"{key} {seen[key]} -> {function[key]}" for key in devlink.differing(function, seen))
    work.report.did(f"{label}: re-initialised, back after {took:.0f} s{f' ({values})' if values else ''}")
    return now


def _must(system: System, label: str, command: list[str], timeout: float = CALL) -> None:
    result = system.change(command, timeout=timeout)
    if not result.ok:
        raise Failure(FAILED, f"{label}: {' '.join(command)}: {result.reason()}", STOPPED)


def _come_back(work: Work, function: Json, missing: Callable[[], list[str]]) -> None:
    """Wait until nothing is missing any more; help NetworkManager where it does not bring the port up by itself."""
    system, netdev = work.system, function["netdev"]
    start, helped = system.clock(), False
    while True:
        _arp(work, netdev)
        left = missing()
        if not left:
            return
        waited = system.clock() - start
        if waited > RETURN:
            seen = f"{name(function)}: did not come back within {RETURN:g} s after its re-initialisation"
            raise Failure(READ_BACK, f"{seen}: {', '.join(left)}", STOPPED)
        if waited > ALONE and not helped and _is_ours(work, netdev):
            helped = True
            with contextlib.suppress(Failure):  # what is still missing at the end says it better
                _profile_up(work, netdev)
        system.sleep(_STEP)


def _is_ours(work: Work, netdev: str) -> bool:
    """Whether a plane of ours has the port, so that netplan made a profile for it."""
    stages = (work.journal.stages.get(stage) for stage in ("plane0", "plane1"))
    return any(port["netdev"] == netdev for stage in stages if stage for port in stage.desired.get("ports", []))


def _arp(work: Work, netdev: str) -> None:
    """The plane's values, which went with the port; a file sets them at a boot, not always here."""
    if not _is_ours(work, netdev):
        return
    for key, value in ARP.items():
        path = f"/proc/sys/net/ipv4/conf/{netdev}/{key}"
        if work.system.text(path) not in (value, None):
            work.system.set_value(path, value)


def _profile_up(work: Work, netdev: str) -> None:
    mac = work.system.text(f"/sys/class/net/{netdev}/address") or ""
    Activate((netdev,), (), ((netdev, eui64(mac)),) if mac else ()).do(work)


def moved_to(function: Json, observed: Json) -> list[int]:
    """Where the GID of a function's address is instead of at its index; empty where it is right, or not there. Pure."""
    hca = (observed.get("hcas") or {}).get(function["hca"])
    link = (observed.get("links") or {}).get(function["netdev"])
    if hca is None or link is None or function["address"] not in link["addresses"]:
        return []  # that is the plane's to tell
    indexes = gid_indexes(function, hca)
    return [] if function["gid_index"] in indexes else indexes


def _settle_gid(work: Work, function: Json) -> None:
    """Bring the GID to its index: the address goes and comes."""
    observed = _ports(work.system)
    if not moved_to(function, observed):
        return
    netdev = function["netdev"]
    _must(work.system, name(function), ["ip", "address", "del", function["address"], "dev", netdev])
    _profile_up(work, netdev)
    end = work.system.clock() + SETTLE
    while left := absent(function, _ports(work.system)):
        if work.system.clock() > end:
            hint = "a process may still hold the old GID: boot the node if none is named by rdma resource show"
            raise Failure(READ_BACK, f"{name(function)}: address given again: {', '.join(left)}", hint)
        work.system.sleep(_STEP)
    work.report.did(f"{name(function)}: address given again, GID at index {function['gid_index']}")


def _offload(work: Work, function: Json, value: str) -> None:
    _must(work.system, name(function), ["ethtool", "-K", function["netdev"], OFFLOAD, value])
    work.report.did(f"{name(function)}: {OFFLOAD} {value}")


def _stop_marker(work: Work, hca: str) -> None:
    """A marker outlives the re-initialisation of its device without its rule. The stage `markers` starts it again."""
    unit = meshunits.instance(hca)
    if not mesh.busy(work.system, hca):
        return
    if "markers" not in work.journal.stages:
        raise Failure(FAILED, f"{unit} runs, and is not of this stack: stop it (systemctl disable --now dsv41-mesh)")
    _must(work.system, unit, ["systemctl", "stop", unit])


def _as_before(operation: Undo) -> Json:
    """The function of an operation with the values that it had before us."""
    before = operation["before"]
    return {**before["function"], **{key: before[key] for key in devlink.QUEUES}}


def _way_back(system: System, operation: Undo, seen: Json) -> str:
    """What undoing finds of a function's values; only for `AGAIN` it re-initialises the function."""
    before = operation["before"]
    if None in (seen["reinits"], *(held[key] for held in (seen, before) for key in devlink.QUEUES)):
        return UNREAD
    if _values(seen) == _values(before) and not _unproven(seen, operation, system):
        return AGAIN if _still_ours(seen, operation, system) else AS_BEFORE
    ours = _begun(operation, system) is not None or _values(seen) in operation["ours"]
    return AGAIN if ours else THEIRS


def undone_by_reinit(system: System, operations: list[Undo]) -> list[Json]:
    """The functions that undoing would re-initialise."""
    found = []
    for operation in operations:
        function = _as_before(operation)
        if _way_back(system, operation, _seen(system, function)) == AGAIN:
            found.append(function)
    return found


def undo_function(work: Work, operation: Undo) -> None:
    """Put the values of a function back as they were, in effect too."""
    system, before, function = work.system, operation["before"], _as_before(operation)
    seen = _seen(system, function)
    way = _way_back(system, operation, seen)
    if way == UNREAD:
        work.report.note(f"{name(function)} cannot be read: its driver's values are left as they are")
        return
    if way == THEIRS:
        work.report.note(f"{name(function)}: has {_values(seen)}, neither ours nor as it was: left as it is")
        return
    if way == AGAIN:
        lacking = set(_lacking(system, function))  # what is not there now need not come back
        seen = reinitialise(work, operation, function, seen, lambda: sorted(set(_lacking(system, function)) - lacking))
    if before["offload"] in ("on", "off") and seen["offload"] not in (before["offload"], None):
        _offload(work, function, before["offload"])


def name(function: Json) -> str:
    """How a function is called in messages."""
    return f"{function['netdev']} ({function['pci']})"


def absent(function: Json, observed: Json, *, anywhere: bool = False) -> list[str]:
    """What a function lacks to be back: link, address, MTU, ACTIVE port, GID; each a few words. Pure.

    The GID has to be at its index, or `anywhere`.
    """
    link = (observed.get("links") or {}).get(function["netdev"])
    hca = (observed.get("hcas") or {}).get(function["hca"])
    if link is None or hca is None:
        return [f"{function['netdev'] if link is None else function['hca']} is not there"]
    found = [] if link.get("carrier") else ["no carrier"]
    if function["address"] not in link["addresses"]:
        found.append(f"no address {function['address']}")
    if link["mtu"] != function["mtu"]:
        found.append(f"MTU {link['mtu']} instead of {function['mtu']}")
    if not hca["state"].startswith("4"):
        found.append(f"port {hca['state'] or 'in no state'} instead of ACTIVE")
        return found
    indexes = gid_indexes(function, hca)
    if not indexes or (not anywhere and function["gid_index"] not in indexes):
        where = f", but at {', '.join(map(str, indexes))}" if indexes else ""
        found.append(f"no GID at index {function['gid_index']}{where}")
    return found
