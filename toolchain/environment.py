"""The environment that Pulumi runs in when the wrapper starts it."""

import json
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from toolchain.errors import note
from toolchain.provide import Toolchain, user_home

# The plugins read these silently, and a fleet must not depend on what a shell happens to hold.
_DOCKER = ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_SSH_OPTS")
STATE_FOLDER = ".pulumi-state"


def make(toolchain: Toolchain, project: Path, command: str, given: Mapping[str, str]) -> dict[str, str]:
    """The environment for one Pulumi command in a project, made from the user's own (``given``).

    What the user has set deliberately stays: PULUMI_BACKEND_URL or a login, and the passphrase.
    """
    result = {name: value for name, value in given.items() if name not in _DOCKER}
    credentials = Path(given.get("PULUMI_CREDENTIALS_PATH") or user_home())
    first = [str(toolchain.cli.parent)] if toolchain.own_cli else []
    # Commands of resources start `python3`: that of a virtual environment at once, where pyenv and its like would look
    # for it each time. Any other Python may lie where much else does that the user wants from elsewhere.
    own = Path(sys.executable).parent  # `sys.prefix` does not tell it to a Python that runs without `site`
    if (own.parent / "pyvenv.cfg").exists():
        first.append(str(own))
    result["PATH"] = os.pathsep.join((*first, given.get("PATH", os.defpath)))
    if toolchain.home:
        result["PULUMI_HOME"] = str(toolchain.home)
        # Our home changes with the plugins; a login must not be lost with it.
        result["PULUMI_CREDENTIALS_PATH"] = str(credentials)
        result["PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION"] = "true"
    result["PULUMI_SKIP_UPDATE_CHECK"] = "true"
    if "PULUMI_CONFIG_PASSPHRASE" not in given and "PULUMI_CONFIG_PASSPHRASE_FILE" not in given:
        result["PULUMI_CONFIG_PASSPHRASE"] = ""
    if not given.get("PULUMI_BACKEND_URL") and command not in {"login", "logout"} and not _logged_in(credentials):
        state = project / STATE_FOLDER
        state.mkdir(mode=0o700, exist_ok=True)
        result["PULUMI_BACKEND_URL"] = "file://" + quote(str(state))
    agent = given.get("SSH_AUTH_SOCK")
    if agent is not None and not _answers(agent):
        del result["SSH_AUTH_SOCK"]
        if agent:
            note(f"no SSH agent answers at SSH_AUTH_SOCK={agent}: not used")
    return result


def _logged_in(credentials: Path) -> bool:
    """Whether ``pulumi login`` has chosen a backend."""
    try:
        data = json.loads((credentials / "credentials.json").read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(data, dict) and bool(data.get("current"))


def _answers(agent: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(agent)
        except (OSError, ValueError):
            return False
    return True


def backend_folder(environment: Mapping[str, str]) -> Path | None:
    """The folder of a file backend that is named by PULUMI_BACKEND_URL; None for any other backend."""
    url = urlsplit(environment.get("PULUMI_BACKEND_URL", ""))
    if url.scheme != "file":
        return None
    path = unquote(url.netloc + url.path)
    return Path(path).expanduser() / ".pulumi"
