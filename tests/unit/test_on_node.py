"""Running the node program over ssh: what is sent, what comes back, and how a silent node is told."""

from __future__ import annotations

import io
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fleet import on_node
from fleet.on_node import Answer, Link
from tests.unit import fakes
from tests.unit.fakes import FakeSsh, link, program

ECHO = """
import json, sys
print("working", file=sys.stderr)
print(json.dumps({"argv": sys.argv[1:], "request": json.loads(sys.stdin.read())}))
"""
REQUEST = {"owner": {"stack": "test"}, "node": "spark1"}


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSsh:
    """The stand-in for ssh."""
    return fakes.install(tmp_path, monkeypatch)


def asked(main: str = ECHO, verb: str = "observe", to: Link | None = None, limit: float | None = None) -> Answer:
    return on_node.ask(verb, "test", to or link(1), program(main), dict(REQUEST), limit)


# What is sent


def test_the_program_runs_from_memory_and_gets_verb_and_request(ssh: FakeSsh) -> None:
    answer = asked(verb="apply")
    assert (answer.status, answer.reached, answer.text) == (0, True, "working")
    assert answer.result == {"argv": ["apply"], "request": REQUEST}


@pytest.mark.parametrize(
    ("stage", "desired", "most"),
    [
        ("plane0", {}, 180),
        ("nic", {"functions": [1, 2]}, 510),
        ("nic", {"state": "off"}, 840),
        ("undo", {}, 840),
        ("engines", {"grace": 600}, 780),
    ],
)
def test_a_change_has_the_time_that_its_stage_may_take(
    ssh: FakeSsh, monkeypatch: pytest.MonkeyPatch, stage: str, desired: dict[str, Any], most: int
) -> None:
    given: list[int] = []
    real = on_node.ssh_command

    def command(config: Path, to: Link, limit: int, verb: str) -> list[str]:
        given.append(limit)
        return real(config, to, limit, verb)

    monkeypatch.setattr(on_node, "ssh_command", command)
    on_node.ask("apply", "test", link(1), program(ECHO), {**REQUEST, "stage": stage, "desired": desired})
    assert given == [most]


def test_a_node_is_known_by_its_name_and_not_by_its_address(ssh: FakeSsh) -> None:
    config = on_node.ssh_config("test", link(2, port=2222, identity="/keys/id", connect_s=7))
    text = config.read_text()
    for line in (
        "HostName 192.168.1.12",
        "HostKeyAlias spark2",
        "Port 2222",
        "StrictHostKeyChecking yes",
        "ConnectTimeout 7",
        'IdentityFile "/keys/id"',
        "IdentitiesOnly yes",
    ):
        assert f"  {line}\n" in text
    assert (config.parent / "spark2.known_hosts").read_text() == "spark2 ssh-ed25519 AAAA2\n"


@pytest.mark.parametrize(
    ("verb", "connect_s", "given"),
    [("observe", 7, None), ("cabling", 60, None), ("apply", 7, 30), ("revert", 60, 60), ("engines", 5, 30)],
)
def test_only_a_look_gives_a_node_up_within_seconds(verb: str, connect_s: int, given: int | None) -> None:
    command = on_node.ssh_command(Path("config"), link(1, connect_s=connect_s), 10, verb)
    found = [word for word in command if word.startswith("ConnectTimeout=")]
    assert found == ([] if given is None else [f"ConnectTimeout={given}"])


def test_what_belongs_to_stacks_lies_in_this_checkout(checkout: Path) -> None:
    assert (on_node.ROOT, on_node.folder("lab")) == (checkout, checkout / ".spark-fabric/lab")


def test_a_configuration_that_is_the_same_is_not_written_again(ssh: FakeSsh) -> None:
    config = on_node.ssh_config("test", link(1))
    before = config.stat()
    assert on_node.ssh_config("test", link(1)).stat().st_ino == before.st_ino
    on_node.ssh_config("test", link(1, port=23))
    assert "Port 23" in config.read_text()
    assert sorted(path.name for path in config.parent.iterdir()) == ["spark1.conf", "spark1.known_hosts"]


