"""The driver of the fabric's functions: queues for forwarding in hardware, in effect and not merely shown.

A re-initialisation takes a function away for seconds, with its queue pairs, addresses, routes, qdiscs and rules. So
there is one at a time, only with nobody on the node who uses RDMA or the GPU, and the next one begins only after the
last came back with address, MTU, ACTIVE port and GID. `flow_steering_mode` and the mode of the eswitch are only read:
a node with others is refused.

The mesh needs the GID of each port's address at one index everywhere. It can move by one while somebody holds the old
entry when a link goes and comes; taking the address away and giving it again brings it back.
"""

from typing import Any

from . import devlink, holders, mesh, reinit, tc
from .deviation import Deviation, of_journal
from .digest import digest
from .flow import held, is_held
from .flowsteps import STAGE as FORWARDING
from .journal import Entry
from .reinit import OFFLOAD, STAGE, Function, moved_to, name
from .request import Failure
from .run import ABSENT
from .steps import Step
from .system import System

Json = dict[str, Any]


def deviations(desired: Json, observed: Json) -> list[Deviation]:
    """Everything in which a node's driver differs from the plan; empty where there is nothing to do."""
    if desired["state"] == "off":
        entry = ((observed.get("journal") or {}).get("stages") or {}).get(STAGE)
        return [Deviation("nic.on", STAGE, "is on", "it off", disruptive=True)] if entry else []
    found = of_journal(STAGE, digest(desired), observed, disruptive=True)
    if observed.get("mesh") is None:
        return [*found, mesh.unseen(STAGE)]
    seen = observed["mesh"]["functions"]
    entry = ((observed.get("journal") or {}).get("stages") or {}).get(STAGE) or {}
    since = entry.get(devlink.SINCE) or {}
    for function in desired["functions"]:
        found += _function(function, seen.get(function["pci"]), since.get(function["pci"]))
        found += _gid(function, observed)
    return found


def _function(wanted: Json, seen: Json | None, since: int | None) -> list[Deviation]:
    subject = name(wanted)
    if seen is None:
        return [Deviation("nic.missing", subject, "there is no such RDMA function", "the function", disruptive=True)]
    if (seen["netdev"], seen["hca"]) != (wanted["netdev"], wanted["hca"]):
        is_, want = f"is {seen['netdev']} and {seen['hca']}", f"{wanted['netdev']} and {wanted['hca']}"
        return [Deviation("nic.other", subject, is_, want, disruptive=True, foreign=True)]
    return [*_queues(wanted, seen, since, subject), *_modes(seen, subject)]


def _queues(wanted: Json, seen: Json, since: int | None, subject: str) -> list[Deviation]:
    """`since` is the counter of re-initialisations when the journal had the values in effect, None where it has not."""
    state = devlink.state(wanted, seen)
    values = ", ".join(f"{key} {seen.get(key)}" for key in devlink.QUEUES)
    target = ", ".join(f"{key} {wanted[key]}" for key in devlink.QUEUES)
    if state == devlink.DEFAULT:
        differing = list(devlink.differing(wanted, seen))
        values = ", ".join(f"{key} is {seen[key]}" for key in differing)
        return [Deviation("nic.queues", subject, values, ", ".join(str(wanted[k]) for k in differing), disruptive=True)]
    if state == devlink.PENDING:
        is_ = f"shows {values}, but was not re-initialised since the boot"
        return [Deviation("nic.pending", subject, is_, f"{target} in effect", disruptive=True)]
    if since is not None and devlink.by_others(state, seen, since):
        is_ = f"shows {values}, but somebody re-initialised it after they were put in effect"
        return [Deviation("nic.pending", subject, is_, f"{target} in effect", disruptive=True)]
    if state == devlink.BROKEN:
        want = f"a function that works: boot the node, or devlink dev reload pci/{wanted['pci']} action driver_reinit"
        return [Deviation("nic.failed", subject, "its last re-initialisation failed", want, True, foreign=True)]
    if state == devlink.UNKNOWN:
        parts = [key for key in (*devlink.QUEUES, "reinits", "reload_failed", "offload") if seen.get(key) is None]
        is_ = f"cannot be read ({', '.join(parts)})"
        want = f"{target}: see devlink dev param show pci/{wanted['pci']}, ethtool -k {wanted['netdev']}"
        return [Deviation("nic.unknown", subject, is_, want, disruptive=True, foreign=True)]
    if state == devlink.OFFLOAD_OFF:
        fixed = seen["offload"] != "off"  # "off [fixed]": the driver does not let anybody switch it on
        return [Deviation("nic.offload", subject, f"{OFFLOAD} is {seen['offload']}", "on", True, foreign=fixed)]
    return []


