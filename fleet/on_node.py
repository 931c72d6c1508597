"""Run one verb of the node program on some nodes, in parallel: the one way to a node.

This file is the command of every resource that acts on nodes, as `python3 -IS fleet/on_node.py VERB[:ACTION]`:
standard library only, quick to start, and the same text in every version, so that an upgrade is no change. Of several
actions, `VERB:ONE+TWO`, each begins when all nodes are done with the one before; a failure ends that, and so does a
node that cannot verify something. What varies comes in the environment and on standard input:

FLEET_LINKS   JSON list of links, one for each node: name, address, user, port, host key, identity path
FLEET_OWNER   JSON object: project, stack, fleet_id, state_id
FLEET_STAGE   the stage that the verb is about
FLEET_LOST    comma-separated names of nodes to skip, besides those listed in the stack's `lost` file
stdin         JSON object: node name -> desired state

The node program is packed from `node/` beside this folder and piped to the node, so nothing needs to be installed
there. Files that `apply` wants on the nodes are sent with it (`fleet/sending.py`). Exit status: 0 when all nodes
succeeded, else the highest status of a node; 255 means that a node could not be reached (`ssh`'s own status).
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # -I leaves it out

from node import limits
from node.pack import program

T = TypeVar("T")

ROOT = Path(__file__).resolve().parent.parent
STATE = ".spark-fabric"  # below the checkout: ssh files, lost nodes, the packed node program
UNREACHABLE = 255
ENDED_BY_TIMEOUT = (124, 137)  # of timeout(1): it ended the program, or had to kill it
# On the node; a change has what its stage may take (`node/limits.py`).
LIMITS_S = {
    "observe": 10,
    "verify": 60,
    "reach": 60,
    "weigh": 1200,  # what one call begins, it reads to its end
    "mesh-verify": 120,  # two writes that wait for their listeners, each in a container
    "cabling": 15,
    "status": 15,
    "by-hand": 15,
    "counters": 20,  # with a mesh a few processes
    "load": 630,
    "loaded": 60,
    "bandwidth": 60,  # a receiver waits for its sender, and for the writes
    "smoke": 630,
    "tables": 120,  # behind whoever has the node's lock
    "pack-engram": 4 * 3600 + 240,  # its own limit is shorter, so that it ends the container itself
}
# A look is over soon, so that a node that is off is named soon. What is to be done on a node that has just answered
# does not fail because it is slow for some seconds.
LOOKS = ("observe", "status", "cabling")
CONNECT_S = 30
# The program may still be inside its own clean-up when its limit is over; ssh is given that much longer.
GRACE_S = CONNECT_S + 15

# Reads "<length>\n<zip>" from stdin, leaves the rest of stdin to the program, and runs the zip from memory.
BOOT = (
    "import os,sys,zipimport;i=sys.stdin.buffer;b=i.read(int(i.readline()));f=os.memfd_create('spark-node');"
    "os.writev(f,[b]);p='/proc/self/fd/%d'%f;sys.argv[0]=p;sys.path.insert(0,p);"
    "exec(zipimport.zipimporter(p).get_code('__main__'),{'__name__':'__main__'})"
)


@dataclass(frozen=True)
class Link:
    """How one node is reached. Holds no secret: `identity` is the path of a key, not the key."""

    name: str
    address: str
    user: str
    port: int
    host_key: str  # "ssh-ed25519 AAAA…", as in a known_hosts line
    identity: str = ""  # relative to the checkout, or absolute; empty: what ssh's own configuration and agent offer
    connect_s: int = 5  # seconds that the node may take to answer a look


class Content(Protocol):
    """What is sent behind a request."""

    @property
    def seconds(self) -> int:
        """How much longer a call may take for it."""

    def pieces(self) -> Iterator[bytes]:
        """All of it, in pieces that fit into memory."""


@dataclass(frozen=True)
class Answer:
    """What came back from one node."""

    node: str
    status: int
    result: dict[str, Any] | None
    text: str  # what the node program, or ssh, said
    sent: float = 0.0  # between these two times of our clock, in seconds since 1970, it was answered
    came: float = 0.0

    @property
    def reached(self) -> bool:
        """Whether the node answered at all."""
        return self.status != UNREACHABLE


def folder(stack: str) -> Path:
    """Where the operator's side keeps what belongs to one stack and is no secret: ssh files, lost nodes."""
    return ROOT / STATE / stack


