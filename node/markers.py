"""The markers of a node: units that keep them running, and the boot unit that brings the whole mesh up.

A marker rewrites every RDMA packet with its UDP source port on its device. It counts as up only when it says so itself:
one line of JSON in which it is attached and managed. Its binary is the operator's; it is checked and copied, never
built and never downloaded.
"""

import os
from typing import Any

from . import mesh, meshunits
from .deviation import Deviation, of_journal, same_text
from .digest import digest, sha256
from .files import MARK, Copy, File
from .journal import Undo
from .marking import Marker, Service, ready
from .sent import SENT, Place, Sent
from .steps import Step
from .system import System
from .units import Reload

STAGE = "markers"

Json = dict[str, Any]


def deviations(desired: Json, observed: Json) -> list[Deviation]:
    """Everything in which a node's markers and units differ from the plan; empty where there is nothing to do."""
    entry = ((observed.get("journal") or {}).get("stages") or {}).get(STAGE)
    if desired["state"] == "off":
        return _off(entry, observed)
    found = of_journal(STAGE, digest(desired), observed, disruptive=True)
    if observed.get("mesh") is None:
        return [*found, mesh.unseen(STAGE)]
    for path, (text, mode) in meshunits.files(desired).items():
        found += _file(path, text, mode, desired, observed)
    found += _binary(desired, entry, observed)
    found += _strangers(observed)
    found += _service(observed)
    for marker in desired["markers"]:
        found += _marker(marker, desired["binary"]["sha256"], observed)
    return found


def _off(entry: Json | None, observed: Json) -> list[Deviation]:
    if entry:
        return [Deviation("markers.on", STAGE, "is on", "it off", disruptive=True)]
    return [Deviation("file.leftover", path, "is there", "no such file", disruptive=True) for path in ours(observed)]


def ours(observed: Json) -> list[str]:
    """The files of a mesh on a node that this program put there. Pure."""
    files: Json = (observed.get("mesh") or {}).get("files") or {}
    return [path for path, file in files.items() if MARK in file["text"]]


def _file(path: str, text: str, mode: int, desired: Json, observed: Json) -> list[Deviation]:
    file = observed["mesh"]["files"].get(path)
    if file is None:
        return [Deviation("file.missing", path, "is missing", "the file", disruptive=True)]
    found = []
    unchanged = same_text(observed, STAGE, digest(desired), path, file["text"], text)
    if not unchanged and meshunits.meaning(file["text"]) != meshunits.meaning(text):
        if MARK in file["text"] or path in _written(observed):
            found.append(Deviation("file.text", path, "has another content", "what was written", disruptive=True))
        else:
            by_hand = [other for other in meshunits.BY_HAND if other in observed["mesh"]["files"]]
            seen = f"is of an installation by hand{f' (beside it {by_hand[0]})' if by_hand else ''}"
            want = (
                f"ours: stop the engine, then systemctl disable --now {meshunits.SERVICE}, run its mesh-down.sh and "
                f"remove {meshunits.HOME} and the dsv41-mesh units; up then installs its own"
            )
            found.append(Deviation("markers.by-hand", path, seen, want, disruptive=True, foreign=True))
    seen = f"{file['mode']} {file['uid']}:{file['gid']}"
    if seen != f"{mode:04o} 0:0" and path in _written(observed):
        found.append(Deviation("file.mode", path, f"mode and owner are {seen}", f"{mode:04o} 0:0", disruptive=False))
    return found


def _written(observed: Json) -> Json:
    entry = ((observed.get("journal") or {}).get("stages") or {}).get(STAGE) or {}
    found: Json = entry.get("written") or {}
    return found


def _binary(desired: Json, entry: Json | None, observed: Json) -> list[Deviation]:
    wanted, seen = desired["binary"]["sha256"], observed["mesh"]["binary"]
    if seen is None:
        return [Deviation("markers.binary", meshunits.BINARY, "is missing", "the marker binary", disruptive=True)]
    if seen["sha256"] != wanted:
        text, want = f"has sha256 {seen['sha256'][:12]}", wanted[:12]
        if entry and meshunits.BINARY in _written(observed):
            return [Deviation("markers.binary", meshunits.BINARY, text, want, disruptive=True)]
        want += ": it is not ours; remove it, or give its digest as the wanted one"
        return [Deviation("markers.by-hand", meshunits.BINARY, text, want, disruptive=True, foreign=True)]
    if not int(seen["mode"], 8) & 0o100:
        seen_mode = f"has mode {seen['mode']}"
        return [Deviation("markers.binary-mode", meshunits.BINARY, seen_mode, "one that can be run", disruptive=False)]
    return []


def _strangers(observed: Json) -> list[Deviation]:
    return [
        Deviation(
            "markers.stranger",
            f"process {one['pid']}",
            f"runs {one['command']}",
            "markers of the mesh only: end it",
            disruptive=True,
            foreign=True,
        )
        for one in observed["mesh"]["strangers"]
    ]


def _service(observed: Json) -> list[Deviation]:
    service = observed["mesh"]["service"]
    if service is None:
        return [Deviation("markers.service", meshunits.SERVICE, "is not known to systemd", "it", disruptive=False)]
    found = []
    if not service["enabled"]:
        found.append(Deviation("markers.enabled", meshunits.SERVICE, "is not enabled", "enabled", disruptive=False))
    if not service["active"]:
        seen = f"is {service['state']}{': ' + service['why'] if service['why'] else ''}"
        found.append(Deviation("markers.service", meshunits.SERVICE, seen, "active", disruptive=False))
    return found


