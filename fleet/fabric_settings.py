"""The part of the settings that is about the fabric: cabling and addresses."""

from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import BeforeValidator, Field
from pydantic.alias_generators import to_camel

from fleet import scalars
from fleet.addressing import SUBNET_PREFIX
from fleet.model import Broken
from fleet.model import Model as _Model
from fleet.scalars import choice
from fleet.topology import Cabling, Kind, Socket


class Plane(_Model):
    """One plane of the fabric: the functions of all ports in one PCI domain."""

    enabled: scalars.Switch = Field(True, description="Off takes addresses and routes of this plane away.")
    pool: scalars.Pool = Field(description=f"Network that is cut into one /{SUBNET_PREFIX} for each cable or rail.")


def _plane(pool: str) -> BeforeValidator:
    return BeforeValidator(lambda value: {"pool": pool, **value} if isinstance(value, Mapping) else value)


class Fabric(_Model):
    """Cabling and addresses."""

    topology: Annotated[Kind, choice(Kind)] = Field(
        Kind.RING,
        description="`ring`: a cable from each node to the next. `switched`: one port of each node on a switch.",
    )
    cabling: Annotated[Cabling, choice(Cabling)] = Field(
        Cabling.DISCOVER,
        description="Ring only. `discover`: the cables are found by listening on the ports; neighbouring ranks must "
        "share one, in either direction. `ring`: rank k's f0 must lead to rank k+1's f1. `reversed`: to rank k-1's f1.",
    )
    port: Annotated[Socket, choice(Socket)] = Field(
        Socket.F0, description="Switched only. The QSFP port that is on the switch; `f0` is PCI function 0."
    )
    mtu: scalars.Whole = Field(
        9000, ge=1500, le=9978, description="MTU of every fabric port.", json_schema_extra={"unit": "bytes"}
    )
    plane0: Annotated[Plane, _plane("10.10.0.0/16")] = Field(
        default_factory=lambda: Plane.model_validate({"pool": "10.10.0.0/16"}), description="Plane 0, PCI domain 0000."
    )
    plane1: Annotated[Plane, _plane("10.20.0.0/16")] = Field(
        default_factory=lambda: Plane.model_validate({"pool": "10.20.0.0/16"}), description="Plane 1, PCI domain 0002."
    )
    ip_relay: scalars.Switch = Field(
        True,
        description="Ring only. Plain IP between nodes that share no cable: routes, `ip_forward`, firewall accepts. "
        "Neither RoCE nor the mesh uses this path.",
    )

    set_aside: list[scalars.NetplanFile] = Field(
        [],
        description="Netplan files of the nodes, not ours, that configure fabric ports: moved out of the way while the "
        "stack is up and put back at destroy. Without it such a file is refused.",
    )

    @property
    def planes(self) -> Mapping[int, Plane]:
        """Both planes, by number."""
        return {0: self.plane0, 1: self.plane1}

    @property
    def on(self) -> tuple[int, ...]:
        """Numbers of the enabled planes."""
        return tuple(number for number, plane in self.planes.items() if plane.enabled)

    def rules(self) -> Iterator[Broken]:
        """Planes are disjoint and at least one is on; no key of the other topology is set."""
        if not self.on:
            yield Broken(
                "no-plane",
                ("plane0", "enabled"),
                "is off as plane1.enabled is",
                "at least one plane on",
                "Use `pulumi destroy` to take the fabric away.",
                (("plane1", "enabled"),),
            )
        if self.plane0.pool.overlaps(self.plane1.pool):
            yield Broken(
                "pools-overlap",
                ("plane1", "pool"),
                f"is {self.plane1.pool} and overlaps plane0.pool {self.plane0.pool}",
                "a pool of its own for each plane",
                "Choose another network for one of the two.",
                (("plane0", "pool"),),
            )
        foreign = {"cabling": Kind.RING, "ip_relay": Kind.RING, "port": Kind.SWITCHED}
        for name in sorted(self.model_fields_set & set(foreign)):
            harmless = name == "ip_relay" and not self.ip_relay
            if self.topology is not foreign[name] and not harmless:
                yield Broken(
                    "wrong-topology",
                    (to_camel(name),),
                    f"is set on a {self.topology} fabric",
                    f"it on a {foreign[name]} only",
                    "Remove the key, or correct fabric.topology.",
                    (("topology",),),
                )
