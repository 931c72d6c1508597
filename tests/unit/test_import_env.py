"""From the launcher's file to a stack file: the engine is told the same, no secret is shown, nothing is just lost."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet import __main__ as fleet
from fleet import import_env as command
from fleet import launcher, moving
from fleet.carried import Told, tell
from fleet.launcher import Way
from fleet.loading import load
from fleet.moving import Moved, move
from fleet.planner import make
from fleet.problems import ProblemsError
from fleet.profiles import Profile
from fleet.stack import StackName
from fleet.topology import Kind
from tests.unit.stacks import LIBRARY, MARKER
from tests.unit.test_launcher import LISTED
from tests.unit.test_profiles import WHOLE, Fabric, listed, lists_for, settled

NODES = """\
HEAD_IP=192.168.1.11
WORKER_IPS="192.168.1.12 192.168.1.13,192.168.1.14"
WORKER_HOSTS="spark2 spark3 spark4"
WORKER_USER=nvidia
"""
ALL_FOUR = "rocep1s0f0,rocep1s0f1,roceP2p1s0f0,roceP2p1s0f1"
RING = f"{NODES}NCCL_SWITCHLESS_RING_ONLY=1\nTP_SIZE=4\nEP_SIZE=2\nIB_HCA={ALL_FOUR}\n"
SWITCHED = f"{NODES}TP_SIZE=4\nEP_SIZE=2\nIB_HCA=rocep1s0f0,roceP2p1s0f0\n"


def moved(text: str) -> Moved:
    return move(text, "/home/nvidia", "/home/nvidia/dsv41-4x-spark")


def engine(text: str) -> dict[str, Any]:
    section: dict[str, Any] = moved(text).config["engine"]
    return section


def why(found: Moved, name: str) -> list[str]:
    return [one.why for one in [*found.todo, *found.needless] if one.name == name]


def resolved(config: dict[str, Any], rank: int) -> dict[str, str]:
    """What a rank is told, on nodes that have a library where theirs do."""
    there = {**config, "nccl": {"library": {"onNode": LIBRARY}}} if "nccl" in config else config
    return {name: flag.value for name, flag in settled(there).containers[rank].env.items()}


def written(found: Moved) -> dict[str, Any]:
    """What the stack file says, read back."""
    config = yaml.safe_load(command.stack_file(found, ".env.tp4"))["config"]
    return {key.removeprefix("spark-fabric:"): value for key, value in config.items()}


def as_file(fabric: Fabric, profile: Profile) -> str:
    """A file that says what the launcher's lists for this fabric and image say."""
    env = {name: value for one in lists_for(fabric, profile) for name, value in one.items()}
    own = {name for name, value in env.items() if isinstance(value, dict) or value is None or "<" in str(value)}
    inside = {name for name in env if (one := launcher.setting(name)) and one.way is Way.INSIDE} - own
    lines = [f'{name}="{value}"' for name, value in env.items() if name not in own | inside | {"NCCL_IB_HCA"}]
    extra = " ".join(f"{name}={env[name]}" for name in sorted(inside))
    ring = "NCCL_SWITCHLESS_RING_ONLY=1\n" if fabric[0] is Kind.RING else ""
    return f'{NODES}{ring}IB_HCA={env["NCCL_IB_HCA"]}\nEXTRA_CONTAINER_ENV="{extra}"\n' + "\n".join(lines)


@pytest.mark.parametrize("rank", [0, 1, 3])
@pytest.mark.parametrize(("fabric", "profile"), WHOLE, ids=str)
def test_every_rank_is_told_what_the_launcher_told_it(fabric: Fabric, profile: Profile, rank: int) -> None:
    found = moved(as_file(fabric, profile))
    wanted = listed(fabric, rank, profile)
    wanted.pop("API_KEY", None)  # the launcher gives workers one too, and if it is empty
    assert found.problems == ()
    config = written(found)
    assert config["engine"]["profile"] == profile.value
    if fabric[2]:  # what the operator adds by hand
        config["mesh"] = {"enabled": True, "marker": MARKER}
    assert resolved(config, rank) == wanted


