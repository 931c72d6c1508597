"""A SIMULATED libnccl: a shared object that the loader takes and that does nothing, with the strings to know it by.

What a library can do is told by names of environment variables among its strings, as in a real one. The engine of
the lab looks for the same ones; so does whoever checks a library before it is used. The same arguments give the same
bytes on every machine.
"""

from __future__ import annotations

import hashlib
import platform
import struct
from collections.abc import Iterable
from pathlib import Path

LABEL = "SIMULATED libnccl of the lab: it has strings, and no code"
SONAME = "libnccl.so.2"
VERSION = "2.30.7"
CUDA = "13.2"
MACHINES = {"x86_64": 62, "aarch64": 183}  # e_machine, by the word of `uname -m`
KINDS: dict[str, tuple[str, ...]] = {
    "patched": (
        "NCCL_SWITCHLESS_RING_ONLY",
        "NCCL_IB_EXTENDED_IPV4_GIDS",
        "NCCL_IB_PRESERVE_PCI_DOMAIN",
        "NCCL_IB_ROUTE_DIAGNOSTICS",
    ),
    "no-extended": ("NCCL_SWITCHLESS_RING_ONLY",),
    "skip-tree": ("NCCL_SKIP_TREE_CONNECT",),
    "stock": (),
}
"""Markers by kind: the cumulative patch, the switchless one before it, the other older one, and none."""

PAGE = 0x10000  # the largest of the two machines
HEADER, PROGRAM, SECTION, SYMBOL = 64, 56, 64, 24  # bytes of ELF64 records
LOAD, DYNAMIC, NOTE, STACK = 1, 2, 4, 0x6474E551
SECTIONS = (  # name, type, flags, section of its names, size of an entry
    (".note.gnu.build-id", 7, 2, 0, 0), (".dynstr", 3, 2, 0, 0), (".dynamic", 6, 3, 2, 16), (".rodata", 1, 2, 0, 0),
    (".shstrtab", 3, 0, 0, 0),
)  # fmt: skip
STRING_TABLE, SYMBOL_TABLE, HASH, STRING_SIZE, SYMBOL_SIZE, OWN_NAME = 5, 6, 4, 10, 11, 14


def build(
    path: Path, *, markers: Iterable[str], machine: str | None = None, version: str = VERSION, edition: int = 1
) -> str:
    """Write such a library to a file and return its sha256; folders above are made.

    `machine` is a key of MACHINES, by default this machine's. Another `edition` gives other bytes and another build
    id, nothing else. Raises ValueError for a machine that is not known.
    """
    data = content(markers, machine, version, edition)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def content(markers: Iterable[str], machine: str | None = None, version: str = VERSION, edition: int = 1) -> bytes:
    """The bytes of such a library."""
    machine = machine or platform.machine()
    if machine not in MACHINES:
        raise ValueError(f"machine {machine!r} is none of {', '.join(MACHINES)}")
    texts = (LABEL, f"edition {edition}", f"NCCL version {version}+cuda{CUDA}", *markers)
    strings = b"\0".join(text.encode() for text in texts) + b"\0"
    return _elf(MACHINES[machine], strings)


def _elf(machine: int, strings: bytes) -> bytes:
    """A shared object of one segment: build id, the loader's tables, the strings, then section names for readelf."""
    identity = hashlib.sha1(machine.to_bytes(2, "little") + strings, usedforsecurity=False).digest()
    note = struct.pack("<3I4s", 4, len(identity), 3, b"GNU\0") + identity
    names = b"\0" + SONAME.encode() + b"\0"
    hashes = struct.pack("<4I", 1, 1, 0, 0)
    body = bytearray(HEADER + 4 * PROGRAM)

    def put(data: bytes) -> int:
        body.extend(bytes(-len(body) % 8))
        body.extend(data)
        return len(body) - len(data)

    at_note, at_names, at_hash, at_symbols = put(note), put(names), put(hashes), put(bytes(SYMBOL))
    entries = (
        (OWN_NAME, 1), (HASH, at_hash), (STRING_TABLE, at_names), (SYMBOL_TABLE, at_symbols),
        (STRING_SIZE, len(names)), (SYMBOL_SIZE, SYMBOL), (0, 0),
    )  # fmt: skip
    dynamic = b"".join(struct.pack("<2Q", *entry) for entry in entries)
    at_dynamic, at_strings = put(dynamic), put(strings)
    loaded = len(body)
    titles = b"\0" + b"".join(name.encode() + b"\0" for name, *_ in SECTIONS)
    at_titles = put(titles)
    places = {
        ".note.gnu.build-id": (at_note, len(note)), ".dynstr": (at_names, len(names)),
        ".dynamic": (at_dynamic, len(dynamic)), ".rodata": (at_strings, len(strings)),
        ".shstrtab": (at_titles, len(titles)),
    }  # fmt: skip
    sections = [bytes(SECTION)]
    for name, what, flags, names_in, entry in SECTIONS:
        at, size = places[name]
        address = at if flags else 0
        title = titles.index(name.encode())
        sections.append(struct.pack("<2I4Q2I2Q", title, what, flags, address, at, size, names_in, 0, 4, entry))
    at_sections = put(b"".join(sections))
    segments = (
        # The loader writes into the dynamic table, so the one segment is writable.
        (LOAD, 6, 0, loaded, PAGE), (DYNAMIC, 6, at_dynamic, len(dynamic), 8),
        (NOTE, 4, at_note, len(note), 4), (STACK, 6, 0, 0, 16),
    )  # fmt: skip
    kind = b"\x7fELF\2\1\1" + bytes(9)
    shape = (HEADER, PROGRAM, len(segments), SECTION, len(sections), len(sections) - 1)
    body[:HEADER] = struct.pack("<16s2HI3QI6H", kind, 3, machine, 1, 0, HEADER, at_sections, 0, *shape)
    for number, (what, flags, at, size, align) in enumerate(segments):
        record = struct.pack("<2I6Q", what, flags, at, at, at, size, size, align)
        body[HEADER + number * PROGRAM : HEADER + (number + 1) * PROGRAM] = record
    return bytes(body)
