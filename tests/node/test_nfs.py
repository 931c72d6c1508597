"""What a node says of weights that are shared, and what it removes of them."""

from __future__ import annotations

import io
import socket
import tarfile
from typing import Any

import pytest

from node import nfs, observe
from node.request import READ_BACK, Failure, Owner
from node.run import Result
from node.system import System
from tests.node.helpers import OWNER, ask, take
from tests.node.machine import Machine

SERVER, NAME = "198.18.0.11", "spark-fabric-weights"
OPTIONS = {"type": "nfs", "o": f"addr={SERVER},ro,soft", "device": ":/"}
WANTED = {"server": SERVER, "volume": {"name": NAME, "driver": "local", "options": OPTIONS}, "label": OWNER.label()}
OTHER = Owner("spark-fabric", "other", "fleet-1", "state-2")


def volume(options: dict[str, str], owner: Owner | None = None, **more: Any) -> dict[str, Any]:
    labels = {nfs.SHARED: owner.label()} if owner else None
    return {"Name": NAME, "Driver": "local", "Options": options, "Labels": labels, **more}


@pytest.mark.parametrize(
    ("files", "client", "server"),
    [
        ({}, False, False),
        ({"/proc/filesystems": "nodev\tsysfs\nnodev\tnfs4\n\text4\n"}, True, False),
        ({"/proc/filesystems": "nodev\tnfsd\n"}, False, True),
        (
            {"/lib/modules/6.17/modules.dep": "kernel/fs/nfs/nfsv4.ko.zst: kernel/net/sunrpc/sunrpc.ko.zst\n"},
            True,
            False,
        ),
        ({"/lib/modules/6.17/modules.builtin": "kernel/fs/nfsd/nfsd.ko\n"}, False, True),
        ({"/lib/modules/6.16/modules.dep": "kernel/fs/nfs/nfsv4.ko: \n"}, False, False),
        ({"/proc/filesystems": "nodev\tnfs\n"}, False, False),
    ],
    ids=["nothing", "client", "server", "module", "built in", "of another kernel", "older version only"],
)
def test_a_kernel_is_a_client_or_a_server_if_it_has_it_or_can_load_it(
    files: dict[str, str], client: bool, server: bool, machine: Machine
) -> None:
    machine.put("/proc/sys/kernel/osrelease", "6.17\n")
    for path, text in files.items():
        machine.put(path, text)
    assert nfs.observe(machine, {})["kernel"] == {"client": client, "server": server}


def test_volumes_are_told_with_driver_options_and_labels(machine: Machine) -> None:
    machine.volumes = [volume(OPTIONS, OWNER)]
    found = nfs.observe(machine, {"volumes": [NAME, "none"]})["volumes"]
    labels = {nfs.SHARED: OWNER.label()}
    assert found == {NAME: {"driver": "local", "options": OPTIONS, "labels": labels}, "none": None}


def test_only_a_server_that_somebody_names_is_reached_for(machine: Machine) -> None:
    assert nfs.observe(machine, {})["reached"] is None
    assert machine.reached == 0
    assert nfs.observe(machine, {"server": SERVER})["reached"] == "Connection refused"
    machine.listening.add((SERVER, 2049))
    assert nfs.observe(machine, {"server": SERVER})["reached"] == ""


def archive(text: str) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as made:
        entry = tarfile.TarInfo("exports")
        entry.size = len(text)
        made.addfile(entry, io.BytesIO(text.encode()))
    return file.getvalue()


def test_the_exports_of_a_container_that_serves_already_are_read_in_it(machine: Machine) -> None:
    exports = {"/etc/exports": archive("# x\n/export 198.18.0.12(ro)\n")}
    machine.containers = [{"id": "glm-nfs", "name": "glm-nfs", "labels": {}, "state": "running", "files": exports}]
    assert nfs.observe(machine, {"reuse": "glm-nfs"})["exports"] == ["# x", "/export 198.18.0.12(ro)"]
    machine.containers[0]["files"] = {}
    assert nfs.observe(machine, {"reuse": "glm-nfs"})["exports"] == []
    machine.containers[0]["state"] = "exited"
    assert nfs.observe(machine, {"reuse": "glm-nfs"})["exports"] is None
    assert nfs.observe(machine, {"reuse": "none"})["exports"] is None


def test_only_who_asks_is_told_of_it(machine: Machine) -> None:
    assert "nfs" not in observe.observe(machine, OWNER)
    assert observe.observe(machine, OWNER, nfs={"volumes": [NAME]})["nfs"]["volumes"] == {NAME: None}


# Before a volume is made


def refused(machine: Machine) -> list[str]:
    with pytest.raises(Failure) as raised:
        nfs.reach(machine, "spark2", WANTED)
    assert raised.value.code == READ_BACK
    return list(raised.value.lines)