@pytest.mark.parametrize(("fabric", "profile"), WHOLE, ids=str)
def test_a_file_like_the_launchers_leaves_little_to_say(fabric: Fabric, profile: Profile) -> None:
    """Where RoCEnante is off its variables say nothing, and the profile does not have them."""
    section = moved(as_file(fabric, profile)).config["engine"]
    names = {name for key in ("serving", "env", "headEnv", "without") for name in section.get(key, ())}
    assert names <= {"B12X_ROCE_HCA", "SGLANG_ROCE_MAX_SIZE", "B12X_ROCE_TWO_WAVE_THRESHOLD_BYTES"}


@pytest.mark.parametrize(("text", "is_ring"), [(RING, True), (SWITCHED, False)])
def test_what_the_file_leaves_out_is_told_with_the_launchers_defaults(text: str, is_ring: bool) -> None:
    env = resolved(moved(text).config, 1)
    for name in (one.name for one in launcher.of_way(Way.ENV, *([Way.RING] if is_ring else []))):
        default = str(LISTED[name]) if LISTED[name] is not None else None
        assert env.get(name) == ("4" if name == "CUDA_GRAPH_MAX_BS_DECODE" else default), name


def test_production_on_a_switch_keeps_its_extra_variables_and_one_expert_group() -> None:
    extra = "DSV41_MOE_B12X_NEXT=1 B12X_ROCE_HCA=rocep1s0f0,roceP2p1s0f0 DSV41_CERT_HEAD_M=6,12 DSV41_WO_A_W8=1"
    found = moved(SWITCHED.replace("EP_SIZE=2", "EP_SIZE=1") + f'DSV41_WO_A_W8=0\nEXTRA_CONTAINER_ENV="{extra}"\n')
    assert found.problems == ()
    env = resolved(found.config, 2)
    assert env["EP_SIZE"] == "1"
    assert [env[word.split("=")[0]] for word in extra.split()] == [word.split("=", 1)[1] for word in extra.split()]


def test_of_a_ring_with_mesh_its_own_variables_are_left_out_and_told() -> None:
    maps = "1=0/2,2=0/3,3=1/3;0=1/3,2=0/2,3=0/3;0=1/2,1=1/3,3=0/2;0=0/2,1=1/2,2=1/3"
    extra = f"DSV41_ROCE_RING=1 B12X_ROCE_PEER_HCA_MAPS={maps} DSV41_ROCE_GATHER=262144 B12X_ROCE_CACHE_DIR=/state/b12x"
    found = moved(f'{RING}EXTRA_CONTAINER_ENV="{extra}"\n')
    assert found.problems == ()
    env = found.config["engine"]["env"]
    for name in ("DSV41_ROCE_RING", "B12X_ROCE_PEER_HCA_MAPS", "DSV41_ROCE_GATHER"):
        assert name not in env
        assert "See mesh.enabled" in why(found, name)[0]
    assert env["B12X_ROCE_CACHE_DIR"] == "/state/b12x"


def test_nodes_are_in_the_order_of_the_launcher_and_get_names_that_can_be_names() -> None:
    named = moved(RING.replace('"spark2 spark3 spark4"', '"Spark2 anna@spark3 spark4.lan"')).config["nodes"]
    assert [(node["name"], node["address"]) for node in named] == [
        ("head", "192.168.1.11"),
        ("spark2", "192.168.1.12"),
        ("worker2", "192.168.1.13"),
        ("worker3", "192.168.1.14"),
    ]
    older = moved("HEAD_IP=192.168.1.1\nWORKER1_IP=192.168.1.2\nWORKER2_IP=192.168.1.3\nWORKER2_HOST=b\nTP_SIZE=3\n")
    assert [node["name"] for node in older.config["nodes"]] == ["head", "worker1", "b"]


@pytest.mark.parametrize(
    ("hcas", "fabric"),
    [
        ("rocep1s0f0,roceP2p1s0f0", {"port": "f0"}),
        ("=roceP2p1s0f1:1", {"port": "f1", "plane0": {"enabled": False}}),
        ("rocep1s0f1", {"port": "f1", "plane1": {"enabled": False}}),
    ],
)
def test_port_and_planes_on_a_switch_are_those_of_the_devices(hcas: str, fabric: dict[str, Any]) -> None:
    found = moved(SWITCHED.replace("rocep1s0f0,roceP2p1s0f0", hcas))
    assert found.config["fabric"] == {"topology": "switched", **fabric}
    assert why(found, "IB_HCA") == []


