"""Settings in, everything a run needs to know out: what the nodes are, the plan, the drift, the problems.

`pulumi preview`, `pulumi up` and `python -m fleet` all come through here, so that they cannot disagree.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fleet import cabling, environment, nccl, overlay, preflight, sending
from fleet.archive import archived
from fleet.context import Context, ContextError, built_of, built_ref
from fleet.discover import listen, remember, remembered
from fleet.docker_on_node import ImageError
from fleet.drift import Drift, Group, Observed, of_fleet, of_group
from fleet.facts import Facts, parse
from fleet.library import Choice, read
from fleet.look import Look, with_plan
from fleet.manifest import ManifestError, Reading, readings
from fleet.manifest import read as read_manifest
from fleet.mesh.marker import MarkerError, size_of
from fleet.node_settings import Node
from fleet.on_node import ROOT, Link, lost_nodes, remember_links
from fleet.picture import picture, table
from fleet.plan import Plan, PlanError
from fleet.planner import make
from fleet.probe import Probe, Question, at_rest, probe
from fleet.problems import Problem, ProblemsError, config_path
from fleet.settings import Settings
from fleet.ssh import links as links_of
from fleet.stack import StackName
from fleet.stackfile import ENCRYPTED
from fleet.verdicts import judge
from node.docker import STACK

OFFLINE = "SPARK_FABRIC_OFFLINE"  # set to 1: plan with the usual names, without any node; refuses `up`

OFFLINE_GROUP = Group(None, "offline")


@dataclass(frozen=True)
class Survey:
    """One look at the whole fleet."""

    plan: Plan
    links: Mapping[str, Link]
    seen: Probe
    drift: Drift
    group: Group
    warnings: tuple[Problem, ...]
    notes: tuple[Problem, ...] = ()
    ignored: tuple[Problem, ...] = ()  # what preflight.ignore keeps quiet
    readings: Sequence[Reading] = ()  # of weights, where there is a manifest of them

    @property
    def ours(self) -> frozenset[str]:
        """The nodes that answered and belong to this stack."""
        stack, fleet_id = self.plan.stack, self.plan.settings.fleet.id
        owners = {name: observed.get("owner") for name, observed in self.seen.observed.items()}
        return frozenset(name for name, owner in owners.items() if owner and stack.owns(owner, fleet_id))

    @property
    def others(self) -> frozenset[str]:
        """The nodes that answered and belong to another stack."""
        return frozenset(name for name, observed in self.seen.observed.items() if observed.get("owner")) - self.ours

    def outputs(self, *, hidden: bool = False) -> dict[str, Any]:
        """What the stack shows. `hidden` leaves out what the operator set by hand in the engines' environment."""
        mesh, containers = self.plan.mesh, self.plan.containers
        weights = {one.node: one.weights for one in containers} if self.plan.settings.engine.weights else {}
        return {
            "apiUrl": self.plan.api_url,
            "environment": environment.resolved(self.plan, hidden=hidden),
            "picture": picture(self.plan),
            "nodes": table(self.plan),
            **({"weights": weights} if weights else {}),
            **({"mesh": mesh.outputs([node.name for node in self.plan.ranks])} if mesh else {}),
        }


class Refused(ProblemsError):
    """Something stands in the way. What deviates on the nodes that can be read is told all the same, in `drift`."""

    def __init__(self, problems: Iterable[Problem], warnings: Iterable[Problem], drift: Iterable[str]) -> None:
        super().__init__(problems)
        self.warnings = tuple(warnings)
        self.drift = tuple(drift)

    def report(self) -> str:
        """The problems, then the warnings and the drift."""
        lines = [super().report()]
        if self.warnings:
            lines += ["Warnings:", *(f"  {one.text()}" for one in self.warnings)]
        if self.drift:
            lines += ["Deviations, which `up` repairs when the problems are gone:", *(f"  {one}" for one in self.drift)]
        return "\n".join(lines)


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