def ssh_config(stack: str, link: Link) -> Path:
    """Write the ssh configuration of one node, unless it is there already, and return its path.

    The host key is bound to the node's *name*, so two nodes that swap addresses are refused by ssh itself. The
    operator's own ssh configuration comes after ours: jump hosts and agents work, and cannot weaken host key checks.
    """
    place = folder(stack) / "ssh"
    known = place / f"{link.name}.known_hosts"
    lines = [
        f"# How spark-fabric reaches {link.name}; written anew when the stack's settings change.",
        f"Host {link.name} {link.address}",
        f"  HostName {link.address}",
        f"  HostKeyAlias {link.name}",
        f"  User {link.user}",
        f"  Port {link.port}",
        f'  UserKnownHostsFile "{known}"',
        "  GlobalKnownHostsFile /dev/null",
        "  StrictHostKeyChecking yes",
        "  UpdateHostKeys no",
        f"  ConnectTimeout {link.connect_s}",
        "  ServerAliveInterval 5",
        "  ServerAliveCountMax 3",
    ]
    if link.identity:
        lines += [f'  IdentityFile "{ROOT / Path(link.identity).expanduser()}"', "  IdentitiesOnly yes"]
    lines += ["Match all", "  Include ~/.ssh/config", "  Include /etc/ssh/ssh_config", ""]
    replace(known, f"{link.name} {link.host_key}\n")
    replace(place / f"{link.name}.conf", "\n".join(lines))
    return place / f"{link.name}.conf"


def replace(path: Path, text: str) -> None:
    """Replace a file at once, and only if it differs: several commands may do so at the same time."""
    if path.exists() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    fresh.write_text(text)
    fresh.replace(path)


def lost_nodes(stack: str) -> set[str]:
    """Nodes that the operator has given up (`python -m fleet forget`): every command skips them."""
    named = os.environ.get("FLEET_LOST", "").split(",")
    listing = folder(stack) / "lost"
    if listing.exists():
        named += listing.read_text().split()
    return {name for name in named if name}


def _link(values: dict[str, Any]) -> Link:
    """A link as another version of this program wrote it: what it knew beyond ours is left out."""
    names = {field.name for field in fields(Link)}
    return Link(**{name: value for name, value in values.items() if name in names})


def _last_links(stack: str) -> dict[str, dict[str, Any]]:
    listing = folder(stack) / "links.json"
    try:
        found: dict[str, dict[str, Any]] = json.loads(listing.read_text())
    except (OSError, ValueError):
        return {}
    return found


def remember_links(stack: str, links: list[Link]) -> None:
    """Keep the links by which nodes have just answered.

    A resource is deleted with the environment that it was created with. After a new key, a new address or a new host
    key that one leads nowhere, and nothing that has to be deleted first could ever be changed again.
    """
    last = _last_links(stack)
    last |= {link.name: asdict(link) for link in links}
    replace(folder(stack) / "links.json", json.dumps(last, indent=1, sort_keys=True) + "\n")


def links_of_command(stack: str) -> list[Link]:
    """The links of FLEET_LINKS without those of forgotten nodes, each as its node has last answered."""
    lost, last = lost_nodes(stack), _last_links(stack)
    links = []
    for values in json.loads(os.environ["FLEET_LINKS"]):
        if values["name"] in lost:
            print(f"{values['name']}: forgotten, skipped")
        else:
            links.append(_link(last.get(values["name"], values)))
    return links


def ssh_command(config: Path, link: Link, limit: int, verb: str) -> list[str]:
    """The command line that runs the node program as root, in at most `limit` seconds."""
    words = shlex.join(["timeout", "-k", "10", str(limit), "python3", "-IS", "-c", BOOT, verb])
    remote = f'if [ "$(id -u)" = 0 ]; then exec {words}; fi; exec sudo -n --preserve-env=SSH_CONNECTION {words}'
    patient = [] if verb in LOOKS else ["-o", f"ConnectTimeout={max(CONNECT_S, link.connect_s)}"]
    return ["ssh", "-F", str(config), "-o", "BatchMode=yes", *patient, "-T", link.name, remote]


def _unreachable(link: Link, text: str) -> str:
    """What ssh said, and what the operator can do about it."""
    said = next((line.strip(" .") for line in reversed(text.splitlines()) if line.strip()), "no answer")
    where = f"{link.name} ({link.user}@{link.address}:{link.port})"
    if "REMOTE HOST IDENTIFICATION HAS CHANGED" in text or "Host key verification failed" in text:
        return (
            f"{where}: the host key is not the expected one: another machine has this address, or {link.name} was "
            f"installed anew. Check it at its console, then set nodes[{link.name}].hostKey or your known_hosts file."
        )
    if "Permission denied" in text:
        return f"{where}: {said}. Check ssh.user and ssh.identity, or load the key into your agent."
    return f"{where}: {said}. Is it on? To go on without it: python -m fleet forget {link.name}"


