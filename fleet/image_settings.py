"""The part of the settings that is about the engine's image, and how it gets on the nodes."""

import re
from collections.abc import Iterator

from pydantic import Field

from fleet import scalars
from fleet.model import Broken
from fleet.model import Model as _Model

OF_DOCKER_ITSELF = re.compile(r"PATH|HOME|(DOCKER|BUILDX|LD|SUDO|SPARK_FABRIC)_.*")
"""Args and secrets are in the environment of the program `docker`, and these mean something to it."""


class Build(_Model):
    """How the image is built, once, on one node."""

    context: scalars.Path = Field(
        description="Folder on this machine that is built of, without what its `.dockerignore` keeps out and without "
        "`.git`, unless a line `!.git` there lets that in; `~` is your home, relative paths start at the stack file. "
        "It is read in every preview, so leave out what is large."
    )
    dockerfile: scalars.InnerPath = Field("Dockerfile", description="The recipe, relative to the context.")
    args: dict[scalars.EnvName, scalars.EnvValue] = Field(
        {},
        description="Build args; a changed one means another image. Docker writes those that a `RUN` sees into the "
        "image: for passwords take `secrets`.",
    )
    secrets: dict[scalars.EnvName, scalars.SecretText] = Field(
        {},
        description="For `RUN --mount=type=secret,id=NAME`, with BuildKit; in no image and in no digest. Set them with "
        "`pulumi config set --secret --path`.",
    )
    node: scalars.Label | None = Field(None, description="The active node that builds. Without it: the head.")

    def rules(self) -> Iterator[Broken]:
        """No arg or secret is called as something that docker itself goes by."""
        for key, names in (("args", self.args), ("secrets", self.secrets)):
            for name in names:
                if OF_DOCKER_ITSELF.fullmatch(name):
                    yield Broken(
                        "build-name", (key, name), "means something to docker itself", "another name", "Rename it."
                    )


class Image(_Model):
    """The engine's image."""

    ref: scalars.ImageRef = Field(
        description="Image reference. A digest pins it; a tag is resolved on the nodes. What is built gets `-` and 12 "
        "digits of a digest of all that decides about it behind its tag."
    )
    archive: scalars.Path | None = Field(
        None,
        description="`docker save` archive that is loaded where the image is missing. Without it, `pull` and `build` "
        "every node has the image already, with one id.",
    )
    pull: scalars.Switch = Field(
        False,
        description="Each node that lacks the image pulls it, with what `docker login` of `ssh.user` left there. The "
        "reference ends with a digest: `REPOSITORY@sha256:…`.",
    )
    build: Build | None = Field(
        None, description="Built on one node where no node has it, then copied to the others, so that ids are equal."
    )
    roce_ring: scalars.Switch = Field(
        False,
        description="The image has the path-aware RoCEnante, `b12x.comm.roce_ring`, as those of "
        "`Dockerfile.canary-roce` have. The mesh needs it; nothing else asks.",
    )

    @property
    def by_name(self) -> bool:
        """Whether the name alone says which image it is, so that it need not be there to be planned with."""
        return self.pull or self.build is not None

    def rules(self) -> Iterator[Broken]:
        """The image comes from one place, under a name that fits."""
        ways = {"archive": self.archive is not None, "pull": self.pull, "build": self.build is not None}
        first, *others = [key for key, there in ways.items() if there] or [""]
        for key in others:
            yield Broken(
                "image-ways",
                (key,),
                f"is set beside {first}",
                "one of archive, pull and build",
                "Remove those that do not count.",
                ((first,),),
            )
        pinned = "@" in self.ref
        if self.pull and not pinned:
            yield Broken(
                "pull-unpinned",
                ("ref",),
                f"is {self.ref} with pull",
                "a reference that ends with @sha256:…",
                "A tag may mean another image tomorrow, and another on each node. `docker buildx imagetools inspect "
                f"{self.ref}` shows its digest.",
                (("pull",),),
            )
        for key in ("archive", "build"):
            if ways[key] and pinned:
                yield Broken(
                    "image-pinned",
                    ("ref",),
                    f"has a digest with {key}",
                    "a name with a tag",
                    "Only a registry gives such a digest: name it NAME:TAG.",
                    ((key,),),
                )
        if self.build:
            yield from (broken.under("build") for broken in self.build.rules())
