"""tc filter: flower at the ingress of a fabric port."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import flower, offload, rules, system, tcprint
from .actions import bad_action
from .kernel import refuses_filter, said
from .model import ANY_PROTOCOL
from .state import State
from .system import ToolError
from .words import Row, Words, is_show, matches, number, protocol

if TYPE_CHECKING:
    from .tc import Options

INGRESS_PARENTS = ("ffff:", "ffff:fff2", "ffff:0")
FIRST_FREE = 0xC000  # the preference that the kernel gives to the first filter without one
VALUED = {
    "dev": "dev",
    "handle": "handle",
    "protocol": "protocol",
    "proto": "protocol",
    "priority": "pref",
    "preference": "pref",
    "pref": "pref",
    "prio": "pref",
    "chain": "chain",
    "parent": "parent",
}
NO_PARENT = "Error: Parent Qdisc doesn't exists."
NO_FILTER = "Error: Filter with specified handle not found."


@dataclass(frozen=True)
class Place:
    """Which filters a command is about; 0 and None stand for any."""

    dev: str
    pref: int
    chain: int
    handle: int
    eth_type: int | None

    def holds(self, row: Row) -> bool:
        """Whether a filter is one of them."""
        return (
            self.pref in (0, row["pref"])
            and self.eth_type in (None, row["protocol"])
            and self.handle in (0, row["handle"])
        )


def command(state: State, options: Options, words: list[str]) -> None:
    """`tc filter …` of which it is known that it is about flower at the ingress of a port that is there."""
    verb, rest = (words[0] if words else "show"), Words(words[1:])
    given = _given(rest)
    kind = "" if is_show(verb) else rest.take() if rest else ""
    place = _place(given, kind)
    if is_show(verb):
        _show(state, options, place, _real_filters(options, words))
    elif matches(verb, "add", "change", "replace"):
        row = flower.parse(rest, ANY_PROTOCOL if place.eth_type is None else place.eth_type)
        _require_root()
        with state.locked():
            _put(state, place, row, next(name for name in ("add", "change", "replace") if matches(verb, name)))
    elif matches(verb, "delete"):
        if not kind and _real_filters(options, ["show", *words[1:]]):
            system.become("tc", ["filter", *words])
        flower.parse(rest, ANY_PROTOCOL)
        _require_root()
        with state.locked():
            _delete(state, place)
    else:
        raise ToolError(f'Command "{verb}" is unknown, try "tc filter help".', 255)


def _given(words: Words) -> dict[str, str]:
    """Values before the kind of the filter, which is left in `words`."""
    found: dict[str, str] = {}
    while words:
        word = words.peek()
        if word == "ingress":
            words.take()
        elif word in VALUED:
            name = VALUED[words.take()]
            value = words.take()
            if name in found:
                message = f'Error: duplicate "{name}": "{value}" is the second value.'
                raise ToolError(message, 255)
            found[name] = value
        else:
            break
    return found


def _place(given: dict[str, str], kind: str) -> Place:
    pref = number(given.get("pref", "0"), 0xFFFF)
    if pref is None:
        raise ToolError(f'Error: argument "{given["pref"]}" is wrong: invalid priority value', 255)
    eth_type = protocol(given["protocol"]) if "protocol" in given else None
    handle = number(given.get("handle", "0"))
    if handle is None or ("handle" in given and kind != "flower"):
        text = 'Illegal "handle"' if kind else 'Must specify filter type when using "handle"'
        raise ToolError(text, 1 if kind else 255)
    return Place(given["dev"], pref, number(given.get("chain", "0")) or 0, handle, eth_type)


def _require_root() -> None:
    system.require_root("RTNETLINK answers: Operation not permitted\nWe have an error talking to the kernel", 2)


def _put(state: State, place: Place, row: Row, change: str) -> None:
    document = rules.load(state)
    table = document["filters"].setdefault(place.dev, [])
    if place.dev not in document["qdiscs"]:
        raise refuses_filter(NO_PARENT)
    _require_targets(state, row)
    row |= {"pref": place.pref or _free_preference(table), "chain": place.chain, "handle": place.handle}
    row["protocol"] = ANY_PROTOCOL if place.eth_type is None else place.eth_type
    same = [other for other in table if other["pref"] == row["pref"]]
    old = next((other for other in same if place.pref and other["handle"] == row["handle"]), None)
    _require_no_conflict(state, row, same, old, change)
    reason = "" if row["skip_hw"] else offload.refusal(state, place.dev, row)
    if row["skip_sw"] and (reason or row["skip_hw"]):
        raise refuses_filter(reason or "RTNETLINK answers: Invalid argument")
    held_back = state.fault("not-in-hw", place.dev, str(row["pref"])) is not None
    row["in_hw"] = not (row["skip_hw"] or reason or held_back)
    row["handle"] = row["handle"] or max((other["handle"] for other in same), default=0) + 1
    for action in row["actions"]:
        index = document["next_index"].get(action["kind"], 1)
        action["index"] = index
        document["next_index"][action["kind"]] = index + 1
    if old:
        table.remove(old)
    table.append(row)
    table.sort(key=lambda other: (other["chain"], other["pref"], other["handle"]))
    rules.save(state, document)


def _free_preference(table: list[Row]) -> int:
    return min((int(other["pref"]) for other in table), default=FIRST_FREE + 1) - 1


def _require_targets(state: State, row: Row) -> None:
    for target in (action["to_dev"] for action in row["actions"] if action["kind"] == "mirred"):
        if not state.netdev_exists(target):
            raise bad_action(5, "mirred", f'Cannot find device "{target}"')  # it has 5 words, and is the last one


def _require_no_conflict(state: State, row: Row, same: list[Row], old: Row | None, change: str) -> None:
    if any(other["protocol"] != row["protocol"] for other in same):
        kernel = "Error: Filter with specified priority/protocol not found."
        raise refuses_filter(said(state, "RTNETLINK answers: Invalid argument", kernel))
    if old and change == "add":
        raise refuses_filter(said(state, "RTNETLINK answers: File exists", "Error: Filter already exists."))
    if not old and change == "change":
        raise refuses_filter("Error: Need both RTM_NEWTFILTER and NLM_F_CREATE to create a new filter.")
    if any(other["keys"] == row["keys"] for other in same if other is not old):
        raise refuses_filter("RTNETLINK answers: File exists")


def _delete(state: State, place: Place) -> None:
    document = rules.load(state)
    table = document["filters"].get(place.dev, [])
    if place.dev not in document["qdiscs"]:
        raise refuses_filter(NO_PARENT)
    kept = [row for row in table if not place.holds(row)]
    if len(kept) == len(table):
        kernel = NO_FILTER
        if not table:
            kernel = "Error: Cannot find specified filter chain."
        elif not any(row["pref"] == place.pref and place.eth_type in (None, row["protocol"]) for row in table):
            kernel = "Error: Filter with specified priority/protocol not found."
        raise refuses_filter(said(state, NO_FILTER, kernel))
    document["filters"][place.dev] = kept
    rules.save(state, document)


def _real_filters(options: Options, words: list[str]) -> str:
    """What the real tool shows: filters of other kinds, on the real qdisc behind the simulated one."""
    flags = [*(["-j"] if options.json else []), *(["-s"] if options.stats else [])]
    done = system.run("tc", *flags, "filter", *words)
    return done.stdout.strip() if done.returncode == 0 else ""


def _show(state: State, options: Options, place: Place, others: str) -> None:
    if place.dev not in rules.load(state)["qdiscs"] and state.dialect.errors == "recorded":
        raise ToolError("Error: Cannot find specified qdisc on specified device.", 2)
    rows = [row for row in rules.of(state, place.dev) if place.holds(row)]
    # the real tool leaves out what the question already said
    hidden = ({"pref"} if place.pref else set()) | ({"protocol"} if place.eth_type is not None else set())
    if options.json:
        shown = json.loads(others or "[]")
        options.dump(shown + tcprint.json_rows(rows, state.dialect, options.stats, hidden))
    else:
        sys.stdout.write(f"{others}\n" if others else "")
        sys.stdout.write(tcprint.text_rows(rows, state.dialect, options.stats, hidden))