def _marker(marker: Json, binary: str, observed: Json) -> list[Deviation]:
    seen = next((one for one in observed["mesh"]["markers"] if one["hca"] == marker["hca"]), None)
    unit = meshunits.instance(marker["hca"])
    if seen is None:
        return [Deviation("markers.device", unit, "has no RDMA device", marker["hca"], disruptive=True)]
    if not seen["active"]:
        times = f", started again {seen['restarts']} times" if seen["restarts"] else ""
        text = f"is {seen['state']}{times}"
        return [Deviation("markers.down", unit, text, "active", disruptive=False)]
    wrong = ready(marker, seen["line"])
    if wrong:
        return [Deviation("markers.ready", unit, wrong, "attached and managed", disruptive=True)]
    if seen["replaced"] not in (None, binary):
        runs = f"runs a file that was replaced since, with sha256 {seen['replaced'][:12]}"
        return [Deviation("markers.outdated", unit, runs, binary[:12], disruptive=True)]
    return []


def flapping(observed: Json) -> list[str]:
    """Markers that systemd had to start again since they were started; each a line for a person. Pure."""
    return [
        f"{one['unit']}: died and was started again {one['restarts']} times; see journalctl -u {one['unit']}"
        for one in (observed.get("mesh") or {}).get("markers") or []
        if one["restarts"]
    ]


def sharing(desired: Json, observed: Json) -> list[str]:
    """Processes with queue pairs on a device with a marker; each a line for a person. Pure.

    Whether one uses the marker's source port cannot be seen from outside.
    """
    markers = {marker["hca"]: marker["source_port"] for marker in desired.get("markers") or []}
    return [
        f"process {one['pid']} ({one['command']}) has queue pairs on {one['hca']}, where every RDMA packet with UDP "
        f"source port {markers[one['hca']]} is rewritten, whosever it is"
        for one in (observed.get("mesh") or {}).get("queue_pairs") or []
        if one["hca"] in markers
    ]


def plan(desired: Json, observed: Json) -> list[Step]:
    """The steps that lead to the desired state "on", in order; those with nothing to do are marked so."""
    found = deviations(desired, observed)
    subjects = {deviation.subject for deviation in found}
    wanted = meshunits.files(desired)
    binary, stale = desired["binary"], meshunits.BINARY in subjects
    steps: list[Step] = []
    if binary.get("source") == SENT:
        steps.append(Place(Sent(binary["path"], binary["sha256"], binary["size"]), needed=stale))
    steps.append(Copy(meshunits.BINARY, binary["path"], binary["sha256"], needed=stale))
    steps += [
        File(path, text.encode(), mode, own=True, needed=path in subjects) for path, (text, mode) in wanted.items()
    ]
    # A marker that runs goes on with what it was started with. A mode that is put right is none of its business.
    replaced = {one.subject for one in found if one.code in ("markers.binary", "file.missing", "file.text")}
    changed = not replaced.isdisjoint((meshunits.BINARY, f"{meshunits.UNITS}/{meshunits.MARKER}"))
    outdated = {one.subject for one in found if one.code == "markers.outdated"}
    again = {one["hca"] for one in observed["mesh"]["markers"] if one["busy"] and (changed or one["unit"] in outdated)}
    units = any(path in subjects for path in wanted)
    steps += [Reload(needed=units or meshunits.SERVICE in subjects)]
    marks = [
        Marker(marker, again=hca in again, needed=hca in again or meshunits.instance(hca) in subjects)
        for marker, hca in ((marker, marker["hca"]) for marker in desired["markers"])
    ]
    service = Service(needed=meshunits.SERVICE in subjects or any(mark.needed for mark in marks))
    return [*steps, service, *marks]


def validate(system: System, desired: Json, observed: Json) -> list[str]:
    """What speaks against the change: every reason, each a line."""
    if desired["state"] == "off":
        return []
    found = [deviation.text() for deviation in deviations(desired, observed) if deviation.foreign]
    path, wanted = desired["binary"]["path"], desired["binary"]["sha256"]
    if desired["binary"].get("source") == SENT:
        return found  # it comes with the change, and is checked then
    data = system.read(path)
    if data is None:
        found.append(f"{path}: the marker binary is missing, plan wants sha256 {wanted[:12]}: see mesh.marker")
    elif sha256(data) != wanted:
        found.append(
            f"{path}: sha256 is {sha256(data)[:12]}, plan wants {wanted[:12]}: it is not the file of mesh.marker"
        )
    return found


def leftovers(observed: Json) -> list[Undo]:
    """What undoes an installation of ours of which the journal was lost. Pure but for contents, which are all ours."""
    found: list[Undo] = [{"kind": "units", "key": "units", "before": None, "ours": []}]
    found += [
        {"kind": "marker", "key": f"marker:{one['hca']}", "before": False, "ours": []}
        for one in observed["mesh"]["markers"]
        if one["busy"]
    ]
    found.append({"kind": "boot", "key": f"boot:{meshunits.SERVICE}", "before": None, "ours": []})
    return [*found, *_copy(observed["mesh"])]


def _copy(seen: Json) -> list[Undo]:
    """What undoes our copy of the marker binary, and its folders: beside a launcher of ours nobody else put it there.

    What stayed would be refused by the next `up` with another binary, as one that is not ours.
    """
    files, binary = seen["files"], seen["binary"]
    by_hand = any(path in files for path in meshunits.BY_HAND)
    if by_hand or MARK not in (files.get(meshunits.LAUNCHER) or {}).get("text", ""):
        return []
    folders = (meshunits.HOME, os.path.dirname(meshunits.BINARY))
    found: list[Undo] = [{"kind": "folder", "key": f"folder:{path}", "before": None, "ours": []} for path in folders]
    if binary is not None:
        key = f"file:{meshunits.BINARY}"
        found.append({"kind": "file", "key": key, "before": None, "ours": [binary["sha256"]]})
    return found
