"""versions.toml is the one place for versions: everything else that names one must agree with it."""

import re
import tomllib
from pathlib import Path

import pytest

from toolchain import versions

PINNED = versions.load()
SDKS = {"pulumi": PINNED.sdk, "pulumi-command": PINNED.command, "pulumi-docker": PINNED.docker}


def required(checkout: Path, part: str, module: str) -> str:
    """The version of a module that one of our go.mod files requires."""
    text = (checkout / "toolchain/go" / part / "go.mod").read_text()
    found = re.search(rf"^\s*(?:require )?{re.escape(module)} v(\S+)", text, re.MULTILINE)
    assert found, f"{part} does not require {module}"
    return found[1]


@pytest.mark.parametrize("file", ["requirements.txt", "requirements-dev.txt"])
def test_requirements_have_the_pinned_sdks_and_hashes(checkout: Path, file: str) -> None:
    text = (checkout / file).read_text()
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE))
    assert {name: pins.get(name) for name in SDKS} == SDKS
    for block in re.split(r"\n(?=\w)", text.strip()):
        assert "--hash=sha256:" in block, f"no hash: {block}"
    assert "://" not in text


def test_the_two_requirements_agree(checkout: Path) -> None:
    run, develop = (
        dict(re.findall(r"^([\w.-]+)==(\S+)", (checkout / file).read_text(), re.MULTILINE))
        for file in ("requirements.txt", "requirements-dev.txt")
    )
    assert {name: develop.get(name) for name in run} == run


def test_the_project_file_asks_for_the_pinned_sdks(checkout: Path) -> None:
    asked = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {f"{name}=={version}" for name, version in SDKS.items()} <= set(asked)


def test_pulumi_yaml_requires_the_oldest_cli(checkout: Path) -> None:
    text = (checkout / "Pulumi.yaml").read_text()
    found = re.search(r"^requiredPulumiVersion:\s*[\"']?([^\"'\n]+)", text, re.MULTILINE)
    assert found
    assert found[1].strip() == f">={PINNED.oldest_cli}"


def test_cli_and_language_host_are_built_from_the_pinned_release(checkout: Path) -> None:
    assert required(checkout, "cli", "github.com/pulumi/pulumi/pkg/v3") == PINNED.cli
    assert required(checkout, "cli", "github.com/pulumi/pulumi/sdk/v3") == PINNED.cli
    assert required(checkout, "language-python", "github.com/pulumi/pulumi/sdk/v3") == PINNED.cli


def test_the_built_cli_is_one_that_would_be_accepted_and_serves_the_sdk() -> None:
    built, oldest, sdk = map(versions.as_numbers, (PINNED.cli, PINNED.oldest_cli, PINNED.sdk))
    assert built >= oldest
    assert built >= sdk


@pytest.mark.parametrize("part", ["command", "docker"])
def test_plugin_sources_name_the_version_of_their_sdk(checkout: Path, part: str) -> None:
    text = (checkout / f"toolchain/go/resource-{part}/main.go").read_text()
    assert f'var Version = "{SDKS["pulumi-" + part]}"' in text


def test_no_module_needs_a_newer_go_than_the_pinned_one(checkout: Path) -> None:
    needed = [
        versions.as_numbers(line.removeprefix("go "))
        for file in (checkout / "toolchain/go").glob("*/go.mod")
        for line in file.read_text().splitlines()
        if line.startswith("go ")
    ]
    assert max(needed) == versions.as_numbers(PINNED.go)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("3.229.0", (3, 229, 0)),
        ("v3.274.1-alpha.7", (3, 274, 1)),
        ("1.26.8", (1, 26, 8)),
        ("1.27rc1", (1, 27)),
        ("", ()),
    ],
)
def test_versions_are_compared_by_their_numbers(text: str, numbers: tuple[int, ...]) -> None:
    assert versions.as_numbers(text) == numbers
