"""`python -m bench`: measure on labs of its own and print a table; exit status 1 when a limit is not kept.

Every figure is a ratio of two things done in turn in one run, or is given beside such a ratio only to know its size.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from bench.ansible import NOT_COVERED, Ansible
from bench.pairs import Pairs, measure, seconds
from fleet.on_node import Link, as_json
from lab import api
from tests.ladder.rig import CHECKOUT, Rig, copy_checkout
from toolchain import environment, provide

RESULTS = Path(__file__).resolve().parent / "results.md"
NO_CHANGE, ADDRESSING = 2.5, 1.5  # the limits that this project has set itself
# Debian's own key exchange in place of the lab's cheap one: a login costs what it costs on any machine.
STOCK_SSH = "rm /etc/ssh/sshd_config.d/lab.conf && systemctl reload ssh"


def surroundings(scratch: Path) -> dict[str, str]:
    """An environment in which Pulumi runs with state of its own, as for the wrapper."""
    found = provide.provide()
    (scratch / "backend").mkdir(exist_ok=True)
    variables = {**os.environ, "PULUMI_CONFIG_PASSPHRASE": "", "PULUMI_BACKEND_URL": f"file://{scratch / 'backend'}"}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)  # a program that is compiled anew each time is no user's
    made = environment.make(found, scratch, "version", variables)
    return made | {"PATH": os.pathsep.join((str(found.cli.parent), made["PATH"]))}


@contextlib.contextmanager
def rig_on_lab(scratch: Path, name: str, nodes: int) -> Iterator[Rig]:
    """A stack on a fresh lab, untraced: the traces' wrappers would be measured too."""
    lab = api.start(f"bench-{name}-{os.getpid()}", scratch / name, nodes=nodes, owned=True)
    try:
        lab.load_image()
        lab.everywhere(STOCK_SSH)
        rig = Rig(lab, copy_checkout(scratch / f"checkout-{name}"), surroundings(scratch), f"bench-{name}")
        rig.config = rig.base()
        yield rig
    finally:
        lab.stop()


class Empty:
    """An empty Pulumi program in the same virtual environment, with the same kind of state."""

    def __init__(self, scratch: Path, variables: dict[str, str]) -> None:
        self.folder, self.variables = scratch / "empty", variables
        self.folder.mkdir()
        runtime = {"name": "python", "options": {"toolchain": "pip", "virtualenv": str(CHECKOUT / ".venv")}}
        (self.folder / "Pulumi.yaml").write_text(json.dumps({"name": "empty", "runtime": runtime}))
        (self.folder / "__main__.py").write_text("import pulumi\n")
        self("stack", "init", "empty")

    def __call__(self, *words: str) -> None:
        """Run Pulumi on it."""
        subprocess.run(
            ["pulumi", *words, "--non-interactive"],
            cwd=self.folder,
            env=self.variables,
            check=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )


def ssh_to_all(rig: Rig, command: str = "true") -> None:
    """One ssh to each node, in parallel."""
    rig.lab.everywhere(command)


def no_change(rig: Rig, scratch: Path) -> Iterator[Pairs]:
    """A preview and an up that have nothing to do, against an empty program and one parallel ssh."""
    empty = Empty(scratch, rig.environment)

    def reference(*words: str) -> Callable[[], None]:
        def work() -> None:
            empty(*words)
            ssh_to_all(rig)

        return work

    names = f"empty {{}} + ssh to {len(rig.lab.names)} nodes"
    yield measure(
        f"no-change preview / ({names.format('preview')})",
        rig.unchanged,
        reference("preview", "-s", "empty"),
        limit=NO_CHANGE,
    )
    yield measure(
        f"no-change up / ({names.format('up')})",
        rig.up,
        reference("up", "-s", "empty", "--yes", "--skip-preview"),
        limit=NO_CHANGE,
    )


def beside_ansible(rig: Rig, ansible: Ansible) -> Pairs:
    """The same preview against a playbook that looks for differences in the same files and values."""
    return measure("no-change preview / (ansible-playbook --check)", rig.unchanged, ansible.check, pairs=3)


def _commands(rig: Rig) -> tuple[dict[str, dict[str, dict[str, Any]]], dict[str, str]]:
    """Every stage's desired states by node, and the environment they share, from the state of the running stack."""
    desired: dict[str, dict[str, dict[str, Any]]] = {stage: {} for stage in ("plane0", "plane1", "relay", "nccl")}
    owner = ""
    for resource in rig.state()["resources"]:
        inputs = resource.get("inputs") or {}
        stage = (inputs.get("environment") or {}).get("FLEET_STAGE")
        if stage in desired:
            desired[stage] |= json.loads(inputs["stdin"])
            owner = inputs["environment"]["FLEET_OWNER"]
    return desired, {"FLEET_OWNER": owner}


