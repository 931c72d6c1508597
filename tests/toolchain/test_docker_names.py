"""Our docker plugin has the names and types of the installed SDK."""

import subprocess
from pathlib import Path

from toolchain import check_names, provide, versions


def test_the_docker_plugin_has_every_property_of_the_sdk(toolchain: dict[str, str]) -> None:
    plugin = provide.plugin_file(Path(toolchain["PULUMI_HOME"]), "docker", versions.load().docker)
    names = subprocess.run([plugin, "-names"], capture_output=True, text=True, check=False, timeout=60)
    if names.returncode:
        # The official plugin does not know the flag, and needs no comparison with its own SDK.
        assert provide.provide().home is None
        return
    found = check_names.compare(names.stdout, check_names.installed_sdk())
    assert found.problems == []
    assert sum(found.counts.values()) > 1000
    # Built and pushed images are what the official plugin does itself, outside of the bridge.
    assert found.not_served == ["docker:index/image:Image"]
