"""The stack's configuration as Pulumi hands it over."""

from __future__ import annotations

import json
from collections.abc import Container

import pulumi
from pulumi.runtime.config import CONFIG, get_config_env, is_config_secret

from fleet.engine_settings import KEY, NO_KEY
from fleet.problems import Problem, config_path
from fleet.settings import Settings


def raw_config(without: Container[str] = ()) -> dict[str, object]:
    """Every key of this project's namespace, unknown ones included: `pulumi.Config` can only ask for known ones.

    The nodes named in `without` are left out, as if they had never been in the list.
    """
    prefix = f"{pulumi.get_project()}:"
    values = {**get_config_env(), **CONFIG.get()}
    raw: dict[str, object] = {
        key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)
    }
    nodes = raw.get("nodes")
    if isinstance(nodes, str):
        try:
            nodes = json.loads(nodes)
        except ValueError:
            return raw  # the settings say what is wrong with it
        if isinstance(nodes, list):
            raw["nodes"] = [node for node in nodes if not (isinstance(node, dict) and node.get("name") in without)]
    return raw


def as_kept(section: str, texts: list[str]) -> pulumi.Input[list[str]]:
    """Texts from a section of the config: a secret where the stack file holds anything in that section encrypted.

    Pulumi tells only of whole top-level keys whether there is a secret in them, and providers make a whole list secret
    for one entry.
    """
    return pulumi.Output.secret(texts) if holds_secret(section) else texts


def unencrypted_key(settings: Settings) -> list[Problem]:
    """The API's key where the stack file holds it as it is: it would lie open in the state, too."""
    if holds_secret("engine"):
        return []
    problems = []
    for section, env in (("headEnv", settings.engine.head_env), ("env", settings.engine.env)):
        if env.get(KEY, "").lower() not in NO_KEY:
            path = config_path(("engine", section, KEY))
            hint = f"./pulumiw config set --secret --path '{path}'"
            problems.append(Problem("api-key-open", path, "is in the stack file as it is", "it encrypted", hint))
    return problems


def holds_secret(section: str) -> bool:
    """Whether the stack file holds anything in a section of the config encrypted."""
    return is_config_secret(f"{pulumi.get_project()}:{section}")