def ask(
    verb: str,
    stack: str,
    link: Link,
    packed: bytes,
    request: dict[str, Any],
    limit: float | None = None,
    content: Content | None = None,
) -> Answer:
    """Run one verb on one node. Never raises for what a node or the network does.

    `limit` bounds the whole call in seconds; without it the verb's own limit does. `content` is sent behind the
    request, in pieces.
    """
    desired = request.get("desired") or {}
    seconds = LIMITS_S.get(verb) or limits.seconds(str(request.get("stage") or ""), desired)
    seconds += int(desired.get("grace", 0))  # of a stop
    seconds += content.seconds if content else 0
    command = ssh_command(ssh_config(stack, link), link, seconds, verb)
    body = b"%d\n%s%s" % (len(packed), packed, json.dumps(request).encode())
    sent = time.time()
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if content:
        assert process.stdin
        threading.Thread(target=_feed, args=(process.stdin, body, content), daemon=True).start()
        process.stdin = None  # else `communicate` would close it
    try:
        out, err = process.communicate(None if content else body, timeout=limit or seconds + GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        _, err = process.communicate()
        waited = f"no answer within {limit or seconds + GRACE_S:g} s"
        return Answer(link.name, UNREACHABLE, None, _unreachable(link, f"{err.decode(errors='replace')}\n{waited}"))
    text = err.decode(errors="replace").strip()
    if process.returncode == UNREACHABLE:
        return Answer(link.name, UNREACHABLE, None, _unreachable(link, text))
    if process.returncode in ENDED_BY_TIMEOUT:
        text = f"{text}\n{verb}: not done after {seconds} s, and ended. Is {link.name} overloaded?".strip()
    lines = out.decode(errors="replace").strip().splitlines()
    try:
        result = json.loads(lines[-1]) if lines else None
    except ValueError:
        result, text = None, f"{text}\n{lines[-1][:500]}".strip()
    if process.returncode == 0 and result is None:
        return Answer(link.name, 1, None, text or "the node program gave no answer")
    return Answer(link.name, process.returncode, result, text, sent, time.time())


def _feed(stdin: IO[bytes], body: bytes, content: Content) -> None:
    """Write a request and what follows it. A node that takes no more says why itself."""
    with contextlib.suppress(OSError), stdin:
        stdin.write(body + b"\n")
        stdin.flush()  # what follows may take its time
        for piece in content.pieces():
            stdin.write(piece)


def holder() -> str:
    """Who asks, for the lock on the node and its journal."""
    return f"{getpass.getuser()}@{socket.gethostname()} (pid {os.getpid()})"


def on_all(
    verb: str, stack: str, links: list[Link], requests: dict[str, dict[str, Any]], limit: float | None = None
) -> list[Answer]:
    """Run one verb on many nodes at once; the answers come in the order of the links."""
    packed = program(ROOT / STATE)
    return at_once(lambda link: ask(verb, stack, link, packed, requests[link.name], limit), links)


def at_once(work: Callable[[Link], T], links: Sequence[Link]) -> list[T]:
    """Work for many nodes side by side; the results come in the order of the links."""
    if len(links) < 2:
        return [work(link) for link in links]
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - most commands are for one node

    with ThreadPoolExecutor(len(links)) as pool:
        return list(pool.map(work, links))


def on_each(links: list[Link], work: Callable[[Link], str], refusal: type[Exception]) -> int:
    """Do some work for many nodes at once, and print what was done for each; the exit status.

    That is 1 where the work raises a `refusal`, whose message is told on stderr. The others go on all the same.
    """

    def one(link: Link) -> bool:
        try:
            print(work(link), flush=True)
        except refusal as error:
            print(error, file=sys.stderr)
            return False
        return True

    return 0 if all(at_once(one, links)) else 1


def report(answer: Answer) -> None:
    """Print what one node said: short lines, each with the node's name in front."""

    def named(line: str) -> str:
        return line[:1000] if line.startswith(answer.node) else f"{answer.node}: {line[:1000]}"

    for line in answer.text.splitlines()[-40:] if answer.status else []:
        print(named(line), file=sys.stderr)
    for key in ("changed", "notes"):
        for line in (answer.result or {}).get(key) or []:
            print(named(line))


def main() -> int:
    """Entry point of the commands."""
    verb, _, actions = sys.argv[1].partition(":")
    owner = json.loads(os.environ["FLEET_OWNER"])
    links = links_of_command(owner["stack"])
    text = sys.stdin.read()
    desired = json.loads(text) if text.strip() else {}
    answers: list[Answer] = []
    for action in actions.split("+"):
        requests = {
            link.name: {
                "owner": owner,
                "node": link.name,
                "stage": os.environ.get("FLEET_STAGE", ""),
                "desired": {**desired.get(link.name, {}), "action": action} if action else desired.get(link.name),
                "holder": holder(),
            }
            for link in links
        }
        answers = (_apply if verb == "apply" else partial(on_all, verb))(owner["stack"], links, requests)
        for answer in answers:
            report(answer)
        if any(answer.status or (answer.result or {}).get("unverified") for answer in answers):
            break
    if not all(answer.reached for answer in answers):
        print("If the way to a node has changed (address, user, key), run a preview first.", file=sys.stderr)
    return max((answer.status for answer in answers), default=0)


def _apply(stack: str, links: list[Link], requests: dict[str, dict[str, Any]]) -> list[Answer]:
    """Apply, and send the files that the desired states want on the nodes."""
    from node.sent import files  # noqa: PLC0415 - of no use to the other verbs

    if not any(any(files(request["desired"])) for request in requests.values()):
        return on_all("apply", stack, links, requests)
    from fleet.sending import apply_on_all  # noqa: PLC0415

    return apply_on_all(stack, links, requests)


def as_json(links: list[Link]) -> str:
    """Links as FLEET_LINKS wants them."""
    return json.dumps([asdict(link) for link in links], sort_keys=True)


if __name__ == "__main__":
    sys.exit(main())
