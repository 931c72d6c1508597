"""The text form of `tc`, brought into the form of its JSON: for a `tc` whose JSON cannot be read."""

import re
from typing import Any

Json = dict[str, Any]

_HEAD = re.compile(r"filter (?:parent \S+ )?(?:protocol (\S+) )?(?:pref (\d+) )?(\S+) (?:chain (\d+) ?)?(.*)")
_MATCH = re.compile(r"  (\w+) (\S+)$")
_FLAG = re.compile(r"  (skip_sw|skip_hw|in_hw|not_in_hw)\b")
_ORDER = re.compile(r"\s*action order \d+: +(\w+) ?(.*)")
_KEY = re.compile(r"\s+key #\d+ +at (\w+?)([+-]\d+): (?:(add|set) )?(?:val )?([0-9a-f]+) mask ([0-9a-f]+)")
_SENT = re.compile(r"\s*Sent (software|hardware)? ?\d+ bytes (\d+) pkt(?: \(dropped (\d+))?")


def qdiscs(text: str) -> list[Json]:
    """`qdisc clsact ffff: dev X parent ffff:fff1`, one a line; indented lines are statistics."""
    rows = []
    for line in text.splitlines():
        found = re.match(r"qdisc (\S+) (\S+) (?:dev (\S+) )?(?:root|parent (\S+))?", line)
        if found:
            row: Json = {"kind": found[1], "handle": found[2], "dev": found[3] or ""}
            rows.append(row | ({"parent": found[4]} if found[4] else {"root": True}))
    return rows


def filters(text: str) -> list[Json]:
    """The text form as JSON rows."""
    rows: list[Json] = []
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head:
            rows.append(_head(head))
        elif rows and "options" in rows[-1]:
            _line(rows[-1]["options"], line)
    return rows


def _head(found: "re.Match[str]") -> Json:
    row: Json = {"kind": found[3], "chain": int(found[4] or 0)}
    row |= {"protocol": found[1]} if found[1] else {}
    row |= {"pref": int(found[2])} if found[2] else {}
    handle = re.search(r"(?:handle|fh) (\S+)", found[5])
    if handle:
        row["options"] = {"handle": handle[1], "keys": {}, "actions": []}
    return row


def _line(options: Json, line: str) -> None:
    """Take one more line of the text form into the filter that it belongs to."""
    actions: list[Json] = options["actions"]
    order = _ORDER.match(line)
    if order:
        actions.append(_text_action(order[1], order[2]))
    elif not actions:
        if flag := _FLAG.match(line):
            options[flag[1]] = True
        elif match := _MATCH.match(line):
            options["keys"][match[1]] = match[2]
    elif key := _KEY.match(line):
        shown = {"htype": key[1], "offset": int(key[2]), "cmd": key[3] or "set", "val": key[4], "mask": key[5]}
        actions[-1].setdefault("keys", []).append(shown)
    elif sent := _SENT.match(line):
        stats: Json = actions[-1].setdefault("stats", {})
        stats[{"software": "sw_packets", "hardware": "hw_packets"}.get(sent[1] or "", "packets")] = int(sent[2])
        if sent[3]:
            stats["drops"] = int(sent[3])


def _text_action(kind: str, rest: str) -> Json:
    action: Json = {"kind": kind}
    if kind == "mirred":
        way = re.match(r"\((\w+) (\w+) to device (\S+)\) (\w+)", rest)
        if way:
            action |= {"direction": way[1].lower(), "mirred_action": way[2].lower(), "to_dev": way[3]}
            action["control_action"] = {"type": way[4]}
    else:
        control = re.match(r"action (\w+)", rest)
        action["control_action"] = {"type": control[1] if control else None}
    return action
