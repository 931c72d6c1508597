"""The actions of a filter that the card can follow: pedit, mirred and plain verdicts."""

from __future__ import annotations

from .system import NotSimulatedError, ToolError
from .words import Row, Words, mac, number

CONTROLS = {
    **{name: name for name in ("pipe", "pass", "drop", "continue", "reclassify", "trap")},
    "ok": "pass",
    "shot": "drop",
}
NOT_SIMULATED = ("ct", "skbedit", "vlan", "police", "tunnel_key", "csum", "sample", "mpls")
FIELDS = {  # (header, field): (byte offset, bytes)
    ("eth", "dst"): (0, 6),
    ("eth", "src"): (6, 6),
    ("eth", "type"): (12, 2),
    ("udp", "sport"): (0, 2),
    ("udp", "dport"): (2, 2),
}


def actions(words: Words) -> list[Row]:
    """A list of actions, each behind its own word `action` or straight after the last one."""
    found: list[Row] = []
    while words:
        name = words.take()
        if name == "action":
            name = words.take()
        left = len(words.rest) + 1
        if name == "pedit":
            found.append(_pedit(words, left))
        elif name == "mirred":
            found.append(_mirred(words, left))
        elif name in CONTROLS or name == "gact":
            control = CONTROLS.get(words.take() if name == "gact" else name, "")
            if not control:
                raise ToolError("bad action parsing", 1)
            found.append({"kind": "gact", "control": control})
        elif name in NOT_SIMULATED:
            raise NotSimulatedError(f"action {name}")
        else:
            raise ToolError(f"Bad action type {name}\nUsage: ... gact <ACTION> [RAND] [INDEX]", 255)
    if not found:
        words.take()
    return found


def bad_action(left: int, kind: str, first: str) -> ToolError:
    """What tc says of an action it cannot read, with the number of words left from it on."""
    trail = f'bad action parsing\nparse_action: bad value ({left}:{kind})!\nIllegal "action"'
    return ToolError(f"{first}\n{trail}", 1)


def pedit_keys(header: str, offset: int, value: bytes) -> list[Row]:
    """The 32-bit words of one written field; the mask has the bits that stay."""
    keys = []
    for word in range(offset & ~3, offset + len(value), 4):
        val = mask = 0
        for place in range(4):
            at = word + place - offset
            inside = 0 <= at < len(value)
            val = val << 8 | (value[at] if inside else 0)
            mask = mask << 8 | (0 if inside else 0xFF)
        keys.append({"htype": header, "offset": word, "cmd": "set", "val": val, "mask": mask})
    return keys


def _pedit(words: Words, left: int) -> Row:
    extended = words.peek() == "ex"
    if extended:
        words.take()
    keys: list[Row] = []
    while words.peek() in ("munge", "pedit"):
        words.take()
        keys += _munge(words, left, extended)
    if not keys:
        raise bad_action(left, "pedit", "bad pedit parsing")
    return {"kind": "pedit", "control": _control(words, "pass"), "keys": keys}


def _munge(words: Words, left: int, extended: bool) -> list[Row]:
    header, field = words.take(), words.take()
    usage = f"Bad pedit construct ({header})\nUsage: ... pedit munge [ex] <MUNGE> [CONTROL]"
    if header in ("ip", "ip6", "tcp", "icmp", "offset"):
        raise NotSimulatedError(f"pedit munge {header}")
    if (header, field) not in FIELDS or not extended or words.take() != "set":
        raise bad_action(left, "pedit", f"bad pedit parsing\n{usage}")
    offset, size = FIELDS[header, field]
    text = words.take()
    if size == 6:
        try:
            return pedit_keys(header, offset, bytes.fromhex(mac(text).replace(":", "")))
        except ToolError as error:
            message = f"{error.text}\nbad pedit parsing\n{usage}"
            raise bad_action(left, "pedit", message) from None
    value = number(text)
    if value is None or value > 0xFFFF:
        first = "" if value is None else "pack_key16 bad value\n"
        raise bad_action(left, "pedit", f"{first}bad pedit parsing\n{usage}")
    return pedit_keys(header, offset, value.to_bytes(2, "big"))


def _control(words: Words, default: str) -> str:
    if words.peek() in CONTROLS:
        return CONTROLS[words.take()]
    return default


def _mirred(words: Words, left: int) -> Row:
    direction, verb = words.take(), words.take()
    if direction not in ("ingress", "egress") or verb not in ("redirect", "mirror"):
        raise bad_action(left, "mirred", f'mirred option "{verb}" not expected')
    if words.take() != "dev":
        raise bad_action(left, "mirred", "mirred: dev is missing")
    target = words.take()
    control = _control(words, "stolen" if verb == "redirect" else "pipe")
    return {"kind": "mirred", "mirred_action": verb, "direction": direction, "to_dev": target, "control": control}