def test_devices_that_the_fabric_cannot_have_are_told() -> None:
    both = moved(SWITCHED.replace("rocep1s0f0,roceP2p1s0f0", "rocep1s0f0,rocep1s0f1"))
    assert both.config["fabric"] == {"topology": "switched", "port": "f0", "plane1": {"enabled": False}}
    assert why(both, "IB_HCA")[0].startswith("Here every rank has rocep1s0f0. A node has one port on the switch")
    assert why(moved(RING.replace("rocep1s0f1,", "")), "IB_HCA") != []
    assert why(moved(f"{RING}IB_HCA=mlx5_0\n"), "IB_HCA") != []


def test_a_ring_with_one_plane_of_devices_has_one_plane() -> None:
    text = f"{RING}IB_HCA=rocep1s0f1,rocep1s0f0\n"
    assert moved(text).config["fabric"] == {"topology": "ring", "plane1": {"enabled": False}}
    assert why(moved(text), "IB_HCA") == []


def test_numbers_of_the_engine_stand_where_they_are_not_the_usual_ones() -> None:
    text = (
        f"{RING}PORT=9000\nDIST_PORT=21000\nREADY_TIMEOUT=720\nSHM_SIZE=64g\nNCCL_IB_GID_INDEX=5\nSERVED_MODEL_NAME=m\n"
    )
    section = engine(text)
    keys = ("port", "distPort", "readyTimeout", "shmSize", "gidIndex", "servedModelName")
    assert [section[key] for key in keys] == [9000, 21000, 7200, "64g", 5, "m"]
    assert not set(keys) & engine(RING).keys()
    assert "gidIndex" not in engine(f"{SWITCHED}NCCL_IB_GID_INDEX=5\n")


def test_rank_0_has_its_own_memory_fraction_and_checks() -> None:
    text = f"{RING}MEM_FRACTION_STATIC=0.9\nHEAD_MEM_FRACTION_STATIC=0.8\nSKIP_SMOKE=1\nSMOKE_QUICK=1\n"
    assert engine(text)["headEnv"] == {"SKIP_SMOKE": "1"}
    assert engine(text)["serving"]["memFractionStatic"] == "0.9"
    assert engine(text)["serving"]["headMemFractionStatic"] == "0.8"
    assert "headEnv" not in engine(f"{RING}MEM_FRACTION_STATIC=0.9\n")
    assert "headEnv" not in engine(f'{text}EXTRA_CONTAINER_ENV="MEM_FRACTION_STATIC=0.7 SKIP_SMOKE=1"\n')


def test_a_ring_has_the_library_over_that_of_the_image_and_a_switch_if_it_says_so() -> None:
    overlay = {"mode": "overlay", "library": {"onNode": "/home/nvidia/nccl-2.30.7"}}
    assert moved(RING).config["nccl"] == overlay
    assert moved(f"{SWITCHED}NCCL_OVERLAY_PIP=1\nNCCL_PIP_SO=/p.so\n").config["nccl"] == {**overlay, "target": "/p.so"}
    assert "nccl" not in moved(SWITCHED).config
    assert "nccl.mode: directory" in why(moved(f"{SWITCHED}NCCL_HOST_DIR=/x\n"), "NCCL_HOST_DIR")[0]


def test_each_node_has_the_library_where_the_launcher_has_it() -> None:
    text = f"{RING}NCCL_HOST_DIR=/opt/a\nNCCL_WORKER_DIR=/opt/b\n"
    found = moved(text)
    assert [node["nccl"]["onNode"] for node in found.config["nodes"]] == ["/opt/a", *["/opt/b"] * 3]
    assert found.config["nccl"] == {"mode": "overlay"}
    assert found.problems == ()
    elsewhere = move(RING, "/home/anna", "/srv/dsv41").config["nodes"]  # at the worker's own home there
    assert [node["nccl"]["onNode"].split("/")[2] for node in elsewhere] == ["anna", "nvidia", "nvidia", "nvidia"]


def test_folders_that_differ_on_workers_are_told() -> None:
    found = moved(f"{RING}ENGRAM_DIR=/data/engram\n")
    assert "/data/engram:/engram" in found.config["engine"]["volumes"]
    assert "/home/nvidia/dsv41-3x-spark/engram" in why(found, "ENGRAM_DIR")[0]
    same = moved(f"{RING}WORKER_DIR=/d\nENGRAM_DIR=/d/engram\nSTATE_DIR=/d/state\n")
    assert why(same, "ENGRAM_DIR") == why(same, "STATE_DIR") == []


