"""From the launcher's file to a stack config: what is carried over, and what is left.

The rule for container variables is that the engine is told what the launcher would tell it: a variable stands in
`engine.serving` or `engine.env` where the stack would otherwise tell something else or nothing, also where the file has
none and the launcher a default, and in `engine.without` where the launcher would tell nothing. The profile is the one
that leaves least to say.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from fleet import launcher, variables
from fleet.addressing import SUBNET_PREFIX
from fleet.carried import Left, Told, Variables, as_number, tell
from fleet.engine_settings import KEY, NO_KEY, OWNED_ENV
from fleet.launcher import Setting, Way
from fleet.launcher_file import LauncherFile, is_secret
from fleet.loading import load
from fleet.moving_weights import SHARING, shares, weights
from fleet.nccl_settings import PIP_LIBRARY
from fleet.problems import Problem, ProblemsError
from fleet.profiles import WHOLE, Profile
from fleet.scalars import LABEL, LibraryMode
from fleet.topology import Kind

UNKNOWN = "The launcher does not know it; a fork may. For the engine set it in engine.env.", False

SWITCHES = ("NCCL_SWITCHLESS_RING_ONLY", "NCCL_OVERLAY_PIP")
NUMBERED = {"WORKER<n>_IP": "WORKER_IPS", "WORKER<n>_HOST": "WORKER_HOSTS"}

PAIR = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
HCA = re.compile(r"=?roce(P2)?p1s0f([01])(:1)?")
POLL_S = 10
STATE, ENGRAM, CACHE = "/state", "/engram", "/root/.cache"


@dataclass
class Moved:
    """What came of a file.

    `assumed`: settings that the file does not have, with the launcher's defaults that were taken. `told`: keys of
    `engine.serving` and names of `engine.env` of that kind. `secrets`: config paths to set. `todo`: what the operator
    has to see to. `needless`: what this program does without. `problems`: what is wrong about the config.
    `carriage_returns`: as of the script.
    """

    config: dict[str, Any] = field(default_factory=dict)
    assumed: dict[str, str] = field(default_factory=dict)
    told: Collection[str] = ()
    secrets: dict[str, int | None] = field(default_factory=dict)
    todo: list[Left] = field(default_factory=list)
    needless: list[Left] = field(default_factory=list)
    problems: tuple[Problem, ...] = ()
    carriage_returns: bool = False


def move(text: str, home: str, root: str) -> Moved:
    """Read the launcher's file; `home` and `root` are the user's home and the launcher's folder on the head.

    Raises bash.BashError where the file cannot be read to its end.
    """
    return _Mover(LauncherFile(text, home, root)).moved()


class _Mover:
    def __init__(self, file: LauncherFile) -> None:
        self._file = file
        self._get, self._line = file.get, file.line
        self._out = Moved(carriage_returns=file.script.carriage_returns)
        self._ring = self._get("NCCL_SWITCHLESS_RING_ONLY") == "1"

    def moved(self) -> Moved:
        out = self._out
        for one in self._file.script.unread:
            names = f" It may set {', '.join(one.names)}." if one.names else ""
            out.todo.append(Left("bash", one.line, None, f"Not read: {one.what}.{names}"))
        nodes = self._nodes()
        fabric = self._fabric()
        nccl = self._library(nodes)
        engine = self._engine(nodes)
        base = {
            "nodes": nodes,
            "ssh": {"user": self._take("WORKER_USER"), "identity": self._identity()},
            "fabric": fabric,
            **({"nccl": nccl} if nccl else {}),
        }
        attempts = [self._attempt(base, engine, profile) for profile in self._profiles()]
        best = min(attempts, key=lambda one: (len(one.problems), one.variables.size))
        out.config, out.problems = best.config, best.problems
        out.todo += best.variables.left
        out.secrets |= best.variables.secrets
        out.told = best.variables.untold
        self._pairs()
        self._api_key()
        self._compare(len(nodes), best.told.head)
        self._rest()
        return out

    def _profiles(self) -> list[Profile]:
        """The profiles for the image that the file says it builds, or all; the first of equals is taken."""
        recipe = self._get("BUILD_DOCKERFILE") if self._line("BUILD_DOCKERFILE") is not None else None
        whole = [one.name for one in WHOLE.values() if recipe in (None, one.build.recipe)]
        return [*whole, Profile.AUTO]

    def _attempt(self, base: Mapping[str, Any], engine: Mapping[str, Any], profile: Profile) -> _Attempt:
        """The stack file with this profile."""
        told = tell(base["fabric"], base.get("nccl"), engine["epSize"], profile)
        variables = self._variables(told)
        config = {**base, "engine": {**engine, "profile": profile.value, **variables.sections()}}
        if profile is Profile.AUTO:
            del config["engine"]["profile"]
        secret = {"headEnv": {**config["engine"].get("headEnv", {}), KEY: "set as a secret"}} if self._has_key() else {}
        try:
            load({**config, "engine": {**config["engine"], **secret}})
        except ProblemsError as error:
            return _Attempt(config, told, variables, error.problems)
        return _Attempt(config, told, variables, ())

    def _take(self, name: str) -> str:
        """What the launcher has for a setting; a default of its own is noted."""
        text = self._get(name)
        if self._line(name) is None and text:
            self._out.assumed[name] = text
        return text

    def _left(self, name: str, why: str, *, needless: bool = False) -> None:
        text = self._get(name)
        one = Left(name, self._line(name), None if is_secret(name, text) else text, why)
        (self._out.needless if needless else self._out.todo).append(one)

    # Sections of the config.

    def _nodes(self) -> list[dict[str, Any]]:
        addresses = _words(self._get("WORKER_IPS"))
        if not addresses and "WORKER_IPS" not in self._file.unknown:
            addresses = [self._get("WORKER1_IP") or "10.0.0.2", self._get("WORKER2_IP") or "10.0.0.3"]
            self._out.assumed["WORKER_IPS"] = " ".join(addresses)
        hosts = _words(self._get("WORKER_HOSTS"))
        if not hosts:
            hosts = [self._get(f"WORKER{number}_HOST") for number in range(1, len(addresses) + 1)]
        if len(hosts) != len(addresses):
            self._left("WORKER_HOSTS", f"It has {len(hosts)} names for {len(addresses)} workers, and was not used.")
            hosts = [""] * len(addresses)
        nodes: list[dict[str, Any]] = [{"name": "head", "address": self._take("HEAD_IP")}]
        for number, (host, address) in enumerate(zip(hosts, addresses, strict=True), start=1):
            name = host.lower() if LABEL.fullmatch(host.lower()) else f"worker{number}"
            nodes.append({"name": name, "address": address})
        return nodes

    def _identity(self) -> str:
        path = self._take("SSH_IDENTITY")
        inside = path.removeprefix(f"{self._file.home}/")
        return path if inside == path else f"~/{inside}"

    def _fabric(self) -> dict[str, Any]:
        """Topology, and the planes and port of the list of devices."""
        found = [HCA.fullmatch(one) for one in _words(self._take("IB_HCA"))]
        usual = [one for one in found if one]
        fabric: dict[str, Any] = {"topology": (Kind.RING if self._ring else Kind.SWITCHED).value}
        planes = {1 if one[1] else 0 for one in usual}
        sockets = sorted({f"f{one[2]}" for one in usual})
        if not self._ring and sockets:
            fabric["port"] = sockets[0]
            planes = {1 if one[1] else 0 for one in usual if f"f{one[2]}" == sockets[0]}
        for plane in {0, 1} - planes if planes else ():
            fabric[f"plane{plane}"] = {"enabled": False}
        return fabric

    def _engine(self, nodes: list[dict[str, Any]]) -> dict[str, Any]:
        engine: dict[str, Any] = {"image": self._take("IMAGE"), "epSize": as_number(self._take("EP_SIZE"))}
        for key, name in (("port", "PORT"), ("distPort", "DIST_PORT"), ("servedModelName", "SERVED_MODEL_NAME")):
            if self._get(name) != launcher.SETTINGS[name].default:
                engine[key] = as_number(self._get(name))
        if self._get("SHM_SIZE") != launcher.SETTINGS["SHM_SIZE"].default:
            engine["shmSize"] = self._get("SHM_SIZE")
        polls = as_number(self._get("READY_TIMEOUT"))
        if isinstance(polls, str):
            self._left("READY_TIMEOUT", "It is not a number.")
        elif str(polls) != launcher.SETTINGS["READY_TIMEOUT"].default:
            engine["readyTimeout"] = polls * POLL_S
        if self._ring and self._get("NCCL_IB_GID_INDEX"):
            engine["gidIndex"] = as_number(self._get("NCCL_IB_GID_INDEX"))
        if not self._has_key():
            engine["allowAnonymous"] = True
        if section := weights(self._file, nodes, self._take, self._left):
            engine["weights"] = section
        engine["volumes"] = list(self._volumes())
        return engine

    def _volumes(self) -> Iterator[str]:
        """The other folders of the launcher's containers, with the head's source for all nodes."""
        yield from self._volume("STATE_DIR", f"{self._get('WORKER_DIR')}/state", STATE)
        yield from self._volume("ENGRAM_DIR", self._get("WORKER_ENGRAM_DIR"), ENGRAM)
        yield f"{self._file.home}/.cache:{CACHE}"

    def _volume(self, name: str, at_worker: str, target: str) -> Iterator[str]:
        """A folder that a setting names, at a place in the containers of all nodes."""
        source = self._take(name)
        if not source:
            self._left(name, f"Its folder is not known: add it to engine.volumes, for {target}.")
            return
        yield f"{source}:{target}"
        if source != at_worker:
            self._left(name, f"On the workers it is {at_worker}. Here it is one path on every node, that of the head.")

    def _library(self, nodes: list[dict[str, Any]]) -> dict[str, Any]:
        """The section of NCCL, with the library where each node has it."""
        if not self._ring and self._get("NCCL_OVERLAY_PIP") != "1":
            for name in ("NCCL_HOST_DIR", "NCCL_WORKER_DIR", "NCCL_PIP_SO"):
                if self._line(name) is not None:
                    self._left(name, launcher.SETTINGS["NCCL_CONTAINER_DIR"].why, needless=True)
            return {}
        folder, target = self._take("NCCL_HOST_DIR"), self._get("NCCL_PIP_SO")
        at_worker = self._get("NCCL_WORKER_DIR") or self._at_home_of_worker(folder)
        section: dict[str, Any] = {"mode": LibraryMode.OVERLAY.value}
        if folder == at_worker:
            section["library"] = {"onNode": folder}
        else:
            for rank, node in enumerate(nodes):
                node["nccl"] = {"onNode": at_worker if rank else folder}
        return section if target == PIP_LIBRARY else {**section, "target": target}

    def _at_home_of_worker(self, folder: str) -> str:
        path, home = PurePosixPath(folder), self._file.home
        at_home = path.is_relative_to(home)
        return str(PurePosixPath("/home", self._get("WORKER_USER"), path.relative_to(home))) if at_home else folder

    # Variables of the containers.

    def _variables(self, told: Told) -> Variables:
        """What all ranks and what rank 0 is told beside what the stack tells them anyway."""
        found, (wanted, sources) = Variables(), self._wanted()
        found.without = sorted(told.profile - wanted.keys() - self._file.unknown)
        env = {name: value for name, value in wanted.items() if {told.head.get(name), told.worker.get(name)} != {value}}
        head = {name: self._get(name) for name in self._settings(Way.HEAD) if name not in sources}
        memory = "MEM_FRACTION_STATIC"
        if memory not in sources and self._get(f"HEAD_{memory}") != wanted.get(memory):
            head[memory] = self._get(f"HEAD_{memory}")
        head = {name: value for name, value in head.items() if value and value != told.head.get(name)}
        for name in [name for name in env if name in OWNED_ENV]:
            found.left.append(self._left_variable(name, env.pop(name), sources, f"It follows from {OWNED_ENV[name]}."))
        for values, key in ((env, "env"), (head, "headEnv")):
            for name in [name for name, value in values.items() if is_secret(name, value)]:
                del values[name]
                place = "headEnv" if name == "API_KEY" else key
                found.secrets[f"engine.{place}.{name}"] = self._line(sources.get(name, name))
        meshed = self._ring and wanted.get("DSV41_ROCE_RING", "0") not in ("", "0")
        grounds = [told.ground, *([replace(told.ground, mesh=True)] if meshed else [])]
        for objection in [one for ground in grounds for one in variables.objections(ground, env)]:
            if objection.name in env:
                why = f"It {objection.seen}, wanted {objection.wanted}. {objection.hint}"
                found.left.append(self._left_variable(objection.name, env.pop(objection.name), sources, why))
        found.put(env, head, {name for name in env if name not in sources and self._line(name) is None})
        return found

    def _wanted(self) -> tuple[dict[str, str], dict[str, str]]:
        """What the launcher tells all ranks, and the setting that it is from where that has another name."""
        wanted, sources = dict[str, str](), dict[str, str]()
        for one in self._settings(Way.ENV, Way.FIXED, *([Way.RING] if self._ring else [])):
            if self._get(one) and one not in OWNED_ENV:
                fixed = launcher.SETTINGS[one].way is Way.FIXED
                wanted[one] = launcher.SETTINGS[one].default if fixed else self._get(one)
        for pair in self._get("EXTRA_CONTAINER_ENV").split():
            if match := PAIR.fullmatch(pair):
                wanted[match[1]], sources[match[1]] = match[2], "EXTRA_CONTAINER_ENV"
        return wanted, sources

    def _settings(self, *ways: Way) -> list[str]:
        return [one.name for one in launcher.of_way(*ways) if one.name not in self._file.unknown]

    def _left_variable(self, name: str, value: str, sources: Mapping[str, str], why: str) -> Left:
        return Left(name, self._line(sources.get(name, name)), None if is_secret(name, value) else value, why)

    def _pairs(self) -> None:
        name = "EXTRA_CONTAINER_ENV"
        for pair in self._get(name).split():
            if not PAIR.fullmatch(pair):
                why = "One of its words is not KEY=VALUE."
                self._out.todo.append(Left(name, self._line(name), None, why))

    def _has_key(self) -> bool:
        """Whether the launcher's API wants a key, as far as the file can be read."""
        return KEY in self._file.unknown or self._get(KEY).lower() not in NO_KEY

    def _api_key(self) -> None:
        if not self._has_key():
            self._left(KEY, "No key: whoever reaches the port may use the API, as engine.allowAnonymous says.")
        elif KEY not in self._file.unknown:
            self._out.secrets[f"engine.headEnv.{KEY}"] = self._line(KEY)

    # What is left.

    def _compare(self, size: int, told: Mapping[str, str]) -> None:
        """What follows from nodes and fabric, against what the file says."""
        for name in ("NNODES", "TP_SIZE"):
            if self._line(name) is not None:
                same = self._get(name) == str(size)
                why = "It is the number of nodes." if same else f"Here it is {size}, one for each node."
                self._left(name, why, needless=same)
        wanted = {one.lstrip("=").removesuffix(":1") for one in _words(self._get("IB_HCA"))}
        here = told["NCCL_IB_HCA"]
        if wanted != set(here.split(",")):
            port = "" if self._ring else " A node has one port on the switch: fabric.port."
            self._left("IB_HCA", f"Here every rank has {here}.{port} Other names of devices: nodes[].ports.")
        if self._get("NCCL_IB_SUBNET_PREFIX_LEN") != str(SUBNET_PREFIX):
            self._left("NCCL_IB_SUBNET_PREFIX_LEN", f"Here cables and rails have a /{SUBNET_PREFIX}.")

    def _rest(self) -> None:
        """Everything in the file that no section has taken."""
        for name, value in self._file.script.values.items():
            known = launcher.setting(name)
            found = UNKNOWN if known is None else self._fate(known, value.text)
            if found is not None:
                why, needless = found
                self._left(name, why, needless=needless)

    def _fate(self, known: Setting, text: str) -> tuple[str, bool] | None:
        """Why a setting is left, and whether it is not needed; None where it is not left or was told already."""
        way = known.way
        if known.name in SWITCHES and text not in ("", "0", "1"):
            return "It is 0 or 1; the launcher refuses anything else.", False
        if known.name in NUMBERED and self._get(NUMBERED[known.name]):
            return f"{NUMBERED[known.name]} goes before it.", True
        if way is Way.INSIDE:
            return "The launcher takes it in EXTRA_CONTAINER_ENV only. For the engine set it in engine.env.", False
        if known.name in SHARING and not shares(self._file):
            return None if known.name in ("NFS_SHARE", "NFS_VOLUME") else ("Every node has the weights already.", True)
        if way is Way.HAND and text and known.name != "API_KEY":
            return known.why, False
        if way is Way.RING and not self._ring:
            return "The launcher tells it on a ring only.", True
        found = known.name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA")
        found |= known.name == "NCCL_IB_GID_INDEX" and not self._ring
        return (known.why, True) if way in (Way.NEEDLESS, Way.FIXED) or found else None


@dataclass(frozen=True)
class _Attempt:
    """A stack file, and what is wrong about it."""

    config: dict[str, Any]
    told: Told
    variables: Variables
    problems: tuple[Problem, ...]


def _words(text: str) -> list[str]:
    return text.replace(",", " ").split()
