"""A lab that ends with the process that wanted it, however that ends."""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING

from . import daemons, lifecycle
from .shell import LabError, wait_for

if TYPE_CHECKING:
    from .model import Lab

PATIENCE = 60.0  # seconds that another command may still be at work on the lab


def outlive(lab: Lab, owner: int) -> None:
    """The daemon: wait for the owner's end, then take the lab down and delete its state folder."""
    lock = daemons.enter(lab, daemons.OWNED)
    try:
        ended = os.pidfd_open(owner)
    except ProcessLookupError:
        pass
    else:
        select.select([ended], [], [])
    lock.close()  # `down` ends all daemons that hold theirs

    def end() -> bool:
        try:
            with lifecycle.working(lab):
                lifecycle.down(lab, delete=True)
        except LabError:
            return False
        return True

    wait_for(end, PATIENCE, every=1)
