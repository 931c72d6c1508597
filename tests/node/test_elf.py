"""What a shared object says of itself, also where it lies."""

from __future__ import annotations

import hashlib
import io
import struct

import pytest

from lab import library
from node import elf


def described(data: bytes) -> dict[str, object]:
    return elf.describe(io.BytesIO(data))


@pytest.mark.parametrize("machine", sorted(elf.MACHINES))
@pytest.mark.parametrize("kind", sorted(library.KINDS))
def test_a_library_is_described(kind: str, machine: str) -> None:
    data = library.content(library.KINDS[kind], machine)
    wanted = {marker for marker in elf.MARKERS if any(marker in text for text in library.KINDS[kind])}
    seen = described(data)
    assert seen["sha256"] == hashlib.sha256(data).hexdigest()
    assert seen["size"] == len(data)
    assert (seen["elf_class"], seen["elf_machine"]) == (64, elf.MACHINES[machine])
    assert seen["markers"] == sorted(wanted)
    assert len(str(seen["build_id"])) == 40


def test_the_build_id_is_that_of_the_note() -> None:
    one, other = (described(library.content((), "x86_64", edition=edition)) for edition in (1, 2))
    assert one["build_id"] != other["build_id"]
    data = library.content((), "x86_64")
    assert bytes.fromhex(str(one["build_id"])) in data


def test_machines_are_those_of_the_lab() -> None:
    assert elf.MACHINES == library.MACHINES


@pytest.mark.parametrize("data", [b"", b"#!/bin/sh\n" + bytes(100), b"\x7fELF", b"\x7fEL" + bytes(200)])
def test_what_is_no_elf_file_has_neither_class_nor_machine(data: bytes) -> None:
    seen = described(data)
    assert (seen["elf_class"], seen["elf_machine"], seen["build_id"]) == (None, None, None)


def test_a_string_across_two_pieces_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elf, "PIECE", 64)
    data = library.content(library.KINDS["patched"], "x86_64")
    for shift in range(64):
        assert elf.RING in described(data[:64] + bytes(shift) + data[64:])["markers"]  # type: ignore[operator]


def test_big_endian_and_32_bits_are_read() -> None:
    head = bytearray(64)
    head[:6] = b"\x7fELF\2\2"
    struct.pack_into(">H", head, 18, 21)
    assert (described(bytes(head))["elf_class"], described(bytes(head))["elf_machine"]) == (64, 21)
    head[4] = 1
    assert described(bytes(head))["elf_class"] == 32


def test_tables_that_lead_nowhere_do_no_harm() -> None:
    data = bytearray(library.content((), "x86_64"))
    struct.pack_into("<Q", data, 32, 1 << 63)
    assert described(bytes(data))["build_id"] is None
    struct.pack_into("<Q", data, 32, 64)
    struct.pack_into("<2H", data, 54, 56, 65535)
    assert described(bytes(data))["elf_class"] == 64
