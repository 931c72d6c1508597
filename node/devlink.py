"""What the driver says of the fabric's functions (`devlink`, `ethtool -k`), and whether a setting is in effect.

`hairpin_num_queues` and `hairpin_queue_size` are `driverinit` values. `devlink dev param set` changes what is shown at
once and what is in effect not at all: that takes a re-initialisation of the function. So a shown value proves nothing;
the driver's counter of re-initialisations does. Both are gone at every boot.
"""

import json
import re
from collections.abc import Iterable
from functools import partial
from typing import Any

from .run import Result
from .system import System

QUEUES = ("hairpin_num_queues", "hairpin_queue_size")
STEERING = "flow_steering_mode"
HMFS = "hmfs"  # the only mode that hardware forwarding was qualified with; never set by us
LEGACY = "legacy"  # the eswitch mode, likewise

IN_EFFECT = "in-effect"
OFFLOAD_OFF = "offload-off"
PENDING = "pending"  # shown, but the function was not re-initialised since the boot
DEFAULT = "default"  # another value than wanted
BROKEN = "failed"  # its last re-initialisation failed
UNKNOWN = "unknown"  # not readable; never a reason to re-initialise anything
SINCE = "in_effect"  # in an operation of the journal: the boot and the counter when its values were in effect

_OFFLOAD = re.compile(r"^hw-tc-offload: (.+?)\s*$", re.MULTILINE)

Json = dict[str, Any]


def state(wanted: Json, seen: Json | None) -> str:
    """Whether the wanted queues of a function are in effect, as one of the words above. Pure."""
    if not seen or seen.get("reload_failed") is None or not _is_count(seen.get("reinits")):
        return UNKNOWN
    if not all(_is_count(seen.get(name)) for name in QUEUES):
        return UNKNOWN
    if any(seen[name] != wanted[name] for name in QUEUES):
        return DEFAULT
    if seen["reload_failed"]:
        return BROKEN
    if seen["reinits"] < 1:
        return PENDING
    if seen.get("offload") is None:
        return UNKNOWN
    return IN_EFFECT if seen["offload"] == "on" else OFFLOAD_OFF


def since(operation: Json, boot: str) -> int | None:
    """The counter of re-initialisations when the values of an operation of the journal were last in effect. Pure.

    None where they never were since the boot, which begins to count anew.
    """
    found: Json | None = operation.get(SINCE)
    return int(found["reinits"]) if found is not None and found["boot"] == boot else None


def by_others(state_: str, seen: Json, counter: int) -> bool:
    """Whether a function with its values in effect was re-initialised since it had the counter. Pure."""
    return state_ in (IN_EFFECT, OFFLOAD_OFF) and bool(seen["reinits"] > counter)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def look(system: System, ports: dict[str, str], offloads: Iterable[str]) -> dict[str, Json]:
    """What is known of functions, for `ports` PCI address -> netdev; null where it cannot be read.

    {"hairpin_num_queues", "hairpin_queue_size", "flow_steering_mode", "reinits", "reload_failed", "offload"}, the last
    for the netdevs `offloads` only: it costs a process each, the rest two in all.
    """
    asked = list(offloads)
    stats, params, *features = system.parallel(
        [
            partial(system.run, ["devlink", "-s", "-j", "dev", "show"]),
            partial(system.run, ["devlink", "-j", "dev", "param", "show"]),
            *(partial(system.run, ["ethtool", "-k", netdev]) for netdev in asked),
        ]
    )
    counts, values = reinits(stats), parameters(params)
    on = {netdev: offload(shown) for netdev, shown in zip(asked, features, strict=True)}
    found = {}
    for pci, netdev in ports.items():
        known = values.get(f"pci/{pci}", {})
        function: Json = {name: _count(known.get(name)) for name in QUEUES}
        function[STEERING] = known.get(STEERING)
        function |= counts.get(f"pci/{pci}", {"reinits": None, "reload_failed": None})
        function["offload"] = on.get(netdev)
        found[pci] = function
    return found


def modes(system: System, pcis: Iterable[str]) -> dict[str, str | None]:
    """PCI address -> mode of the eswitch, a process for each."""
    devices = [f"pci/{pci}" for pci in pcis]
    commands = [["devlink", "-j", "dev", "eswitch", "show", device] for device in devices]
    shown = system.parallel([partial(system.run, command) for command in commands])
    return {device.removeprefix("pci/"): eswitch(one, device) for device, one in zip(devices, shown, strict=True)}


def _table(result: Result, name: str) -> Json:
    """The object below `name` of an answer in JSON; empty where there is none."""
    try:
        answer = json.loads(result.out) if result.ok else {}
    except ValueError:
        return {}
    found = answer.get(name) if isinstance(answer, dict) else None
    return found if isinstance(found, dict) else {}


def reinits(result: Result) -> dict[str, Json]:
    """Device -> {"reinits", "reload_failed"} of `devlink -s -j dev show`, without what peers of a card made it do."""
    found = {}
    for device, entry in _table(result, "dev").items():
        count: Any = entry
        for name in ("stats", "reload", "driver_reinit", "unspecified"):
            count = count.get(name) if isinstance(count, dict) else None
        failed = entry.get("reload_failed", False) if isinstance(entry, dict) else None
        found[device] = {
            "reinits": count if _is_count(count) else None,
            "reload_failed": failed if isinstance(failed, bool) else None,
        }
    return found


def parameters(result: Result) -> dict[str, Json]:
    """Device -> name -> value of `devlink -j dev param show`, in whatever mode a parameter is set."""
    return {
        device: {row["name"]: _value(row) for row in rows if isinstance(row, dict) and "name" in row}
        for device, rows in _table(result, "param").items()
        if isinstance(rows, list)
    }


def _value(row: Json) -> Any:
    """The value that counts: of the next initialisation, else of now; not the one in the card's own memory."""
    modes = {value.get("cmode"): value.get("value") for value in row.get("values") or [] if isinstance(value, dict)}
    return modes.get("driverinit", modes.get("runtime"))


def _count(value: Any) -> int | None:
    """A number that some versions show as text."""
    if isinstance(value, str) and value.isdigit():
        return int(value)
    return value if _is_count(value) else None


def eswitch(result: Result, device: str) -> str | None:
    """The mode in `devlink -j dev eswitch show`."""
    mode = (_table(result, "dev").get(device) or {}).get("mode")
    return mode if isinstance(mode, str) else None


def offload(result: Result) -> str | None:
    """What `ethtool -k` says of hw-tc-offload: "on", "off", "off [fixed]" or "off [requested on]"."""
    found = _OFFLOAD.search(result.out) if result.ok else None
    return found[1] if found else None


def ports(system: System) -> dict[str, tuple[str, str]]:
    """PCI address -> netdev and RDMA device of every RDMA function of the node."""
    root = "/sys/class/infiniband"
    found = {}
    for hca in system.names(root):
        pci = (system.link(f"{root}/{hca}/device") or "").rpartition("/")[2]
        netdevs = system.names(f"{root}/{hca}/device/net")
        netdevs = netdevs or [system.text(f"{root}/{hca}/ports/1/gid_attrs/ndevs/0") or ""]
        if pci and netdevs[0]:
            found[pci] = (netdevs[0], hca)
    return dict(sorted(found.items()))


def differing(wanted: Json, seen: Json) -> Iterable[str]:
    """The names of the queues' parameters that do not show the wanted value."""
    return (name for name in QUEUES if seen.get(name) != wanted[name])
