"""The part of the settings that is about the engine: its image, its container, what it is told."""

from collections.abc import Iterator
from ipaddress import IPv4Address
from typing import Annotated

from pydantic import BeforeValidator, Field, TypeAdapter

from fleet import scalars
from fleet.container_settings import AsSwitch, Healthcheck, Log
from fleet.image_settings import Image
from fleet.model import Broken
from fleet.model import Model as _Model
from fleet.profiles import Profile
from fleet.scalars import GpuChoice, Gpus, OnFailure, choice
from fleet.serving import Serving
from fleet.smoke_settings import Smoke
from fleet.weights_settings import TOLD, Weights


class Volume(_Model):
    """A folder or docker volume of the node in the container. Written as `SOURCE:/TARGET[:ro]`, or as keys.

    `owner` and `mode` are what the folder has to have on the node, as `chown` and `chmod` take them.
    """

    source: str
    target: str
    read_only: bool
    owner: scalars.Owner | None = None
    mode: scalars.Mode | None = None


VOLUME_KEYS = {"source", "target", "readOnly", "owner", "mode"}


def _volume(value: object) -> dict[str, object]:
    wanted = "/FOLDER:/TARGET, optionally with :ro"
    if isinstance(value, dict) and value.keys() <= VOLUME_KEYS and {"source", "target"} <= value.keys():
        read_only = TypeAdapter(scalars.Switch).validate_python(value.get("readOnly", False))
        text = f"{value['source']}:{value['target']}{':ro' if read_only else ''}"
        more = {key: value[key] for key in ("owner", "mode") if key in value}
        if more and not str(value["source"]).startswith("/"):
            raise scalars.wrong("not-a-volume", "owner and mode of a folder only", "A docker volume is docker's own.")
        return {**_volume(text), **more}
    if not isinstance(value, str):
        raise scalars.wrong("not-a-volume", wanted, "As keys: source, target, readOnly, owner, mode.")
    source, _, rest = value.partition(":")
    target, _, mode = rest.partition(":")
    named = scalars.CONTAINER_NAME.fullmatch(source) is not None
    if not (source.startswith("/") or named) or not target.startswith("/") or mode not in ("", "ro", "rw"):
        raise scalars.wrong(
            "not-a-volume", wanted, "Both paths are absolute; the source may be a docker volume's name."
        )
    return {"source": source, "target": target.rstrip("/") or "/", "readOnly": mode == "ro"}


OWNED_ENV = {
    "NNODES": "nodes",
    "NODE_RANK": "the order of nodes",
    "TP_SIZE": "nodes",
    "EP_SIZE": "engine.epSize",
    "DIST_INIT_ADDR": "nodes[0].address and engine.distPort",
    "HOST": "engine.listen",
    "SERVER_PORT": "engine.port",
    "SERVED_MODEL_NAME": "engine.servedModelName",
    "VLLM_HOST_IP": "nodes[].address",
    "HOST_IP": "nodes[].address",
    "NCCL_IB_HCA": "fabric (and nodes[].ports)",
    "NCCL_IB_GID_INDEX": "engine.gidIndex, else what each node has",
    "NCCL_IB_SUBNET_PREFIX_LEN": "fabric",
    "NCCL_SOCKET_IFNAME": "nodes[].address",
    "GLOO_SOCKET_IFNAME": "nodes[].address",
}
"""Container variables that follow from other settings, and which."""


EVERYWHERE = IPv4Address(0)

KEY = "API_KEY"
NO_KEY = frozenset({"", "empty", "none", "off", "dummy", "0"})
"""Values of it that images and launcher take for "no key", in any case (launcher.md, host-side settings)."""