def _modes(seen: Json, subject: str) -> list[Deviation]:
    """What must be so and is never set: it was not qualified otherwise, and switching it is not ours to try."""
    found = []
    if seen[devlink.STEERING] != devlink.HMFS:
        is_ = f"{devlink.STEERING} is {seen[devlink.STEERING] or 'unknown'}"
        found.append(
            Deviation("nic.steering", subject, is_, f"{devlink.HMFS} (only read, never set)", True, foreign=True)
        )
    if "eswitch" in seen and seen["eswitch"] != devlink.LEGACY:
        is_ = f"the mode of its eswitch is {seen['eswitch'] or 'unknown'}"
        want = f"{devlink.LEGACY} (only read, never set)"
        found.append(Deviation("nic.eswitch", subject, is_, want, disruptive=True, foreign=True))
    return found


def _gid(wanted: Json, observed: Json) -> list[Deviation]:
    indexes = moved_to(wanted, observed)
    if not indexes:
        return []
    seen = f"RoCE v2 GID of {wanted['address'].split('/')[0]} is at index {', '.join(map(str, indexes))}"
    return [Deviation("nic.gid", name(wanted), seen, str(wanted["gid_index"]), disruptive=True)]


def plan(desired: Json, observed: Json) -> list[Step]:
    """The steps that lead to the desired state "on", in order; those with nothing to do are marked so."""
    subjects = {deviation.subject for deviation in deviations(desired, observed)}
    return [Function(one, needed=STAGE in subjects or name(one) in subjects) for one in desired["functions"]]


def validate(system: System, desired: Json, observed: Json) -> list[str]:  # noqa: ARG001
    """What speaks against the change: every reason, each a line."""
    if desired["state"] == "off":
        return []
    found = deviations(desired, observed)
    problems = [deviation.text() for deviation in found if deviation.foreign]
    again = {deviation.subject for deviation in found if deviation.code in ("nic.queues", "nic.pending")}
    ours = held(observed)
    for function in desired["functions"]:
        if name(function) in again:
            problems += [
                f"{_would_remove(function, row)}: remove it, or leave the mesh off"
                for row in (observed.get("mesh") or {}).get("filters") or []
                if row["netdev"] == function["netdev"] and not is_held(row, ours)
            ]
    return problems


def _would_remove(function: Json, row: Json) -> str:
    seen = f"has a filter of others (pref {row['pref']}, {row['kind']})"
    return f"{name(function)}: {seen}, which its re-initialisation would remove"


def in_the_way(system: System, stages: dict[str, Entry]) -> list[str]:
    """What keeps the stage from being reverted: filters that a re-initialisation would remove; each a line."""
    if FORWARDING in stages:
        return ["rules of the mesh stand, which need the driver's values: revert the stage forwarding first"]
    functions = reinit.undone_by_reinit(system, stages[STAGE].undo)
    return [
        f"{_would_remove(function, row)}: remove it first"
        for function in functions
        for row in tc.filters(system, function["netdev"])
    ]


def users(system: System) -> list[str]:
    """Who on the node would be disturbed besides engines: holders of RDMA objects and of the GPU; each a line."""
    found = []
    for kind, what in (("qp", "queue pairs"), ("pd", "memory")):
        try:
            held_by = mesh.users(system, kind)
        except Failure as failure:
            found.append(f"it cannot be told who has {what}: {failure}")
            continue
        found += [
            f"process {user['pid']} ({user['command']}) has {what} on {user['hca']}"
            for user in held_by
            if not holders.marker_unit(system, user["pid"])
        ]
    shown = system.run(["nvidia-smi", "--query-compute-apps=pid,process_name", "--format=csv,noheader"])
    if shown.ok:
        found += [f"process {line.strip()} uses the GPU" for line in shown.out.splitlines() if line.strip()]
    elif shown.rc != ABSENT:
        found.append(f"nvidia-smi cannot tell who uses the GPU: {shown.reason()}")
    return found
