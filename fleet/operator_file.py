"""A file that the operator brings and that this program never makes: where it is, and what it has to be."""

from collections.abc import Iterator

from pydantic import Field

from fleet import scalars
from fleet.model import Broken, Model


class OperatorFile(Model):
    """A program or library of the operator: a local one that is sent to the nodes, or one that is there already."""

    file: scalars.Path | None = Field(
        None,
        description="Local file, sent once to each node and removed from it at destroy; `~` is your home, relative "
        "paths start at the stack file.",
    )
    on_node: scalars.NodePath | None = Field(
        None, description="Instead: absolute path of the file on every node. It is only read."
    )
    sha256: scalars.Sha256 = Field(description="SHA-256 of the file, 64 hex digits; checked on every node.")

    def rules(self) -> Iterator[Broken]:
        """The file is in one place."""
        if self.file is None and self.on_node is None:
            yield Broken(
                "file-nowhere",
                ("file",),
                "is missing, onNode too",
                "one of them",
                "Say where the file is.",
                (("onNode",),),
            )
        if self.file is not None and self.on_node is not None:
            yield Broken(
                "file-twice",
                ("onNode",),
                "is set beside file",
                "one of them",
                "Remove the one that does not count.",
                (("file",),),
            )
