"""The section `mesh` of the stack config."""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from fleet import scalars
from fleet.mesh.marker import QUALIFIED
from fleet.mesh.sizes import DEFAULT_QUEUE, LEAST_QUEUE, MOST_QUEUE, cap
from fleet.model import Broken, Model
from fleet.operator_file import OperatorFile

Bytes = Annotated[scalars.Whole, Field(ge=1024, le=1 << 30)]


class Mesh(Model):
    """Hardware-forwarded paths between the opposite nodes of a ring of four."""

    enabled: scalars.Switch = Field(
        False,
        description="Research-only. On: RoCEnante reaches opposite nodes through the neighbours' network cards. Off "
        "takes all of it away again, with the engine stopped first.",
    )
    marker: OperatorFile | None = Field(
        None,
        description="The marker, `mlx5-rdma-tx-rewrite-probe`, built by you from sparkring f16b5f4 (a known build: "
        f"{QUALIFIED[:12]}…). It tags every RDMA packet with UDP source port 65535 on its devices, whoever sends it.",
    )
    hairpin_queue_size: Annotated[scalars.Whole, Field(ge=LEAST_QUEUE, le=MOST_QUEUE)] = Field(
        DEFAULT_QUEUE,
        description="Hairpin queue of each fabric function, a power of two. The driver's own is 1024. A change "
        "re-initialises one function after the other, with the engine stopped.",
        json_schema_extra={"unit": "packets"},
    )
    max_size: Bytes | None = Field(
        None,
        description=f"Largest all-reduce that goes through RoCEnante. Without it: {cap(MOST_QUEUE)} with a queue of "
        f"{MOST_QUEUE}, else {cap(LEAST_QUEUE)}.",
        json_schema_extra={"unit": "bytes"},
    )
    gather_size: Bytes | None = Field(
        None,
        description="Largest all-gather that does, for each rank. Without it: as `mesh.maxSize` without it.",
        json_schema_extra={"unit": "bytes"},
    )
    allow_large_cap: scalars.Switch = Field(
        False, description="Take sizes above that too: queues that run over drop, and collectives get slow."
    )

    @property
    def cap(self) -> int:
        """The largest message that the queues take, in bytes."""
        return cap(self.hairpin_queue_size)

    def rules(self) -> Iterator[Broken]:
        """The queue is one that the driver takes, and the sizes are such as the queue takes."""
        if self.marker is not None:
            yield from (broken.under("marker") for broken in self.marker.rules())
        queue = self.hairpin_queue_size
        if queue & (queue - 1):
            below = 1 << (queue.bit_length() - 1)
            yield Broken(
                "mesh-queue",
                ("hairpinQueueSize",),
                f"is {queue}",
                "a power of two",
                f"The driver takes no other. Write {below} or {2 * below}.",
            )
            return
        for key, size in (("maxSize", self.max_size), ("gatherSize", self.gather_size)):
            if size is not None and size > self.cap and not self.allow_large_cap:
                yield Broken(
                    "mesh-size",
                    (key,),
                    f"is {size} with mesh.hairpinQueueSize {queue}",
                    f"at most {self.cap}",
                    "Larger messages overrun the queues. mesh.allowLargeCap: on takes it all the same.",
                    (("hairpinQueueSize",), ("allowLargeCap",)),
                )
