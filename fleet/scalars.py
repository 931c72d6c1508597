"""The single values of a stack config: how each is read, and what is said when it cannot be.

YAML and `pulumi config set` blur types, so each value says what it takes: numbers may come as text, switches as
`on`/`off`/`true`/`false`, and a bare `off` that YAML turned into a boolean still means off.
"""

import base64
import binascii
import posixpath
import re
from enum import StrEnum
from ipaddress import AddressValueError, IPv4Address, IPv4Network, NetmaskValueError
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, PlainSerializer, StringConstraints
from pydantic_core import PydanticCustomError

LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
NETDEV = re.compile(r"[A-Za-z0-9_.-]{1,15}")
USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}\$?")
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
CONTAINER_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+")
NETPLAN_FILE = re.compile(r"/etc/netplan/(?!41-spark-fabric-)[\w.-]+\.yaml")
IMAGE = re.compile(
    r"[a-zA-Z0-9][\w.-]*(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*(:[\w][\w.-]{0,127})?(@sha256:[0-9a-f]{64})?"
)
NODE_PATH = re.compile(r"/(?!(?:[^:]*/)?\.\.(?:/|$))[^:\0\n]*[^:\0\n/]")
OWNER = re.compile(r"[0-9]+:[0-9]+")
MODE = re.compile(r"[0-7]{3,4}")
SHA256 = re.compile(r"[0-9a-f]{64}")
SIZE = re.compile(r"([0-9]+)([kmgt]?)(i?b)?", re.IGNORECASE)
HOST_KEY_TYPES = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa")


def wrong(code: str, wanted: str, hint: str = "") -> PydanticCustomError:
    """A refusal that names what was wanted; pydantic adds where it was and what was seen."""
    return PydanticCustomError(code.replace("-", "_"), "{wanted}", {"wanted": wanted, "hint": hint})


def _text(value: object, wanted: str) -> str:
    if not isinstance(value, str):
        raise wrong("not-text", wanted, "Put the value in quotes.")
    return value


def _matching(pattern: re.Pattern[str], code: str, wanted: str, hint: str = "") -> BeforeValidator:
    def check(value: object) -> str:
        text = _text(value, wanted)
        if not pattern.fullmatch(text):
            raise wrong(code, wanted, hint)
        return text

    return BeforeValidator(check)


def _as_docker_lists_it(ref: str) -> str:
    """`name` is `name:latest`, a tag beside a digest means nothing, and docker's own registry goes without a name."""
    name, _, digest = ref.partition("@")
    name = re.sub(r"^((index\.)?docker\.io/)?(library/(?=[^/]+$))?", "", name)
    tagged = ":" in name.rpartition("/")[2]
    if digest:
        return f"{name.rpartition(':')[0] if tagged else name}@{digest}"
    return name if tagged else f"{name}:latest"


def _whole(value: object) -> int:
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]+", value.strip()):
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong("not-a-number", "a whole number")
    return value


def _switch(value: object) -> bool:
    words = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    raise wrong("not-a-switch", "on or off")


def _address(value: object) -> IPv4Address:
    wanted = "an IPv4 address such as 192.168.1.11"
    text = _text(value, wanted)
    if "/" in text:
        raise wrong("not-an-address", "an IPv4 address without a prefix", f"Write {text.split('/')[0]}.")
    try:
        address = IPv4Address(text)
    except AddressValueError:
        raise wrong(
            "not-an-address", wanted, "Names go to nodes[].name; the address is where SSH reaches it."
        ) from None
    if address.is_loopback or address.is_multicast or address.is_unspecified or address.is_link_local:
        raise wrong("unusable-address", "the address of the node's management port")
    return address


def _listen(value: object) -> IPv4Address:
    try:
        return IPv4Address(_text(value, "an IPv4 address to listen on"))
    except AddressValueError:
        raise wrong("not-an-address", "an IPv4 address to listen on", "0.0.0.0 listens on all.") from None


def _pool(value: object) -> IPv4Network:
    wanted = "an IPv4 network such as 10.10.0.0/16"
    text = _text(value, wanted)
    if "/" not in text:
        raise wrong("not-a-pool", wanted, "Say how large the pool is.")
    try:
        loose = IPv4Network(text, strict=False)
    except (AddressValueError, NetmaskValueError):
        raise wrong("not-a-pool", wanted) from None
    if str(loose.network_address) != text.split("/")[0]:
        raise wrong("pool-has-host-bits", f"the network's first address, {loose}", f"Write {loose}.")
    if loose.is_loopback or loose.is_multicast or loose.is_link_local or loose.prefixlen < 8:
        raise wrong(
            "unusable-pool", "a unicast network of /8 or smaller", "Private ranges are 10/8, 172.16/12, 192.168/16."
        )
    return loose


def _host_key(value: object) -> str:
    wanted = f"a public host key, '{HOST_KEY_TYPES[0]} AAAA…'"
    words = _text(value, wanted).split()
    hint = "Take it from /etc/ssh/ssh_host_ed25519_key.pub on the node."
    if len(words) not in (2, 3) or words[0] not in HOST_KEY_TYPES:
        raise wrong("not-a-host-key", wanted, hint)
    try:
        blob = base64.b64decode(words[1], validate=True)
    except binascii.Error:
        blob = b""
    if blob[4 : 4 + len(words[0])] != words[0].encode():
        raise wrong("not-a-host-key", wanted, hint)
    return " ".join(words[:2])


