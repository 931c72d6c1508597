"""The parts that can be built: which sources, which files, under which name in the cache."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from toolchain import cache, gobuild
from toolchain.versions import Versions

_SDK = "github.com/pulumi/pulumi/sdk/v3"
_CLI_VERSION = f"{_SDK}/go/common/version.Version"
_PLUGIN_VERSION = "main.Version"


class Part(NamedTuple):
    """One folder of the cache: ``<name>-<version>-<digest of its sources>``."""

    name: str
    version: str
    sources: tuple[str, ...]
    make: Callable[[Path, str], None]

    def folder(self) -> Path:
        """The folder of this part, whether it is there or not."""
        key = cache.digest([gobuild.SOURCES / source for source in self.sources], self.version, gobuild.TAGS)
        return cache.folder() / f"{self.name}-{self.version}-{key}"

    def provide(self) -> Path:
        """Build the part unless it is there; the cache's lock is held by the caller."""
        target = self.folder()
        if not target.is_dir():
            with cache.published(target) as work:
                self.make(work, self.version)
        return target


def _make_cli(work: Path, version: str) -> None:
    stamp, command = f"v{version}", "github.com/pulumi/pulumi/pkg/v3/cmd/pulumi"
    gobuild.build("cli", work / "pulumi", version=stamp, variable=_CLI_VERSION, package=command)
    # The CLI looks for the language host beside itself, and that one for its executor.
    gobuild.build("language-python", work / "pulumi-language-python", version=stamp, variable=_CLI_VERSION)
    sdk = gobuild.module_folder("language-python", _SDK, work / ".list.log")
    executor = work / "pulumi-language-python-exec"
    shutil.copyfile(sdk / "python/cmd" / executor.name, executor)
    executor.chmod(0o755)


def _make_command(work: Path, version: str) -> None:
    gobuild.build("resource-command", work / "pulumi-resource-command", version=version, variable=_PLUGIN_VERSION)


def _make_docker(work: Path, version: str) -> None:
    # Without the upstream's docker_compose, which needs many more modules and is not in the SDK.
    tags = gobuild.TAGS + ",no_compose"
    plugin = work / "pulumi-resource-docker"
    gobuild.build("resource-docker", plugin, version=version, variable=_PLUGIN_VERSION, tags=tags)


def cli(versions: Versions) -> Part:
    """The CLI with its Python language host."""
    return Part("cli", versions.cli, ("cli", "language-python"), _make_cli)


def plugins(versions: Versions) -> tuple[Part, ...]:
    """The resource plugins, named as their packages."""
    return (
        Part("command", versions.command, ("resource-command",), _make_command),
        Part("docker", versions.docker, ("resource-docker",), _make_docker),
    )
