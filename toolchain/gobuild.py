"""Run Go on the modules beside this file, with errors that say what to do."""

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

from toolchain.errors import ToolchainError, say
from toolchain.versions import HERE, as_numbers

SOURCES = HERE / "go"
TAGS = "osusergo,grpcnotrace"
# Measured: modules 2.6 GB and build cache 3.2 GB when nothing is there yet, and 0.3 GB for the results.
COLD_GIGABYTES = 7
_HEARTBEAT_SECONDS = 30

_INSTEAD = "Or install Pulumi itself (https://www.pulumi.com/docs/install/): then nothing is built."

_DISK = (
    f"The disk is full. A first build needs about {COLD_GIGABYTES} GB in Go's caches (`go env GOCACHE GOMODCACHE`); "
    "`go clean -cache` gives back the larger half."
)
_PROXY = "The Go module proxy could not be reached. Set GOPROXY (and HTTPS_PROXY) to one that can be. " + _INSTEAD
_NETWORK = (
    r"dial tcp|no such host|i/o timeout|TLS handshake|connection re(fused|set)|network is unreachable"
    r"|module lookup disabled|unrecognized import path|(403|404|407|50\d) [A-Z]|proxyconnect|certificate"
)
# What the last lines of a failed `go` say, and what it means.
_CAUSES = (
    (r"no space left on device|disk quota exceeded", _DISK),
    (_NETWORK, _PROXY),
    (r"missing go\.sum entry|checksum mismatch|SECURITY ERROR", "The modules do not match the pinned checksums."),
    (r"signal: killed|cannot allocate memory", "The build ran out of memory: about 3 GB are needed."),
)


def check_go(oldest: str) -> None:
    """Raise ToolchainError unless a Go that can build is on PATH."""
    if not shutil.which("go"):
        raise ToolchainError(f"There is no `go` on PATH, and building Pulumi needs Go {oldest} or newer. {_INSTEAD}")
    # Asked outside of any module, so that this is the installed one and nothing is downloaded.
    asked = subprocess.run(
        ["go", "env", "GOVERSION", "GOTOOLCHAIN"], cwd="/", capture_output=True, text=True, check=False
    )
    version, _, switching = asked.stdout.strip().partition("\n")
    have = as_numbers(version.removeprefix("go"))
    # Unless switching is off, Go fetches the newer one that go.mod asks for.
    if have < as_numbers(oldest) and switching.startswith("local"):
        raise ToolchainError(
            f"Go is {version.removeprefix('go') or 'unknown'}, building Pulumi needs {oldest} or newer "
            f"(or GOTOOLCHAIN=auto, to let Go fetch it). {_INSTEAD}"
        )


def check_space(cache: Path) -> None:
    """Raise ToolchainError when there is certainly too little room."""
    free = shutil.disk_usage(cache).free / 1e9
    if free < 1:
        raise ToolchainError(
            f"{cache} has {free:.1f} GB free. The toolchain takes 0.3 GB, a first build about {COLD_GIGABYTES} GB more "
            "in Go's caches."
        )


def explain(output: str) -> str:
    """What the last lines of a failed ``go`` mean, or an empty text."""
    return next((meaning for pattern, meaning in _CAUSES if re.search(pattern, output)), "")


def run(folder: str, *arguments: str, what: str, log: Path) -> str:
    """Run ``go`` in one of our modules and return its output; raises ToolchainError with its last lines."""
    environment = os.environ | {"CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": ""}
    began = said = time.monotonic()
    with log.open("w+", encoding="utf-8") as output:
        process = subprocess.Popen(
            ["go", *arguments],
            cwd=SOURCES / folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            while process.poll() is None:
                try:
                    process.wait(timeout=1)
                except subprocess.TimeoutExpired:
                    if time.monotonic() - said >= _HEARTBEAT_SECONDS:
                        said = time.monotonic()
                        say(f"{what}: still at it after {said - began:.0f} s")
        except BaseException:
            process.terminate()
            process.wait()
            raise
    text = log.read_text("utf-8", errors="replace")
    if process.returncode:
        tail = "\n".join(text.splitlines()[-15:])
        raise ToolchainError(f"{what}: go {arguments[0]} failed:\n{tail}\n{explain(tail)}".rstrip())
    return text


def build(folder: str, target: Path, *, version: str, variable: str, package: str = ".", tags: str = TAGS) -> None:
    """Build the command of one of our modules into the file ``target``, stamped with its version."""
    what = f"{folder} {version}"
    say(f"{what}: building from source")
    run(
        folder, "build", "-mod=readonly", "-buildvcs=false", "-trimpath", f"-tags={tags}",
        "-ldflags", f"-s -w -X {variable}={version}", "-o", str(target), package,
        what=what, log=target.with_name(f".{target.name}.log"),
    )  # fmt: skip


def module_folder(folder: str, module: str, log: Path) -> Path:
    """Where Go keeps the sources of a module that one of ours requires."""
    return Path(run(folder, "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", module, what=folder, log=log).strip())
