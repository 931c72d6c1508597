"""The part of the settings that is about weights: the folder on the nodes, and where the engine finds it."""

from collections.abc import Iterator

from pydantic import Field

from fleet import scalars
from fleet.known import WEIGHTS
from fleet.model import Broken, Model

MODEL = "/models/DeepSeek-V4.1-Flash"
"""Where the DeepSeek-V4.1-Flash images look for their weights (the launcher's MODEL_PATH)."""

TOLD = ("MODEL_PATH", "DSV41_SOURCE")
"""The variables that tell an engine where its weights are."""


class Weights(Model):
    """The weights of the engine, a whole checkpoint on every node."""

    path: scalars.NodePath = Field(
        description="Folder on every node: `config.json`, `model.safetensors.index.json` and the shards. It is checked "
        "and mounted read-only, and never written."
    )
    mount: scalars.NodePath = Field(MODEL, description="Where the folder is in the container; the engine is told.")
    revision: scalars.Word | None = Field(
        None,
        description="Commit of the checkpoint that it has to be, for the one that is recorded "
        f"(`{WEIGHTS.revision[:7]}…`, [prerequisites](prerequisites.md#weights)): its `config.json`, its shards and "
        "their size altogether. Without it: any, the same on all nodes.",
    )

    def rules(self) -> Iterator[Broken]:
        """A revision is one that something is known of."""
        if self.revision not in (None, WEIGHTS.revision):
            yield Broken(
                "revision-unknown",
                ("revision",),
                f"is {self.revision}",
                f"{WEIGHTS.revision}, of {WEIGHTS.repository}",
                "Nothing is recorded of another one. Leave it out: that the nodes have the same is checked anyway.",
            )


class NodeWeights(Model):
    """The weights of one node, where their place differs."""

    path: scalars.NodePath | None = Field(
        None, description="Folder on this node; as `engine.weights.path` where left out."
    )
