"""What a packing leaves that was ended with its program: its container."""

from .docker import PACKS, Docker
from .steps import Report


def remove(docker: Docker, report: Report, label: str) -> None:
    """Remove the containers that packed for a stack. Under the node's lock nobody packs in them any more.

    Raises `OSError` where docker does not answer, and `Failure` where one stays.
    """
    for one in docker.containers():
        if one["labels"].get(PACKS) == label:
            docker.remove(one["id"])
            report.note(f"container {one['name']}: removed, left by a packing that was ended")
