"""What a shared object says of itself without being loaded, read in pieces: its digest, ELF header, build id, strings.

Strings, size and build id are hints: whoever builds a file can put them there. Only a digest tells two files apart.
"""

import hashlib
import struct
from collections.abc import Sequence
from typing import Any, BinaryIO

RING, EXTENDED, SKIP_TREE = "SWITCHLESS_RING_ONLY", "EXTENDED_IPV4_GIDS", "SKIP_TREE_CONNECT"
MARKERS = (RING, EXTENDED, SKIP_TREE)
"""Strings in builds of NCCL that are patched for rings: names of the variables that they understand, without NCCL_."""

MACHINES = {"x86_64": 62, "aarch64": 183}
"""ELF's e_machine by the word of `uname -m`."""

PIECE = 1 << 20
_CLASSES = {1: 32, 2: 64}
_NOTE, _BUILD_ID = 4, 3
_LONGEST_NOTES = 1 << 16


def describe(file: BinaryIO) -> dict[str, Any]:
    """Size, sha256, ELF class (32 or 64) and machine (both None where it is no ELF file), markers and build id."""
    sha256, size, found = search(file, MARKERS)
    head = _at(file, 0, 64)
    is_elf = len(head) == 64 and head.startswith(b"\x7fELF")
    order = "<" if is_elf and head[5] == 1 else ">"
    return {
        "sha256": sha256,
        "size": size,
        "elf_class": _CLASSES.get(head[4]) if is_elf else None,
        "elf_machine": struct.unpack_from(f"{order}H", head, 18)[0] if is_elf else None,
        "markers": sorted(found),
        "build_id": _build_id(file, head, order) if is_elf and head[4] == 2 else None,
    }


def search(file: BinaryIO, texts: Sequence[str]) -> tuple[str, int, set[str]]:
    """The sha256 and size of a file, and those of some texts that are in it, read once and in pieces."""
    digest, size, tail, found = hashlib.sha256(), 0, b"", set()
    keep = max((len(text.encode()) for text in texts), default=1) - 1
    while piece := file.read(PIECE):
        digest.update(piece)
        size += len(piece)
        window = tail + piece  # a text may lie across two pieces
        found |= {text for text in texts if text.encode() in window}
        tail = window[-keep:] if keep else b""
    return digest.hexdigest(), size, found


def _build_id(file: BinaryIO, head: bytes, order: str) -> str | None:
    """The GNU build id of an ELF64 file; None where it has none, or its tables lead nowhere."""
    (offset,) = struct.unpack_from(f"{order}Q", head, 32)
    entry, count = struct.unpack_from(f"{order}2H", head, 54)
    for number in range(count if entry >= 56 else 0):
        record = _at(file, offset + number * entry, 56)
        if len(record) < 56 or struct.unpack_from(f"{order}I", record)[0] != _NOTE:
            continue
        place, length = struct.unpack_from(f"{order}Q", record, 8)[0], struct.unpack_from(f"{order}Q", record, 32)[0]
        found = _of_notes(_at(file, place, min(length, _LONGEST_NOTES)), order)
        if found:
            return found
    return None


def _at(file: BinaryIO, place: int, length: int) -> bytes:
    try:
        file.seek(place)
    except (OSError, OverflowError, ValueError):
        return b""
    return file.read(length)


def _of_notes(notes: bytes, order: str) -> str | None:
    at = 0
    while at + 12 <= len(notes):
        name, content, kind = struct.unpack_from(f"{order}3I", notes, at)
        begin = at + 12 + (name + 3) // 4 * 4
        if kind == _BUILD_ID and notes[at + 12 : at + 12 + name] == b"GNU\0":
            return notes[begin : begin + content].hex() or None
        at = begin + (content + 3) // 4 * 4
    return None
