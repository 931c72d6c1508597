"""Find Pulumi and its plugins, or build them."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from toolchain import cache, gobuild, parts
from toolchain.errors import ToolchainError, say
from toolchain.versions import Versions, as_numbers, load

_DOWNLOAD_SECONDS = 180


class Toolchain(NamedTuple):
    """What is there to run: the ``pulumi`` executable, and whose it and the plugins are.

    ``home`` is the PULUMI_HOME with our plugins, or None where the user's own home has the official ones.
    """

    cli: Path
    own_cli: bool
    home: Path | None


def user_home() -> Path:
    """The Pulumi home that the user has without us."""
    return Path(os.environ.get("PULUMI_HOME") or Path.home() / ".pulumi")


def plugin_file(home: Path, name: str, version: str) -> Path:
    """Where the engine looks for a plugin of exactly this version."""
    return home / "plugins" / f"resource-{name}-v{version}" / f"pulumi-resource-{name}"


def provide(*, from_source: bool = False, download: bool = True) -> Toolchain:
    """Return a complete toolchain; raises ToolchainError with advice when there is no way to one.

    Order: a suitable ``pulumi`` on PATH with its own plugins (downloaded if need be and ``download``); else what an
    earlier call built from the same sources; else a build. ``from_source`` skips the first.
    """
    versions = load()
    found = None if from_source else _on_path(versions)
    if found and not from_source and _has_plugins(user_home(), versions):
        return Toolchain(found, own_cli=False, home=None)
    home = _home_folder(versions)
    cli = found or parts.cli(versions).folder() / "pulumi"
    if home.is_dir() and cli.exists():
        return Toolchain(cli, own_cli=not found, home=home)
    with cache.locked(cache.folder()):
        if found and download and _download(found, versions):
            return Toolchain(found, own_cli=False, home=None)
        return _build(found, home, versions)


def _on_path(versions: Versions) -> Path | None:
    """A ``pulumi`` on PATH that is new enough and has its Python host beside it."""
    place = shutil.which("pulumi")
    if not place or Path(place).resolve().is_relative_to(cache.folder().resolve()):
        return None
    path = Path(place)
    host = shutil.which(
        "pulumi-language-python", path=os.pathsep.join((str(path.resolve().parent), os.environ["PATH"]))
    )
    version = _version_of(path)
    if as_numbers(version) >= as_numbers(versions.oldest_cli) and host:
        return path
    say(f"{path} {version} is not used: Pulumi {versions.oldest_cli} or newer with its Python language host is needed")
    return None


def _version_of(path: Path) -> str:
    """Ask a ``pulumi`` for its version, or remember: asking costs 0.15 s, and the wrapper runs often."""
    stat = path.resolve().stat()
    key = f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}"
    memory = cache.folder() / "found.json"
    try:
        known = json.loads(memory.read_text("utf-8"))
        if known["key"] == key:
            return str(known["version"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # Not asked yet, or not readable: asked again.
    environment = os.environ | {"PULUMI_SKIP_UPDATE_CHECK": "true"}
    asked = subprocess.run([path, "version"], capture_output=True, text=True, env=environment, check=False)
    match = re.match(r"v?(\d+\.\d+\.\d+)", asked.stdout)
    version = match[1] if match else "of unknown version"
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        memory.write_text(json.dumps({"key": key, "version": version}), "utf-8")
    except OSError:
        pass  # Only a memory: without it every run asks.
    return version


def _has_plugins(home: Path, versions: Versions) -> bool:
    return all(plugin_file(home, part.name, part.version).exists() for part in parts.plugins(versions))


def _download(cli: Path, versions: Versions) -> bool:
    """Let the user's own ``pulumi`` fetch the official plugins; False where the network does not allow it."""
    for part in parts.plugins(versions):
        if plugin_file(user_home(), part.name, part.version).exists():
            continue
        say(f"{part.name} {part.version}: downloading the official plugin with {cli}")
        command = [str(cli), "plugin", "install", "resource", part.name, part.version]
        try:
            done = subprocess.run(command, capture_output=True, timeout=_DOWNLOAD_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            done = None
        if not done or done.returncode:
            say(f"{part.name} {part.version}: cannot be downloaded here")
            return False
    return True


def _home_folder(versions: Versions) -> Path:
    """The Pulumi home with our plugins; another one whenever one of them changes."""
    key = cache.digest([], *(part.folder().name for part in parts.plugins(versions)))
    return cache.folder() / f"home-{key}"


def _build(found: Path | None, home: Path, versions: Versions) -> Toolchain:
    wanted = [*([] if found else [parts.cli(versions)]), *parts.plugins(versions)]
    missing = [part for part in wanted if not part.folder().is_dir()]
    if missing:
        gobuild.check_go(versions.go)
        gobuild.check_space(cache.folder())
        names = ", ".join(f"{part.name} {part.version}" for part in missing)
        say(f"building {names} into {cache.folder()}: about 8 minutes when Go's caches are empty, else seconds")
    try:
        for part in missing:
            part.provide()
        if not home.is_dir():
            with cache.published(home) as work:
                for part in parts.plugins(versions):
                    place = plugin_file(work, part.name, part.version)
                    place.parent.mkdir(parents=True)
                    # The engine lists real folders only; a hard link costs no room.
                    os.link(part.folder() / place.name, place)
    except OSError as error:
        why = gobuild.explain(str(error).lower())
        raise ToolchainError(f"The toolchain cannot be put into {cache.folder()}: {error}. {why}".rstrip()) from error
    if missing:
        say("the toolchain is ready")
    cli = found or parts.cli(versions).folder() / "pulumi"
    return Toolchain(cli, own_cli=not found, home=home)
