"""What hangs at the ingress of a port: qdiscs and filters as `tc` shows them, brought into one form.

The forms that are read were recorded or are stock iproute2's: JSON of iproute2 5 (handles are numbers) and 6 (handles
are "0x…"), protocols as "[34997]", "88b5" or "0x88b5", values of `pedit` as hexadecimal text or as numbers, its masks
as the bits that stay or as those that are written, and the text form, for a `tc` whose JSON cannot be read. Members
that are not everywhere (`stats`, `sw_packets`, `in_hw_count`, `pref` where it was asked for) may be missing.
"""

import json
from collections.abc import Iterable
from functools import partial
from typing import Any

from . import tctext
from .request import FAILED, Failure
from .system import System

MARKED = 0x88B5  # EtherType of frames on their way over a neighbour
IPV4 = 0x0800
ALL = 0x0003
INGRESS = "ffff:"  # the one handle that both `clsact` and `ingress` have

_NAMES = {"ip": IPV4, "ipv4": IPV4, "ipv6": 0x86DD, "arp": 0x0806, "all": ALL, "802.1Q": 0x8100, "802.1q": 0x8100}
_NO_QDISC = ("Cannot find specified qdisc", "Parent Qdisc doesn't exist")

Json = dict[str, Any]


def qdiscs(system: System) -> list[Json]:
    """All qdiscs: {"netdev", "kind", "handle", "parent"}. Raises `Failure` where `tc` cannot tell."""
    return [_qdisc(row) for row in _shown(system, ["qdisc", "show"], tctext.qdiscs)]


def _qdisc(row: Json) -> Json:
    return {
        "netdev": str(row.get("dev", "")),
        "kind": str(row.get("kind", "")),
        "handle": str(row.get("handle", "")),
        "parent": str(row.get("parent", "root" if row.get("root") else "")),
    }


def at_ingress(rows: Iterable[Json], netdev: str) -> list[Json]:
    """The qdiscs of a port that take what comes in; there is at most one."""
    return [
        row
        for row in rows
        if row["netdev"] == netdev and (row["handle"] == INGRESS or row["kind"] in ("clsact", "ingress"))
    ]


def filters(system: System, netdev: str, direction: str = "ingress") -> list[Json]:
    """The filters of a port in one direction; none where it has no such qdisc. Raises `Failure`."""
    rows = _shown(system, ["filter", "show", "dev", netdev, direction], tctext.filters)
    return [_filter(netdev, row) for row in rows if _is_filter(row)]


def _is_filter(row: Json) -> bool:
    """Whether a row is a filter, and not the summary of its preference."""
    return isinstance(row.get("options"), dict)


def look(system: System, netdevs: Iterable[str], likely: Iterable[str] = ()) -> Json:
    """{"qdiscs": […], "filters": […]} of some ports.

    One process where the `likely` ones are those that filter, else one more for each port that does.
    """
    wanted, asked = set(netdevs), sorted(set(likely))
    listings = _batch(system, asked) if asked else None
    known: dict[str, list[Json]] = {}
    if listings is None:
        rows = qdiscs(system)
    else:
        rows = [_qdisc(row) for row in listings[0]]
        known = {
            netdev: [_filter(netdev, row) for row in listing if _is_filter(row)]
            for netdev, listing in zip(asked, listings[1:], strict=True)
        }
    rows = [row for row in rows if row["netdev"] in wanted]
    others = sorted({row["netdev"] for row in rows if at_ingress(rows, row["netdev"])} - known.keys())
    found = system.parallel([partial(filters, system, netdev) for netdev in others])
    return {"qdiscs": rows, "filters": [row for part in [*known.values(), *found] for row in part]}


def _batch(system: System, netdevs: list[str]) -> list[list[Json]] | None:
    """The qdiscs, and the filters at each port's ingress, in one process; None where it does not answer all in JSON."""
    lines = ["qdisc show", *(f"filter show dev {netdev} ingress" for netdev in netdevs)]
    with system.scratch() as folder:
        (folder / "batch").write_text("\n".join(lines) + "\n")
        result = system.run(["tc", "-j", "-s", "-b", str(folder / "batch")])
    if not result.ok:
        return None
    decoder, rest, listings = json.JSONDecoder(), result.out.strip(), []
    try:
        while rest:
            listing, end = decoder.raw_decode(rest)
            listings.append(listing)
            rest = rest[end:].lstrip()
    except ValueError:
        return None
    return listings if len(listings) == len(lines) and all(map(_is_listing, listings)) else None


def _is_listing(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(row, dict) for row in value)