def brought(settings: Settings) -> Brought:
    """Look at the operator's local files; no node is asked."""
    image = _image(settings)
    library, of_library = local_library(settings)
    marker, of_marker = _marker(settings)
    manifest, of_manifest = _manifest(settings)
    problems = (*image.problems, *of_library, *of_marker, *of_manifest)
    return replace(image, library=library, marker_size=marker, manifest=manifest, problems=problems)


def offline() -> bool:
    """Whether the operator asked for a plan without nodes."""
    return os.environ.get(OFFLINE, "") not in ("", "0")


def survey(settings: Settings, stack: StackName, *, changing: bool = False) -> Survey:
    """Look at every node once and plan; changes nothing. For a run that will change something, `changing` waits for
    nodes that somebody else is just changing.

    Raises ProblemsError with every problem of settings, and Refused with every problem of nodes and plan.
    """
    links, problems = links_of(settings, keys_needed=not offline())
    own = brought(settings)
    problems += own.problems
    if problems:
        raise ProblemsError(problems)
    if offline():
        plan = make(
            settings,
            None,
            stack,
            image_id=own.image_id,
            image_ref=own.image_ref,
            library=own.library,
            marker_size=own.marker_size,
        )
        here = {link.name: link for link in links}
        return Survey(plan, here, Probe({}, {}), Drift(), OFFLINE_GROUP, plan.warnings, plan.notes)
    sending.remember(stack.stack, _to_be_sent(settings, own.library))
    found, problems = look(settings, stack, links, own, changing=changing)
    if problems:
        raise Refused(problems, found.warnings, _deviations(found))
    return found


def look(
    settings: Settings,
    stack: StackName,
    links: Sequence[Link],
    own: Brought = Brought(),
    *,
    changing: bool = False,
) -> tuple[Survey, list[Problem]]:
    """Look at every node once, and every problem. With problems, the plan is a draft that must not be applied.

    `own` is what the operator brings: without it, the nodes are asked for what they have.
    """
    named = {node.name: path for node in settings.ranks if (path := settings.library_on(node))}
    folders = sorted({volume.source for volume in settings.engine.volumes if volume.source.startswith("/")})
    weights = {node.name: path for node in settings.ranks if (path := settings.weights_on(node))}
    shared = {node.name: wanted for node in settings.ranks if (wanted := _of_nfs(settings, node))}
    image = own.image_ref or settings.engine.image.ref
    question = Question(stack, settings.fleet.id, links, named, folders, weights, settings.mesh.enabled, shared, image)
    seen = at_rest(lambda: probe(question)) if changing else probe(question)
    facts = {name: parse(observed) for name, observed in seen.observed.items()}
    lost = frozenset(lost_nodes(stack.stack))
    asked = Look(settings, stack, seen, lost, changing, own.archive, own.manifest, own.machine)
    found = preflight.before_plan(asked)
    doubtful = {one.path for one in found if one.code in ("other-node", "other-owner")}
    remember_links(stack.stack, [link for link in links if link.name in seen.observed.keys() - doubtful])
    wires = cabling.Judgement(cabling.addressed(settings, facts))
    refused = bool(seen.unreachable or doubtful)  # in any case, and soon: nobody's nodes are asked for more
    if not refused:
        wires = _judged(settings, stack, links, seen, facts)
    try:
        plan = make(
            settings,
            facts,
            stack,
            image_id=own.image_id,
            image_ref=own.image_ref or _built(settings, stack, seen.observed),
            library=own.library,
            marker_size=own.marker_size,
            found=wires.ring,
        )
    except PlanError as error:
        plan = error.draft
        found += [one for one in error.problems if one.code != "not-probed"]  # unreachable, and said already
    here = {link.name: link for link in links}
    found += [*wires.problems, *wires.warnings, *plan.warnings, *plan.notes]
    found += preflight.check(with_plan(asked, plan))
    if not refused:
        found += overlay.problems(plan, seen, here)
    wishes = settings.preflight
    judged = judge(found, asked.running, ignore=wishes.ignore, refuse=wishes.refuse)
    drift = of_fleet(plan, seen.observed)
    group = of_group(plan, seen.observed, new_start=f"{time.time():.0f}")
    read = readings(plan, own.manifest, seen.observed)
    survey = Survey(plan, here, seen, drift, group, judged.warnings, judged.notes, judged.ignored, read)
    return survey, list(judged.problems)