class Engine(_Model):
    """The inference engine: one container on each node."""

    image: Annotated[Image, BeforeValidator(lambda value: {"ref": value} if isinstance(value, str) else value)] = Field(
        description="Image reference, or keys. It is on every node already, or one of `archive`, `pull` and `build` "
        "brings it."
    )
    name: scalars.ContainerName | None = Field(
        None, description="Container name on every node. Without it: `spark-fabric-<stack>`."
    )
    port: scalars.Whole = Field(8888, ge=1, le=65535, description="TCP port of the OpenAI-compatible API on the head.")
    dist_port: scalars.Whole = Field(20000, ge=1, le=65535, description="TCP port of the rendezvous on the head.")
    listen: scalars.Listen = Field(EVERYWHERE, description="Address the API listens on.")
    allow_anonymous: scalars.Switch = Field(
        False,
        description="On: whoever reaches the port may use the API. Off: rank 0 has to have a key, as the secret "
        "`engine.headEnv.API_KEY`; not asked of an engine with `profile: none`.",
    )
    served_model_name: scalars.Word = Field("deepseek-v4.1-flash", description="Model name in the API.")
    ep_size: Annotated[scalars.Whole, Field(ge=1)] | None = Field(
        None,
        description="Expert-parallel size; divides the number of ranks. "
        "Without it: the smallest from 2 on that the engine's kernels can take; 2 with 4 ranks. Production: from 1.",
    )
    profile: Annotated[Profile, choice(Profile)] = Field(
        Profile.AUTO,
        description="`auto`: variables of NCCL as the fabric needs them, listed below; a ring then has 4 ranks. "
        "`none`: only those that follow from nodes and fabric, the others are yours. The others: everything that the "
        "launcher tells its containers, on this fabric and for that image ([docs/settings.md](settings.md)).",
    )
    serving: Serving = Field(
        Serving(),
        description="Capacity and scheduling. Without a key: what the profile says; `auto` and `none` say nothing, and "
        "the image has its own values.",
    )
    gid_index: Annotated[scalars.Whole, Field(ge=0, le=255)] | None = Field(
        None,
        description="GID index of all RDMA devices of every rank; checked on each. "
        "Without it each rank gets the one that its node has.",
    )
    env: dict[scalars.EnvName, scalars.EnvValue] = Field(
        {},
        description="Container variables of all ranks, added or replaced; not those that follow from other keys.",
    )
    head_env: dict[scalars.EnvName, scalars.EnvValue] = Field(
        {}, description="The same for rank 0 only; wins over `env`."
    )
    without: list[scalars.EnvName] = Field([], description="Variables of the profile that no rank is told.")
    privileged: scalars.Switch = Field(
        False, description="Run privileged. The default gives `/dev/infiniband` and CAP_IPC_LOCK."
    )
    gpus: GpuChoice = Field(
        Gpus.REQUEST, description="`request`: docker's GPU request. `cdi`: CDI devices. `off`: no GPU."
    )
    shm_size: scalars.Size = Field(
        32 << 30, description="Shared memory, with unit.", json_schema_extra={"unit": "k, m, g or t"}
    )
    stop_grace: scalars.Whole = Field(
        30,
        ge=1,
        le=600,
        description="Time between SIGTERM and SIGKILL, whoever stops a container: this program, docker, or the node as "
        "it shuts down.",
        json_schema_extra={"unit": "s"},
    )
    log: Log = Field(Log(), description="What docker keeps of what the containers print.")
    healthcheck: Annotated[Healthcheck, AsSwitch] = Field(
        Healthcheck(), description="What docker asks of a running container. Without a key: what the image says."
    )
    ready_timeout: scalars.Whole = Field(
        3600,
        ge=10,
        le=86400,
        description="How long the engine may take until the API is healthy.",
        json_schema_extra={"unit": "s"},
    )
    smoke: Smoke = Field(Smoke(), description="What the engine has to answer before it counts as ready.")
    on_failure: Annotated[OnFailure, choice(OnFailure)] = Field(
        OnFailure.KEEP,
        description="What an `up` does with an engine that does not get ready; it fails in any case. `keep`: leaves it "
        "to be looked at. `rollback`: removes it, and starts the one that served last again, on all nodes.",
    )
    volumes: list[Annotated[Volume, BeforeValidator(_volume)]] = Field(
        [],
        description="Folders (absolute) or docker volumes of each node, `SOURCE:/TARGET[:ro]`. As keys, `{source, "
        "target, readOnly, owner, mode}`, the folder has to have that owner and mode on every node. Folders have to be "
        "there, and writable unless they are read-only.",
    )
    weights: Weights | None = Field(
        None,
        description="The weights, as a folder of every node. Without it they are not looked at; `volumes` may mount "
        "them.",
    )

    @property
    def own_address(self) -> str:
        """Where the head reaches its own API."""
        return "127.0.0.1" if self.listen == EVERYWHERE else str(self.listen)

    def rules(self) -> Iterator[Broken]:
        """Ports differ, mount points differ, and no variable is set that another key decides."""
        yield from (broken.under("image") for broken in self.image.rules())
        yield from self._weights()
        yield from self._key()
        if self.port == self.dist_port:
            yield Broken(
                "port-twice",
                ("distPort",),
                f"is {self.dist_port} as engine.port is",
                "two different ports",
                "Choose another engine.distPort.",
                (("port",),),
            )
        for where, env in (("env", self.env), ("headEnv", self.head_env)):
            for name in env:
                if name in OWNED_ENV:
                    yield Broken(
                        "env-owned",
                        (where, name),
                        "is set by hand",
                        f"it to follow from {OWNED_ENV[name]}",
                        "Remove it here and set that.",
                    )
        seen: dict[str, int] = {}
        for index, volume in enumerate(self.volumes):
            if volume.target in seen:
                yield Broken(
                    "mount-twice",
                    ("volumes", index),
                    f"mounts at {volume.target} as volumes[{seen[volume.target]}] does",
                    "one source for each target",
                    "Change one of the targets.",
                    (("volumes", seen[volume.target]),),
                )
            seen.setdefault(volume.target, index)

    def _key(self) -> Iterator[Broken]:
        """Nobody uses the API without a key unless that is said."""
        if self.allow_anonymous or self.profile is Profile.NONE:
            return
        key = self.head_env.get(KEY)
        if key is None or key.lower() in NO_KEY:
            yield Broken(
                "api-key",
                ("headEnv", KEY),
                "is missing" if key is None else "means no key",
                "a key: without one whoever reaches the port may use the API",
                "Set one: ./pulumiw config set --secret --path 'spark-fabric:engine.headEnv.API_KEY'. To do without: "
                "engine.allowAnonymous: on.",
                (("allowAnonymous",), ("profile",)),
            )

    def _weights(self) -> Iterator[Broken]:
        """Weights that are checked are those that the engine loads."""
        if self.weights is None:
            return
        yield from (broken.under("weights") for broken in self.weights.rules())
        mount, also = self.weights.mount, (("weights",),)
        for index, volume in enumerate(self.volumes):
            if volume.target == mount:
                seen, wanted = f"mounts at {mount}, where engine.weights goes", "one source for each target"
            elif volume.target.startswith(f"{mount}/"):
                seen, wanted = f"mounts at {volume.target}, inside of engine.weights", "nothing in that folder"
            else:
                continue
            hint = "Remove it: engine.weights does this, read-only."
            yield Broken("mount-twice", ("volumes", index), seen, wanted, hint, also)
        for where, env in (("env", self.env), ("headEnv", self.head_env)):
            for name in TOLD:
                if env.get(name, mount) != mount:
                    yield Broken(
                        "weights-elsewhere",
                        (where, name),
                        f"is {env[name]}, and engine.weights is at {mount}",
                        "one place",
                        "Remove it here: it follows from engine.weights.mount.",
                        also,
                    )
