"""The part of the settings that is about NCCL: where the engine's library comes from."""

from typing import Annotated

from pydantic import BeforeValidator, Field

from fleet import scalars
from fleet.model import Model as _Model
from fleet.scalars import LibraryMode, choice

PIP_LIBRARY = "/opt/sglang/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2"
"""Where torch finds NCCL in the DeepSeek-V4.1-Flash images (the launcher's NCCL_PIP_SO)."""

LIBRARY_FOLDER = "/nccl"
"""Where a folder with the library is in the container (the launcher's NCCL_CONTAINER_DIR)."""


class LibrarySource(_Model):
    """The operator's NCCL library. Written as the path of a local file, or as `{onNode: PATH}`."""

    file: scalars.Path | None = Field(
        None,
        description="Local file, or a folder with `libnccl.so.2.30.7` or `libnccl.so.2`; relative paths start at the "
        "stack file. It is sent to each node once, and removed at destroy.",
    )
    on_node: scalars.NodePath | None = Field(
        None,
        description="The same on the nodes: a file that is there already. It is only read, and has to be the same "
        "everywhere.",
    )


class Nccl(_Model):
    """The NCCL library of the engine."""

    mode: Annotated[LibraryMode, choice(LibraryMode)] | None = Field(
        None,
        description="`image`: that of the image. `overlay`: yours, read-only over that of the image; the only one on a "
        f"ring. `directory`: your folder at `{LIBRARY_FOLDER}` with `LD_LIBRARY_PATH`, which programs that load NCCL "
        "with ctypes find, and torch does not. Without it: `overlay` on a ring, `image` on a switched fabric.",
    )
    library: Annotated[
        LibrarySource, BeforeValidator(lambda value: {"file": value} if isinstance(value, str) else value)
    ] = Field(LibrarySource(), description="Your library: the path of a local file, or `{onNode: PATH}`.")
    sha256: scalars.Sha256 | None = Field(
        None,
        description="Digest of the library that you trust; every other file is refused. Nothing else is trusted: the "
        "strings that are looked for, size and BuildID are hints that a file fits.",
    )
    target: scalars.NodePath = Field(
        PIP_LIBRARY, description="`overlay` only. The image's file that yours lies over; it has to be there."
    )
