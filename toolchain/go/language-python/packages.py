# Copyright the authors of this project. Licensed under the LICENSE file of
# its repository.
"""Print, as JSON, the installed distributions that need a Pulumi plugin.

The language host runs this text with the program's own interpreter. A
distribution counts when its files hold a pulumi-plugin.json, or when its name
starts with "pulumi-".
"""

import json
import re
import sys
from importlib import metadata
from pathlib import Path

NO_PLUGIN = {"pulumi", "pulumi-esc-sdk", "pulumi-policy"}


def plugin_file(dist: metadata.Distribution, name: str) -> Path | None:
    for file in dist.files or ():
        if file.name == "pulumi-plugin.json" and len(file.parts) <= 3:
            return Path(str(dist.locate_file(file)))
    # An editable install does not list the files of its packages.
    for folder in sys.path:
        path = Path(folder, name.replace("-", "_"), "pulumi-plugin.json")
        if path.is_file():
            return path
    return None


found: dict[str, object] = {}
for dist in metadata.distributions():
    name = re.sub(r"[-_.]+", "-", dist.metadata["Name"] or "").lower()
    if not name or name in found or name in NO_PLUGIN:
        continue
    files = dist.files
    if not name.startswith("pulumi-") and not any(f.name == "pulumi-plugin.json" for f in files or ()):
        continue
    path = plugin_file(dist, name)
    plugin = json.loads(path.read_text("utf-8")) if path and path.is_file() else None
    found[name] = {"name": name, "version": dist.version, "plugin": plugin}
print(json.dumps(list(found.values())))