def _size(value: object) -> int:
    match = (
        SIZE.fullmatch(str(value).strip()) if isinstance(value, (str, int)) and not isinstance(value, bool) else None
    )
    if match is None:
        raise wrong("not-a-size", "a size such as 32g or 512m")
    if isinstance(value, int) or not match[2]:
        raise wrong("size-without-unit", "a size with its unit, such as 32g or 512m", f"Write {value}m or {value}g.")
    size = int(match[1]) << {"k": 10, "m": 20, "g": 30, "t": 40}[match[2].lower()]
    if size < 1 << 20:
        raise wrong("size-too-small", "at least 1m")
    return size


def _env_value(value: object) -> str:
    if isinstance(value, bool):
        raise wrong(
            "env-boolean",
            "a text or a number",
            f'Write "1" or "0", or "{str(value).lower()}" in quotes if the engine wants the word.',
        )
    if isinstance(value, (int, float)):
        return str(value)
    text = _text(value, "a text or a number")
    if "\0" in text or "\n" in text:
        raise wrong("env-control", "a value of one line")
    return text


def _path(value: object) -> str:
    text = _text(value, "a path")
    if not text.strip() or "\0" in text or "\n" in text:
        raise wrong("not-a-path", "a path")
    return text


def _inner_path(value: object) -> str:
    text = _path(value)
    if text.startswith("/") or ".." in text.split("/"):
        raise wrong("not-inside", "a relative path without `..`", "It is a path in that folder.")
    return posixpath.normpath(text)


def _secret_text(value: object) -> str:
    text = str(value) if isinstance(value, (int, float)) else _text(value, "a text")
    if not text or "\0" in text:
        raise wrong("not-a-secret", "a text that is not empty")
    return text


class Gpus(StrEnum):
    """How the engine gets its GPU: docker's device request, CDI, or not at all (simulated fleets)."""

    REQUEST = "request"
    CDI = "cdi"
    OFF = "off"


def _gpus(value: object) -> Gpus:
    if value is False:
        return Gpus.OFF
    if isinstance(value, str) and value in list(Gpus):
        return Gpus(value)
    raise wrong("unknown-choice", "one of request, cdi, off")


class OnFailure(StrEnum):
    """What becomes of an engine that does not get ready: it stays to be looked at, or the one before comes back."""

    KEEP = "keep"
    ROLLBACK = "rollback"


class LibraryMode(StrEnum):
    """Where the engine's NCCL comes from: its image, a file over that of the image, or a folder beside it."""

    IMAGE = "image"
    OVERLAY = "overlay"
    DIRECTORY = "directory"


class State(StrEnum):
    """Whether a node takes part, or is being taken out of the fleet."""

    ACTIVE = "active"
    LEAVING = "leaving"


def choice(enum: type[StrEnum]) -> BeforeValidator:
    """One word of an enum, with all words in the refusal."""

    def check(value: object) -> StrEnum:
        if isinstance(value, str) and value in list(enum):
            return enum(value)
        raise wrong("unknown-choice", f"one of {', '.join(enum)}")

    return BeforeValidator(check)


def megabytes(size: int) -> str:
    """A size as it is written in the config."""
    for shift, unit in ((30, "g"), (20, "m")):
        if size % (1 << shift) == 0:
            return f"{size >> shift}{unit}"
    return f"{size >> 10}k"


Whole = Annotated[int, BeforeValidator(_whole)]
Switch = Annotated[bool, BeforeValidator(_switch)]
Label = Annotated[
    str,
    _matching(
        LABEL,
        "not-a-name",
        "a DNS label: lower-case letters, digits and hyphens, at most 63",
        "It becomes part of resource names.",
    ),
]
Netdev = Annotated[str, _matching(NETDEV, "not-a-netdev", "a network device name of at most 15 characters")]
User = Annotated[str, _matching(USER, "not-a-user", "a login name")]
EnvName = Annotated[
    str, _matching(ENV_NAME, "not-an-env-name", "letters, digits and underscores, not starting with a digit")
]
EnvValue = Annotated[str, BeforeValidator(_env_value)]
ContainerName = Annotated[
    str, _matching(CONTAINER_NAME, "not-a-container-name", "letters, digits and _.- (docker's rule)")
]
NetplanFile = Annotated[
    str,
    _matching(
        NETPLAN_FILE,
        "not-a-netplan-file",
        "a file of the nodes such as /etc/netplan/40-cx7.yaml",
        "It must not be one of our own files.",
    ),
]
NodePath = Annotated[
    str,
    _matching(NODE_PATH, "not-a-node-path", "an absolute path without a colon or `..`", "It is a path of the nodes."),
]
Sha256 = Annotated[
    str, _matching(SHA256, "not-a-sha256", "64 hex digits in lower case", "Take it from `sha256sum FILE`.")
]
Owner = Annotated[
    str, _matching(OWNER, "not-an-owner", "UID:GID in numbers, such as 1000:1000", "`id` on the node tells them.")
]
Mode = Annotated[str, _matching(MODE, "not-a-mode", 'an octal mode in quotes, such as "0750"')]
ImageRef = Annotated[
    str,
    _matching(IMAGE, "not-an-image", "an image reference such as registry/name:tag or name@sha256:…"),
    AfterValidator(_as_docker_lists_it),
]


Address = Annotated[IPv4Address, BeforeValidator(_address)]
Listen = Annotated[IPv4Address, BeforeValidator(_listen)]
Pool = Annotated[IPv4Network, BeforeValidator(_pool)]
HostKey = Annotated[str, BeforeValidator(_host_key)]
Size = Annotated[int, BeforeValidator(_size), PlainSerializer(megabytes)]
Path = Annotated[str, BeforeValidator(_path)]
InnerPath = Annotated[str, BeforeValidator(_inner_path)]
SecretText = Annotated[str, BeforeValidator(_secret_text)]
Word = Annotated[str, StringConstraints(min_length=1, pattern=r"^\S+$")]
GpuChoice = Annotated[Gpus, BeforeValidator(_gpus)]
