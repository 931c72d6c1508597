"""RoCEnante in the simulated engine: its maps, and what it does when the cards say that a path does not work."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.engine.roce import End, RoceError, own_map, parse_map, questions
from lab.shell import wait_for
from tests.lab.mesh_reference import ADDRESSES, PATHS
from tests.lab.test_engine_group import Group

DEVICES = ["rocep1s0f0", "rocep1s0f1", "roceP2p1s0f0", "roceP2p1s0f1"]
NETDEVS = ["enp1s0f0np0", "enp1s0f1np1", "enP2p1s0f0np0", "enP2p1s0f1np1"]
MAPS = "1=0/2,2=0/3,3=1/3;0=1/3,2=0/2,3=0/3;0=1/2,1=1/3,3=0/2;0=0/2,1=1/2,2=1/3"  # rank order is ring order


def ends() -> list[End]:
    """The ranks of the reference instance."""
    return [
        End(
            f"r{rank}",
            dict(zip(DEVICES, (ADDRESSES[rank][netdev] for netdev in NETDEVS), strict=True)),
            own_map({"B12X_ROCE_PEER_HCA_MAPS": MAPS}, rank, DEVICES),
        )
        for rank in range(4)
    ]


def test_the_opposite_paths_of_the_maps_are_those_that_the_cards_forward() -> None:
    asked = questions(ends(), 3, only_opposite=True)
    expected = {
        (f"r{p.source}", p.device, p.dst, f"r{p.destination}", DEVICES[NETDEVS.index(p.arrival)]) for p in PATHS
    }
    assert {(q["node"], q["device"], q["address"], *q["receiver"]) for q in asked} == expected
    assert {q["sport"] for q in asked} == {65535}


def test_neighbours_are_reached_by_the_cable_between_them_and_without_the_marked_port() -> None:
    direct = [q for q in questions(ends(), 3, only_opposite=False) if q["sport"] != 65535]
    assert len(direct) == 16
    for q in direct:
        mine = ADDRESSES[int(q["node"][1])][NETDEVS[DEVICES.index(q["device"])]]
        assert mine.rpartition(".")[0] == q["address"].rpartition(".")[0]


@pytest.mark.parametrize("text", ["1=0/9", "1", "a=0/1", ""])
def test_a_map_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(RoceError, match="no map of peers"):
        parse_map(text, DEVICES)


def test_the_number_of_maps_is_that_of_the_ranks() -> None:
    with pytest.raises(RoceError, match="holds 3 maps, not 4"):
        own_map({"B12X_ROCE_PEER_HCA_MAPS": MAPS.rpartition(";")[0]}, 0, DEVICES)


class Card(socketserver.ThreadingTCPServer):
    """Answers as the agent of a node would; `lost` is the address that no frame reaches."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lost = ""
        self.asked: list[list[dict[str, Any]]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def answer(self, path: dict[str, Any]) -> dict[str, Any]:
        """By the addresses of the reference instance; all ranks of this test are on one node."""
        for ports in ADDRESSES:
            for device, netdev in zip(DEVICES, NETDEVS, strict=True):
                if ports[netdev] == path["address"] != self.lost:
                    return {"works": True, "reason": "", "receiver": [path["node"], device], "hops": []}
        return {"works": False, "reason": "no rule", "receiver": None, "hops": []}


class Handler(socketserver.StreamRequestHandler):
    """One question."""

    server: Card

    def handle(self) -> None:
        """Answer it."""
        paths = json.loads(self.rfile.readline())["paths"]
        self.server.asked.append(paths)
        self.wfile.write(json.dumps({"answer": [self.server.answer(path) for path in paths]}).encode() + b"\n")


@pytest.fixture
def card() -> Iterator[Card]:
    with Card() as server:
        yield server
        server.shutdown()


def lay_out_devices(root: Path, rank: int) -> None:
    for device, netdev in zip(DEVICES, NETDEVS, strict=True):
        octets = "".join(f"{int(part):02x}" for part in ADDRESSES[rank][netdev].split("."))
        files = {
            "state": "4: ACTIVE",
            "gids/3": f"0000:0000:0000:0000:0000:ffff:{octets[:4]}:{octets[4:]}",
            "gid_attrs/types/3": "RoCE v2",
            "gid_attrs/ndevs/3": netdev,
        }
        for name, content in files.items():
            path = root / str(rank) / device / "ports/1" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content + "\n")


@pytest.fixture
def group(tmp_path: Path, card: Card) -> Iterator[Group]:
    for rank in range(4):
        lay_out_devices(tmp_path / "sys", rank)
    env = {
        **dict.fromkeys(("NNODES", "TP_SIZE", "EP_SIZE"), "4"),
        "SGLANG_ROCE_ALLREDUCE": "1",
        "DSV41_ROCE_RING": "1",
        "SGLANG_ROCE_MAX_SIZE": "262144",
        "DSV41_ROCE_GATHER": "262144",
        "B12X_ROCE_HCA": ",".join(DEVICES),
        "B12X_ROCE_PEER_HCA_MAPS": MAPS,
        "ENGINE_CARD": f"127.0.0.1:{card.server_address[1]}",
    }
    one = Group(tmp_path, env, {rank: {"ENGINE_SYSFS": str(tmp_path / f"sys/{rank}")} for rank in range(4)})
    yield one
    one.end()


def test_a_step_asks_for_the_opposite_paths_and_fails_without_one(group: Group, card: Card) -> None:
    group.start(range(4))
    log = group.ready()
    hcas = ",".join(DEVICES)
    assert f"RoCEnante ready: world=4 hcas={hcas} gid_index=3 max_size=262144" in log
    assert "DSV41_ROCE_GATHER ready: max 262144 bytes per rank" in log
    assert len(card.asked[0]) == 24
    assert group.chat("19 + 23?")[0] == 200
    assert len(card.asked[-1]) == 8
    assert {tuple(path["bursts"]) for path in card.asked[-1]} == {(15, 8)}  # of a token, and of a prompt of three words
    card.lost = PATHS[0].dst
    assert group.chat("19 + 23?")[0] == 500
    assert all(f"to {PATHS[0].dst}: retries exceeded (no rule)" in group.log(rank) for rank in range(4))


def test_a_path_that_does_not_work_ends_all_ranks_before_they_load(group: Group, card: Card) -> None:
    card.lost = PATHS[-1].dst
    group.start(range(4))
    assert group.codes() == [1] * 4
    assert all(f"to {PATHS[-1].dst}: retries exceeded (no rule)" in group.log(rank) for rank in range(4))
    assert not any("Load weight begin" in group.log(rank) for rank in range(4))


def test_a_gid_at_another_index_is_named(group: Group) -> None:
    port = group.folder / "sys/2/rocep1s0f1/ports/1"
    for part in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
        (port / part / "3").rename(port / part / "4")
    group.start(range(4))
    assert wait_for(lambda: "no IPv4 GID of RoCE v2 at index 3 on rocep1s0f1" in group.log(2))
