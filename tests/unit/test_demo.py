"""The stack of the demo."""

from pathlib import Path

from fleet import stackfile
from fleet.mesh.marker import size_of
from fleet.on_node import ROOT


def test_the_marker_of_the_demo_is_the_one_that_lies_here() -> None:
    _, settings = stackfile.read("lab")
    marker = settings.mesh.marker
    assert settings.mesh.enabled
    assert marker
    assert marker.file
    assert size_of(ROOT / Path(marker.file), marker.sha256)
