"""The mesh as a node has it: driver, tc objects, routes, units and markers. Looks only; judged by the stages.

{"functions": {pci: {"netdev", "hca", …}}, "qdiscs": […], "filters": […], "routes": [all /32], "files": {path: …},
 "binary": {"sha256", "mode"} | null, "service": {…} | null, "markers": [{"hca", "unit", "active", "restarts", "line"}],
 "strangers": [marker processes of nobody], "queue_pairs": [{"hca", "pid", "command"}] | null}
"""

import json
from collections.abc import Callable
from typing import Any

from . import devlink, meshunits, tc
from .deviation import Deviation
from .digest import sha256
from .holders import marker_unit
from .request import FAILED, Failure
from .system import System

STAGES = ("nic", "forwarding", "markers")
IDLE = ("inactive", "failed", "unknown")  # states of a unit that systemd does not start again by itself
SHOW = ("Id", "LoadState", "ActiveState", "SubState", "UnitFileState", "Result", "MainPID", "NRestarts")
# Programs that rewrite RDMA packets, of whatever set-up.
REWRITERS = ("mlx5-rdma-tx-rewrite-probe", "mlx5-rdma-tx-marker", "sparkring-relay-marker")
G2_UNITS = ("sparkring-hairpin.service", "sparkring-fabric.service", "sparkring-relay-marker.service")

PREVIEW = frozenset({"driver", "flows", "units"})
EVERYTHING = PREVIEW | {"modes"}

Json = dict[str, Any]


def unseen(stage: str) -> Deviation:
    """That the mesh could not be looked at, which no apply repairs."""
    seen = "driver, tc or systemd could not be asked"
    return Deviation("mesh.unseen", stage, seen, "answers: see the errors of observe", disruptive=True, foreign=True)


def present(system: System, stages: dict[str, Any]) -> bool:
    """Whether there is anything of a mesh on the node that is worth a look: in the journal, or as files."""
    return any(name in stages for name in STAGES) or any(system.exists(path) for path in meshunits.PATHS)


def observe(system: System, stages: dict[str, Any], sides: frozenset[str] = EVERYTHING) -> Json:
    """The mesh without "routes", or some sides of it.

    "modes" are what costs a process a function or is long: modes of eswitches, queue pairs, hw-tc-offload of ports that
    have a rule in hardware. They are also looked at where the driver is not as the journal has it.
    """
    ports = devlink.ports(system)
    found: Json = {"functions": {pci: {"netdev": netdev, "hca": hca} for pci, (netdev, hca) in ports.items()}}
    held = _forwarding(stages)
    netdevs = [netdev for netdev, _ in ports.values()]
    asked = [netdev for netdev in netdevs if "modes" in sides or "flows" not in sides or netdev not in held]
    calls: dict[str, Callable[[], Json]] = {
        "driver": lambda: devlink.look(system, {pci: netdev for pci, (netdev, _) in ports.items()}, asked),
        "flows": lambda: tc.look(system, netdevs, held),
        "units": lambda: {**_units(system, [hca for _, hca in ports.values()]), **_files(system)},
    }
    wanted = [side for side in calls if side in sides]
    answers = dict(zip(wanted, system.parallel([calls[side] for side in wanted]), strict=True))
    driver = answers.pop("driver", None)
    for answer in answers.values():
        found |= answer
    if "units" in sides:
        found["strangers"] = _strangers(system)
    if driver is not None:
        _offloads(system, ports, asked, driver, found.get("filters") or [])
        for pci, function in driver.items():
            found["functions"][pci] |= function
        unsettled = sides == PREVIEW and not _settled(stages, driver)
        found["queue_pairs"] = None
        if "modes" in sides or unsettled:
            found["queue_pairs"] = _users_or_none(system, "qp")
            for pci, mode in devlink.modes(system, ports).items():
                found["functions"][pci]["eswitch"] = mode
    return found


def _forwarding(stages: dict[str, Any]) -> set[str]:
    """The ports on which the journal has rules of ours."""
    entry = stages.get("forwarding") or {}
    return {rule["netdev"] for rule in (entry.get("desired") or {}).get("rules") or []}


def _offloads(
    system: System, ports: dict[str, tuple[str, str]], asked: list[str], driver: dict[str, Json], filters: list[Json]
) -> None:
    """A port with a rule in hardware has its offload on; another one that was not asked for is asked for now."""
    forwards = {row["netdev"] for row in filters if row["in_hw"]}
    for pci, (netdev, _) in ports.items():
        if netdev not in asked:
            shown = "on" if netdev in forwards else devlink.offload(system.run(["ethtool", "-k", netdev]))
            driver[pci]["offload"] = shown


def _settled(stages: dict[str, Any], functions: dict[str, Json]) -> bool:
    """Whether every function is as the journal says that it was left."""
    entry = stages.get("nic") or {}
    wanted = (entry.get("desired") or {}).get("functions") or []
    applied = entry.get("status") == "applied" and bool(wanted)
    return applied and all(devlink.state(one, functions.get(one["pci"])) == devlink.IN_EFFECT for one in wanted)


