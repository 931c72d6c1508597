"""How large a message may be that the mesh carries, by the hairpin queues of the cards that pass it on.

A queue that is full drops without holding the sender back. Measured by the launcher's authors on four Sparks, drops
summed over all 16 functions: with 1024 packets (64 KiB) the first drops are at 100 KB, with 8192 (512 KiB) there are
none up to 480 KB.
"""

DEFAULT_QUEUE = 8192
LEAST_QUEUE, MOST_QUEUE = 1024, 8192
"""Packets of 64 bytes: the driver's default and its maximum (mlx5, `hairpin_queue_size`)."""

QUEUES = 4
"""Hairpin queues of a function (`hairpin_num_queues`): what the mesh was qualified with."""

SMALL, LARGE = 81920, 262144


def cap(queue: int) -> int:
    """The largest message in bytes that a mesh carries whose smallest queue has so many packets."""
    return LARGE if queue >= MOST_QUEUE else SMALL
