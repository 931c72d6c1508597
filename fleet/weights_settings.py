"""The part of the settings that is about weights: the folder on the nodes, or the head's, shared with the workers."""

from collections.abc import Iterator

from pydantic import Field

from fleet import scalars
from fleet.known import WEIGHTS
from fleet.model import Broken, Model

MODEL = "/models/DeepSeek-V4.1-Flash"
"""Where the DeepSeek-V4.1-Flash images look for their weights (the launcher's MODEL_PATH)."""

TOLD = ("MODEL_PATH", "DSV41_SOURCE")
"""The variables that tell an engine where its weights are."""


MOUNT = "nfsvers=4.2,ro,nconnect=8,rsize=1048576,wsize=1048576,soft,timeo=600,retrans=2"
"""The launcher's NFS_OPTS_CLIENT, but for `hard`: with that a server that goes away hangs whatever touches the mount
until a power cycle. A `soft` one gives up after three minutes, and the engine ends with an error."""

EXPORT = "ro,sync,no_subtree_check,no_root_squash,fsid=0"
"""The launcher's NFS_OPTS without `insecure`: docker mounts from a privileged port. Squashed, root could not read a
file that is not open to all."""

VOLUME, EXPORTER = "spark-fabric-weights", "spark-fabric-exporter"


class Nfs(Model):
    """How workers get the weights from the head, or from another server."""

    image: scalars.ImageRef | None = Field(
        None,
        description="Image on the head of an NFS server, which then runs there, privileged: it exports `/export` to "
        "the addresses in `NFS_CLIENTS` with `NFS_OPTS`, as the launcher's `dsv41-nfs:local` does.",
    )
    name: scalars.ContainerName = Field(EXPORTER, description="Name of that container.")
    export_options: scalars.Word = Field(EXPORT, description="Options of its export.")
    reuse: scalars.ContainerName | None = Field(
        None,
        description="Instead of it, a container of the head that serves already. It is not changed; its `/etc/exports` "
        "has to name each worker.",
    )
    server: scalars.Address | None = Field(
        None,
        description="Address of the server, as workers reach it. Without it: the head's management address. Alone, "
        "without `image` and `reuse`, any server.",
    )
    device: scalars.Word = Field(":/", description="What is mounted of the server: a colon and a path of its export.")
    volume: scalars.ContainerName = Field(
        VOLUME,
        description="Name of the docker volume on each worker. One that is there already is used if driver and options "
        "are the same, and stays at destroy.",
    )
    options: scalars.Word = Field(MOUNT, description="Options of the mount, without `addr`.")

    def rules(self) -> Iterator[Broken]:
        """There is one server, and what it serves is only read."""
        if self.image and self.reuse:
            wanted = "one server: image starts one, reuse names one"
            yield Broken("nfs-twice", ("reuse",), "is set beside image", wanted, "Remove one.", (("image",),))
        if not (self.image or self.reuse or self.server):
            seen, wanted = "names no server", "image, reuse or server"
            yield Broken("nfs-server", (), seen, wanted, "With image a server is started on the head.")
        for key in ("name", "export_options") if not self.image else ():
            if key in self.model_fields_set:
                alias = str(type(self).model_fields[key].alias)
                yield Broken(
                    "nfs-unused", (alias,), "is set without image", "it beside image", "Remove it.", (("image",),)
                )
        if not self.device.startswith(":/"):
            hint = "The server's address is a key of its own."
            yield Broken("nfs-device", ("device",), f"is {self.device}", "a colon and a path, such as :/", hint)
        for key, text in (("options", self.options), ("exportOptions", self.export_options)):
            words = text.split(",")
            if "ro" not in words or "rw" in words:
                yield Broken("nfs-writable", (key,), f"is {text}", "ro among them", "Weights are only read.")
        if any(word.startswith("addr=") for word in self.options.split(",")):
            hint = "Set engine.weights.nfs.server or nodes[].weights.server."
            yield Broken("nfs-address", ("options",), "names an address", "none: it is that of the server", hint)


class Weights(Model):
    """The weights of the engine: a whole checkpoint on every node, or on the head."""

    path: scalars.NodePath = Field(
        description="Folder on every node: `config.json`, `model.safetensors.index.json` and the shards. It is checked "
        "and mounted read-only, and never written. With `nfs`: on the head."
    )
    mount: scalars.NodePath = Field(MODEL, description="Where the folder is in the container; the engine is told.")
    revision: scalars.Word | None = Field(
        None,
        description="Commit of the checkpoint that it has to be, for the one that is recorded "
        f"(`{WEIGHTS.revision[:7]}…`, [prerequisites](prerequisites.md#weights)): its `config.json`, its shards and "
        "their size altogether. Without it: any, the same on all nodes.",
    )

    manifest: scalars.Path | None = Field(
        None,
        description="Local file with the digests of files of the folder, as `sha256sum` prints them. `up` reads those "
        "once on every node, before it stops anything; on a node that joins, before its engine starts. Without it "
        "nobody reads them.",
    )
    nfs: Nfs | None = Field(
        None, description="Share the head's folder with the workers. Without it every node has its own."
    )

    def rules(self) -> Iterator[Broken]:
        """A revision is one that something is known of, and there is one server."""
        if self.nfs:
            yield from (broken.under("nfs") for broken in self.nfs.rules())
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
    server: scalars.Address | None = Field(
        None, description="Address at which this worker reaches the server of `engine.weights.nfs`, where it differs."
    )
