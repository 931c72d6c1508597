"""Containers, their daemons, and what makes the group a new one."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
from dataclasses import fields, replace
from typing import Any

import pulumi
import pytest

from components.config import unencrypted_key
from components.leftover import clear_leftover
from components.remote import Owner
from fleet.catalogue import every_key
from fleet.container import ContainerPlan
from fleet.engine_settings import Volume
from fleet.flags import Flag, Source
from fleet.known import WEIGHTS
from fleet.loading import load
from fleet.nccl_settings import PIP_LIBRARY
from fleet.on_node import Link
from fleet.problems import Problem
from fleet.scalars import Gpus
from fleet.weights_settings import MODEL
from node.smoke import CHECKS
from tests.graph.conftest import STACK, Register, planned
from tests.graph.recorder import CONTAINER, PROVIDER, Graph, is_secret, plain, record
from tests.unit.stacks import DELETE, LIBRARY, NO_PROFILE, changed, ring

NAMES = [f"spark{number}" for number in range(1, 5)]

# For every key of the engine: a value that is not the default.
CHANGES: dict[str, Any] = {
    "name": "other",
    "port": 9999,
    "distPort": 20001,
    "listen": "192.168.1.11",
    "servedModelName": "other",
    "epSize": 4,
    "profile": "none",
    "gidIndex": 5,
    "env": {"A": "1"},
    "headEnv": {"A": "1"},
    "without": ["NCCL_DEBUG"],
    "privileged": "on",
    "gpus": "cdi",
    "shmSize": "1g",
    "stopGrace": 60,
    "log": {"driver": "local"},
    "log.driver": "journald",
    "log.maxSize": "10m",
    "log.maxFiles": 2,
    "healthcheck": "off",
    "healthcheck.enabled": False,
    "healthcheck.command": ["true"],
    "healthcheck.interval": 10,
    "healthcheck.timeout": 10,
    "healthcheck.startPeriod": 60,
    "healthcheck.retries": 5,
    "volumes": ["/a:/b:ro"],
    "weights": {"path": "/data"},
    "weights.path": "/other",
    "weights.mount": "/m",
    "serving": {"contextLength": 8192},
    "serving.contextLength": 8192,
    "serving.maxRunningRequests": 2,
    "serving.cudaGraphMaxBsDecode": 2,
    "serving.memFractionStatic": 0.7,
    "serving.headMemFractionStatic": 0.7,
    "serving.maxTotalTokens": 1000000,
    "serving.chunkedPrefillSize": 1024,
    "serving.prefillEmptyCacheTokens": 8192,
    "serving.speculative": "off",
    "serving.speculativeBlockSize": 3,
    "serving.reasoningEffort": "max",
    "serving.maxNewTokens": 4096,
    "serving.loopAbort": "off",
    "serving.loopNgram": 16,
    "serving.loopRepeats": 3,
    "serving.loopLineRepeats": 5,
    "serving.extraArgs": "--sleep-on-idle",
}
# How the group is started and stopped, and where its image comes from: nothing of what it is.
NOT_OF_THE_GROUP: dict[str, Any] = {
    "allowAnonymous": True,
    "smoke": {"thinking": True},
    "smoke.enabled": False,
    "smoke.jsonSchema": True,
    "smoke.toolCall": True,
    "smoke.thinking": True,
    "smoke.streams": 8,
    "smoke.cachedTokens": True,
    "smoke.timeout": 60,
    "readyTimeout": 60,
    "image": "engine:2",
    "image.ref": "engine:2",
    "onFailure": "rollback",
    "image.archive": "engine.tar",
    "image.roceRing": True,
    "weights.revision": WEIGHTS.revision,
    "weights.manifest": "weights.sha256",
}
# What a name follows from that says which image it is: test_images.py.
OF_THE_NAME = {
    "image.pull",
    "image.build",
    *(f"image.build.{key}" for key in ("context", "dockerfile", "args", "secrets", "node")),
}
# For every argument of a container: another value.
ARGUMENTS: dict[str, Any] = {
    "node": "spark9",
    "rank": 9,
    "name": "other",
    "image_id": "sha256:2",
    "env": {"A": Flag("1", Source.OVERRIDE)},
    "devices": ("/dev/null",),
    "capabilities": ("CAP_SYS_ADMIN",),
    "ulimits": {"memlock": 1},
    "shm_size": 1 << 20,
    "privileged": True,
    "gpus": Gpus.OFF,
    "volumes": (Volume.model_validate({"source": "/a", "target": "/b", "readOnly": True}),),
    "labels": {"spark-fabric.stack": "other"},
    "network_mode": "bridge",
    "ipc_mode": "private",
    "restart": "always",
    "stop_timeout": 60,
    "log_driver": "local",
    "log_options": {"max-size": "1m"},
    "healthcheck": {"tests": ["NONE"]},
    "by_name": True,
    "weights": "1" * 64,
}


def test_each_container_uses_the_daemon_of_its_node(graph: Graph) -> None:
    for name in NAMES:
        assert graph[f"{name}-engine"].provider == f"{name}-docker"
        daemon = graph[f"{name}-docker"].inputs
        assert daemon["host"] == f"ssh://{name}"
        assert json.loads(daemon["sshOpts"]) == ["-F", f".spark-fabric/test/ssh/{name}.conf", "-o", "BatchMode=yes"]


def test_nothing_uses_a_default_docker(register: Register, graph: Graph) -> None:
    for found in (graph, register(changed(ring(), {**NO_PROFILE, "nodes[1].state": "leaving"}))):
        assert all(one.provider for one in found.all if one.type.startswith("docker:"))
        assert {one.name for one in found.of(PROVIDER)} == {f"{name}-docker" for name in NAMES}


def test_daemons_do_not_follow_the_settings(register: Register, graph: Graph) -> None:
    """A changed provider would move no container: it would only make the state wrong."""
    found = register(changed(ring(), {"fabric.mtu": 4200, "ssh.user": "root", "nodes[1].address": "192.168.1.77"}))
    for daemon in graph.of(PROVIDER):
        assert found[daemon.name].inputs == daemon.inputs


def test_arguments_that_the_provider_only_pretends_to_update_force_a_replacement(graph: Graph) -> None:
    for container in graph.of(CONTAINER):
        assert container.replaced_on == {"healthcheck", "init", "tmpfs", "rm", "cpuPeriod", "cpuQuota"}


def test_a_container_is_unprivileged_stops_gently_and_is_not_restarted(graph: Graph) -> None:
    inputs = graph["spark2-engine"].inputs
    assert "privileged" not in inputs
    assert inputs["capabilities"] == {"adds": ["CAP_IPC_LOCK"]}
    assert inputs["devices"] == [{"hostPath": "/dev/infiniband", "containerPath": "/dev/infiniband"}]
    assert (inputs["restart"], inputs["destroyGraceSeconds"], inputs["mustRun"]) == ("no", 30, True)
    assert inputs["stopTimeout"] == 30
    assert (inputs["networkMode"], inputs["ipcMode"], inputs["shmSize"]) == ("host", "host", 32 << 10)
    assert {limit["name"]: limit["hard"] for limit in inputs["ulimits"]} == {"memlock": -1, "stack": 64 << 20}


def test_a_container_is_as_the_settings_say(register: Register) -> None:
    engine = {**CHANGES, "image": "engine:2"}
    del engine["without"]  # of a profile, and here is none
    found = register(ring(engine={key: value for key, value in engine.items() if "." not in key}))
    inputs = found["spark2-engine"].inputs
    assert (inputs["name"], inputs["privileged"], inputs["shmSize"]) == ("other", True, 1 << 10)
    assert "devices" not in inputs
    assert inputs["deviceRequests"] == [{"driver": "cdi", "deviceIds": ["nvidia.com/gpu=all"]}]
    assert inputs["mounts"] == [
        {"type": "bind", "source": "/a", "target": "/b", "readOnly": True},
        {"type": "bind", "source": "/data", "target": MODEL, "readOnly": True},
        {"type": "bind", "source": LIBRARY, "target": PIP_LIBRARY, "readOnly": True},
    ]
    assert {"A=1", "EP_SIZE=4", "SERVER_PORT=9999", "DIST_INIT_ADDR=192.168.1.11:20001"} <= set(inputs["envs"])


def test_gpus_can_be_left_out(register: Register, graph: Graph) -> None:
    assert graph["spark2-engine"].inputs["gpus"] == "all"
    inputs = register(changed(ring(), {"engine.gpus": "off"}))["spark2-engine"].inputs
    assert not {"gpus", "deviceRequests"} & inputs.keys()


def test_containers_run_the_image_by_its_id(graph: Graph) -> None:
    assert {one.inputs["image"] for one in graph.of(CONTAINER)} == {"sha256:" + "1" * 64}


def test_every_key_of_the_engine_is_in_one_of_the_tables() -> None:
    keys = {path.removeprefix("engine.") for path, _ in every_key() if path.startswith("engine.")}
    keys -= {key for key in keys if key.startswith("weights.nfs")}  # see test_share.py
    assert keys == CHANGES.keys() | NOT_OF_THE_GROUP.keys() | OF_THE_NAME


def without(key: str) -> dict[str, Any]:
    """A ring with what has to be there for a key."""
    if key == "allowAnonymous":
        return changed(ring(), {"engine.headEnv.API_KEY": "hunter2", "engine.allowAnonymous": DELETE})
    return changed(ring(), {"engine.weights": {"path": "/data"}} if key.startswith("weights.") else {})


def with_engine(key: str, value: Any) -> dict[str, Any]:
    """The same with the key set."""
    place, _, below = key.partition(".")
    if place == "image" and below:
        return changed(ring(), {"engine.image": {"ref": "engine:1", below: value}})
    return changed(without(key), {f"engine.{key}": value})


@pytest.mark.parametrize("key", CHANGES)
def test_a_key_of_the_engine_replaces_the_group_and_not_the_standstill(key: str) -> None:
    before, after = planned(without(key)), planned(with_engine(key, CHANGES[key]))
    assert after.group != before.group
    assert after.standstill == before.standstill


@pytest.mark.parametrize("key", NOT_OF_THE_GROUP)
def test_how_the_group_is_started_replaces_nothing(key: str) -> None:
    before, after = planned(without(key)), planned(with_engine(key, NOT_OF_THE_GROUP[key]))
    assert (after.group, after.standstill) == (before.group, before.standstill)


@pytest.mark.parametrize(
    ("engine", "driver", "options"),
    [
        ({}, "json-file", {"max-size": "102400k", "max-file": "5"}),
        (
            {"log": {"driver": "local", "maxSize": "10m", "maxFiles": 2}},
            "local",
            {"max-size": "10240k", "max-file": "2"},
        ),
        ({"log": {"driver": "journald"}}, "journald", None),
        ({"log": {"driver": "daemon"}}, None, None),
    ],
)
def test_logs_have_a_limit_where_docker_keeps_them(
    engine: dict[str, Any], driver: str | None, options: dict[str, str] | None, register: Register
) -> None:
    inputs = register(ring(engine={"image": "engine:1", "allowAnonymous": True, **engine}))["spark2-engine"].inputs
    assert (inputs.get("logDriver"), inputs.get("logOpts")) == (driver, options)


@pytest.mark.parametrize(
    ("told", "wanted"),
    [
        ({"retries": 5, "startPeriod": 3600}, {"retries": 5, "startPeriod": "3600s"}),
        ({"command": ["true", "x"], "interval": 10, "timeout": 5},
         {"tests": ["CMD", "true", "x"], "interval": "10s", "timeout": "5s"}),
        ("off", {"tests": ["NONE"]}),
        ({"enabled": False, "retries": 5}, {"tests": ["NONE"]}),
    ],
)  # fmt: skip
def test_a_healthcheck_is_that_of_the_image_but_for_what_is_set(
    told: object, wanted: dict[str, Any], register: Register, graph: Graph
) -> None:
    assert "healthcheck" not in graph["spark2-engine"].inputs
    assert register(changed(ring(), {"engine.healthcheck": told}))["spark2-engine"].inputs["healthcheck"] == wanted


def test_what_becomes_of_an_engine_that_does_not_get_ready_is_told_to_health_alone(
    register: Register, graph: Graph
) -> None:
    found = register(changed(ring(), {"engine.onFailure": "rollback"}))
    assert {one.name for one in found.all if one.inputs != graph[one.name].inputs} == {"health"}
    for rolls, of in ((False, graph), (True, found)):
        told = json.loads(of["health"].inputs["stdin"])
        assert list(told) == NAMES
        assert {one["rollback"] for one in told.values()} == {rolls}
        assert {one["ground"] for one in told.values()} == {planned(ring()).standstill}
        assert {one["start"] for one in told.values()} == {"100"}


def test_what_an_engine_has_to_answer_is_told_for_the_head_alone(register: Register, graph: Graph) -> None:
    more = {"engine.smoke": {"streams": 4, "thinking": True, "timeout": 60}}
    off = {"engine.smoke": {"enabled": False, "thinking": True}}
    told = [
        [one["smoke"] for one in json.loads(of["health"].inputs["stdin"]).values()]
        for of in (graph, register(changed(ring(), more)), register(changed(ring(), off)))
    ]
    plain = {"models": True, "arithmetic": True}
    model = "deepseek-v4.1-flash"
    assert told == [
        [{"checks": plain, "model": model, "timeout": 300}, None, None, None],
        [{"checks": {**plain, "thinking": True, "streams": 4}, "model": model, "timeout": 60}, None, None, None],
        [None] * 4,
    ]
    assert all(one["checks"].keys() <= CHECKS.keys() for one, *_ in told if one)


@pytest.mark.parametrize(("keys", "found"), [(("engine",), 0), (("nodes",), 2), ((), 2)])
def test_a_key_that_lies_open_in_the_stack_file_is_refused(keys: tuple[str, ...], found: int) -> None:
    problems: list[Problem] = []

    def program() -> None:
        problems.extend(unencrypted_key(load(changed(ring(), {"engine.headEnv.API_KEY": "hunter2"}))))
        problems.extend(unencrypted_key(load(changed(ring(), {**NO_PROFILE, "engine.env.API_KEY": "hunter3"}))))
        for none in ("EMPTY", ""):
            config = {**NO_PROFILE, "engine.allowAnonymous": True, "engine.headEnv.API_KEY": none}
            assert unencrypted_key(load(changed(ring(), config))) == []
        assert unencrypted_key(load(ring())) == []

    record(program, secret_keys=keys)
    assert [(one.code, one.path.rpartition(":")[2]) for one in problems] == [
        ("api-key-open", f"engine.{section}.API_KEY") for section in ("headEnv", "env")[:found]
    ]
    assert "hunter" not in str(problems)


def test_another_image_behind_the_same_tag_is_another_group() -> None:
    assert planned(ring(), image_id="sha256:" + "2" * 64).group != planned(ring()).group


@pytest.mark.parametrize("name", [field.name for field in fields(ContainerPlan) if field.name != "image"])
def test_every_argument_of_a_container_is_in_the_digest_of_the_group(name: str) -> None:
    container = planned(ring()).containers[1]
    assert replace(container, **{name: ARGUMENTS[name]}).arguments() != container.arguments()


def test_a_tag_for_the_same_image_replaces_no_container(register: Register, graph: Graph) -> None:
    found = register(changed(ring(), {"engine.image": "engine:2"}))
    for container in found.of(CONTAINER):
        assert container.inputs == graph[container.name].inputs
    unseen = replace(planned(ring()).containers[1], image_id=None)
    assert replace(unseen, image="engine:2").arguments() != unseen.arguments()


def test_an_encrypted_setting_stays_a_secret(register: Register, graph: Graph) -> None:
    config = changed(ring(), {"engine.headEnv.API_KEY": "hunter2", "engine.env.TOKEN": "hunter3"})
    found = register(config, secret_keys=("engine",))
    for container in found.of(CONTAINER):
        assert is_secret(container.inputs["envs"])
        assert not is_secret(graph[container.name].inputs["envs"])
    head = plain(found["spark1-engine"].inputs["envs"])
    assert {"API_KEY=hunter2", "TOKEN=hunter3"} <= set(head)
    assert head == plain(register(config)["spark1-engine"].inputs["envs"])
    others = [one.inputs for one in found.all if one.type != CONTAINER]
    assert "hunter" not in json.dumps(others)


def test_only_containers_have_a_hook_and_each_has_one(graph: Graph) -> None:
    for one in graph.all:
        hooks = one.request.hooks
        assert len(hooks.before_create) == (1 if one.type == CONTAINER else 0), one.name
        assert not hooks.before_delete  # it would make a plain `pulumi destroy` fail
        assert not hooks.after_delete


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the hook runs, instead of running it; its exit status is that of `code`."""
    made: list[dict[str, Any]] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        made.append({"command": command, **options})
        failed = len(made) > 1
        return subprocess.CompletedProcess(command, int(failed), "", "spark2: container 'x' belongs to nobody")

    monkeypatch.setattr("components.leftover.subprocess.run", run)
    return made


