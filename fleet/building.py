"""Have the engine's image built once, on one node. Run as `python3 -IS fleet/building.py`.

Environment as for `on_node.py`, with the links of all ranks; stdin maps the one node that builds to {"ref", "context",
"dockerfile", "args", "secrets"}. The ref's tag ends with a digest of all these (`context.built_ref`), so what is there
under that name is never built again. Where the building node has lost it and another one has it, it is copied from
there: built anew it might have another id, and be another engine.

Not with docker's API or the provider's `docker.Image`: that one is no part of every docker plugin, and both would need
a client of BuildKit here. `docker build` on the node takes a context as a tar on its standard input, whether its
builder is BuildKit (buildx) or the classic one.

Values of args and secrets are on standard input on the whole way, and then in the environment of that one docker:
never in a command line. What docker prints is told without secrets, args named like them, and passwords of URLs.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # -I leaves it out

from fleet import bringing, on_node
from fleet.context import Context, ContextError, built_of, built_ref
from fleet.docker_on_node import ImageError, present, refuse_another_machine, told
from fleet.on_node import Link
from node.hide import NAME, hide_values

LIMIT_S = 4 * 3600  # kernels that are compiled take their time
REMOVE_LIMIT_S = 300  # of an image that nobody else's layers hold
SHOWN = 30  # of docker's last lines, where it fails
STEP = re.compile(r"(?:Step |#\d+ \[[^\]]*?)(\d+/\d+)")  # of the classic builder, of BuildKit
SECRET = "SPARK_FABRIC_SECRET_"  # noqa: S105 - the beginning of variables' names
USER = re.compile(r"://([^/\s@]+)@")  # name and password of a URL
UNFINISHED = "-building"

# One JSON line, then the context. A build that a killed run has left going is waited for: nobody gives that image its
# name any more, but docker's cache then has all of it. The lock is on docker's own program, so that no file of ours
# stays, and `exec` keeps it as long as docker runs.
START = (
    "import fcntl,json,os,shutil,sys,subprocess as s;i=open(0,'rb',buffering=0,closefd=False);"
    "h=json.loads(i.readline());"
    "l=os.open(shutil.which('docker'),os.O_RDONLY);os.set_inheritable(l,True);fcntl.flock(l,fcntl.LOCK_EX);"
    "q=s.DEVNULL;s.run(['docker','image','inspect',h['ref']],stdin=q,stdout=q,stderr=q).returncode or sys.exit();"
    "os.environ.update(h['env']);os.execvp('docker',h['words'])"
)


def header(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """What the node is told before the context: docker's words, which hold no value, and the environment with them."""
    args, secrets, ref = wanted["args"], wanted["secrets"], wanted["ref"]
    words = ["docker", "build", "--tag", ref + UNFINISHED, "--file", wanted["dockerfile"]]
    for name in sorted(args):
        words += ["--build-arg", name]
    # The node's own builder, which puts images where docker runs them from, and no records beside them.
    env = {"BUILDX_BUILDER": "default", "BUILDX_NO_DEFAULT_ATTESTATIONS": "1", **args}
    for number, name in enumerate(sorted(secrets)):
        words += ["--secret", f"id={name},env={SECRET}{number}"]
        env[f"{SECRET}{number}"] = secrets[name]
    if secrets:
        env["DOCKER_BUILDKIT"] = "1"  # the classic builder has no secrets; docker says so where there is no other
    return {"ref": ref, "words": [*words, "-"], "env": env}


def not_to_be_told(wanted: Mapping[str, Any]) -> list[str]:
    """Values that docker's output is shown without: secrets, args named like them, and who a URL of an arg is for."""
    args: Mapping[str, str] = wanted["args"]
    named = [value for name, value in args.items() if NAME.fullmatch(name)]
    users = [user for value in args.values() for user in USER.findall(value)]
    return [*wanted["secrets"].values(), *named, *users]


