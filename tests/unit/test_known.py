"""What is known of the operator's files: looked up honestly, and told in the docs as it is in the data."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet import known, levels
from fleet.known import Image, Library, Marker, Patch, Status

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "prerequisites.md").read_text()
ROWS = {tuple(cell.strip() for cell in row.split("|")[1:-1]) for row in TEXT.splitlines() if row.startswith("|")}
WHOLE = 64
JUDGED: tuple[Library | Patch | Marker | Image, ...] = (*known.LIBRARIES, *known.PATCHES, *known.MARKERS, *known.IMAGES)


def by_name(name: str) -> Library:
    return next(one for one in known.LIBRARIES if one.name == name)


@pytest.mark.parametrize("one", [one for one in known.LIBRARIES if one.certain], ids=lambda one: one.name)
def test_a_library_is_found_by_its_digest_in_either_case(one: Library) -> None:
    assert one.sha256
    assert known.library(one.sha256) == known.library(one.sha256.upper()) == one
    assert one.recognized() == f"is {one.name}, known as {one.status}: {one.why}"


def test_the_locked_library_is_good_and_one_without_the_ring_string_is_not() -> None:
    locked = known.library("768a450b5eb84bf3d1191795350e43c96de75aeba4783ec314d47672fe6e1fc6")
    older = known.library("ccd57342449c3f680befcb379329b935746e5299dc4de5f2516146e0411bd85f")
    assert locked
    assert (locked.status, locked.planes) == (Status.GOOD, 2)
    assert older
    assert (older.status, older.planes) == (Status.INSUFFICIENT, 0)


def test_a_library_of_which_the_beginning_is_known_only_looks_like_it() -> None:
    found = known.library("68f91a60".ljust(WHOLE, "7"))
    assert found == by_name("nero-'s library")
    assert not found.certain
    assert found.recognized().startswith("looks like nero-'s library (its sha256 begins with 68f91a60), known as good")


@pytest.mark.parametrize(
    "digest",
    [
        "0" * WHOLE,
        "768a450b".ljust(WHOLE, "0"),  # begins like one that is known whole
        "68f91a6f".ljust(WHOLE, "7"),
        "768a450b",  # what a person may have noted is no digest
        "",
        "097656d07a5774919f0d51558b51ec05de8168c0097ed6cb7764c33230ba6eb2",  # a patch, not a library
    ],
)
def test_nothing_is_said_about_any_other_digest(digest: str) -> None:
    assert known.library(digest) is None


def test_no_digest_stands_for_two_things() -> None:
    digests = [one.sha256 for one in JUDGED if not isinstance(one, Image) and one.sha256]
    for index, digest in enumerate(digests):
        assert not any(other.startswith(digest) for place, other in enumerate(digests) if place != index)


def test_everything_says_who_recorded_it_and_why() -> None:
    recorded = [one.source for one in JUDGED] + [one.source for one in known.LEVELS]
    recorded += [one.source for one in known.FAULTS]
    for source in "; ".join([*recorded, known.NCCL.source, known.WEIGHTS.source]).split("; "):
        assert re.split(r"[ ,]", source)[0] in known.SOURCES, source
    assert all(one.why.endswith(".") for one in (*JUDGED, *known.FAULTS))


@pytest.mark.parametrize(
    ("what", "level", "options", "fails"),
    [
        ("Kernel", "7.0.0-1019-nvidia", "quiet", True),
        ("Kernel", "7.0.0-1019-nvidia", "quiet kho=off", False),
        ("Kernel", "7.0.0-1019-nvidia", "kho=offset", True),
        ("Kernel", "7.0.0-31-generic", "", True),
        ("Kernel", "6.17.0-1031-nvidia", "", False),
        ("Docker", "7.0.0-1019-nvidia", "", False),
    ],
)
def test_a_version_that_fails_is_known_unless_it_was_cured(what: str, level: str, options: str, fails: bool) -> None:
    assert (known.fault(what, level, options) is not None) == fails


def test_a_fault_is_about_a_part_that_is_compared() -> None:
    assert {fault.what for fault in known.FAULTS} <= {level.what for level in known.LEVELS}
    assert set(levels.PARTS) <= {level.what for level in known.LEVELS}


def test_a_library_cannot_run_a_ring_exactly_where_it_is_called_insufficient() -> None:
    assert all((one.planes == 0) == (one.status is Status.INSUFFICIENT) for one in known.LIBRARIES)


def code(digest: str | None) -> str:
    return "not recorded" if digest is None else f"`{digest}{'' if len(digest) == WHOLE else '…'}`"


def told() -> Iterator[tuple[str, ...]]:
    """The rows that the page has to have."""
    for library in known.LIBRARIES:
        yield code(library.sha256), library.status, str(library.planes), library.name, library.why
    for patch in known.PATCHES:
        if patch.status is not Status.GOOD:
            yield f"`{patch.path.rpartition('/')[2]}`", code(patch.sha256), patch.why
    for marker in known.MARKERS:
        yield code(marker.sha256), marker.status, code(marker.source_sha256), marker.why
    for image in known.IMAGES:
        yield code(image.digest), code(image.id), image.status, image.why
    for level in known.LEVELS:
        levels = "; ".join(level.levels)
        yield level.what, f"{levels}. {level.note}" if level.note else levels


def test_the_page_has_every_row_of_the_data_and_no_other_status() -> None:
    rows = set(told())
    assert rows <= ROWS
    assert {row for row in ROWS if set(row) & set(Status)} <= rows
    levels = TEXT.split("| Part | Reported |")[1]
    assert len(re.findall(r"^\| ", levels, flags=re.MULTILINE)) == len(known.LEVELS) + 1  # with the line below the head


def test_the_page_has_what_libraries_and_weights_are_made_of() -> None:
    patch = next(one for one in known.PATCHES if one.status is Status.GOOD)
    wanted = [
        known.NCCL.commit,
        known.NCCL.generate,
        known.NCCL.library,
        f"`ncclGetVersion` {known.NCCL.version_code}",
        f"grep -c {known.NCCL.ring_string} ",
        f"grep -c {known.NCCL.planes_string} ",
        f"`{patch.path}`",
        f"commit `{patch.commit}`",
        f"`{patch.blob}`, {patch.size} bytes",
        patch.sha256,
        f"git/blobs/{patch.blob} ",
        f"`{known.WEIGHTS.repository}`, revision `{known.WEIGHTS.revision}`",
        f"{known.WEIGHTS.shards} shards, {known.WEIGHTS.size} bytes",
        f"`{known.WEIGHTS.config_sha256}`",
    ]
    wanted += [f"{one.size} bytes, md5 `{one.md5}` and Build ID `{one.build_id}`" for one in known.LIBRARIES if one.md5]
    assert [text for text in wanted if text not in " ".join(TEXT.split())] == []


def test_no_digest_on_the_page_is_unknown_to_the_data() -> None:
    data = (ROOT / "fleet" / "known.toml").read_text()
    digests = set(re.findall(r"\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*[0-9])[0-9a-f]{8,64}\b", TEXT))
    assert digests
    assert {digest for digest in digests if digest not in data} == set()