def test_weights_of_every_node_are_its_own_folder() -> None:
    local = moved(f"{RING}NFS_SHARE=0\nNFS_VOLUME=w\nMODEL_DIR=/w\nNFS_OPTS=ro\n")
    assert local.problems == ()
    assert local.config["engine"]["weights"] == {"path": "/w"}
    assert not [one for one in local.config["engine"]["volumes"] if "/models/" in one]
    assert "in a docker volume, w; here it is /w on every node" in why(local, "NFS_VOLUME")[0]
    assert [one.why for one in local.needless if one.name == "NFS_OPTS"] == ["Every node has the weights already."]


def test_weights_that_the_head_shares_are_shared_by_it() -> None:
    found = moved(RING)
    path = "/home/nvidia/NewModels/DeepSeek-V4.1-Flash"
    assert found.problems == ()
    assert engine(RING)["weights"] == {"path": path, "nfs": {"image": "dsv41-nfs:local"}}
    assert {"MODEL_DIR": path, "NFS_IMAGE": "dsv41-nfs:local"}.items() <= found.assumed.items()
    chosen = engine(f"{RING}MODEL_DIR=/w\nNFS_IMAGE=x:1\nNFS_OPTS=ro,sync\nNFS_OPTS_CLIENT=nfsvers=4.1,ro,soft\n")
    nfs = {"image": "x:1", "options": "nfsvers=4.1,ro,soft", "exportOptions": "ro,sync"}
    assert chosen["weights"] == {"path": "/w", "nfs": nfs}


def test_the_launchers_own_mount_that_hangs_a_node_is_not_taken() -> None:
    text = f"{RING}NFS_OPTS_CLIENT=nfsvers=4.2,ro,nconnect=8,rsize=1048576,wsize=1048576,hard,timeo=600\n"
    assert engine(text)["weights"]["nfs"] == {"image": "dsv41-nfs:local"}


@pytest.mark.parametrize(
    ("text", "common", "own"),
    [
        ("NFS_SERVER_IPS=10.0.22.1", "10.0.22.1", {}),
        ("NFS_SERVER_IPS=192.168.1.11", None, {}),
        ("NFS_SERVER_IPS='10.0.1.1,10.0.2.1 192.168.1.11'", None, {"spark2": "10.0.1.1", "spark3": "10.0.2.1"}),
        ("NFS_SERVER_IP=10.0.22.1\nNFS_SERVER_IP_2=10.0.2.1", "10.0.22.1", {"spark3": "10.0.2.1"}),
        ("NFS_SERVER_IPS='10.0.1.1 10.0.2.1'", None, {}),
    ],
)
def test_the_server_is_where_the_launchers_workers_reach_it(text: str, common: str | None, own: dict[str, str]) -> None:
    found = moved(f"{RING}{text}\n")
    assert found.problems == ()
    assert found.config["engine"]["weights"]["nfs"].get("server") == common
    assert {one["name"]: one["weights"]["server"] for one in found.config["nodes"] if "weights" in one} == own
    assert ("2 addresses for 3 workers" in "".join(why(found, "NFS_SERVER_IPS"))) == (
        text.count("10.0") == 2 and not own
    )