def addressing(rig: Rig, ansible: Ansible) -> Iterator[Pairs]:
    """Both planes of all nodes, journaled, against a parallel `netplan apply` of the same files, and a playbook."""
    desired, shared = _commands(rig)
    links = {link["name"]: Link(**link) for link in _links(rig)}

    def run(verb: str, stage: str, name: str) -> None:
        subprocess.run(
            [sys.executable, "-IS", "fleet/on_node.py", verb],
            cwd=rig.checkout,
            env=rig.environment | shared | {"FLEET_STAGE": stage, "FLEET_LINKS": as_json([links[name]])},
            input=json.dumps({name: desired[stage][name]}).encode(),
            check=True,
            capture_output=True,
        )

    def each(*jobs: tuple[str, str]) -> None:
        def one(name: str) -> None:
            for verb, stage in jobs:
                run(verb, stage, name)

        with ThreadPoolExecutor(len(links)) as pool:
            list(pool.map(one, links))

    texts = {
        name: "\n".join(
            f"cat > {state['file']} <<'EOF'\n{state['text']}EOF\nchmod 600 {state['file']}"
            for state in (desired["plane0"][name], desired["plane1"][name])
        )
        for name in links
    }

    def plain() -> None:
        with ThreadPoolExecutor(len(links)) as pool:
            list(pool.map(lambda name: rig.lab.run(name, f"{texts[name]}\nnetplan apply"), links))

    def bare() -> None:
        """The nodes as before the planes, whoever applied them last."""
        each(("revert", "plane1"), ("revert", "plane0"))
        files = "/etc/netplan/41-spark-fabric-plane* /etc/sysctl.d/60-spark-fabric-plane*"
        values = (
            "for file in /proc/sys/net/ipv4/conf/en[pP]*p*/arp_ignore /proc/sys/net/ipv4/conf/en[pP]*p*/arp_announce"
        )
        left = f"rm -f {files}; {values}; do echo 0 >$file; done; netplan generate; nmcli connection reload; sleep 1"
        rig.lab.everywhere(left)

    # The engines must be gone: the node program would refuse to disturb them.
    rig.pulumi("destroy", "--yes", "--skip-preview", "--target", "**gate", "--target-dependents")
    what = f"addressing of {len(links)} nodes"
    ours = partial(each, ("apply", "plane0"), ("apply", "plane1"))
    yield measure(f"{what} / (plain parallel netplan apply)", ours, plain, limit=ADDRESSING, before=bare)
    yield measure(f"{what} / (ansible-playbook, the same files)", ours, ansible.address, pairs=3, before=bare)


def _links(rig: Rig) -> list[dict[str, Any]]:
    for resource in rig.state()["resources"]:
        listing = ((resource.get("inputs") or {}).get("environment") or {}).get("FLEET_LINKS")
        if listing and len(json.loads(listing)) == len(rig.lab.names):
            found: list[dict[str, Any]] = json.loads(listing)
            return found
    raise LookupError("no command of the state knows all nodes")


def _sizes(scratch: Path) -> Iterator[Pairs]:
    """A first up and a destroy, and a lab's boot, of eight nodes beside four: only to know."""
    times = {}
    for size in (4, 8):
        boot = seconds(partial(_boot, scratch, size))
        with rig_on_lab(scratch, f"size{size}", size) as rig:
            times[size] = (boot, seconds(rig.up), seconds(rig.destroy))
    for index, what in enumerate(("lab boot and shutdown", "first up", "destroy")):
        yield Pairs(f"{what}, 8 nodes / 4 nodes", (times[8][index],), (times[4][index],), None)


def _boot(scratch: Path, size: int) -> None:
    api.start(f"bench-boot{size}-{os.getpid()}", scratch / f"boot{size}", nodes=size, owned=True).stop()


def _set_up(scratch: Path) -> Iterator[Pairs]:
    """What `make demo` makes once for a machine: toolchain, Debian root, image. Only to know."""
    variables = {**os.environ, "XDG_CACHE_HOME": str(scratch / "cache")}  # also Go's

    def make() -> None:
        for words in (["toolchain"], ["lab", "--dir", str(scratch / "lab"), "image", "build"]):
            subprocess.run(
                [sys.executable, "-m", *words], cwd=CHECKOUT, env=variables, check=True, stdout=subprocess.DEVNULL
            )

    yield Pairs("set-up, nothing in the cache / all in the cache", (seconds(make),), (seconds(make),), None)


def _four(scratch: Path) -> Iterator[Pairs]:
    """Everything that has a limit, on a stack of four nodes."""
    with rig_on_lab(scratch, "four", 4) as rig:
        rig.up()
        yield from no_change(rig, scratch)
        ansible = Ansible(rig, scratch, _commands(rig)[0])
        yield beside_ansible(rig, ansible)
        yield from addressing(rig, ansible)
        rig.destroy()


PARTS = {"limits": _four, "sizes": _sizes, "set-up": _set_up}


def main() -> int:
    """Entry point."""
    top = argparse.ArgumentParser(prog="python -m bench", description=(__doc__ or "").splitlines()[0])
    top.add_argument("--only", choices=PARTS, help="measure one part (default: all)")
    top.add_argument("--keep", action="store_true", help=f"write the table to {RESULTS.name}")
    options = top.parse_args()
    table = ["| what / against what | ours | reference | ratio (lowest–highest) | limit |", "|---|---|---|---|---|"]
    kept = True
    with tempfile.TemporaryDirectory(prefix="spark-bench-") as folder:
        for part in [options.only] if options.only else PARTS:
            for pairs in PARTS[part](Path(folder)):
                print(pairs.row(), flush=True)
                table.append(pairs.row())
                kept = kept and pairs.kept
    print("\n" + "\n".join(table))
    if options.keep:
        made = f"Made by `python -m bench --keep` on {os.cpu_count()} cores.\n\n"
        RESULTS.write_text(made + "\n".join(table) + f"\n\n{NOT_COVERED}")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