def test_a_server_that_comes_up_is_waited_for(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep(seconds: float) -> None:
        machine.time += seconds
        if machine.time > 1010:
            machine.listening.add((SERVER, 2049))

    monkeypatch.setattr(machine, "sleep", sleep)
    assert nfs.reach(machine, "spark2", WANTED) == {"problems": []}
    assert machine.reached > 10


def test_a_server_that_stays_silent_and_a_volume_that_is_another_are_both_told(machine: Machine) -> None:
    machine.volumes = [volume({"type": "none", "o": "bind", "device": "/data"})]
    before = list(machine.volumes)
    silent, other = refused(machine)
    assert silent == f"spark2: {SERVER} does not answer on TCP 2049: Connection refused"
    assert other.startswith(f"spark2: volume {NAME} is local with device=/data, o=bind, type=none, wanted local with ")
    assert other.endswith(f"device=:/, o=addr={SERVER},ro,soft, type=nfs")
    assert machine.volumes == before


@pytest.mark.parametrize(
    ("found", "right"),
    [
        (None, True),
        (volume(OPTIONS), True),
        (volume({**OPTIONS, "o": "x"}, OWNER), True),
        (volume(OPTIONS, OTHER), True),
        (volume({**OPTIONS, "o": "x"}, OTHER), False),
        (volume({**OPTIONS, "device": ":/x"}), False),
        (volume(OPTIONS, Driver="other"), False),
    ],
    ids=[
        "none",
        "the same",
        "ours, to be made anew",
        "another stack's, the same",
        "another stack's",
        "device",
        "driver",
    ],
)
def test_a_volume_is_used_only_if_it_is_just_so(found: dict[str, Any] | None, right: bool, machine: Machine) -> None:
    machine.listening.add((SERVER, 2049))
    machine.volumes = [found] if found else []
    if right:
        assert nfs.reach(machine, "spark2", WANTED) == {"problems": []}
    else:
        assert len(refused(machine)) == 1


def test_a_real_socket_is_reached_or_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert System().reach("127.0.0.1", port, 1.0) == ""
    assert System().reach("127.0.0.1", port, 1.0) == "Connection refused"


# What a killed run has left


def left(machine: Machine) -> None:
    take(machine)
    machine.volumes = [volume(OPTIONS, OWNER), {**volume(OPTIONS, OTHER), "Name": "theirs"}]
    machine.containers = [
        {"id": "1", "name": "spark-fabric-exporter", "labels": {nfs.SHARED: OWNER.label()}, "state": "running"},
        {"id": "2", "name": "other-exporter", "labels": {nfs.SHARED: OTHER.label()}, "state": "running"},
        {"id": "3", "name": "glm-nfs", "labels": {}, "state": "running"},
    ]


def test_volumes_and_server_of_this_stack_are_removed_and_nobody_elses(machine: Machine) -> None:
    left(machine)
    told = ask(machine, "unshare", desired={"action": "volumes"})
    assert told["changed"] == [f"volume {NAME}: removed"]
    assert len(machine.containers) == 3
    told = ask(machine, "unshare", desired={"action": "exporter"})
    assert told["changed"] == ["container spark-fabric-exporter: removed"]
    stop, remove = (call[1:] for call in machine.calls if call[0] == "docker" and call[2].startswith("/containers/1"))
    assert (stop, remove[0]) == (["POST", "/containers/1/stop?t=10"], "DELETE")  # killed, it takes no export back
    assert [one["Name"] for one in machine.volumes] == ["theirs"]
    assert [one["id"] for one in machine.containers] == ["2", "3"]
    assert ask(machine, "unshare", desired={"action": "exporter"})["changed"] == []


@pytest.mark.parametrize(
    ("found", "stays"),
    [
        (volume({**OPTIONS, "o": "x"}, OWNER), False),
        (volume(OPTIONS, OWNER), True),
        (volume({**OPTIONS, "o": "x"}, OTHER), True),
        (volume({**OPTIONS, "o": "x"}), True),
        (None, True),
    ],
    ids=["ours, another", "ours, the same", "another stack's", "nobody's", "none"],
)
def test_one_of_ours_that_is_another_makes_room(found: dict[str, Any] | None, stays: bool, machine: Machine) -> None:
    take(machine)
    machine.volumes = [found] if found else []
    told = ask(machine, "unshare", desired={"action": "other", "volume": WANTED["volume"]})
    assert told["changed"] == ([] if stays else [f"volume {NAME}: removed"])
    assert machine.volumes == ([found] if found and stays else [])


def test_a_volume_that_a_container_has_is_told_and_stays(machine: Machine) -> None:
    left(machine)
    machine.volumes[0]["used"] = True
    with pytest.raises(Failure, match=f"cannot remove volume {NAME}: .*in use"):
        ask(machine, "unshare", desired={"action": "volumes"})
    assert len(machine.volumes) == 2


def test_on_a_node_of_another_stack_nothing_is_removed(machine: Machine) -> None:
    left(machine)
    with pytest.raises(Failure):
        ask(machine, "unshare", desired={"action": "volumes"}, owner=OTHER)
    assert len(machine.volumes) == 2


def test_a_node_without_docker_has_nothing_to_remove(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    take(machine)

    def gone(*_: Any) -> Result:
        raise OSError(111, "Connection refused")

    monkeypatch.setattr(machine, "docker_call", gone)
    with pytest.raises(Failure, match="docker does not answer"):
        ask(machine, "unshare", desired={"action": "volumes"})
    with pytest.raises(Failure, match="docker does not answer"):
        nfs.reach(machine, "spark2", WANTED)
    machine.drop(machine.docker_socket)
    assert "no docker" in ask(machine, "unshare", desired={"action": "volumes"})["notes"][0]


def test_a_node_that_is_put_back_alone_loses_its_volume_and_is_told_of_its_server(machine: Machine) -> None:
    """Others may have mounted from it."""
    left(machine)
    told = ask(machine, "revert", "undo")
    assert f"volume {NAME}: removed" in told["changed"]
    assert [one["Name"] for one in machine.volumes] == ["theirs"]
    assert len(machine.containers) == 3
    assert any("spark-fabric-exporter serves weights" in line for line in told["notes"])


def test_a_volume_that_is_in_use_keeps_no_node_from_being_put_back(machine: Machine) -> None:
    left(machine)
    machine.volumes[0]["used"] = True
    told = ask(machine, "revert", "undo")
    assert any("in use" in line for line in told["notes"])
    assert not machine.exists("/var/lib/spark-fabric")