@pytest.mark.parametrize(
    ("text", "name", "reason"),
    [
        ('EXTRA_CONTAINER_ENV="NCCL_IB_HCA=x"', "NCCL_IB_HCA", "It follows from fabric"),
        ('EXTRA_CONTAINER_ENV="LD_PRELOAD=/x.so"', "LD_PRELOAD", "Duplicate NCCL runtime found"),
        ("NCCL_ALGO=Tree", "NCCL_ALGO", "wanted Ring on a ring fabric"),
        ("NCCL_MIN_NCHANNELS=9", "NCCL_MIN_NCHANNELS", "wanted the least not above the most"),
        ("TP_SIZE=8", "TP_SIZE", "Here it is 4"),
        ("NCCL_IB_SUBNET_PREFIX_LEN=30", "NCCL_IB_SUBNET_PREFIX_LEN", "a /24"),
        ("DSV41_HC_FUSED=1", "DSV41_HC_FUSED", "in EXTRA_CONTAINER_ENV only"),
        ("MY_OWN=1", "MY_OWN", "does not know it"),
        ("READY_TIMEOUT=long", "READY_TIMEOUT", "not a number"),
        ('EXTRA_CONTAINER_ENV="A B=1"', "EXTRA_CONTAINER_ENV", "not KEY=VALUE"),
        ("NCCL_MAX_NCHANNELS=$(nproc)", "bash", "It may set NCCL_MAX_NCHANNELS"),
        ('WORKER_HOSTS="a b"', "WORKER_HOSTS", "2 names for 3 workers"),
        ("STATE_DIR=$(pwd)", "STATE_DIR", "add it to engine.volumes, for /state"),
        ("MODEL_DIR=$(pwd)", "MODEL_DIR", "set engine.weights.path"),
        ("NFS_REUSE_EXPORT=1", "NFS_REUSE_EXPORT", "A server that is there already"),
        ("WORKER_FABRIC_IPS=10.0.0.2", "WORKER_FABRIC_IPS", "Here it is the management address"),
    ],
)
def test_what_cannot_be_carried_is_told_and_the_rest_can_be_used(text: str, name: str, reason: str) -> None:
    found = moved(f"{RING}NCCL_MAX_NCHANNELS=4\n{text}\n")
    told = [one for one in found.todo if one.name == name and reason in one.why]
    assert len(told) == 1
    assert told[0].line in (10, None)
    assert found.problems == ()


