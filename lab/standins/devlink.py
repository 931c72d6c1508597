"""devlink: parameters, reload and eswitch of the four functions; all else is the real one's."""

from __future__ import annotations

import json
from typing import Any

from . import driver, reinit, system
from .model import BY_HANDLE, FUNCTIONS
from .state import State
from .system import NotSimulatedError, ToolError
from .words import Row, Words


class Command:
    """Options before the object, and the words behind it."""

    def __init__(self, argv: list[str]) -> None:
        self.json = self.pretty = self.stats = False
        place = 0
        while place < len(argv) and argv[place].startswith("-"):
            flags = argv[place].lstrip("-")
            flags = {"json": "j", "pretty": "p", "statistics": "s", "verbose": "v"}.get(flags, flags)
            if set(flags) - set("jpsv"):
                system.become("devlink", argv)
            self.json |= "j" in flags
            self.pretty |= "p" in flags
            self.stats |= "s" in flags
            place += 1
        self.words = Words(argv[place:])

    def show(self, document: Row, text: str) -> int:
        """Print one of the two forms."""
        if self.json:
            separators = None if self.pretty else (",", ":")
            indent = 4 if self.pretty else None
            print(json.dumps(document, indent=indent, separators=separators))
        elif text:
            print(text)
        return 0


def _handle(state: State, words: Words, required: bool) -> list[str]:
    """The device that is named next, or all of them."""
    alive = [f.handle for f in FUNCTIONS if state.netdev_exists(f.netdev) or driver.known(state, f.handle)]
    if not words:
        if required:
            raise ToolError("Device identification expected.")
        return alive
    word = words.take()
    if "/" not in word:
        said = f'Wrong identification string format.\nWrong identification string "{word}".'
        raise ToolError(said)
    if word not in alive:
        raise ToolError("kernel answers: No such device")
    return [word]


def main(_: str, argv: list[str]) -> int:
    """Entry point."""
    state = State()
    command = Command(argv)
    words = command.words
    thing = words.take() if words else ""
    verb = words.take() if words else "show"
    if thing != "dev" or verb not in ("show", "param", "reload", "eswitch"):
        system.become("devlink", argv)
    if verb == "show":
        return _dev_show(state, command)
    if verb == "reload":
        return _reload(state, command)
    action = words.take() if words else "show"
    if verb == "eswitch":
        if action != "show":
            raise NotSimulatedError("devlink dev eswitch set")
        (handle,) = _handle(state, words, required=True)
        switched = state.fault("switchdev", handle.removeprefix("pci/")) is not None
        modes = {"mode": "switchdev" if switched else "legacy", "inline-mode": "none", "encap-mode": "basic"}
        text = " ".join(f"{name} {value}" for name, value in modes.items())
        return command.show({"dev": {handle: modes}}, f"{handle}: {text}")
    if action == "set":
        return _param_set(state, words)
    if action == "show":
        return _param_show(state, command)
    raise ToolError(f'Command "{action}" not found')


def _stats(reloads: int) -> Row:
    local = {"driver_reinit": {"unspecified": reloads}, "fw_activate": {"unspecified": 0, "no_reset": 0}}
    remote = {"driver_reinit": {"unspecified": 0}, "fw_activate": {"unspecified": 0, "no_reset": 0}}
    return {"reload": local, "remote_reload": remote}


def _dev_show(state: State, command: Command) -> int:
    document: Row = {}
    text = []
    for handle in _handle(state, command.words, required=False):
        row = driver.load(state, handle)
        entry: Row = {"reload_failed": True} if row["failed"] else {}
        text.append(handle + (":" if command.stats or row["failed"] else ""))
        text += ["  reload_failed true"] if row["failed"] else []
        if command.stats:
            entry["stats"] = _stats(row["reloads"])
            text.append("  stats:")
            for side, actions in entry["stats"].items():
                text.append(f"      {side}:")
                for action, limits in actions.items():
                    values = " ".join(f"{name} {count}" for name, count in limits.items())
                    text += [f"        {action}:", f"          {values}"]
        document[handle] = entry
    return command.show({"dev": document}, "\n".join(text))


def _param_show(state: State, command: Command) -> int:
    words = command.words
    named = bool(words)
    handles = _handle(state, words, required=False)
    names = list(driver.PARAMETERS)
    if named:
        if not words or words.take() != "name":
            raise ToolError("Parameter name expected.")
        names = [words.take()]
        if names[0] not in driver.PARAMETERS:
            raise ToolError("kernel answers: Invalid argument")
    document: dict[str, Any] = {}
    text = []
    for handle in handles:
        shown = driver.load(state, handle)["shown"]
        text.append(f"{handle}:")
        document[handle] = []
        for name in names:
            mode, kind, _ = driver.PARAMETERS[name]
            value: Any = shown[name]
            if state.dialect.devlink == "str":
                value = str(value)
            document[handle].append({"name": name, "type": kind, "values": [{"cmode": mode, "value": value}]})
            text += [f"  name {name} type {kind}", "    values:", f"      cmode {mode} value {shown[name]}"]
    return command.show({"param": document}, "\n".join(text))


def _param_set(state: State, words: Words) -> int:
    (handle,) = _handle(state, words, required=True)
    given: dict[str, str] = {}
    while words:
        word = words.take()
        if word not in ("name", "value", "cmode"):
            raise ToolError(f'Unknown option "{word}"')
        given[word] = words.take()
    for word, said in (("name", "Parameter name"), ("value", "Value to set"), ("cmode", "Configuration mode")):
        if word not in given:
            raise ToolError(f"{said} expected.")
    if given["cmode"] not in ("runtime", "driverinit", "permanent"):
        raise ToolError(f'Unknown configuration mode "{given["cmode"]}"')
    if given["name"] not in driver.PARAMETERS:
        raise ToolError("Parameter not found\nkernel answers: Invalid argument")
    system.require_root("kernel answers: Operation not permitted", 1)
    mode = driver.PARAMETERS[given["name"]][0]
    if given["cmode"] != mode:
        raise ToolError("kernel answers: Operation not supported")
    value = driver.parsed(given["name"], given["value"])
    with state.locked():
        row = driver.load(state, handle)
        row["shown"][given["name"]] = value
        if mode == "runtime":
            row["effective"][given["name"]] = value
        driver.keep(state, handle, row)
    return 0


def _reload(state: State, command: Command) -> int:
    words = command.words
    (handle,) = _handle(state, words, required=True)
    given = {"action": "driver_reinit"}
    while words:
        word = words.take()
        if word not in ("action", "limit"):
            raise ToolError(f'Unknown option "{word}"')
        given[word] = words.take()
    if given["action"] not in ("driver_reinit", "fw_activate"):
        raise ToolError(f'Unknown reload action "{given["action"]}"')
    if given["action"] == "fw_activate" or "limit" in given:
        raise NotSimulatedError("any action but driver_reinit")
    system.require_root("kernel answers: Operation not permitted", 1)
    reinit.begin(state, BY_HANDLE[handle])
    return command.show(
        {"reload": {"reload_actions_performed": ["driver_reinit"]}}, "reload_actions_performed:\n    driver_reinit"
    )
