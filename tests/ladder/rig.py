"""A stack on a lab, driven by the real Pulumi from a copy of the checkout, as an operator would."""

from __future__ import annotations

import copy
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from lab import api, library
from lab.snapshot import Snapshot, diff

CHECKOUT = Path(__file__).resolve().parent.parent.parent
LEFT_OUT = (".git", ".venv", ".lab", ".pulumi-state", ".spark-fabric", "__pycache__", ".*_cache", ".hypothesis")
LIMIT_S = 240
RING = 4  # ranks of a ring that the engine's own profile is for
OTHER_RING: dict[str, Any] = {  # what the simulator needs to know on others
    "profile": "none",
    "env": {
        "NCCL_SWITCHLESS_RING_ONLY": 1,
        "NCCL_ALGO": "Ring",
        "NCCL_NET": "IB",
        "NCCL_IB_SUBNET_AWARE_ROUTING": 1,
        "NCCL_IB_EXTENDED_IPV4_GIDS": 1,
        "NCCL_IB_PRESERVE_PCI_DOMAIN": 1,
    },
}


@dataclass(frozen=True)
class Run:
    """What one command printed, and how it ended."""

    words: tuple[str, ...]
    code: int
    out: str
    seconds: float

    def __str__(self) -> str:
        diagnosed = self.out.find("Diagnostics:")  # the outputs that follow them may be long
        shown = self.out[-6000:] if diagnosed < 0 else self.out[diagnosed:][:6000]
        return f"{' '.join(self.words)}: exit {self.code} after {self.seconds:.1f} s\n{shown}"

    def says(self, *texts: str) -> None:
        """All these texts are in what it printed."""
        missing = [text for text in texts if text not in self.out]
        assert not missing, f"{missing} not in {self}"


@dataclass(frozen=True)
class Step:
    """One line of a preview."""

    op: str
    name: str
    diff: tuple[str, ...] = ()
    update: str = ""  # what an update would run, with the reason where a node drifted


class Unexpected(AssertionError):
    """A command that should have succeeded failed, or the other way round; the message is all it printed."""


