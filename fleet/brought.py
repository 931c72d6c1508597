"""What the operator brings as local files: an image, a library, a marker, digests of weights. No node is asked.

Few bring all of it: what reads a file is loaded where there is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fleet.on_node import ROOT
from fleet.problems import Problem, config_path
from fleet.settings import Settings
from fleet.stackfile import ENCRYPTED

if TYPE_CHECKING:
    from fleet.library import Choice


@dataclass(frozen=True)
class Brought:
    """What the operator brings as local files, and what speaks against it already here.

    `image_id` is what the image's archive stands for, `machine` docker's word for what it is for, `archive` its size;
    `image_ref` is the name of what is built. `marker_size` is that of the mesh's marker. Sizes are in bytes. `manifest`
    has digests of the weights' files.
    """

    image_id: str | None = None
    image_ref: str | None = None
    machine: str = ""
    archive: int = 0
    library: Choice | None = None
    marker_size: int | None = None
    manifest: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()


NOTHING = Brought()


def brought(settings: Settings) -> Brought:
    """Look at the operator's local files; no node is asked."""
    image = _image(settings)
    library, of_library = local_library(settings)
    marker, of_marker = _marker(settings)
    manifest, of_manifest = _manifest(settings)
    problems = (*image.problems, *of_library, *of_marker, *of_manifest)
    return replace(image, library=library, marker_size=marker, manifest=manifest, problems=problems)


def local_library(settings: Settings) -> tuple[Choice | None, list[Problem]]:
    """The operator's local NCCL library, and what speaks against it already here."""
    named = settings.nccl.library.file
    if named is None:
        return None, []
    from fleet import nccl  # noqa: PLC0415 - see above
    from fleet.library import read  # noqa: PLC0415

    path = config_path(nccl.LIBRARY)
    try:
        found = read(ROOT / Path(named).expanduser())
    except OSError as error:
        return None, [Problem("library-absent", path, f"cannot be read: {error}", "a file that you may read", "")]
    return found, list(nccl.of_local(settings, found))


def _image(settings: Settings) -> Brought:
    """The operator's archive of the image, or what it is built of."""
    image = settings.engine.image
    if image.archive is not None:
        from fleet.archive import archived  # noqa: PLC0415
        from fleet.docker_on_node import ImageError  # noqa: PLC0415

        file = ROOT / Path(image.archive).expanduser()
        try:
            held = archived(file, image.ref)
            return Brought(held.identity, machine=held.architecture, archive=file.stat().st_size)
        except ImageError as error:
            path = config_path(("engine", "image", "archive"))
            wanted = "an archive of `docker save`"
            return Brought(problems=(Problem("image-archive", path, f"cannot be used: {error}", wanted, ""),))
    if image.build is not None:
        from fleet.context import Context, ContextError, built_ref  # noqa: PLC0415

        try:
            context = Context(ROOT / Path(image.build.context).expanduser(), image.build.dockerfile).pack()
            if ENCRYPTED in image.build.args.values():
                return Brought()  # its name cannot be known: `_built` finds it
            return Brought(image_ref=built_ref(image.ref, context, image.build.model_dump()))
        except ContextError as error:
            path = config_path(("engine", "image", "build"))
            wanted = "a folder that you may read, with a recipe in it"
            return Brought(problems=(Problem("image-build", path, f"cannot be used: {error}", wanted, ""),))
    return Brought()


def to_be_sent(settings: Settings, library: Choice | None) -> dict[str, Path]:
    """The operator's local files that nodes get, by sha256."""
    files = {library.library.sha256: Path(library.library.path)} if library else {}
    marker = settings.mesh.marker
    if settings.mesh.enabled and marker and marker.file:
        files[marker.sha256] = ROOT / Path(marker.file).expanduser()
    return files


def _marker(settings: Settings) -> tuple[int | None, list[Problem]]:
    """The size of the mesh's marker, where it is a local file."""
    marker = settings.mesh.marker
    if not settings.mesh.enabled or marker is None or marker.file is None:
        return None, []
    from fleet.mesh.marker import MarkerError, size_of  # noqa: PLC0415

    try:
        return size_of(ROOT / Path(marker.file).expanduser(), marker.sha256), []
    except MarkerError as error:
        path = config_path(("mesh", "marker", "file"))
        return None, [Problem("mesh-marker-file", path, error.seen, error.wanted, f"It is {marker.file}.")]


def _manifest(settings: Settings) -> tuple[Mapping[str, str], list[Problem]]:
    """The digests of the weights that the operator gives, if any."""
    named = settings.engine.weights.manifest if settings.engine.weights else None
    if named is None:
        return {}, []
    from fleet.manifest import ManifestError, read  # noqa: PLC0415

    try:
        return read(ROOT / Path(named).expanduser()), []
    except ManifestError as error:
        path = config_path(("engine", "weights", "manifest"))
        wanted, hint = "lines of a sha256 and a file's name", "In the folder: sha256sum model-*.safetensors >FILE"
        return {}, [Problem("weights-manifest", path, f"cannot be used: {error}", wanted, hint)]