def test_no_secret_is_in_a_link() -> None:
    (made,) = json.loads(on_node.as_json([link(1, identity="~/.ssh/id")]))
    assert made == {
        "name": "spark1",
        "address": "192.168.1.11",
        "user": "nvidia",
        "port": 22,
        "host_key": "ssh-ed25519 AAAA1",
        "identity": "~/.ssh/id",
        "connect_s": 5,
    }


# What comes back


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("ssh: connect to host 192.168.1.11 port 22: No route to host", "No route to host. Is it on? To go on without"),
        ("Host key verification failed.", "another machine has this address, or spark1 was installed anew"),
        ("nvidia@192.168.1.11: Permission denied (publickey).", "Check ssh.user and ssh.identity"),
        ("", "no answer. Is it on?"),
    ],
)
def test_a_node_out_of_reach_is_told_with_what_to_do(said: str, told: str, ssh: FakeSsh) -> None:
    ssh.answers("spark1", None, status=255, said=said)
    answer = asked()
    assert not answer.reached
    assert answer.text.startswith("spark1 (nvidia@192.168.1.11:22): ")
    assert told in answer.text


def test_a_silent_node_costs_no_more_than_the_limit(ssh: FakeSsh) -> None:
    ssh.does("spark1", "exec sleep 100")
    began = time.monotonic()
    answer = asked(limit=0.5)
    assert time.monotonic() - began < 50
    assert not answer.reached
    assert "no answer within 0.5 s" in answer.text


@pytest.mark.parametrize("status", [124, 137])
def test_a_program_that_the_node_ended_for_its_time_is_told_so(status: int, ssh: FakeSsh) -> None:
    ssh.answers("spark1", None, status=status, said="half a line")
    answer = asked(verb="observe")
    assert (answer.status, answer.reached) == (status, True)
    assert answer.text == "half a line\nobserve: not done after 10 s, and ended. Is spark1 overloaded?"


def test_a_refusal_keeps_its_status_and_its_reasons(ssh: FakeSsh) -> None:
    ssh.answers("spark1", {"ok": False, "error": "an engine runs"}, status=9, said="an engine runs")
    answer = asked(verb="apply")
    assert (answer.status, answer.reached, answer.text) == (9, True, "an engine runs")


@pytest.mark.parametrize("main", ["", "print('Welcome to spark1')"])
def test_an_answer_that_is_none_is_a_failure(main: str, ssh: FakeSsh) -> None:
    answer = asked(main)
    assert (answer.status, answer.result) == (1, None)
    assert "Welcome" in answer.text or answer.text == "the node program gave no answer"


def test_noise_before_the_answer_does_no_harm(ssh: FakeSsh) -> None:
    assert asked("print('Welcome!')\nprint('{}')").result == {}


def test_all_nodes_are_asked_at_once(ssh: FakeSsh, monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(3, timeout=60)

    def ask(verb: str, stack: str, one: Link, *_: object) -> Answer:
        together.wait()
        return Answer(one.name, 0, {}, "")

    monkeypatch.setattr(on_node, "ask", ask)
    links = [link(number) for number in (3, 1, 2)]
    answers = on_node.on_all("observe", "test", links, {one.name: {} for one in links})
    assert [answer.node for answer in answers] == ["spark3", "spark1", "spark2"]


# As a command


def run_main(
    monkeypatch: pytest.MonkeyPatch, verb: str, links: list[Link], desired: dict[str, Any] | None, **env: str
) -> int:
    monkeypatch.setattr(sys, "argv", ["on_node.py", verb])
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(desired) if desired is not None else ""))
    variables = {"FLEET_LINKS": on_node.as_json(links), "FLEET_OWNER": '{"stack": "test"}', "FLEET_STAGE": "plane0"}
    for name, value in (variables | env).items():
        monkeypatch.setenv(name, value)
    return on_node.main()


