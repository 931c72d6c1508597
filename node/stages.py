"""The stages that this program knows, in the order in which they are applied."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import flowsteps, forwarding, markers, marking, nccl, netplan, nic, plane, reinit, relay
from .deviation import Deviation, of_journal
from .digest import digest
from .files import undo_file, undo_folder
from .journal import Entry, Undo
from .netplan import undo_load
from .ports import undo_managed, undo_port
from .sent import KIND as PLACED
from .sent import undo_placed
from .steps import Step, UndoStep
from .system import System
from .units import undo_unit, undo_units
from .values import undo_value

Json = dict[str, Any]

UNDO: dict[str, UndoStep] = {
    "marker": marking.undo_marker,
    "boot": marking.undo_service,
    "flower": flowsteps.undo_rule,
    "route": flowsteps.undo_route,
    "qdisc": flowsteps.undo_qdisc,
    "nic": reinit.undo_function,
    "unit": undo_unit,
    "managed": undo_managed,
    PLACED: undo_placed,
    "file": undo_file,
    "units": undo_units,
    "netplan": undo_load,
    "rule": relay.undo_rule,
    "value": undo_value,
    "port": undo_port,
    "folder": undo_folder,
}


@dataclass(frozen=True)
class Stage:
    """One stage.

    `deviations` and `plan` are pure. `parts` are the parts of `Observed` that they look at. `validate` looks at the
    node for what speaks against the plan, and changes nothing. `guarded`: the stage touches the network.
    `users` names who would be disturbed besides engines and holders of RDMA devices, `first` what has to go before the
    stage is reverted. `whole`: where a first apply fails, what it did is taken back at once. `lost` makes what undoes
    things of ours of which the journal was lost, besides the files that the deviations of "off" name.
    """

    name: str
    parts: tuple[str, ...]
    deviations: Callable[[Json, Json], list[Deviation]]
    plan: Callable[[Json, Json], list[Step]]
    validate: Callable[[System, Json, Json], list[str]]
    guarded: bool = False
    read_back: tuple[str, ...] = ()  # parts that replace `parts` after the change
    users: Callable[[System], list[str]] = lambda _: []
    first: Callable[[System, dict[str, Entry]], list[str]] = lambda *_: []
    whole: bool = False
    lost: Callable[[Json], list[Undo]] = lambda _: []


def _node_deviations(desired: Json, observed: Json) -> list[Deviation]:
    return of_journal("node", digest(desired), observed, disruptive=False)


def _no_steps(desired: Json, observed: Json) -> list[Step]:  # noqa: ARG001
    return []


def _nothing(system: System, desired: Json, observed: Json) -> list[str]:  # noqa: ARG001
    return []


def validate_plane(system: System, desired: Json, observed: Json) -> list[str]:
    """What speaks against switching a plane on: every reason, each a line."""
    if desired["state"] == "off":
        return []
    problems = [d.text() for d in plane.deviations(desired, observed) if d.foreign]
    if not (observed.get("nm") or {}).get("running"):
        problems.append("NetworkManager does not run; the fabric ports are in its hands (renderer: NetworkManager)")
    before, after = plane.netplan_texts(desired, observed)
    # The other plane is ours too: where somebody removed its file or broke it, that plane's own stage puts it back.
    held = [stage["desired"] for stage in ((observed.get("journal") or {}).get("stages") or {}).values()]
    others = {one["file"]: one["text"] for one in held if "text" in one and one["file"] != desired["file"]}
    after |= {path: text for path, text in others.items() if path in before}
    netdevs = {port["netdev"] for stage in (desired, *held) for port in stage.get("ports", [])}
    return problems + netplan.check(system, before, after, netdevs)


def _load_again(observed: Json) -> list[Undo]:  # noqa: ARG001
    return [{"kind": "netplan", "key": "netplan", "before": {"stanzas": [], "netdevs": []}, "ours": []}]


_SEEN = ("journal", "links", "hcas", "routes", "netplan", "files")
_PLANE = (*_SEEN, "nm")
_AFTER = (*_SEEN, "nm-devices")
_DRIVER = ("journal", "links", "hcas", "mesh-driver")
_FLOWS = ("journal", "links", "routes", "mesh-flows", "mesh-units")

STAGES: dict[str, Stage] = {
    stage.name: stage
    for stage in (
        Stage("node", ("journal",), _node_deviations, _no_steps, _nothing),
        Stage("plane0", _PLANE, plane.deviations, plane.plan, validate_plane, True, _AFTER, lost=_load_again),
        Stage("plane1", _PLANE, plane.deviations, plane.plan, validate_plane, True, _AFTER, lost=_load_again),
        Stage(
            "relay", ("journal", "files", "forwarding"), relay.deviations, relay.plan, _nothing, lost=relay.leftovers
        ),
        Stage("nccl", ("journal", "nccl"), nccl.deviations, nccl.plan, nccl.validate),
        Stage(
            "nic",
            (*_DRIVER, "mesh-modes", "mesh-flows"),
            nic.deviations,
            nic.plan,
            nic.validate,
            guarded=True,
            read_back=_DRIVER,
            users=nic.users,
            first=nic.in_the_way,
        ),
        Stage(
            "forwarding",
            _FLOWS,
            forwarding.deviations,
            forwarding.plan,
            forwarding.validate,
            guarded=True,
            first=forwarding.markers_running,
            whole=True,
        ),
        Stage(
            "markers",
            ("journal", "mesh-units"),
            markers.deviations,
            markers.plan,
            markers.validate,
            guarded=True,
            lost=markers.leftovers,
        ),
    )
}
