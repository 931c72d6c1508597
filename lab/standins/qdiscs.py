"""tc qdisc: clsact and ingress of the fabric ports; their other queues are shown as an mlx5 has them."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING

from . import rules, system
from .kernel import refuses, said
from .model import BY_NETDEV
from .state import State
from .system import ToolError
from .words import Row, is_show, matches

if TYPE_CHECKING:
    from .tc import Options

KINDS = ("clsact", "ingress")
PARENT = "ffff:fff1"
COUNTS = ("bytes", "packets", "drops", "overlimits", "requeues", "backlog", "qlen")
COUNTS_TEXT = " Sent 0 bytes 0 pkt (dropped 0, overlimits 0 requeues 0) \n backlog 0b 0p requeues 0\n"


def command(state: State, options: Options, words: list[str]) -> None:
    """`tc qdisc …` of which it is known that it is about what hangs at a port's ingress, or a list."""
    verb = words[0] if words else "show"
    dev = words[words.index("dev") + 1] if "dev" in words else ""
    if is_show(verb):
        _show(state, options, [dev] if dev else list(BY_NETDEV), named=bool(dev))
        return
    kind = "ingress" if "ingress" in words else "clsact"
    system.require_root("RTNETLINK answers: Operation not permitted", 2)
    with state.locked():
        document = rules.load(state)
        if matches(verb, "add", "replace", "change"):
            _add(state, document, dev, kind, replaces=not matches(verb, "add"))
        elif matches(verb, "delete"):
            _delete(document, dev, kind)
        else:
            raise ToolError(f'Command "{verb}" is unknown, try "tc qdisc help".', 255)
        rules.save(state, document)


def _add(state: State, document: Row, dev: str, kind: str, replaces: bool) -> None:
    there = document["qdiscs"].get(dev)
    if there and not (replaces and there == kind):
        kernel = "Error: Exclusivity flag on, cannot modify."
        raise refuses(said(state, "RTNETLINK answers: File exists", kernel))
    document["qdiscs"][dev] = kind
    system.run("tc", "qdisc", "add", "dev", dev, kind)  # filters of other kinds hang on a real one


def _delete(document: Row, dev: str, kind: str) -> None:
    there = document["qdiscs"].get(dev)
    if there != kind:
        missing = "Cannot find specified qdisc on specified device"
        raise refuses(f"Error: {'Invalid qdisc name' if there else missing}.")
    rules.forget(document, dev)
    system.run("tc", "qdisc", "del", "dev", dev, kind)


def _show(state: State, options: Options, ports: list[str], named: bool) -> None:
    """The ports' qdiscs; where no port was named, those of all other links too."""
    kinds = rules.load(state)["qdiscs"]
    present = [port for port in ports if state.netdev_exists(port)]
    if options.json:
        options.dump(_json(kinds, present, named, options.stats))
    else:
        extra = COUNTS_TEXT if options.stats else ""
        sys.stdout.write("".join(f"{line}\n{extra}" for line in _text(kinds, present, named)))


def _json(kinds: dict[str, str], ports: list[str], named: bool, stats: bool) -> list[Row]:
    listing = "[]" if named else system.run("tc", "-j", "qdisc", "show").stdout
    rows = [row for row in json.loads(listing or "[]") if row.get("dev") not in BY_NETDEV]
    for port in ports:
        where = {} if named else {"dev": port}
        rows.append({"kind": "mq", "handle": "0:", **where, "root": True, "options": {}})
        if kind := kinds.get(port):
            rows.append({"kind": kind, "handle": "ffff:", **where, "parent": PARENT, "options": {}})
    return [row | dict.fromkeys(COUNTS, 0) for row in rows] if stats else rows


def _text(kinds: dict[str, str], ports: list[str], named: bool) -> list[str]:
    listing = "" if named else system.run("tc", "qdisc", "show").stdout
    names = re.compile(rf" dev ({'|'.join(BY_NETDEV)}) ")
    lines = [line for line in listing.splitlines() if not names.search(line)]
    for port in ports:
        where = "" if named else f"dev {port} "
        lines.append(f"qdisc mq 0: {where}root ")
        if kind := kinds.get(port):
            lines.append(f"qdisc {kind} ffff: {where}parent {PARENT} ")
    return lines