def _built(settings: Settings, stack: StackName, observed: Mapping[str, Observed]) -> str | None:
    """The name of an image that was built and that nodes have, best of one that the stack's ranks run.

    For commands that cannot read all of what is built of: its args may be encrypted.
    """
    image, label = settings.engine.image, stack.label(settings.fleet.id)
    if image.build is None:
        return None
    names: dict[str, set[str]] = {}
    run: set[str | None] = set()
    for seen in observed.values():
        docker = seen.get("docker") or {}
        run |= {one.get("image_id") for one in docker.get("containers") or [] if one["labels"].get(STACK) == label}
        for name, identity in (docker.get("images") or {}).items():
            if built_of(image.ref).fullmatch(name):
                names.setdefault(name, set()).add(identity)
    return min(names, key=lambda name: (not names[name] & run, name), default=None)


def _of_nfs(settings: Settings, node: Node) -> dict[str, Any]:
    """What a rank's node is asked about docker volumes and, where weights are shared, about that."""
    volumes = [volume.source for volume in settings.engine.volumes if not volume.source.startswith("/")]
    nfs, server = settings.nfs, settings.weights_server(node)
    if nfs is None:
        return {"volumes": volumes} if volumes else {}
    if server is None:
        return {"volumes": volumes, "reuse": nfs.reuse}
    return {"volumes": [nfs.volume, *volumes], "server": None if nfs.image else str(server)}


def _judged(
    settings: Settings, stack: StackName, links: Sequence[Link], seen: Probe, facts: Mapping[str, Facts]
) -> cabling.Judgement:
    """What the wires say, as they were heard last or, if anything may have moved since, as they are heard now."""
    wires = remembered(stack, settings, seen.observed)
    heard = wires or listen(stack, settings, links)
    judged = cabling.judge(settings, facts, heard)
    if not wires and not judged.problems and not judged.warnings:
        remember(stack, settings, heard, seen.observed)
    return judged


def _deviations(found: Survey) -> list[str]:
    """The drift as text; nothing of a fleet that this stack has never been on, where all would be missing."""
    if not found.ours:
        return []
    mine = {key: one for key, one in found.drift.stages.items() if one.node not in found.others}
    return [*Drift(mine).lines(), *(f"engine: {reason}" for reason in found.group.reasons)]


def local_library(settings: Settings) -> tuple[Choice | None, list[Problem]]:
    """The operator's local NCCL library, and what speaks against it already here."""
    named = settings.nccl.library.file
    if named is None:
        return None, []
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
        file = ROOT / Path(image.archive).expanduser()
        try:
            held = archived(file, image.ref)
            return Brought(held.identity, machine=held.architecture, archive=file.stat().st_size)
        except ImageError as error:
            path = config_path(("engine", "image", "archive"))
            wanted = "an archive of `docker save`"
            return Brought(problems=(Problem("image-archive", path, f"cannot be used: {error}", wanted, ""),))
    if image.build is not None:
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


def _to_be_sent(settings: Settings, library: Choice | None) -> dict[str, Path]:
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
    try:
        return read_manifest(ROOT / Path(named).expanduser()), []
    except ManifestError as error:
        path = config_path(("engine", "weights", "manifest"))
        wanted, hint = "lines of a sha256 and a file's name", "In the folder: sha256sum model-*.safetensors >FILE"
        return {}, [Problem("weights-manifest", path, f"cannot be used: {error}", wanted, hint)]