def test_before_a_container_is_made_its_node_is_cleared_of_leftovers(runs: list[dict[str, Any]]) -> None:
    link = Link("spark2", "192.168.1.12", "nvidia", 22, "ssh-ed25519 AAAA")
    failures: list[str] = []

    def program() -> pulumi.Output[None]:
        owner = Owner(STACK, "default", pulumi.Output.from_input("id"))
        hook = clear_leftover(link, owner, "engines:remove", {"name": "spark-fabric-test", "grace": 1})

        async def twice() -> None:
            await hook(None)  # type: ignore[arg-type]
            try:
                await hook(None)  # type: ignore[arg-type]
            except RuntimeError as error:
                failures.append(str(error))

        return pulumi.Output.from_input(asyncio.ensure_future(twice()))

    record(program)
    assert runs[0]["command"][-1] == "engines:remove"
    assert json.loads(runs[0]["input"]) == {"spark2": {"name": "spark-fabric-test", "grace": 1}}
    assert json.loads(runs[0]["env"]["FLEET_OWNER"])["state_id"] == "id"
    assert [one["name"] for one in json.loads(runs[0]["env"]["FLEET_LINKS"])] == ["spark2"]
    assert failures == ["spark2: what is left there cannot be removed: spark2: container 'x' belongs to nobody"]


def test_the_hooks_of_several_nodes_run_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    meet, met = threading.Barrier(2, timeout=60), list[str]()

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        meet.wait()  # raises if the other one does not come meanwhile
        met.extend(json.loads(options["input"]))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr("components.leftover.subprocess.run", run)

    def program() -> pulumi.Output[Any]:
        owner = Owner(STACK, "default", pulumi.Output.from_input("id"))
        links = [Link(name, "192.168.1.12", "nvidia", 22, "ssh-ed25519 AAAA") for name in NAMES[:2]]
        hooks = [clear_leftover(link, owner, "engines:remove") for link in links]
        return pulumi.Output.from_input(asyncio.gather(*(hook(None) for hook in hooks)))  # type: ignore[arg-type]

    record(program)
    assert sorted(met) == NAMES[:2]
