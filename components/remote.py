"""The one way in which a resource runs something on nodes: a local command that calls ssh.

Every command's texts are constants, the same in all versions of this program: an upgrade is then no change. What
varies is on standard input (the desired state) and in the environment (where the nodes are, whose they are).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
from pulumi_command import local

from fleet.on_node import Link, as_json
from fleet.stack import StackName

WHOLE = "whole"  # the trigger of a resource that nothing asks to be replaced
ON_NODE = "exec python3 -IS fleet/on_node.py"
LONGEST_S = 15 * 60  # longer than every limit of the node program


def timeouts(seconds: int = LONGEST_S) -> pulumi.CustomTimeouts:
    """Pulumi's own time-out for a command that may take that long: the last resort, since it reports no reason."""
    return pulumi.CustomTimeouts(create=f"{seconds}s", update=f"{seconds}s", delete=f"{seconds}s")


@dataclass(frozen=True)
class Owner:
    """Whose the nodes are: every command names it, and the node program refuses what is not its owner's."""

    stack: StackName
    fleet_id: str
    state_id: pulumi.Output[str]

    def as_json(self) -> pulumi.Output[str]:
        """The owner as FLEET_OWNER wants it."""
        names = {"project": self.stack.project, "stack": self.stack.stack, "fleet_id": self.fleet_id}
        return self.state_id.apply(lambda state_id: json.dumps(names | {"state_id": state_id}, sort_keys=True))


def on_nodes(
    name: str,
    links: Sequence[Link],
    owner: Owner,
    stage: str,
    desired: Mapping[str, Any] | None = None,
    *,
    create: str | None = None,
    update: str | None = None,
    delete: str | None = None,
    repair: str | None = None,
    restart: str | None = None,
    below: str | None = None,
    secret: bool = False,
    opts: pulumi.ResourceOptions | None = None,
) -> local.Command:
    """A resource that runs the given texts for the nodes behind `links`.

    `desired` maps node names to plain desired states. `repair` says what was found to deviate from them: it turns an
    unchanged resource into an update, with the reason readable in the diff. `restart` does the same with a replacement
    (empty: nothing asks for one now). While there is no reason, the text of the last one is ignored, so that it is not
    taken back as another change. `below` is a digest of what this rests on: where that changes, it is done again.
    With `secret`, the desired states are encrypted in the state.
    """
    environment: dict[str, pulumi.Input[str]] = {
        "FLEET_LINKS": as_json(list(links)),
        "FLEET_OWNER": owner.as_json(),
        "FLEET_STAGE": stage,
        **({} if below is None else {"FLEET_BELOW": below}),
    }
    stdin: pulumi.Input[str] | None = None
    if desired is not None:
        text = json.dumps(desired, sort_keys=True)
        stdin = pulumi.Output.secret(text) if secret else text
    return local.Command(
        name,
        create=create,
        update=f"{update} # {' '.join(repair.split())}" if repair else update,  # a comment ends at a line's end
        delete=delete,
        stdin=stdin,
        environment=environment,
        logging=local.Logging.STDOUT_AND_STDERR,
        add_previous_output_in_env=False,
        triggers=None if restart is None else [restart or WHOLE],
        opts=pulumi.ResourceOptions.merge(_options(repair, restart), opts or pulumi.ResourceOptions()),
    )


def _options(repair: str | None, restart: str | None) -> pulumi.ResourceOptions:
    """What all commands have in common."""
    ignored = [name for name, reason in (("update", repair), ("triggers", restart)) if not reason]
    return pulumi.ResourceOptions(delete_before_replace=True, custom_timeouts=timeouts(), ignore_changes=ignored)


def digest_only(
    name: str, digest: str, restart: str, parent: pulumi.Resource, after: Sequence[pulumi.Resource]
) -> local.Command:
    """A resource that does nothing, and is replaced when the digest changes or there is a reason to restart."""
    return local.Command(
        name,
        create="true",
        triggers=[restart or WHOLE],
        opts=pulumi.ResourceOptions.merge(
            _options(None, restart),
            pulumi.ResourceOptions(parent=parent, depends_on=list(after), replacement_trigger=digest),
        ),
    )


def judgement(
    name: str, text: str, of: local.Command, replace_with: Sequence[pulumi.Resource], parent: pulumi.Resource
) -> local.Command:
    """A resource that judges what another one has printed, on this machine; it fails where that must not be so."""
    return local.Command(
        name,
        create=text,
        update=text,
        stdin=of.stdout,
        opts=pulumi.ResourceOptions.merge(
            _options(None, None),
            pulumi.ResourceOptions(parent=parent, depends_on=[of], replace_with=list(replace_with)),
        ),
    )


def stage(
    name: str,
    link: Link,
    owner: Owner,
    stage_name: str,
    desired: Mapping[str, Any],
    *,
    repair: str | None = None,
    below: str | None = None,
    opts: pulumi.ResourceOptions | None = None,
) -> local.Command:
    """One stage of one node: applied at create, in place at update, reverted at delete."""
    return on_nodes(
        name,
        [link],
        owner,
        stage_name,
        {link.name: desired},
        create=f"{ON_NODE} apply",
        update=f"{ON_NODE} apply",
        delete=f"{ON_NODE} revert",
        repair=repair,
        below=below,
        opts=opts,
    )