def test_the_command_sends_each_node_its_own_part(ssh: FakeSsh, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: dict[str, Any] = {}

    def on_all(verb: str, stack: str, links: list[Link], requests: dict[str, Any]) -> list[Answer]:
        sent.update(requests, verb=verb)
        return []

    monkeypatch.setattr(on_node, "on_all", on_all)
    desired = {"spark1": {"name": "x"}, "spark2": {"name": "y"}}
    assert run_main(monkeypatch, "engines:stop", [link(1), link(2)], desired) == 0
    assert sent["verb"] == "engines"
    assert sent["spark1"]["desired"] == {"name": "x", "action": "stop"}
    assert sent["spark2"]["desired"] == {"name": "y", "action": "stop"}
    assert sent["spark2"]["stage"] == "plane0"


@pytest.mark.parametrize(
    ("status", "result", "done"),
    [(0, {}, ["before", "turn0", "after"]), (12, {}, ["before"]), (0, {"unverified": "no tool"}, ["before"])],
)
def test_of_several_actions_each_waits_for_all_nodes_and_for_success(
    status: int, result: dict[str, Any], done: list[str], ssh: FakeSsh, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def on_all(verb: str, stack: str, links: list[Link], requests: dict[str, Any]) -> list[Answer]:
        seen.append(requests["spark1"]["desired"]["action"])
        return [Answer("spark1", 0, {}, ""), Answer("spark2", status, result, "")]

    monkeypatch.setattr(on_node, "on_all", on_all)
    assert run_main(monkeypatch, "mesh-verify:before+turn0+after", [link(1), link(2)], {}) == status
    assert seen == done


def test_the_worst_node_decides_and_every_line_names_its_node(
    ssh: FakeSsh, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ssh.answers("spark1", {"ok": True, "changed": ["enp1s0f0np0: up"], "notes": []})
    ssh.answers("spark2", {"ok": False, "error": "no"}, status=12, said="spark2 enp1s0f0np0: MTU is 1500\nread back")
    assert run_main(monkeypatch, "apply", [link(1), link(2)], {}) == 12
    out, err = capsys.readouterr()
    assert out.splitlines() == ["spark1: enp1s0f0np0: up"]
    assert err.splitlines() == ["spark2 enp1s0f0np0: MTU is 1500", "spark2: read back"]


@pytest.mark.parametrize("way", ["file", "environment"])
def test_forgotten_nodes_are_skipped_and_that_is_said(
    way: str, ssh: FakeSsh, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ssh.answers("spark1", {})
    env = {"FLEET_LOST": "spark2"} if way == "environment" else {}
    if way == "file":
        on_node.folder("test").mkdir(parents=True)
        (on_node.folder("test") / "lost").write_text("spark2\n")
    assert run_main(monkeypatch, "revert", [link(1), link(2)], None, **env) == 0
    assert ssh.calls() == ["spark1"]
    assert "spark2: forgotten, skipped" in capsys.readouterr().out


def test_nothing_but_forgotten_nodes_is_a_success(ssh: FakeSsh, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_main(monkeypatch, "revert", [link(1)], None, FLEET_LOST="spark1") == 0
    assert ssh.calls() == []


def test_a_node_is_reached_as_it_last_answered(ssh: FakeSsh, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2, 3):
        ssh.answers(f"spark{number}", {})
    on_node.remember_links("test", [link(1, identity="/new"), link(2)])
    on_node.remember_links("test", [link(2, port=23)])
    assert run_main(monkeypatch, "revert", [link(1, identity="/old"), link(2), link(3)], None) == 0
    configs = on_node.folder("test") / "ssh"
    assert 'IdentityFile "/new"' in (configs / "spark1.conf").read_text()
    assert "Port 23" in (configs / "spark2.conf").read_text()
    assert "Port 22" in (configs / "spark3.conf").read_text()


def test_links_of_another_version_are_read(ssh: FakeSsh, monkeypatch: pytest.MonkeyPatch) -> None:
    later = {"name": "spark1", "address": "192.168.1.11", "user": "u", "port": 22, "host_key": "k", "colour": "red"}
    monkeypatch.setenv("FLEET_LINKS", json.dumps([later]))
    assert on_node.links_of_command("test") == [link(1, user="u", host_key="k")]


def test_a_node_out_of_reach_is_told_with_what_may_have_changed(
    ssh: FakeSsh, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ssh.answers("spark1", None, status=255, said="nvidia@192.168.1.11: Permission denied (publickey).")
    assert run_main(monkeypatch, "revert", [link(1)], None) == 255
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(
        "spark1 (nvidia@192.168.1.11:22): nvidia@192.168.1.11: Permission denied (publickey). Check"
    )
    assert second == "If the way to a node has changed (address, user, key), run a preview first."