def number(value: Any, base: int = 0) -> int | None:
    """A number as one of the dialects spells it, or None. Text without "0x" is read to `base`."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return None
    if isinstance(value, int):
        return value
    try:
        return int(value, 16 if value.lower().startswith("0x") else base or 10)
    except ValueError:
        return None


def protocol(value: Any) -> int | None:
    """An EtherType as one of the dialects spells it: "[34997]", "88b5", "0x88b5", a name, or a number."""
    text = str(value).strip()
    if text in _NAMES:
        return _NAMES[text]
    if text.startswith("[") and text.endswith("]"):
        return number(text[1:-1])
    if isinstance(value, int):
        return value
    found = number(text, 16)
    return number(text) if found is not None and found > 0xFFFF else found


def _shown(system: System, words: list[str], of_text: Any) -> list[Json]:
    """The rows of one listing; asked for once more as text where its JSON cannot be read."""
    flags = ["-s"] if words[0] == "filter" else []
    result = system.run(["tc", "-j", *flags, *words])
    if not result.ok:
        if any(said in result.err for said in _NO_QDISC):
            return []
        raise Failure(FAILED, f"tc {' '.join(words)}: {result.reason()}")
    try:
        rows = json.loads(result.out or "[]")
    except ValueError:
        rows = None
    if _is_listing(rows):
        return list(rows or [])
    text = system.run(["tc", *flags, *words])
    if not text.ok:
        raise Failure(FAILED, f"tc {' '.join(words)}: {text.reason()}")
    found: list[Json] = of_text(text.out)
    return found


def _filter(netdev: str, row: Json) -> Json:
    options = row["options"]
    keys = {name: str(value) for name, value in (options.get("keys") or {}).items() if name != "eth_type"}
    actions = [action for action in options.get("actions") or [] if isinstance(action, dict)]
    written = _masks_are_written(actions)
    counts = [action.get("stats") or {} for action in actions]
    return {
        "netdev": netdev,
        "kind": str(row.get("kind", "")),
        "chain": number(row.get("chain", 0)) or 0,
        "protocol": protocol(row.get("protocol", "all")),
        "pref": number(row.get("pref")),
        # u32 and others spell handles as "800::800", which is no number.
        "handle": number(options.get("handle", options.get("fh"))),
        "keys": keys,
        "eth_type": protocol((options.get("keys") or {}).get("eth_type", row.get("protocol", "all"))),
        "skip_sw": options.get("skip_sw") is True,
        "in_hw": options.get("in_hw") is True and not options.get("not_in_hw"),
        "actions": [_action(action, written=written) for action in actions],
        "packets": _largest(counts, "packets"),
        "sw_packets": _largest(counts, "sw_packets"),
        "drops": _largest(counts, "drops"),
    }


def _largest(counts: list[Json], name: str) -> int | None:
    found = [value for count in counts if (value := number(count.get(name))) is not None]
    return max(found, default=None)


def _action(action: Json, *, written: bool) -> Json:
    control = (action.get("control_action") or {}).get("type")
    shown: Json = {"kind": str(action.get("kind", "")), "control": control}
    if shown["kind"] == "pedit":
        shown["writes"] = _writes(action.get("keys") or [], written=written)
    if shown["kind"] == "mirred":
        shown |= {name: action.get(name) for name in ("mirred_action", "direction", "to_dev")}
    return shown


def _numbers(key: Json) -> tuple[int, int]:
    return number(key.get("val"), 16) or 0, number(key.get("mask"), 16) or 0


def _masks_are_written(actions: list[Json]) -> bool:
    """Whether masks of `pedit` show the written bits, and not those that stay as the kernel has it.

    A value has bits only where it writes. One key of a filter says so for all of them: a MAC that ends in zeroes tells
    nothing by itself, the EtherType does.
    """
    for action in actions:
        for key in action.get("keys") or [] if action.get("kind") == "pedit" else []:
            value, mask = _numbers(key)
            stays, writes = value & mask == 0, value & ~mask & 0xFFFFFFFF == 0
            if stays != writes:
                return writes
    return False


def _writes(keys: list[Json], *, written: bool) -> dict[str, str]:
    """Byte of the header -> what is written there, both as text: {"eth+12": "08", "eth+13": "00"}."""
    found = {}
    for key in keys:
        value, mask = _numbers(key)
        offset = number(key.get("offset", 0)) or 0
        if key.get("cmd", "set") != "set":
            found[f"{key.get('htype')}+{offset}"] = f"{key.get('cmd')} {value:x}"
            continue
        for place in range(4):
            shift = 24 - 8 * place
            byte = mask >> shift & 0xFF
            if byte == (0xFF if written else 0):
                found[f"{key.get('htype')}+{offset + place}"] = f"{value >> shift & 0xFF:02x}"
            elif byte not in (0, 0xFF):  # bits of a byte: nothing that we ever write
                found[f"{key.get('htype')}+{offset + place}"] = f"{value >> shift & 0xFF:02x}/{byte:02x}"
    return found
