"""The part of the settings that is about nodes: which they are, how to reach them, which devices are their ports."""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from fleet import scalars
from fleet.model import Broken
from fleet.model import Model as _Model
from fleet.problems import Loc
from fleet.scalars import State, choice
from fleet.topology import Socket
from fleet.weights_settings import NodeWeights


class PortNames(_Model):
    """The devices of one port in one plane."""

    netdev: scalars.Netdev | None = Field(None, description="Network device, such as `enp1s0f0np0`.")
    hca: scalars.Word | None = Field(None, description="RDMA device, such as `rocep1s0f0`.")


class PlanePorts(_Model):
    """The ports of one plane."""

    f0: PortNames = Field(PortNames(), description="The port with PCI function 0.")
    f1: PortNames = Field(PortNames(), description="The port with PCI function 1.")


class NodePorts(_Model):
    """Device names of one node, where they cannot be found by PCI domain and function."""

    plane0: PlanePorts = Field(PlanePorts(), description="Plane 0, PCI domain 0000.")
    plane1: PlanePorts = Field(PlanePorts(), description="Plane 1, PCI domain 0002.")

    def names(self, plane: int, socket: Socket) -> PortNames:
        """What the operator says about one port."""
        of_plane = self.plane0 if plane == 0 else self.plane1
        return of_plane.f0 if socket is Socket.F0 else of_plane.f1

    def rules(self) -> Iterator[Broken]:
        """No device belongs to two ports."""
        seen: dict[str, Loc] = {}
        for plane in (0, 1):
            for socket in Socket:
                names = self.names(plane, socket)
                for kind, name in (("netdev", names.netdev), ("hca", names.hca)):
                    loc: Loc = (f"plane{plane}", socket.value, kind)
                    if name is None:
                        continue
                    if name in seen:
                        yield Broken(
                            "device-twice",
                            loc,
                            f'is "{name}" as at {".".join(map(str, seen[name]))}',
                            "another device for each port",
                            "Correct one of the two.",
                            (seen[name],),
                        )
                    seen.setdefault(name, loc)


class NodeSsh(_Model):
    """SSH of one node, where it differs from the others."""

    user: scalars.User | None = Field(None, description="Login name; as `ssh.user` where left out.")
    port: Annotated[scalars.Whole, Field(ge=1, le=65535)] | None = Field(
        None, description="TCP port; as `ssh.port` where left out."
    )
    identity: scalars.Path | None = Field(None, description="Private key file; as `ssh.identity` where left out.")


class NodeNccl(_Model):
    """The NCCL library of one node, where its place differs."""

    on_node: scalars.NodePath | None = Field(
        None, description="Path on this node; as `nccl.library.onNode` where left out."
    )


class Node(_Model):
    """One DGX Spark."""

    name: scalars.Label = Field(description="Name of the node in resources, messages and `ssh`. Unique.")
    address: scalars.Address = Field(description="Address of the management port; not a fabric address. Unique.")
    state: Annotated[State, choice(State)] = Field(
        State.ACTIVE,
        description="`leaving` takes the node out of the fleet: `up` with it, then remove the entry and `up` again.",
    )
    host_key: scalars.HostKey | None = Field(
        None, description="Public SSH host key, `ssh-ed25519 AAAA…`. Without it the key comes from `ssh.knownHosts`."
    )
    ssh: NodeSsh = Field(NodeSsh(), description="What differs from `ssh` on this node.")
    ports: NodePorts = Field(
        NodePorts(), description="Device names, where they cannot be read from PCI domain and function number."
    )

    nccl: NodeNccl = Field(NodeNccl(), description="Where the library lies on this node.")
    weights: NodeWeights = Field(NodeWeights(), description="Where the weights lie on this node.")

    @property
    def active(self) -> bool:
        """Whether the node has a rank."""
        return self.state is State.ACTIVE


class Ssh(_Model):
    """How to reach the nodes. The system's `ssh` is used, with a config that is generated from this."""

    user: scalars.User = Field(description="Login name on the nodes; needs `sudo` without a password, or is root.")
    port: scalars.Whole = Field(22, ge=1, le=65535, description="TCP port of sshd.")
    identity: scalars.Path | None = Field(
        None,
        description="Private key file; `~` is your home, relative paths start at the stack file. "
        "Without it: the agent's keys and ssh's own.",
    )
    known_hosts: scalars.Path = Field(
        "~/.ssh/known_hosts",
        description="Known-hosts file with the nodes' keys, by address or name. Keys are always checked.",
    )
    connect_timeout: scalars.Whole = Field(
        5,
        ge=1,
        le=60,
        description="How long a node may take to answer a look. A change gives it 30 s at least.",
        json_schema_extra={"unit": "s"},
    )
