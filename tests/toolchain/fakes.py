"""Stand-ins for the programs that the toolchain calls: small shell scripts in a folder that is first on PATH."""

from pathlib import Path

import pytest

from toolchain import versions

PINNED = versions.load()


class Machine:
    """A machine with nothing but what a test puts there: own cache, own home, own PATH."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.bin, self.cache, self.home = folder / "bin", folder / "cache", folder / "home"
        self.bin.mkdir()
        self.calls = folder / "calls"
        patch.setenv("PATH", f"{self.bin}:/usr/bin:/bin")
        patch.setenv("XDG_CACHE_HOME", str(self.cache))
        patch.setenv("PULUMI_HOME", str(self.home))
        for name in ("PULUMI_BACKEND_URL", "PULUMI_CREDENTIALS_PATH", "PULUMI_STACK"):
            patch.delenv(name, raising=False)

    def program(self, name: str, script: str) -> Path:
        """Put a shell script on PATH; it notes each call in ``calls``."""
        path = self.bin / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> {self.calls}\n{script}\n')
        path.chmod(0o755)
        return path

    def pulumi(self, version: str = "9.9.9", script: str = "exit 0") -> Path:
        """An installed Pulumi with its language host."""
        self.program("pulumi-language-python", "exit 0")
        return self.program("pulumi", f'case "$*" in version) echo v{version}; exit 0;; esac\n{script}')

    def go(self, version: str = PINNED.go, build: str = 'echo built > "$out"', switching: str = "local") -> Path:
        """A Go that "builds" by running a script with ``$out`` as the file wanted."""
        return self.program(
            "go",
            f"""case "$1" in
env) printf 'go{version}\\n{switching}\\n';;
list) echo {self.bin.parent};;
build) while [ "$1" != -o ]; do shift; done; out=$2; {build};;
esac""",
        )

    def plugins(self, home: Path | None = None) -> None:
        """The official plugins in a Pulumi home."""
        for name, version in (("command", PINNED.command), ("docker", PINNED.docker)):
            folder = (home or self.home) / f"plugins/resource-{name}-v{version}"
            folder.mkdir(parents=True)
            (folder / f"pulumi-resource-{name}").write_text("official")

    def called(self, what: str) -> int:
        """How often a call with these words at its beginning was made."""
        if not self.calls.exists():
            return 0
        return sum(line.startswith(what) for line in self.calls.read_text().splitlines())
