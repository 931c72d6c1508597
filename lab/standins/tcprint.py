"""How tc shows filters, in text and JSON, in each dialect."""

from __future__ import annotations

from typing import Any

from .dialect import Dialect
from .words import Row

NAMES = {0x0800: "ip", 0x86DD: "ipv6", 0x0003: "all", 0x0806: "arp", 0x8100: "802.1Q"}


def protocol(value: int, dialect: Dialect) -> str:
    """An EtherType as `filter protocol …` spells it."""
    spelled = {"bracket": f"[{value}]", "plain": f"{value:x}", "hex": f"0x{value:x}"}
    return NAMES.get(value, spelled[dialect.protocol])


def _stats(row: Row, dialect: Dialect) -> Row:
    packets, size = row.get("hw_packets", 0), row.get("hw_bytes", 0)
    sw_packets, sw_bytes = row.get("sw_packets", 0), row.get("sw_bytes", 0)
    stats: Row = {
        "bytes": size + sw_bytes,
        "packets": packets + sw_packets,
        "drops": row.get("drops", 0),
        "overlimits": 0,
        "requeues": 0,
        "backlog": 0,
        "qlen": 0,
    }
    if dialect.optional == "yes":
        stats |= {"sw_packets": sw_packets, "hw_packets": packets}
        if dialect.split == "yes":
            stats |= {"sw_bytes": sw_bytes, "hw_bytes": size}
    return stats


def _key(key: Row, dialect: Dialect) -> Row:
    mask = key["mask"] if dialect.mask == "preserved" else key["mask"] ^ 0xFFFFFFFF
    shown: Row = {"htype": key["htype"], "offset": key["offset"], "cmd": key["cmd"]}
    for name, value in (("val", key["val"]), ("mask", mask)):
        shown[name] = f"{value:x}" if dialect.values == "hex" else value
    return shown


def _action(order: int, action: Row, row: Row, dialect: Dialect, stats: bool) -> Row:
    shown: Row = {"order": order, "kind": action["kind"]}
    if action["kind"] == "mirred":
        shown |= {name: action[name] for name in ("mirred_action", "direction", "to_dev")}
    shown["control_action"] = {"type": action["control"]}
    if action["kind"] == "pedit":
        shown["nkeys"] = len(action["keys"])
    if dialect.optional == "yes":
        shown |= {"index": action["index"], "ref": 1, "bind": 1}
    if action["kind"] == "pedit":
        shown["keys"] = [_key(key, dialect) for key in action["keys"]]
    if stats:
        shown["stats"] = _stats(row, dialect)
    return shown


def json_rows(rows: list[Row], dialect: Dialect, stats: bool, hidden: set[str]) -> list[Row]:
    """One summary row per preference, then its filters; `hidden` members were asked for."""
    shown: list[Row] = []
    seen: set[int] = set()
    for row in rows:
        head: Row = {
            "protocol": protocol(row["protocol"], dialect),
            "pref": row["pref"],
            "kind": "flower",
            "chain": row["chain"],
        }
        head = {name: value for name, value in head.items() if name not in hidden}
        if row["pref"] not in seen:
            seen.add(row["pref"])
            shown.append(dict(head))
        handle: Any = row["handle"] if dialect.iproute2 == "5" else f"0x{row['handle']:x}"
        options: Row = {"handle": handle, "keys": ordered(row["keys"])}
        options |= {flag: True for flag in ("skip_sw", "skip_hw") if row[flag]}
        options["in_hw" if row["in_hw"] else "not_in_hw"] = True
        if row["in_hw"] and dialect.optional == "yes":
            options["in_hw_count"] = 1
        options["actions"] = [
            _action(order, action, row, dialect, stats) for order, action in enumerate(row["actions"], 1)
        ]
        shown.append(head | {"options": options})
    return shown


def ordered(keys: Row) -> Row:
    """Match keys in the order in which the real tool lists them."""
    order = ["dst_mac", "src_mac", "eth_type", "ip_proto", "dst_ip", "src_ip", "dst_port", "src_port"]
    return {name: keys[name] for name in order if name in keys}


def text_rows(rows: list[Row], dialect: Dialect, stats: bool, hidden: set[str]) -> str:
    """The same for people."""
    lines: list[str] = []
    seen: set[int] = set()
    for row in rows:
        head = "filter "
        if "protocol" not in hidden:
            head += f"protocol {protocol(row['protocol'], dialect)} "
        if "pref" not in hidden:
            head += f"pref {row['pref']} "
        head += f"flower chain {row['chain']} "
        if row["pref"] not in seen:
            seen.add(row["pref"])
            lines.append(head)
        lines.append(f"{head}handle 0x{row['handle']:x} ")
        lines += [f"  {name} {value}" for name, value in ordered(row["keys"]).items()]
        lines += [f"  {flag}" for flag in ("skip_sw", "skip_hw") if row[flag]]
        count = " in_hw_count 1" if dialect.optional == "yes" else ""
        lines.append(f"  in_hw{count}" if row["in_hw"] else "  not_in_hw")
        for order, action in enumerate(row["actions"], 1):
            lines += _action_text(order, action, row, dialect, stats)
    return "".join(f"{line}\n" for line in lines)


def _action_text(order: int, action: Row, row: Row, dialect: Dialect, stats: bool) -> list[str]:
    kind, index = action["kind"], f" \tindex {action['index']} ref 1 bind 1"
    if kind == "pedit":
        lines = [f"\taction order {order}:  pedit action {action['control']} keys {len(action['keys'])}", index]
        for place, key in enumerate(action["keys"]):
            mask = key["mask"] if dialect.mask == "preserved" else key["mask"] ^ 0xFFFFFFFF
            lines.append(f"\t key #{place}  at {key['htype']}{key['offset']:+d}: val {key['val']:08x} mask {mask:08x}")
    elif kind == "mirred":
        way = f"{action['direction'].capitalize()} {action['mirred_action'].capitalize()}"
        lines = [f"\taction order {order}: mirred ({way} to device {action['to_dev']}) {action['control']}", index]
    else:
        lines = [f"\taction order {order}: gact action {action['control']}", index]
    if stats:
        values = _stats(row, dialect)
        dropped = f"(dropped {values['drops']}, overlimits 0 requeues 0) "
        lines += [
            "\tAction statistics:",
            f"\tSent {values['bytes']} bytes {values['packets']} pkt {dropped}",
        ]
        if dialect.optional == "yes":
            lines += [
                f"\tSent software {row.get('sw_bytes', 0)} bytes {row.get('sw_packets', 0)} pkt",
                f"\tSent hardware {row.get('hw_bytes', 0)} bytes {row.get('hw_packets', 0)} pkt",
            ]
        lines.append("\tbacklog 0b 0p requeues 0")
    return [*lines, ""]