def _units(system: System, hcas: list[str]) -> Json:
    """The boot unit and the markers, asked for in one call."""
    names = [meshunits.SERVICE, *(meshunits.instance(hca) for hca in hcas)]
    shown = system.run(["systemctl", "show", f"--property={','.join(SHOW)}", *names, *G2_UNITS])
    blocks = (
        dict(line.split("=", 1) for line in block.splitlines() if "=" in line) for block in shown.out.split("\n\n")
    )
    units = {block["Id"]: block for block in blocks if "Id" in block}
    return {
        "service": _service(system, units.get(meshunits.SERVICE)),
        "markers": [_marker(system, hca, units.get(meshunits.instance(hca)) or {}) for hca in hcas],
        "others": [name for name in G2_UNITS if (units.get(name) or {}).get("LoadState") == "loaded"],
    }


def _service(system: System, shown: Json | None) -> Json | None:
    if not shown or shown.get("LoadState") != "loaded":
        return None
    try:
        why = json.loads(system.text(meshunits.WHY) or "{}")
    except ValueError:
        why = {}
    return {
        "enabled": shown.get("UnitFileState") == "enabled",
        "active": shown.get("ActiveState") == "active",
        "state": f"{shown.get('ActiveState')} ({shown.get('SubState')})",
        "why": str(why.get("error") or ""),
    }


def _marker(system: System, hca: str, shown: Json) -> Json:
    """One marker: what systemd says of it, and the line in which it says itself that it is attached.

    "replaced" is the digest of the file that it runs where that is not at its place any more, else null.
    """
    pid = int(shown.get("MainPID") or 0)
    gone = pid > 0 and system.target(f"/proc/{pid}/exe") == f"{meshunits.BINARY} (deleted)"
    return {
        "hca": hca,
        "unit": meshunits.instance(hca),
        "active": shown.get("ActiveState") == "active",
        "busy": shown.get("ActiveState", "unknown") not in IDLE,
        "state": f"{shown.get('ActiveState', 'unknown')} ({shown.get('SubState', '')})",
        "result": str(shown.get("Result") or ""),
        "pid": pid,
        "replaced": system.sha256(f"/proc/{pid}/exe") if gone else None,
        "restarts": int(shown.get("NRestarts") or 0),
        "line": line(system, hca),
    }


def busy(system: System, hca: str) -> str:
    """How a marker is that marks, or that systemd is about to start again; "" where it is down and stays so.

    Between two starts a unit is "activating". One that systemd says nothing about counts as busy.
    """
    shown = system.run(["systemctl", "is-active", meshunits.instance(hca)])
    state = shown.out.strip()
    if state in IDLE:
        return ""
    return state or f"in a state that systemd does not tell ({shown.reason()})"


def line(system: System, hca: str) -> Json | None:
    """The first line that the marker of a device wrote since its start; None before it did, or where it is none."""
    lines = (system.text(meshunits.said(hca)) or "").splitlines()
    try:
        found = json.loads(lines[0]) if lines else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _files(system: System) -> Json:
    found = {}
    for path in (*meshunits.PATHS, *meshunits.BY_HAND):
        data, meta = system.read(path), system.meta(path)
        if data is not None and meta is not None:
            text = data.decode(errors="replace")
            found[path] = {"text": text, "mode": f"{meta.mode:04o}", "uid": meta.uid, "gid": meta.gid}
    data, meta = system.read(meshunits.BINARY), system.meta(meshunits.BINARY)
    binary = None if data is None or meta is None else {"sha256": sha256(data), "mode": f"{meta.mode:04o}"}
    return {"files": found, "binary": binary}


def _strangers(system: System) -> list[Json]:
    """Processes of a marker program that no unit of the mesh runs."""
    found = []
    for pid in (name for name in system.names("/proc") if name.isdigit()):
        words = (system.read(f"/proc/{pid}/cmdline") or b"").decode(errors="replace").split("\0")
        if any(word.rpartition("/")[2] in REWRITERS for word in words[:3]) and not marker_unit(system, int(pid)):
            found.append({"pid": int(pid), "command": " ".join(words).strip()[:200]})
    return found


def _users_or_none(system: System, kind: str) -> list[Json] | None:
    try:
        return users(system, kind)
    except Failure:
        return None


def users(system: System, kind: str) -> list[Json]:
    """The processes that hold RDMA objects of a kind ("qp", "pd"), each once a device. Raises `Failure`."""
    command = ["rdma", "-j", "resource", "show", kind]
    shown = system.run(command)
    try:
        rows = json.loads(shown.out or "[]") if shown.ok else None
    except ValueError:
        rows = None
    if not isinstance(rows, list):
        raise Failure(FAILED, f"{' '.join(command)}: {'no list' if shown.ok else shown.reason()}")
    held = {(str(row.get("ifname")), int(row["pid"]), str(row.get("comm", ""))) for row in rows if row.get("pid")}
    return [{"hca": hca, "pid": pid, "command": command} for hca, pid, command in sorted(held)]