def build(config: Path, link: Link, wanted: Mapping[str, Any]) -> None:
    """Build on a node, from the context on this machine; raises ImageError when that fails, and nothing is there then.

    By the user who logs in: what `docker login` left there counts for base images, as it does for a pull.
    The name is given last: to an image for this machine, of the context that the plan was made of.
    """
    context = Context(on_node.ROOT / Path(wanted["context"]).expanduser(), wanted["dockerfile"])
    ref, values = wanted["ref"], not_to_be_told(wanted)
    last, step = deque[str](maxlen=SHOWN), "waiting for docker"
    words = shlex.join(["timeout", "-k", "10", str(LIMIT_S + on_node.GRACE_S), "python3", "-IS", "-c", START])
    process = subprocess.Popen(
        ["ssh", "-F", str(config), "-o", "BatchMode=yes", "-T", link.name, f"exec {words}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout
    sender = _Sender(process, header(wanted), context)
    with bringing.watched(link.name, lambda: f"building {ref}, {step}", LIMIT_S, process):
        sender.start()
        for raw in process.stdout:
            (line,) = hide_values([raw.decode(errors="replace").rstrip("\r\n")], values)
            line = line.rstrip()  # only now: a value may end with a space
            last.append(line)
            found = STEP.match(line)
            step = f"step {found[1]}" if found else step
        process.wait()
    sender.join()
    if sender.failed:
        raise ImageError(f"{link.name}: the context cannot be sent: {sender.failed}")
    if process.returncode:
        said = "\n".join(f"{link.name}: {line[:500]}" for line in last)
        raise ImageError(f"{said}\n{link.name}: docker build of {ref} failed")
    if present(config, link, ref):
        return  # of another run, that has named it meanwhile
    _name(config, link, wanted, sender.digest)


def _name(config: Path, link: Link, wanted: Mapping[str, Any], context: str) -> None:
    """Give what was built its name, or take it away."""
    ref, unfinished = wanted["ref"], wanted["ref"] + UNFINISHED
    found = present(config, link, unfinished)
    if found is None:
        raise ImageError(f"{link.name}: docker build ended well, and {unfinished} is not there")
    try:
        if built_ref(ref.rpartition("-")[0], context, wanted) != ref:
            raise ImageError(f"{wanted['context']} was changed after this run had begun. Run it again.")
        refuse_another_machine(config, link, ref, found)
        told(config, link, shlex.join(["tag", unfinished, ref]))
    finally:
        with contextlib.suppress(ImageError):  # what went wrong before says more, and the next build tries again
            _remove_unfinished(config, link, ref)


def _remove_unfinished(config: Path, link: Link, ref: str) -> None:
    """Take away what has no name of its own yet, also what killed runs have left of other contexts."""
    names = told(config, link, "image ls --format '{{.Repository}}:{{.Tag}}'").splitlines()
    mine = built_of(ref.rpartition("-")[0])
    left = [one for one in names if one.endswith(UNFINISHED) and mine.fullmatch(one.removesuffix(UNFINISHED))]
    if left:
        told(config, link, shlex.join(["rmi", *left]), REMOVE_LIMIT_S)


class _Sender(threading.Thread):
    """Sends header and context to a process. `digest` is that of what was sent."""

    def __init__(self, process: subprocess.Popen[bytes], told: Mapping[str, Any], context: Context) -> None:
        super().__init__(daemon=True)
        self._process, self._told, self._context = process, told, context
        self.digest = ""
        self.failed: Exception | None = None

    def run(self) -> None:
        """Until all is sent, or the node takes no more, which then says why itself."""
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:
            stdin.write(json.dumps(self._told).encode() + b"\n")
            try:
                self.digest = self._context.pack(stdin)
            except BrokenPipeError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is: no part may pass for all of it
                self.failed = error
                self._process.kill()


def provide(stack: str, links: Mapping[str, Link], node: str, wanted: Mapping[str, Any]) -> str:
    """Make sure that the image is on the node that builds; returns what was done, raises ImageError otherwise."""
    if node not in links:
        raise ImageError(f"{node} builds the image, and was forgotten. Set engine.image.build.node to another node.")
    link, ref = links[node], wanted["ref"]
    config = on_node.ssh_config(stack, link)
    if present(config, link, ref):
        return f"{node}: {ref} is there"
    for other in links.values():
        other_config = on_node.ssh_config(stack, other)
        if other is not link and present(other_config, other, ref):
            bringing.copy(other_config, other, config, link, ref)
            return f"{node}: {ref} copied back from {other.name}"
    try:
        build(config, link, wanted)
    except ContextError as error:
        raise ImageError(str(error)) from error
    return f"{node}: {ref} built"


def main() -> int:
    """Entry point: 0 when the image is there."""
    owner = json.loads(os.environ["FLEET_OWNER"])
    ((node, wanted),) = json.load(sys.stdin).items()
    links = {link.name: link for link in on_node.links_of_command(owner["stack"])}
    try:
        print(provide(owner["stack"], links, node, wanted))
    except ImageError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