@dataclass
class Rig:
    """One stack. Its settings are `config`; a changed one counts from the next command on."""

    lab: api.Handle
    checkout: Path
    environment: dict[str, str]
    stack: str
    config: dict[str, Any] = field(default_factory=dict)
    salt: str = ""  # of what is encrypted in `config`

    # settings

    def base(self, topology: str = "ring", image: str = "spark-engine:sim", size: int | None = None) -> dict[str, Any]:
        """The settings of Pulumi.lab.yaml, for this lab."""
        folder = self.lab.lab.directory
        names = self.lab.names[: size or len(self.lab.names)]
        nccl: dict[str, Any] = {}
        if topology == "ring":
            file = folder / "libnccl.so.2.30.7"
            library.build(file, markers=library.KINDS["patched"])
            nccl = {"nccl": {"library": str(file)}}
        other = OTHER_RING if topology == "ring" and len(names) != RING else {}
        return {
            "nodes": [{"name": name, "address": self.lab.address(name)} for name in names],
            "ssh": {
                "user": "spark",
                "identity": str(folder / "keys" / "id_ed25519"),
                "knownHosts": str(folder / "known_hosts"),
            },
            "fleet": {"id": "tests"},
            "fabric": {"topology": topology},
            "proof": {"enabled": False},  # it takes seconds; whoever is about it switches it on
            "engine": {
                "image": image,
                "gpus": "off",
                "shmSize": "64m",
                "stopGrace": 5,
                "readyTimeout": 60,
                "allowAnonymous": True,
                **other,
                "env": {**other.get("env", {}), "ENGINE_LOAD_S": 0.2},
            },
            **nccl,
        }

    def set(self, path: str, value: Any) -> None:
        """Change one setting by its dotted path; list indexes are numbers."""
        *parents, last = path.split(".")
        place: Any = self.config
        for part in parents:
            place = place[int(part)] if isinstance(place, list) else place.setdefault(part, {})
        place[int(last) if isinstance(place, list) else last] = value

    @contextmanager
    def changed(self, path: str, value: Any) -> Iterator[None]:
        """One setting changed for a while; the settings are put back, the fleet is not."""
        before = copy.deepcopy(self.config)
        self.set(path, value)
        try:
            yield
        finally:
            self.config = before

    def write(self) -> None:
        """Write the stack file."""
        config = {f"spark-fabric:{key}": value for key, value in self.config.items()}
        salt = {"encryptionsalt": self.salt} if self.salt else {}
        (self.checkout / f"Pulumi.{self.stack}.yaml").write_text(yaml.safe_dump({"config": config, **salt}))

    def encrypt(self, path: str, value: str) -> None:
        """Set one setting as a secret, as an operator does: the value is in no command line."""
        self.pulumi("stack", "init", ok=None)
        self.write()
        file = self.checkout / f"Pulumi.{self.stack}.yaml"
        subprocess.run(
            [
                self.checkout / "pulumiw",
                "config",
                "set",
                "--secret",
                "--path",
                f"spark-fabric:{path}",
                "-s",
                self.stack,
            ],
            cwd=self.checkout,
            env=self.environment,
            input=value,
            capture_output=True,
            text=True,
            check=True,
        )
        written = yaml.safe_load(file.read_text())
        self.salt = written["encryptionsalt"]
        self.config = {key.removeprefix("spark-fabric:"): value for key, value in written["config"].items()}

    # commands

    def start(self, *words: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """A Pulumi command in a session of its own, for those who want to kill it."""
        self.write()
        return subprocess.Popen(
            [str(self.checkout / "pulumiw"), *words, "-s", self.stack, "--non-interactive", "--color", "never"],
            cwd=self.checkout,
            env={**self.environment, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def pulumi(self, *words: str, ok: bool | None = True, env: Mapping[str, str] | None = None) -> Run:
        """Run a Pulumi command to its end. `ok`: whether it has to succeed, or None."""
        began = time.monotonic()
        process = self.start(*words, env=env)
        try:
            out, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, _ = process.communicate()
            raise Unexpected(f"{words}: not finished after {LIMIT_S} s\n{out[-6000:]}") from None
        return self._checked(Run(words, process.returncode, out, time.monotonic() - began), ok)

    def fleet(self, *words: str, ok: bool | None = True) -> Run:
        """Run `python -m fleet` to its end."""
        self.write()
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "fleet", *words, "-s", self.stack],
            cwd=self.checkout,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        return self._checked(Run(("fleet", *words), done.returncode, done.stdout, time.monotonic() - began), ok)

    @staticmethod
    def _checked(run: Run, ok: bool | None) -> Run:
        if ok is not None and ok != (run.code == 0):
            raise Unexpected(str(run))
        return run

    def up(self, *words: str, ok: bool | None = True) -> Run:
        """`pulumi up`, without a preview first."""
        return self.pulumi("up", "--yes", "--skip-preview", *words, ok=ok)

    def destroy(self, *words: str, ok: bool | None = True) -> Run:
        """`pulumi destroy`, without a preview first."""
        return self.pulumi("destroy", "--yes", "--skip-preview", *words, ok=ok)

    def unchanged(self) -> Run:
        """A preview that must find nothing to do."""
        return self.pulumi("preview", "--diff", "--expect-no-changes")

    def preview(self) -> dict[str, Step]:
        """What an `up` would do, by resource name; what stays the same is left out."""
        run = self.pulumi("preview", "--json")
        steps = json.loads(run.out[run.out.index("{") :])["steps"]
        found = {}
        for step in steps:
            if step["op"] != "same":
                name = step["urn"].rsplit("::", 1)[-1]
                inputs = (step.get("newState") or {}).get("inputs") or {}
                found[name] = Step(step["op"], name, tuple(step.get("diffReasons") or ()), inputs.get("update") or "")
        return found

    # what is there

    def state(self) -> dict[str, Any]:
        """The exported deployment."""
        deployment: dict[str, Any] = json.loads(self.pulumi("stack", "export").out)["deployment"]
        return deployment

    def resources(self) -> list[str]:
        """Names of everything in the state but the stack itself."""
        names = [resource["urn"].rsplit("::", 1)[-1] for resource in self.state().get("resources") or []]
        return [name for name in names if name != f"spark-fabric-{self.stack}"]

    def assert_empty(self) -> None:
        """Nothing is in the state: no resource, no pending operation."""
        state = self.state()
        assert not state.get("resources"), self.resources()
        assert not state.get("pending_operations"), state["pending_operations"]

    def assert_as(self, before: Mapping[str, Snapshot]) -> None:
        """Every node is byte for byte as it was."""
        after = self.lab.snapshots(like=before)
        differences = {name: lines for name in before if (lines := diff(before[name], after[name]))}
        assert not differences, json.dumps(differences, indent=1)

    @contextmanager
    def leaving_no_trace(self, before: Mapping[str, Snapshot] | None = None) -> Iterator[None]:
        """Destroy the stack in the end, whatever happens; then every node is as it was before, or as in `before`."""
        before = before or self.lab.snapshots()
        try:
            yield
        finally:
            self.destroy()
        self.assert_empty()
        self.assert_as(before)

    def engines(self) -> dict[str, dict[str, str]]:
        """Node -> labels of its one running container of a stack."""
        found_by = "docker ps -q --filter label=spark-fabric.stack"
        shown = self.lab.everywhere(f"{found_by} | xargs -r docker inspect --format '{{{{json .Config.Labels}}}}'")
        found = {}
        for node, text in shown.items():
            lines = text.splitlines()
            assert len(lines) <= 1, f"{node} runs {len(lines)} engines"
            if lines:
                found[node] = json.loads(lines[0])
        return found

    def assert_one_group(self, size: int | None = None) -> None:
        """Every rank runs, and all are of one group and one start."""
        engines = self.engines()
        assert len(engines) == (size or len(self.config["nodes"])), sorted(engines)
        assert len({labels["spark-fabric.start"] for labels in engines.values()}) == 1, engines
        assert len({labels["spark-fabric.group"] for labels in engines.values()}) == 1, engines
        ranks = sorted(int(labels["spark-fabric.rank"]) for labels in engines.values())
        assert ranks == list(range(len(engines)))

    def assert_served(self) -> None:
        """The API of the head answers with its model list."""
        head = self.config["nodes"][0]["name"]
        port = self.config["engine"].get("port", 8888)
        answer = self.lab.run(head, f"curl -sf http://127.0.0.1:{port}/v1/models").stdout
        assert json.loads(answer)["data"], answer


def copy_checkout(target: Path) -> Path:
    """A copy of the checkout in which a test may write, with the same virtual environment."""
    shutil.copytree(CHECKOUT, target, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT, "Pulumi.*.yaml"))
    (target / ".venv").symlink_to(CHECKOUT / ".venv")
    return target