@pytest.fixture
def told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a fabric and a profile tell by themselves is planned once: few settings are about that."""
    kept: dict[str, Told] = {}

    def once(*asked: Any) -> Told:
        key = json.dumps(asked)
        if key not in kept:
            kept[key] = tell(*asked)
        return kept[key]

    monkeypatch.setattr(moving, "tell", once)


@pytest.mark.usefixtures("told_once")
@pytest.mark.parametrize("text", [RING, SWITCHED, f"{RING}NFS_SHARE=0\n"], ids=["ring", "switched", "local weights"])
def test_no_setting_is_lost_without_a_word(text: str) -> None:
    """Any other value than the usual one changes the stack file, or is told."""
    before, other = moved(text), "1" if "NFS_SHARE=0" in text else "0"
    known = [*before.todo, *before.needless]
    for name in LISTED:
        value = {"NFS_SHARE": other, "NCCL_WORKER_DIR": "/7"}.get(name, "7")
        found = moved(f"{text}{name}={value}\n")
        told = [one for one in [*found.todo, *found.needless] if one not in known]
        changed = found.config != before.config or found.secrets != before.secrets
        assert changed or any(one.name == name or value in one.why for one in told), name


SECRET = "hunter2"


@pytest.mark.parametrize(
    ("line", "key"),
    [
        (f"API_KEY={SECRET}", "engine.headEnv.API_KEY"),
        (f"API_KEY=$(cat {SECRET})", None),
        (f"API_KEY=my {SECRET}", None),
        (f"WORKER_PASS={SECRET}", None),
        (f"BUILD_ARGS='--build-arg TOKEN={SECRET}'", None),
        (f"HF_TOKEN={SECRET}", None),
        (f"SUDO_PASS={SECRET}", None),
        (f"PROXY=http://anna:{SECRET}@proxy", None),
        (f'EXTRA_CONTAINER_ENV="A=1 HF_TOKEN={SECRET}"', "engine.env.HF_TOKEN"),
        (f'EXTRA_SGLANG_ARGS="--x 1 --api-key {SECRET}"', "engine.env.EXTRA_SGLANG_ARGS"),
        (f'EXTRA_CONTAINER_ENV="{SECRET}"', None),
    ],
)
def test_no_secret_is_written_or_printed(
    line: str, key: str | None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".env.tp4").write_text(f"{RING}{line}\n")
    assert command.import_env(tmp_path / ".env.tp4", "desk", Path("/home/nvidia"), None, tmp_path) == 0
    out, err = capfd.readouterr()
    written = (tmp_path / "Pulumi.desk.yaml").read_text()
    assert SECRET not in out + err + written
    set_it = f"./pulumiw config set -s desk --secret --path 'spark-fabric:{key}'   (line 9)"
    assert (set_it in out) == (key is not None)


@pytest.mark.parametrize("word", ["", "none", "OFF", "dummy", "0", "empty"])
def test_a_key_that_means_none_is_no_secret_and_is_told(word: str) -> None:
    found = moved(f"{RING}API_KEY={word}\n")
    assert found.secrets == {}
    assert "may use the API" in why(found, "API_KEY")[0]
    assert found.config["engine"]["allowAnonymous"] is True


def test_a_file_without_a_key_keeps_the_api_open_and_one_with_a_key_does_not() -> None:
    assert engine(RING)["allowAnonymous"] is True
    for line in ("API_KEY=hunter2", "API_KEY=$(cat key)"):
        found = moved(f"{RING}{line}\n")
        assert "allowAnonymous" not in found.config["engine"]
        assert found.problems == ()  # it will have one, once that is set
        with pytest.raises(ProblemsError, match=r"engine\.headEnv\.API_KEY"):
            load(found.config)


def test_the_stack_file_can_be_read_and_says_what_it_is_from(tmp_path: Path) -> None:
    found = moved(f"{RING}CONTEXT_LENGTH=65536\n")
    text = command.stack_file(found, ".env.tp4")
    warned = {one.code for one in make(load(written(found)), None, StackName("spark-fabric", "desk")).warnings}
    assert warned == {"serial-off"}  # the launcher's own default
    lines = text.splitlines()
    assert ".env.tp4" in lines[0]
    mark = next(index for index, line in enumerate(lines) if "Not in that file" in line)
    assert "      contextLength: 65536" in lines[:mark]
    assert "      maxRunningRequests: 4" in lines[mark:]


def test_what_the_file_does_not_have_is_said_to_be_assumed() -> None:
    told = "\n".join(command.report(moved("EP_SIZE=4\n"), ".env.tp4", "desk", written=None))
    for line in ("HEAD_IP=10.0.0.1", "WORKER_IPS=10.0.0.2 10.0.0.3", "WORKER_USER=zurih", "IMAGE=dsv41-3x-spark:local"):
        assert f"  {line}\n" in told


def test_the_command_prints_stack_file_and_rest_apart(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / ".env.tp4"
    file.write_text(f"{SWITCHED}IB_HCA=mlx5_0\r\n")
    assert fleet.main(["import-env", str(file), "--home", "/home/anna", "--checkout", "/srv/dsv41"]) == 0
    out, err = capfd.readouterr()
    volumes = yaml.safe_load(out)["config"]["spark-fabric:engine"]["volumes"]
    assert "/home/anna/dsv41-engram:/engram" in volumes
    assert "/srv/dsv41/state-tp4:/state" in volumes
    assert "    line 8: IB_HCA=mlx5_0\n" in err
    assert command.CARRIAGE_RETURNS in err


def test_a_file_that_is_there_is_not_replaced(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "Pulumi.desk.yaml").write_text("mine\n")
    (tmp_path / "x.env").write_text(RING)
    assert command.import_env(tmp_path / "x.env", "desk", Path("/h"), None, tmp_path) == 2
    assert (tmp_path / "Pulumi.desk.yaml").read_text() == "mine\n"
    assert "nothing was written" in capfd.readouterr().err


@pytest.mark.parametrize("content", [b"A='x\n", b"\xff\xfe", None])
def test_a_file_that_cannot_be_read_makes_no_stack_file(
    content: bytes | None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / "x.env").write_bytes(content)
    assert command.import_env(tmp_path / "x.env", "desk", Path("/h"), None, tmp_path) == 2
    assert not (tmp_path / "Pulumi.desk.yaml").exists()
    assert "x.env: cannot be read" in capfd.readouterr().err


def test_what_is_wrong_about_the_stack_file_is_said_and_is_the_exit_status(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.env").write_text(f"{RING}WORKER_IPS=192.168.1.12\nWORKER_HOSTS=a\nPORT=x\n")
    assert command.import_env(tmp_path / "x.env", "desk", Path("/h"), None, tmp_path) == 3
    told = capfd.readouterr().out
    assert "To be corrected in the stack file:" in told
    assert 'spark-fabric:engine.port: is "x"' in told
    assert (tmp_path / "Pulumi.desk.yaml").exists()


def test_nothing_in_the_file_is_run(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    moved(f"{RING}A=$(touch {trap})\nB=`touch {trap}`\ntouch {trap}\nC=1 touch {trap}\n. {trap}.sh\n")
    assert not trap.exists()
