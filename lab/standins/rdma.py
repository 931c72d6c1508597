"""rdma: links, devices, and who has queue pairs and protection domains on them."""

from __future__ import annotations

import json
import sys

from . import devices, system, users
from .model import FUNCTIONS, Function
from .state import State
from .system import NotSimulatedError, ToolError
from .words import Row, Words, is_show, matches

FLAGS = {"-j": "j", "--json": "j", "-p": "p", "--pretty": "p", "-d": "d", "--details": "d"}


def main(_: str, argv: list[str]) -> int:
    """Entry point."""
    state = State()
    flags = [FLAGS.get(word, word.lstrip("-")) for word in argv if word.startswith("-")]
    words = Words([word for word in argv if not word.startswith("-")])
    thing = words.take() if words else ""
    if set("".join(flags)) - set("jpd") or not matches(thing, "link", "dev", "resource"):
        system.become("rdma", argv)
    if matches(thing, "link"):
        rows = [_link(state, function) for function in _chosen(state, words)]
        text = [_link_text(row) for row in rows]
    elif matches(thing, "dev"):
        rows = [_device(state, function) for function in _chosen(state, words)]
        text = [_device_text(row) for row in rows]
    else:
        _skip_show(words)
        kind = words.take() if words else ""
        if kind not in RESOURCES:
            raise NotSimulatedError(f"rdma resource show {kind}")
        rows = [row for function in _chosen(state, words) for row in RESOURCES[kind](state, function)]
        text = [_resource_text(row) for row in rows]
    sys.stdout.write(json.dumps(rows, separators=(",", ":")) + "\n" if "j" in "".join(flags) else "".join(text))
    return 0


def _skip_show(words: Words) -> None:
    if words and is_show(words.peek()):
        words.take()


def _chosen(state: State, words: Words) -> list[Function]:
    _skip_show(words)
    present = devices.present(state)
    if not words:
        return present
    name = words.take()
    found = [function for function in present if function.rdma == name.partition("/")[0]]
    if not found:
        raise ToolError(f'Wrong device name "{name}"')
    return found


def _place(function: Function) -> Row:
    return {"ifindex": FUNCTIONS.index(function), "ifname": function.rdma}


def _link(state: State, function: Function) -> Row:
    active = devices.is_active(state, function)
    return _place(function) | {
        "port": 1,
        "state": "ACTIVE" if active else "DOWN",
        "physical_state": "LINK_UP" if active else "DISABLED",
        "netdev": function.netdev,
        "netdev_ifindex": int(state.net(function.netdev, "ifindex") or 0),
    }


def _link_text(row: Row) -> str:
    form = "link {ifname}/{port} state {state} physical_state {physical_state} netdev {netdev} \n"
    return form.format(**row)


def _device(state: State, function: Function) -> Row:
    return _place(function) | {
        "node_type": "ca",
        "fw": devices.FIRMWARE,
        "node_guid": devices.guid(state, function),
        "sys_image_guid": devices.guid(state, FUNCTIONS[0]),
    }


def _device_text(row: Row) -> str:
    form = "{ifindex}: {ifname}: node_type {node_type} fw {fw} node_guid {node_guid} sys_image_guid {sys_image_guid} \n"
    return form.format(**row)


def _users(state: State, function: Function) -> list[Row]:
    return [row for row in users.living(state) if row["dev"] == function.rdma]


def _queue_pairs(state: State, function: Function) -> list[Row]:
    here = _place(function) | {"port": 1}
    own = here | {"lqpn": 1, "type": "GSI", "state": "RTS", "sq-psn": 0, "comm": "ib_core"}
    return [own] + [
        here
        | {"lqpn": row["lqpn"], "rqpn": 0, "type": "RC", "state": "RTS", "rq-psn": 0, "sq-psn": 0}
        | {"path-mig-state": "MIGRATED", "pid": row["pid"], "comm": row["comm"]}
        for row in _users(state, function)
    ]


def _protection_domains(state: State, function: Function) -> list[Row]:
    here = _place(function)
    own = here | {"pdn": 0, "local_dma_lkey": "0x0", "users": 2, "comm": "ib_core"}
    return [own] + [
        here | {"pdn": count, "local_dma_lkey": "0x0", "users": 1, "pid": row["pid"], "comm": row["comm"]}
        for count, row in enumerate(_users(state, function), 1)
    ]


RESOURCES = {"qp": _queue_pairs, "pd": _protection_domains}


def _resource_text(row: Row) -> str:
    hidden = ("ifindex", "ifname", "port", "comm")
    comm = row["comm"] if "pid" in row else f"[{row['comm']}]"
    members = " ".join(f"{name} {value}" for name, value in row.items() if name not in hidden)
    where = f"link {row['ifname']}/1" if "port" in row else f"dev {row['ifname']}"
    return f"{where} {members} comm {comm}\n"
